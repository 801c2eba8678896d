//! Programs that train nothing. A command of ftctl replaces each; its flags and words are the keys of these tables.

use super::{
    ALL_CORES, Flag, Job,
    Meaning::*,
    Program,
    Setting::{Number as N, Whole as I, Word as W},
    WEIGHTS,
};
use crate::job::wording::shell_word;

/// transformers' example that continues a text.
pub(super) const RUN_GENERATION: Program = Program {
    names: &["run_generation.py"],
    told_by: None,
    defaults: &[&[
        (WEIGHTS, W("gpt2")),
        (SEQUENCES, I(1)),
        ("--tokens", I(20)),
        ("--temperature", N(1.0)),
        ("--top-k", I(0)),
        ("--top-p", N(0.9)),
        ("--seed", I(42)),
    ]],
    positional: None,
    abbreviates: true,
    flags: &[&[
        Flag { names: &["model_type"], meaning: Choice(&[("gpt2", &[])]) },
        Flag { names: &["model_name_or_path"], meaning: Text(WEIGHTS) },
        Flag { names: &["prompt"], meaning: Text("prompt") },
        Flag { names: &["prefix", "padding_text"], meaning: Text("prefix") },
        Flag { names: &["length"], meaning: Special(length) },
        Flag { names: &["temperature"], meaning: Number("--temperature") },
        Flag { names: &["k"], meaning: Whole("--top-k") },
        Flag { names: &["p"], meaning: Number("--top-p") },
        Flag { names: &["seed"], meaning: Whole("--seed") },
        Flag { names: &["repetition_penalty"], meaning: Must(1.0, "a token that was there is as likely as ever here; give 1") },
        Flag { names: &["num_return_sequences"], meaning: Special(sequences) },
        Flag { names: &["stop_token"], meaning: Special(stop) },
        Flag { names: &["no_cuda", "use_cpu", "fp16", "jit"], meaning: Switch("the trainer has its own engine, in float32") },
        Flag { names: &["xlm_language"], meaning: Refused("only GPT-2 is known here") },
    ]],
    finish: None,
    ways: &[("draws", "the same seed draws other tokens here than there")],
    instead: Some(generate),
};

/// fairseq's example that makes GPT-2's tokens of text.
pub(super) const BPE_ENCODER: Program = Program {
    names: &["multiprocessing_bpe_encoder.py"],
    told_by: None,
    defaults: &[&[("text", W("TEXT")), ("--out", W("prepared"))]],
    positional: None,
    abbreviates: true,
    flags: &[&[
        Flag { names: &["encoder_json", "vocab_bpe"], meaning: Nothing("GPT-2's vocabulary is part of ftctl") },
        Flag { names: &["inputs"], meaning: Text("text") },
        Flag { names: &["outputs"], meaning: Text("--out") },
        Flag { names: &["keep_empty"], meaning: Switch("a txt file is one document, with all its lines") },
        Flag { names: &["workers"], meaning: Nothing(ALL_CORES) },
    ]],
    finish: None,
    ways: &[("data.train", "a job file may name the text itself: `ftctl run` prepares it then")],
    instead: Some(encode),
};

pub(super) const PREPROCESS: Program = Program {
    names: &["fairseq-preprocess"],
    told_by: None,
    defaults: &[&[("--out", W("data-bin"))]],
    positional: None,
    abbreviates: false,
    flags: &[&[
        Flag { names: &["only_source"], meaning: Switch("text has no translation beside it here") },
        Flag { names: &["trainpref"], meaning: Text("text") },
        Flag { names: &["validpref"], meaning: Text("--validation") },
        Flag { names: &["testpref"], meaning: Nothing("a dataset has text to train on and to validate with") },
        Flag { names: &["destdir"], meaning: Text("--out") },
        Flag { names: &["srcdict", "padding_factor"], meaning: Nothing("tokens keep GPT-2's numbers") },
        Flag { names: &["thresholdsrc"], meaning: Must(0.0, "no token is left out here; give 0") },
        Flag { names: &["nwordssrc"], meaning: Must(-1.0, "no token is left out here; give -1") },
        Flag { names: &["dataset_impl"], meaning: Choice(&[("mmap", &[])]) },
        Flag { names: &["workers"], meaning: Nothing(ALL_CORES) },
        Flag { names: &["bpe"], meaning: Choice(&[("gpt2", &[])]) },
        Flag { names: &["source_lang", "s", "target_lang", "t", "tgtdict"], meaning: Refused("translation is not known here") },
        Flag { names: &["joined_dictionary"], meaning: NoSwitch("translation is not known here") },
    ]],
    finish: None,
    ways: &[(
        "data.format",
        "with \"fairseq\" a job reads what this command writes: translate the fairseq-train that follows, and nothing has to be prepared",
    )],
    instead: Some(preprocess),
};

pub(super) const PREPROCESS_SCRIPT: Program = Program { names: &["preprocess.py"], told_by: Some("trainpref"), ..PREPROCESS };

/// Not a flag of ftctl's: the prompt is given as often.
const SEQUENCES: &str = "sequences";

fn length(job: &mut Job, value: &str) -> Result<(), String> {
    let tokens = super::whole(value)?;
    if tokens < 1 {
        return Err("give the number of tokens to add".to_owned());
    }
    job.set("--tokens", tokens);
    Ok(())
}

fn sequences(job: &mut Job, value: &str) -> Result<(), String> {
    let count = super::whole(value)?;
    if !(1..=100).contains(&count) {
        return Err("give 1 to 100: each is a --prompt of the command".to_owned());
    }
    job.set(SEQUENCES, count);
    Ok(())
}

fn stop(_: &mut Job, value: &str) -> Result<(), String> {
    if value == "<|endoftext|>" { Ok(()) } else { Err("a text ends at <|endoftext|> here, and at nothing else".to_owned()) }
}

fn generate(job: &Job) -> String {
    let text = |key: &str| job.values.get(key).and_then(toml::Value::as_str).unwrap_or_default();
    let prompt =
        if job.values.contains_key("prompt") { format!("{}{}", text("prefix"), text("prompt")) } else { "TEXT".to_owned() };
    let prompts = format!(" --prompt={}", shell_word(&prompt)).repeat(job.number(SEQUENCES).unwrap_or(1.0) as usize);
    format!("ftctl generate {}{prompts}{}", job.word(WEIGHTS), flags(job))
}

fn encode(job: &Job) -> String {
    format!("ftctl prepare {}{}", job.word("text"), flags(job))
}

/// The command for fairseq's preprocessing. Its input is tokens in decimal: only the user knows the text that they were made of.
fn preprocess(job: &Job) -> String {
    let mut of_text = Job { values: job.values.clone(), ..Job::default() };
    of_text.set("text", "TEXT");
    let mut stand_for = vec![format!("TEXT for what the encoder made {} of", job.word("text"))];
    if job.values.contains_key("--validation") {
        of_text.set("--validation", "VALIDATION");
        stand_for.push(format!("VALIDATION for what it made {} of", job.word("--validation")));
    }
    format!("with {}: {}", stand_for.join(" and "), encode(&of_text))
}

/// All keys that are flags, with their values.
fn flags(job: &Job) -> String {
    let flags = job.values.keys().filter(|key| key.starts_with("--"));
    flags.map(|key| format!(" {key} {}", job.word(key))).collect::<Vec<_>>().concat()
}
