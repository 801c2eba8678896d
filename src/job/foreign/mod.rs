//! Command lines of other programs as job files: every flag has a line in a table that says what it means here, and a flag that means
//! nothing here, or something that does not exist here, says so.

#![allow(clippy::enum_glob_use)] // The tables read better without a prefix on every line.

mod deepspeed;
mod fairseq;
mod transformers;
mod words;

use std::{collections::BTreeMap, fmt::Write as _};

use toml::Value;

use super::wording::suggest;

/// One flag of another program.
struct Flag {
    /// All of its names, with `_` for `-`, without the dashes in front.
    names: &'static [&'static str],
    meaning: Meaning,
}

/// Takes a flag's value, or a word without a flag, into a job; the error says what is wrong with it.
type Act = fn(&mut Job, &str) -> Result<(), String>;

/// What a flag means here. Only those with `Switch` in their names stand without a value.
enum Meaning {
    /// The value of this key, a whole number.
    Whole(&'static str),
    /// The value of this key, any number.
    Number(&'static str),
    /// One number of `train.betas`.
    Beta(usize),
    /// A file or directory, alone in this list.
    Path(&'static str),
    /// A word for settings here. Other words are refused.
    Choice(&'static [(&'static str, &'static [(&'static str, Setting)])]),
    /// Must be this number; any other is refused for the reason.
    Must(f64, &'static str),
    /// Changes nothing here, for the reason.
    Nothing(&'static str),
    /// As [`Meaning::Nothing`], for a flag without a value.
    Switch(&'static str),
    /// These settings here, for a flag without a value.
    SwitchTo(&'static [(&'static str, Setting)]),
    /// Not to be had here, for the reason.
    Refused(&'static str),
    /// As [`Meaning::Refused`], for a flag without a value.
    NoSwitch(&'static str),
    /// For what no table can say.
    Special(Act),
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
    /// What it does without any flag, where that differs from a job here.
    defaults: &'static [&'static [(&'static str, Setting)]],
    /// What stands before or after the flags without dashes.
    positional: Option<Act>,
    flags: &'static [&'static [Flag]],
    /// What flags together mean.
    finish: Option<fn(&mut Job)>,
}

/// A job file in the making.
#[derive(Default)]
pub struct Job {
    /// By dotted key.
    values: BTreeMap<String, Value>,
    /// What the user should know.
    notes: Vec<String>,
    /// What cannot be translated.
    problems: Vec<String>,
    /// Contents of the DeepSpeed configuration, by whoever can read files.
    deepspeed: Option<serde_json::Value>,
}

impl Job {
    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.values.insert(key.to_owned(), value.into());
    }

    fn note(&mut self, flag: &str, reason: &str) {
        self.notes.push(format!("{flag}: {reason}"));
    }

    fn number(&self, key: &str) -> Option<f64> {
        let value = self.values.get(key)?;
        value.as_float().or(value.as_integer().map(|number| number as f64))
    }

    fn set_beta(&mut self, index: usize, number: f64) {
        let mut betas = match self.values.get("train.betas").and_then(Value::as_array) {
            Some(betas) => betas.clone(),
            None => vec![0.9.into(), 0.999.into()],
        };
        betas[index] = number.into();
        self.set("train.betas", betas);
    }

    fn apply(&mut self, flag: &str, meaning: &Meaning, value: &str) -> Result<(), String> {
        match meaning {
            Meaning::Whole(key) => self.set(key, whole(value)?),
            Meaning::Number(key) => self.set(key, number(value)?),
            Meaning::Beta(index) => self.set_beta(*index, number(value)?),
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
            Meaning::SwitchTo(settings) => settings.iter().for_each(|(key, setting)| self.set(key, *setting)),
            Meaning::Nothing(reason) | Meaning::Switch(reason) => self.note(flag, reason),
            Meaning::Refused(reason) | Meaning::NoSwitch(reason) => return Err((*reason).to_owned()),
            Meaning::Special(act) => return act(self, value),
        }
        Ok(())
    }

    /// The job file, with what the user should know as comments; the problems, one a line, when there are any.
    fn finish(self, command: &str) -> Result<Translated, String> {
        if !self.problems.is_empty() {
            return Err(self.problems.join("\n"));
        }
        let mut text = format!(
            "#:schema ../job.schema.json\n# Translated from: {}\n",
            command.split_whitespace().collect::<Vec<_>>().join(" ")
        );
        for note in &self.notes {
            let _ = writeln!(text, "# {note}");
        }
        text.push_str("\nname = \"translated\"\n");
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
}

/// A job file and what the user should know about it.
#[derive(Debug)]
pub struct Translated {
    pub text: String,
    pub notes: Vec<String>,
}

const PROGRAMS: [&Program; 3] = [&transformers::RUN_CLM, &transformers::RUN_LANGUAGE_MODELING, &fairseq::TRAIN];

/// Translates a command line. `read` gives the text of a file that it names. The error says everything that is wrong, one thing a line.
pub fn translate(command: &str, read: &dyn Fn(&str) -> Result<String, String>) -> Result<Translated, String> {
    let words = words::split(command)?;
    let name = |word: &String| word.rsplit('/').next().unwrap_or_default().to_owned();
    let program = |word: &String| PROGRAMS.into_iter().find(|program| program.names.contains(&name(word).as_str()));
    let Some((place, program)) = words.iter().enumerate().find_map(|(place, word)| Some((place, program(word)?))) else {
        let known: Vec<&str> = PROGRAMS.iter().flat_map(|program| program.names).copied().collect();
        return Err(format!("the command names no program that is known here: {}", known.join(", ")));
    };
    let mut job = Job::default();
    program.defaults.iter().copied().flatten().for_each(|(key, setting)| job.set(key, *setting));
    words::apply(&mut job, &words[..place], LAUNCHERS, Some(|_, _| Ok(())));
    if let Some(file) = words::value_of(&words[place..], "deepspeed") {
        let parsed = read(&file).and_then(|text| serde_json::from_str(&text).map_err(|error| format!("{file}: {error}")));
        match parsed {
            Ok(config) => job.deepspeed = Some(config),
            Err(problem) => job.problems.push(format!("--deepspeed: {problem}")),
        }
    }
    words::apply(&mut job, &words[place + 1..], program.flags, program.positional);
    deepspeed::apply(&mut job);
    if let Some(finish) = program.finish {
        finish(&mut job);
    }
    job.finish(command)
}

/// `deepspeed`, `torchrun`, `python -m torch.distributed.launch`, `accelerate launch` and `mpirun`.
const LAUNCHERS: &[&[Flag]] = &[&[
    Flag { names: &["num_gpus", "nproc_per_node", "num_processes", "n", "np"], meaning: Meaning::Must(1.0, ONE_DEVICE) },
    Flag { names: &["num_nodes", "nnodes", "num_machines"], meaning: Meaning::Must(1.0, ONE_DEVICE) },
    Flag { names: &["m"], meaning: Meaning::Nothing("the trainer starts itself") },
    Flag { names: &["master_port", "master_addr", "include", "hostfile"], meaning: Meaning::Nothing("there is one process") },
]];

const NAMED_BY_JOB: &str = "a job's files are named by its id; `ftctl download` puts them where you like";
const PRECISION: &str =
    "weights and evaluation stay in float32 here; give the matrix products a narrower `train.precision` in the job file";
const ONE_DEVICE: &str = "training on several devices does not exist here yet; give 1";

fn whole(value: &str) -> Result<i64, String> {
    value.parse().map_err(|_| format!("`{value}` is no whole number"))
}

fn number(value: &str) -> Result<f64, String> {
    value.parse().ok().filter(|number: &f64| number.is_finite()).ok_or_else(|| format!("`{value}` is no number"))
}

#[cfg(test)]
mod tests;
