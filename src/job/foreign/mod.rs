//! Command lines of other programs as job files: every flag has a line in a table that says what it means here, and a flag that
//! means nothing here, or something that does not exist here, says so. For a program that trains nothing there is the command of
//! ftctl that does what it does. `azureml` reads a job of Azure ML, which has such a command line in it.

#![allow(clippy::enum_glob_use)] // The tables read better without a prefix on every line.

pub mod azureml;
mod deepspeed;
mod fairseq;
mod launchers;
mod transformers;
mod verbs;
mod words;
mod wrappers;

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use ft_trainer::settings::length::Length as Steps;
use toml::Value;

use super::{
    hub::{self, HubName, Kind, Repository},
    printable,
    wording::{shell_word, suggest},
};

/// One flag of another program.
struct Flag {
    /// All of its names, with `_` for `-`, without the dashes in front.
    names: &'static [&'static str],
    meaning: Meaning,
}

/// Takes a flag's value, or a word without a flag, into a job; the error says what is wrong with it.
type Act = fn(&mut Job, &str) -> Result<(), String>;

/// The meaning of a flag here. Only the variants with `Switch` in their names stand without a value. Flags of a program that trains
/// nothing have flags of ftctl for keys.
enum Meaning {
    /// The value of this key, a whole number.
    Whole(&'static str),
    /// The value of this key, any number.
    Number(&'static str),
    /// The value of this key: a number of steps, or below 1 a share of the run. 0 and less stand for never.
    Length(&'static str),
    /// One number of `train.betas`.
    Beta(usize),
    /// The value of this key as it is written.
    Text(&'static str),
    /// A file or directory, alone in this list.
    Path(&'static str),
    /// A word for settings here. Other words are refused.
    Choice(&'static [(&'static str, &'static [(&'static str, Setting)])]),
    /// Must be this number; any other is refused for the reason.
    Must(f64, &'static str),
    /// Must be one of these words; any other is refused for the reason.
    Only(&'static [&'static str], &'static str),
    /// Changes nothing here, for the reason.
    Nothing(&'static str),
    /// [`Meaning::Nothing`] for a flag without a value.
    Switch(&'static str),
    /// These settings here, for a flag without a value.
    SwitchTo(&'static [(&'static str, Setting)]),
    /// Not available here, for the given reason.
    Refused(&'static str),
    /// [`Meaning::Refused`] for a flag without a value.
    NoSwitch(&'static str),
    /// Always so here: a flag without a value that is refused for the reason when it is `false`.
    Always(&'static str),
    /// For what no table can say.
    Special(Act),
    /// [`Meaning::Special`] for a flag without a value.
    SpecialSwitch(Act),
}

impl Meaning {
    fn is_switch(&self) -> bool {
        matches!(self, Self::Switch(_) | Self::SwitchTo(_) | Self::NoSwitch(_) | Self::Always(_) | Self::SpecialSwitch(_))
    }

    /// Takes a switch that is turned off, or refuses it with the reason.
    fn turned_off(&self) -> Result<(), String> {
        if let Self::Always(reason) = self { Err((*reason).to_owned()) } else { Ok(()) }
    }
}

/// A value that a table can hold.
#[derive(Clone, Copy)]
enum Setting {
    Word(&'static str),
    Number(f64),
    Whole(i64),
    Yes,
}

impl From<Setting> for Value {
    fn from(setting: Setting) -> Self {
        match setting {
            Setting::Word(word) => word.into(),
            Setting::Number(number) => number.into(),
            Setting::Whole(number) => number.into(),
            Setting::Yes => true.into(),
        }
    }
}

/// A program whose command lines are understood.
struct Program {
    /// File names that it is started by.
    names: &'static [&'static str],
    /// A flag that tells it from other programs of the same name.
    told_by: Option<&'static str>,
    /// The program's defaults that differ from those of a job here.
    defaults: &'static [&'static [(&'static str, Setting)]],
    /// The act for arguments without dashes, before or after the flags.
    positional: Option<Act>,
    flags: &'static [&'static [Flag]],
    /// Whether it takes the beginning of a flag for the flag, as Python's argparse does unless told otherwise.
    abbreviates: bool,
    /// The act for flags that mean something together.
    finish: Option<fn(&mut Job)>,
    /// Its ways that no flag names and that a job does not share: of what, and which.
    ways: &'static [(&'static str, &'static str)],
    /// The command of ftctl that replaces a program that trains nothing.
    instead: Option<fn(&Job) -> String>,
}

impl Program {
    /// Whether `words[place]` starts it, as a file or, as after `python -m`, as a module.
    fn is_started_by(&self, words: &[String], place: usize) -> bool {
        let file = words::file_name(&words[place]);
        let module = file.rsplit('.').next();
        let named =
            self.names.iter().any(|name| *name == file || name.strip_suffix(".py").is_some_and(|name| module == Some(name)));
        named && self.told_by.is_none_or(|flag| words.iter().any(|word| words::is_flag(word, flag)))
    }
}

/// A job file in the making.
#[derive(Default)]
pub struct Job {
    /// By dotted key.
    values: BTreeMap<String, Value>,
    /// Notes for the user.
    notes: Vec<String>,
    /// Flags that cannot be translated.
    problems: Vec<String>,
    /// Contents of the DeepSpeed configuration, given by a caller that may read files.
    deepspeed: Option<serde_json::Value>,
    /// `config.json` of the model, where it can be read.
    model_config: Option<serde_json::Value>,
    /// The tokens of the longest text that the tokenizer is for, where its files are here and say so.
    longest_text: Option<f64>,
    processes: launchers::Processes,
}

impl Job {
    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.values.insert(key.to_owned(), value.into());
    }

    /// Whatever was said before, 0 and less stand for nothing at all.
    fn set_if_positive<N: PartialOrd + Default + Into<Value>>(&mut self, key: &str, number: N) {
        if number > N::default() {
            self.set(key, number);
        } else {
            self.values.remove(key);
        }
    }

    fn note(&mut self, flag: &str, reason: &str) {
        self.notes.push(format!("{flag}: {reason}"));
    }

    /// Takes out what stands for a word only until everything is known.
    fn take_word(&mut self, key: &str) -> Option<String> {
        self.values.remove(key)?.as_str().map(str::to_owned)
    }

    fn number(&self, key: &str) -> Option<f64> {
        as_number(self.values.get(key)?)
    }

    /// The value in a shell's spelling; empty when there is none.
    fn word(&self, key: &str) -> String {
        self.values.get(key).map_or_else(String::new, |value| value.as_str().map_or_else(|| value.to_string(), shell_word))
    }

    /// Takes out all keys below `table`, which ends with a dot.
    fn remove_table(&mut self, table: &str) {
        self.values.retain(|key, _| !key.starts_with(table));
    }

    /// Checkpoints are few here unless a flag of the program says how many.
    fn note_checkpoints(&mut self, flag: &str) {
        if !self.values.contains_key(KEEP) {
            self.note(
                KEEP,
                &format!("without {flag} the program keeps every checkpoint, and a job the newest two; for more set it"),
            );
        }
    }

    fn betas(&self) -> [f64; 2] {
        let set = self.values.get("train.betas").and_then(Value::as_array);
        let beta = |index: usize, usual| set.and_then(|betas| as_number(&betas[index])).unwrap_or(usual);
        [beta(0, 0.9), beta(1, 0.999)]
    }

    fn set_beta(&mut self, index: usize, number: f64) {
        let mut betas = self.betas();
        betas[index] = number;
        self.set("train.betas", betas.map(Value::from).to_vec());
    }

    fn apply(&mut self, flag: &str, meaning: &Meaning, value: &str) -> Result<(), String> {
        match meaning {
            Meaning::Whole(key) => self.set(key, whole(value)?),
            Meaning::Number(key) => self.set(key, number(value)?),
            Meaning::Length(key) => self.set(key, length(value)?),
            Meaning::Beta(index) => self.set_beta(*index, number(value)?),
            Meaning::Text(key) => self.set(key, value),
            Meaning::Path(key) => self.set(key, vec![Value::from(value)]),
            Meaning::Choice(choices) => {
                let Some((_, settings)) = choices.iter().find(|(word, _)| word.eq_ignore_ascii_case(value)) else {
                    let known: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
                    return Err(format!("`{value}` does not exist here; {}", suggest(value, &known, "values")));
                };
                settings.iter().for_each(|(key, setting)| self.set(key, *setting));
            }
            Meaning::Must(only, reason) => {
                if number(value)?.to_bits() != only.to_bits() {
                    return Err((*reason).to_owned());
                }
            }
            Meaning::Only(words, reason) => {
                if !words.iter().any(|word| word.eq_ignore_ascii_case(value)) {
                    return Err((*reason).to_owned());
                }
            }
            Meaning::Always(_) => {}
            Meaning::SwitchTo(settings) => settings.iter().for_each(|(key, setting)| self.set(key, *setting)),
            Meaning::Nothing(reason) | Meaning::Switch(reason) => self.note(flag, reason),
            Meaning::Refused(reason) | Meaning::NoSwitch(reason) => return Err((*reason).to_owned()),
            Meaning::Special(act) | Meaning::SpecialSwitch(act) => return act(self, value),
        }
        Ok(())
    }

    /// Takes over what a command line says, as far as it can be followed; `read` gives the text of a file that it names.
    fn take(&mut self, words: &[String], read: Read<'_>) -> Result<&'static Program, Refused> {
        let program = |place| PROGRAMS.into_iter().find(|program| program.is_started_by(words, place));
        let Some((place, program)) = (0..words.len()).find_map(|place| Some((place, program(place)?))) else {
            return Err(unknown_program(words));
        };
        program.defaults.iter().copied().flatten().for_each(|(key, setting)| self.set(key, *setting));
        let (before, mut launched) = wrappers::parted(self, &words[..place]);
        launchers::variables(self, before);
        words::apply(self, &launched, launchers::FLAGS, true, Some(|_, _| Ok(())));
        let given = self.spelt_out(program, &words[place + 1..], read);
        self.read_deepspeed(&given, read);
        // In a file every flag has its whole name.
        let abbreviates = program.abbreviates && given.as_slice() == &words[place + 1..];
        words::apply(self, &given, program.flags, abbreviates, program.positional);
        launched.push(words[place].clone());
        launchers::settle(self, &launched, read);
        deepspeed::apply(self);
        launchers::settle_shards(self);
        self.find_models(read);
        self.read_config(read);
        if let Some(finish) = program.finish {
            finish(self);
        }
        program.ways.iter().for_each(|(what, way)| self.note(what, way));
        Ok(program)
    }

    /// The words after a program's name. transformers takes all flags from a JSON file that stands alone.
    fn spelt_out(&mut self, program: &Program, words: &[String], read: Read<'_>) -> Vec<String> {
        let is_json = |file: &str| Path::new(file).extension().is_some_and(|extension| extension == "json");
        match words {
            [file] if is_json(file) && program.positional.is_none() => match json(file, read) {
                Ok(serde_json::Value::Object(flags)) => return words::of_table(self, &flags, program.flags),
                Ok(_) => self.problems.push(format!("{file}: flags belong into an object, as {{\"train_file\": \"a.txt\"}}")),
                Err(problem) => self.problems.push(problem),
            },
            _ => return words.to_vec(),
        }
        Vec::new()
    }

    /// transformers takes the configuration in the place of its file, too.
    fn read_deepspeed(&mut self, words: &[String], read: Read<'_>) {
        let inline = |text: &str| serde_json::from_str(text).map_err(|error| error.to_string());
        let given = words::value_of(words, "deepspeed");
        match given.map(|given| if given.starts_with('{') { inline(&given) } else { json(&given, read) }) {
            Some(Ok(config)) if config.is_object() => self.deepspeed = Some(config),
            Some(Ok(_)) => self.problems.push("--deepspeed: its configuration is an object, and this is none".to_owned()),
            Some(Err(problem)) => self.problems.push(format!("--deepspeed: {problem}")),
            None => {}
        }
    }

    /// A model that is no directory here is one of the hub, as the program takes it.
    fn find_models(&mut self, read: Read<'_>) {
        let revision = self.take_word(REVISION).map(|revision| format!("@{revision}")).unwrap_or_default();
        for (key, flag) in [(WEIGHTS, "--model_name_or_path"), (TOKENIZER, "--tokenizer_name"), (CONFIG, "--config_name")] {
            let Some(name) = self.values.get(key).and_then(Value::as_str).map(str::to_owned) else { continue };
            let is_path = name.starts_with(['.', '/', '~']) || hub::is_name(&name);
            let is_here = || MODEL_FILES.iter().any(|file| read(&format!("{name}/{file}")).is_ok());
            if is_path || is_here() {
                continue;
            }
            if Repository::parse(Kind::Models, &name).is_err() {
                let taken = "it is taken for a directory that will be here; a name of the hub is OWNER/NAME";
                self.note(flag, &format!("there is no directory {name} here, and no name of the hub is like it: {taken}"));
                continue;
            }
            let on_hub = format!("{}{name}{revision}", hub::PREFIX);
            match HubName::of_model(&on_hub) {
                Some(Ok(found)) => {
                    self.set(key, found.to_string());
                    let is_published = hub::published(&name).is_some();
                    if !is_published {
                        self.note(
                            flag,
                            &format!(
                                "there is no directory {name} here, so it is of the hub; for one that will be here write ./{name}"
                            ),
                        );
                    }
                }
                Some(Err(problem)) => self.problems.push(format!("{flag}: {problem}")),
                None => {}
            }
        }
    }

    /// That of the weights may be read later: they need not be here yet.
    fn read_config(&mut self, read: Read<'_>) {
        let model = [CONFIG, WEIGHTS].iter().find_map(|key| self.values.get(*key)?.as_str());
        let is_config = self.values.contains_key(CONFIG);
        let tokenizer = [TOKENIZER, WEIGHTS].iter().find_map(|key| self.values.get(*key)?.as_str());
        if let Some(tokenizer) = tokenizer.filter(|tokenizer| !hub::is_name(tokenizer)) {
            let said = json(&format!("{tokenizer}/tokenizer_config.json"), read);
            self.longest_text = said.ok().and_then(|said| said["model_max_length"].as_f64());
        }
        // Nothing is fetched for what may as well be its default.
        let Some(model) = model.filter(|model| is_config || !hub::is_name(model)) else { return };
        match json(&format!("{model}/config.json"), read) {
            Ok(config) => self.model_config = Some(config),
            Err(problem) if is_config => self.problems.push(format!("--config_name: {problem}")),
            Err(_) => {}
        }
    }

    /// The job file for `what`, with notes for the user as comments; or why there is none.
    fn finish(mut self, what: &str, source: &str, program: &Program) -> Result<Translated, Refused> {
        if !self.problems.is_empty() {
            return Err(self.refused(what));
        }
        if let Some(instead) = program.instead {
            let lines: Vec<String> = self.notes.iter().map(|note| format!("\n{note}")).collect();
            let what = format!("a job file is for training, and {} does something else{}", program.names[0], lines.concat());
            return Err(Refused { what, fix: instead(&self) });
        }
        let mut text =
            format!("#:schema ../job.schema.json\n# Translated from: {}\n", printable::line(&words::without_secrets(source)));
        for note in &self.notes {
            let _ = writeln!(text, "# {}", printable::line(note));
        }
        let name = self.values.remove(NAME).unwrap_or_else(|| "translated".into());
        let _ = writeln!(text, "\n{NAME} = {name}");
        let (top, mut nested): (Vec<_>, Vec<_>) = self.values.iter().partition(|(key, _)| !key.contains('.'));
        nested.sort_by_key(|(key, _)| key.rsplit_once('.').map(|(parent, _)| parent)); // each table once
        for (key, value) in top {
            let _ = writeln!(text, "{key} = {value}");
        }
        let mut table = "";
        for (key, value) in nested {
            let (parent, name) = key.rsplit_once('.').unwrap_or(("", key));
            if parent != table {
                let _ = writeln!(text, "\n[{parent}]");
                table = parent;
            }
            let _ = writeln!(text, "{name} = {value}");
        }
        Ok(Translated { text, notes: self.notes })
    }

    fn refused(self, what: &str) -> Refused {
        let fix =
            "take out, change or add what these lines name, and translate again; `ftctl schema` has all that a job can be told";
        Refused { what: format!("{what} cannot be translated:\n{}", self.problems.join("\n")), fix: fix.to_owned() }
    }
}

/// A job file and notes for the user.
#[derive(Debug)]
pub struct Translated {
    pub text: String,
    pub notes: Vec<String>,
}

/// Why a command becomes no job file.
#[derive(Debug)]
pub struct Refused {
    /// Everything that is wrong, one thing a line.
    pub what: String,
    pub fix: String,
}

const PROGRAMS: [&Program; 9] = [
    &transformers::RUN_CLM,
    &transformers::NO_TRAINER,
    &transformers::RUN_LANGUAGE_MODELING,
    &fairseq::TRAIN,
    &fairseq::TRAIN_SCRIPT,
    &verbs::RUN_GENERATION,
    &verbs::BPE_ENCODER,
    &verbs::PREPROCESS,
    &verbs::PREPROCESS_SCRIPT,
];

/// The text of a file that a command line names, or why there is none.
type Read<'r> = &'r dyn Fn(&str) -> Result<String, String>;

fn json(file: &str, read: Read<'_>) -> Result<serde_json::Value, String> {
    read(file).and_then(|text| serde_json::from_str(&text).map_err(|error| format!("{file}: {error}")))
}

const COMMAND: &str = "the command";

/// Translates a command line. `read` gives the text of a file that it names.
pub fn translate(command: &str, read: Read<'_>) -> Result<Translated, Refused> {
    let words = words::split(command).map_err(|problem| Job { problems: vec![problem], ..Job::default() }.refused(COMMAND))?;
    let mut job = Job::default();
    let program = job.take(&words, read)?;
    job.finish(COMMAND, command, program)
}

/// Programs that are known for what they cannot become, by their names without an extension.
const OTHERS: [(&[&str], &str, &str); 9] = [
    (&["run_mlm", "run_mlm_no_trainer", "run_mlm_flax", "run_mlm_wwm"], "trains a model that fills gaps in a text", CAUSAL),
    (&["run_plm"], "trains a model that predicts tokens in any order", CAUSAL),
    (&["run_fim", "run_fim_no_trainer"], "moves the middle of a text to its end for some documents, which no job does", CAUSAL),
    (&["run_bart_dlm", "run_t5_mlm_flax", "run_bart_dlm_flax"], "trains a model that mends a text", CAUSAL),
    (
        &["fairseq-hydra-train", "hydra_train"],
        "takes Hydra's settings (group.key=value and YAML files) in the place of flags",
        "give the fairseq-train command that does the same",
    ),
    (
        &["train"],
        "has settings of its own, as nanoGPT's has (fairseq's is known by --task)",
        "give the command of run_clm.py or fairseq-train that does the same, or write a job file, to begin with one of \
         `ftctl init --list`; data.format = \"nanogpt\" takes nanoGPT's train.bin",
    ),
    (&["trl", "sft"], "makes its texts of chats and prompts", "give the command of run_clm.py that trains on the same text"),
    (&["run_clm_flax"], "has an optimizer and flags of its own", "give the command of run_clm.py that does the same"),
    (
        &["fairseq-eval-lm", "eval_lm"],
        "trains nothing: it evaluates what fairseq saved",
        "`ftctl eval` evaluates a Hugging Face directory, such as `ftctl download` leaves",
    ),
];
const CAUSAL: &str = "GPT-2 and fairseq's language models of its kind can be trained here, by run_clm.py or fairseq-train";

fn unknown_program(words: &[String]) -> Refused {
    let file = |word: &String| words::file_name(word).trim_end_matches(".py").to_owned();
    for word in words.iter().map(file) {
        if let Some((_, why, fix)) = OTHERS.iter().find(|(names, ..)| names.contains(&word.as_str())) {
            return Refused { what: format!("{word} cannot become a job: it {why}"), fix: (*fix).to_owned() };
        }
    }
    let is_stripped = |word: &&String| {
        let names = || PROGRAMS.iter().flat_map(|program| program.names);
        word.chars().nth(1) == Some(':') && names().any(|name| word.ends_with(name))
    };
    if let Some(word) = words.iter().find(is_stripped) {
        return Refused {
            what: format!("the command names no program that is known here: a shell reads {word}, without any backslash"),
            fix: "write the path in quotation marks, or with / for each backslash".to_owned(),
        };
    }
    let name = |program: &Program| match program.told_by {
        Some(flag) => format!("{} with --{flag}", program.names[0]),
        None => program.names[0].to_owned(),
    };
    let known = PROGRAMS.map(name).join(", ");
    Refused {
        what: "the command names no program that is known here".to_owned(),
        fix: format!("known are {known}; for anything else write a job file, to begin with one of `ftctl init --list`"),
    }
}

/// How many checkpoints are kept. Nothing, or less, stands for all.
fn keep(job: &mut Job, value: &str) -> Result<(), String> {
    let count = whole(value)?;
    if count > 0 {
        job.set(KEEP, count);
    }
    Ok(())
}

const NAME: &str = "name";
const KEEP: &str = "train.keep_checkpoints";
const MICRO_BATCH: &str = "train.micro_batch";
// Number format of the flags: no setting.
const HALF: &str = "half";
const ACCUMULATION: &str = "train.gradient_accumulation";
const WEIGHTS: &str = "initial_weights";
/// The directory of a `config.json` that is not the weights'; taken out again.
const CONFIG: &str = "config";
const TOKENIZER: &str = "data.tokenizer.directory";
/// That of models of the hub; taken out again.
const REVISION: &str = "revision";
/// A directory with one of them is a model's, or a tokenizer's.
const MODEL_FILES: [&str; 4] = ["config.json", "tokenizer_config.json", "tokenizer.json", "vocab.json"];
const EVAL_EVERY: &str = "train.eval_every";
const CHECKPOINT_EVERY: &str = "train.checkpoint_every";
const LOG_EVERY: &str = "train.log_every";
const STEPS: &str = "train.steps";
const BLOCK_SIZE: &str = "train.block_size";
const CONTEXT: &str = "model.context";
/// Its shards are as many as there are processes. It is taken out again where there is one process.
const ZERO: &str = "train.zero";
const OWN_PROCESSES: &str = "ftctl starts the processes, which find each other by themselves";
const TRACKERS: &str = "event files for TensorBoard are always written, and [tracking] names an MLflow server";
const OWN_LOG: &str = "`ftctl logs` has what the trainer says";
const OWN_LOADER: &str = "the trainer reads its data by itself, and no batch is waited for";
const OTHER_OPTIMIZER: &str = "it belongs to an optimizer that is not translated";
const OTHER_SCHEDULE: &str = "it belongs to a schedule that does not exist here";
const OWN_KERNELS: &str = "the trainer has its own kernels";
const ALL_CORES: &str = "all cores are used";
const NAMED_BY_JOB: &str = "a job's files are named by its id; `ftctl download` puts them where you like";
const PRECISION: &str =
    "weights and evaluation stay in float32 here; give the matrix products a narrower `train.precision` in the job file";
const ONE_DEVICE: &str = "a model is on one device here; compute.processes_per_node shares a step's sequences among devices";

fn as_number(value: &Value) -> Option<f64> {
    value.as_float().or(value.as_integer().map(|number| number as f64))
}

/// Also `1e3`.
fn whole(value: &str) -> Result<i64, String> {
    let written = |number: f64| (number.fract() == 0.0 && number.abs() < 2.0_f64.powi(53)).then_some(number as i64);
    let found = value.parse().ok().or_else(|| value.parse().ok().and_then(written));
    found.ok_or_else(|| format!("`{value}` is not a whole number"))
}

/// A number of steps, or below 1 a share of the run; 0 and less stand for never.
fn length(value: &str) -> Result<Value, String> {
    let found = number(value)?;
    if found > 0.0 && found < 1.0 { Ok(share(found)) } else { Ok(whole(value)?.max(0).into()) }
}

/// `3%`, and not the nearest float to it.
fn share(part: f64) -> Value {
    Steps::Percent((part * 1e12).round() / 1e10).to_string().into()
}

fn epochs(number: f64) -> Value {
    Steps::Epochs(number).to_string().into()
}

fn number(value: &str) -> Result<f64, String> {
    value.parse().ok().filter(|number: &f64| number.is_finite()).ok_or_else(|| format!("`{value}` is not a number"))
}

#[cfg(test)]
mod tests;
