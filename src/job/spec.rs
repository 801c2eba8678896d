//! `job.toml` as typed: every key a user may write, nothing resolved.

use std::collections::BTreeMap;

use ft_trainer::settings::{DataConfig, ModelConfig, SampleConfig, TrainSettings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    azureml::AzuremlSpec,
    check::{self, Rules},
    docker::DockerSpec,
    document::{Document, DocumentError},
    gce::GceSpec,
    image::ImageSpec,
    tracking::TrackingSpec,
    units::{Money, Span},
};

/// One job: what to train, on what, where, and what it may cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// Lower-case letters, digits and hyphens; at most 40 characters. Every name in a cloud is derived from it.
    pub name: String,
    #[serde(default)]
    pub compute: ComputeSpec,
    /// The container image, for backends that run one.
    #[serde(default)]
    pub image: ImageSpec,
    /// URL of the blob container, or a directory, that holds everything the job reads and writes; absent: the embedded store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// Text to train on, prepared on the machine where ftctl runs. Exactly one of `data` and `dataset`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<DataConfig>,
    /// A dataset that is prepared already: the digest that `ftctl upload` printed, `@NAME` as `ftctl upload --name` named
    /// it, or a directory that `ftctl prepare` wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// A Hugging Face directory to start from, `hf:OWNER/NAME[@REVISION]`: a model of the hub, or `job:NAME[@STEP]`: a checkpoint
    /// of another job of this store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_weights: Option<String>,
    #[serde(default)]
    pub model: ModelConfig,
    #[serde(default)]
    pub train: TrainSettings,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<SampleConfig>,
    #[serde(default)]
    pub retry: RetrySpec,
    #[serde(default)]
    pub limits: LimitsSpec,
    #[serde(default, skip_serializing_if = "TrackingSpec::is_none")]
    pub tracking: TrackingSpec,
}

impl JobSpec {
    /// Reads the text of a job file; `file` is its name in messages. Whether a backend has such a machine is not checked.
    pub fn parse(text: &str, file: &str) -> Result<Self, DocumentError> {
        Self::read(&Document::new(file, text.as_bytes().to_vec())?, |_| Vec::new())
    }

    /// Reads a job file with everything that is laid over it, and checks every value; `of_backends` has the rules for machines.
    pub fn read(document: &Document, of_backends: Rules) -> Result<Self, DocumentError> {
        let (spec, typed) = document.parse::<Self>().map_err(point_home)?;
        check::check(&spec, &typed, of_backends)?;
        Ok(spec)
    }

    /// The JSON Schema (draft 2020-12) of a job file, for editors.
    pub fn schema() -> Value {
        let generated = schemars::schema_for!(JobSpec).to_value();
        let mut schema =
            json!({ "$schema": generated["$schema"], "title": "ftctl job file", "description": generated["description"] });
        if let (Value::Object(schema), Value::Object(generated)) = (&mut schema, generated) {
            for (key, value) in generated {
                schema.entry(key).or_insert(value);
            }
        }
        schema
    }
}

/// A key that stands in the wrong table: says which is the right one. In TOML a key after a `[table]` header belongs to it, so a
/// top-level key at the end of the file is a common mistake.
fn point_home(error: DocumentError) -> DocumentError {
    let Some(key) = &error.unknown_key else { return error };
    let mut homes = Vec::new();
    let schema = JobSpec::schema();
    collect_homes(&schema, &schema, "", key, &mut homes);
    match homes.as_slice() {
        [] => error,
        [home] if home.is_empty() => {
            DocumentError { hint: Some(format!("`{key}` belongs at the top of the file, before any [table]")), ..error }
        }
        homes => DocumentError { hint: Some(format!("`{key}` belongs in [{}]", homes.join("] or ["))), ..error },
    }
}

/// The tables, by their dotted names, that know `key`.
fn collect_homes(schema: &Value, table: &Value, name: &str, key: &str, homes: &mut Vec<String>) {
    let Some(properties) = table["properties"].as_object() else { return };
    if properties.contains_key(key) {
        homes.push(name.to_owned());
    }
    for (child, definition) in properties {
        // An optional table is `anyOf: [reference, null]`.
        let reference = definition["$ref"].as_str().or(definition["anyOf"][0]["$ref"].as_str());
        let target = reference.and_then(|reference| schema.pointer(reference.trim_start_matches('#')));
        let name = if name.is_empty() { child.clone() } else { format!("{name}.{child}") };
        collect_homes(schema, target.unwrap_or(&Value::Null), &name, key, homes);
    }
}

/// Where the job runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ComputeSpec {
    /// `local` runs on this machine, `docker` in a container of any engine that can be reached, `gce` on a machine of Google's
    /// Compute Engine for each attempt, `azureml` as a job of Azure ML for each attempt; absent: `local`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// How the container is made.
    #[serde(skip_serializing_if = "is_default")]
    pub docker: DockerSpec,
    /// The machine on Compute Engine.
    #[serde(skip_serializing_if = "is_default")]
    pub gce: GceSpec,
    /// The machine on Azure ML.
    #[serde(skip_serializing_if = "is_default")]
    pub azureml: AzuremlSpec,
    /// Number of machines of an attempt. Each runs `processes_per_node` processes. Only `azureml` has several machines; `local`
    /// rehearses them as processes of this machine, `docker` as containers. Absent: one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<usize>,
    /// Processes of a machine that train together, on its CPU or on a GPU for each: each does in a step what
    /// `train.gradient_accumulation` says. Any number of them gives the same bits for the same `train.leaves` and the same
    /// step. Absent: one for each GPU that the plan names, or one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes_per_node: Option<usize>,
    /// More environment variables for the trainer, as `{ NAME = "value" }`. They are stored with the job, so put no secrets here.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Rules for another attempt when one ends before its work is done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetrySpec {
    /// Causes that lead to another attempt; absent: `preempt` and `capacity`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<Vec<RetryCause>>,
    /// Largest number of attempts; absent: 20.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// Wait before the second attempt, doubled each time; absent: 1s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Span>,
    /// Upper limit of that wait; absent: 5m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_backoff: Option<Span>,
    /// Whether a job with several `compute.nodes` goes on with fewer when one is lost, or when not all are available. They share
    /// the same step, and the bits stay the same. Absent: false: the job waits for all machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shrink: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RetryCause {
    /// The machine was preempted, or the process was killed.
    Preempt,
    /// No machine is available now. Without this cause the job does not wait for one.
    Capacity,
    /// The trainer failed by itself.
    Failure,
}

/// Limits of the job's time and cost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsSpec {
    /// Time to live of the job's machines, all attempts together; absent: 24h.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Span>,
    /// Most that the job may cost; absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cost: Option<Money>,
    /// Longest wait for machines, all attempts together; absent: 24h. Waiting costs nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_wait: Option<Span>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "name = \"a\"\n[data]\ntrain = [\"a.txt\"]\n";

    fn refuse(text: &str) -> DocumentError {
        JobSpec::parse(text, "job.toml").expect_err(text)
    }

    #[test]
    fn the_smallest_job_takes_every_default() {
        let spec = JobSpec::parse(JOB, "job.toml").expect("a valid job");
        assert_eq!((spec.name.as_str(), spec.train, spec.sample), ("a", TrainSettings::default(), None));
    }

    #[test]
    fn every_mistake_is_shown_at_its_place() {
        // What is added to the smallest job, the place, a part of the message.
        let cases = [
            ("[train]\nlerning_rate = 1.0", 5, 1, "unknown key `lerning_rate` in [train]"),
            ("[trian]\nsteps = 1", 4, 2, "unknown key `trian` at the top of the file"),
            ("[data.tokenizer]\nkinds = 1", 5, 1, "unknown key `kinds` in [data.tokenizer]"),
            ("[train]\n  steps = \"many\"", 5, 11, "train.steps: expected a whole number, 0 or more, found string \"many\""),
            ("[train]\nsteps = -1", 5, 9, "train.steps: expected a whole number, 0 or more, found integer `-1`"),
            ("[train]\nschedule = \"cosin\"", 5, 12, "train.schedule: `cosin` is not one of its values"),
            ("[train]\nlearning_rate = 0", 5, 17, "learning_rate must be a finite number above 0, but is 0"),
            ("[train]\nlearning_rate = inf", 5, 17, "learning_rate must be a finite number above 0, but is inf"),
            ("[train]\nlearning_rate = nan", 5, 17, "learning_rate must be a finite number above 0, but is NaN"),
            ("[train]\nmin_learning_rate = 1.0", 5, 21, "min_learning_rate must be between 0 and 0.00005, but is 1"),
            ("[train]\nsteps = 5\nepochs = 1.0", 6, 10, "either `steps` or `epochs`"),
            ("[train]\nsteps = 0", 5, 9, "steps must be at least 1, but is 0"),
            ("[train]\nblock_size = 0", 5, 14, "block_size must be at least 2"),
            ("[train]\nmicro_batch = 0", 5, 15, "micro_batch must be at least 1"),
            ("[train]\nkeep_checkpoints = 0", 5, 20, "keep_checkpoints must be at least 1"),
            ("[train]\nbetas = [0.9, 1.0]", 5, 9, "both betas must be at least 0 and below 1, but are [0.9, 1.0]"),
            ("[train]\nbetas = [0.9]", 5, 9, "train.betas: "),
            ("[train]\nclip_norm = -1.0", 5, 13, "clip_norm must be a finite number, 0 or more, but is -1"),
            ("[train]\nsteps = 10\nwarmup_steps = 11", 6, 16, "the warm-up of 11 steps is longer than the run of 10"),
            ("[train]\nwarmup_steps = -1", 5, 16, "train.warmup_steps: expected a number of steps, or a text as \"1 epoch\""),
            (
                "[train]\neval_every = \"1 epok\"",
                5,
                14,
                "train.eval_every: `1 epok` is no length; give a number of steps, or a text",
            ),
            ("[train]\ncheckpoint_every = \"0%\"", 5, 20, "epochs are above 0, and a share is above 0% and at most 100%"),
            ("[train]\nlog_every = 0", 5, 13, "log_every must be at least 1, but is 0"),
            (
                "[train]\nsteps = 10\nwarmup_steps = \"60%\"\nschedule = \"wsd\"\ndecay_steps = \"50%\"",
                8,
                15,
                "longer than the run of 10",
            ),
            ("[train]\nschedule = \"wsd\"", 5, 12, "wsd needs train.decay_steps"),
            ("[train]\ndecay_steps = 5", 5, 15, "decay_steps needs schedule = \"wsd\""),
            ("[train]\nsteps = 10\nwarmup_steps = 6\nschedule = \"wsd\"\ndecay_steps = 5", 8, 15, "longer than the run of 10"),
            ("[model]\nwidth = 100\nheads = 3", 6, 9, "3 heads do not divide a width of 100"),
            ("[model]\npreset = \"gpt2\"\nheads = 7", 6, 9, "7 heads do not divide a width of 768"),
            ("[model]\npreset = \"gpt2\"\nwidth = 100", 6, 9, "12 heads do not divide a width of 100"),
            ("[model]\nheads = 0\nwidth = 4", 5, 9, "heads must be at least 1"),
            (
                "[model]\ncontext = 512",
                5,
                11,
                "a block of 1024 tokens is longer than the model's context of 512; set train.block_size, too",
            ),
            ("[sample]\nprompt = \"\"\ntop_p = 0", 6, 9, "top_p must be above 0 and at most 1, but is 0"),
            ("[sample]\nprompt = \"\"\ntop_p = 1.5", 6, 9, "top_p must be above 0 and at most 1, but is 1.5"),
            ("[sample]\ntop_k = 5", 4, 1, "the key `prompt` is missing"),
            ("[data.tokenizer]\nkind = \"train\"\nvocabulary = 256", 6, 14, "at least 257 tokens"),
            ("[data.tokenizer]\nvocabulary = 300", 5, 14, "vocabulary needs kind = \"train\""),
            ("[retry]\nattempts = 0", 5, 12, "attempts must be at least 1"),
            ("[retry]\non = [\"preempt\", \"flood\"]", 5, 18, "retry.on: `flood` is not one of its values"),
            ("[limits]\nttl = \"5w\"", 5, 7, "limits.ttl: `5w` is not a duration"),
            ("[limits]\nttl = \"0s\"", 5, 7, "leaves no time"),
            (
                "[limits]\nmax_cost = 12",
                5,
                12,
                "limits.max_cost: expected an amount of money, found integer `12`; write it like \"12USD\"",
            ),
            ("[limits]\nttl = 2", 5, 7, "limits.ttl: expected a duration, found integer `2`; write it like \"2h\""),
            ("[compute]\nnodes = 0", 5, 9, "nodes must be 1 to 256, but is 0"),
            ("[compute]\nbackend = \"\"", 5, 11, "compute.backend is empty"),
            ("[compute]\nenvironment = { NCCL_DEBUG = 1 }", 5, 30, "expected a string"),
            ("[compute]\nenvironment = { LD_PRELOAD = \"x.so\" }", 5, 1, "LD_PRELOAD cannot be set by a job"),
            ("[compute.environment]\n\"A B\" = \"x\"", 4, 10, "`A B` is not the name of a variable"),
            ("[tracking]\nmlflow = \"mlflow.example.org\"", 5, 10, "an MLflow server's address begins with https://"),
            ("[train]\nsteps = 5\nsteps = 6", 6, 1, "duplicate key"),
            ("[train\nsteps = 5", 4, 7, "expected"),
        ];
        for (added, line, column, message) in cases {
            let error = refuse(&format!("{JOB}{added}\n"));
            assert_eq!((error.line, error.column), (line, column), "{added:?} gave {error}");
            assert!(error.message.contains(message), "{added:?} gave {:?}, not {message:?}", error.message);
        }
    }

    #[test]
    fn words_of_other_programs_lead_to_the_keys() {
        let cases = [
            ("[training]\nsteps = 1", "train"),
            ("[trian]\nsteps = 1", "train"),
            ("[train]\nlr = 1", "learning_rate"),
            ("[train]\nbatch_size = 1", "micro_batch"),
            ("[train]\nper_device_train_batch_size = 1", "micro_batch"),
            ("[train]\nmax_steps = 1", "steps"),
            ("[train]\nnum_train_epochs = 1", "epochs"),
            ("[train]\ncheckpoint_evry = 1", "checkpoint_every"),
        ];
        for (added, meant) in cases {
            let hint = refuse(&format!("{JOB}{added}\n")).hint;
            assert_eq!(hint, Some(format!("did you mean `{meant}`?")), "{added}");
        }
    }

    #[test]
    fn what_belongs_together_is_checked_together() {
        let cases = [
            ("name = \"A\"\n[data]\ntrain = [\"a\"]", 1, 8, "`A` is not a job name"),
            ("[data]\ntrain = [\"a\"]", 1, 1, "the key `name` is missing"),
            ("name = \"a\"", 1, 1, "nothing to train on"),
            ("name = \"a\"\ndataset = \"d\"\n[data]\ntrain = [\"a\"]", 2, 11, "either `data` (text to prepare) or `dataset`"),
            ("name = \"a\"\n[data]\ntrain = []", 2, 2, "names no text"),
            ("name = \"a\"\n[data]\ntrain = [\"~/a.txt\"]", 3, 9, "`~/a.txt`: only a shell knows what ~ is; write the whole path"),
            (
                "name = \"a\"\n[data]\ntrain = [\"a\", \"https://acc.example/a.txt?sig=x\"]",
                3,
                9,
                "`https://acc.example/a.txt` is an address: files of this machine are read, and what the hub has as hf:OWNER/NAME; fetch it first",
            ),
            (
                "name = \"a\"\ninitial_weights = \"https://huggingface.co/gpt2\"\n[data]\ntrain = [\"a\"]",
                2,
                19,
                "is an address: write what the hub has as hf:OWNER/NAME",
            ),
            ("name = \"a\"\ndataset = \"file:///a\"", 2, 11, "`file:///a` is an address: write the path alone"),
            ("name = \"a\"\n[data]\ntrain = [\"a\"]\nsource = \"cargo-dependencies\"", 4, 10, "either `train` or `source`"),
            ("name = \"a\"\n[data]\ntrain = [\"a\"]\nvalidation_fraction = 0.6", 4, 23, "between 0 and 0.5, but is 0.6"),
            ("name = \"a\"\n[data]\ntrain = [\"a\"]\nlimit_bytes = 0", 4, 15, "limit_bytes must be at least 1"),
        ];
        for (text, line, column, message) in cases {
            let error = refuse(text);
            assert_eq!((error.line, error.column), (line, column), "{text:?} gave {error}");
            assert!(error.message.contains(message), "{text:?} gave {:?}, not {message:?}", error.message);
        }
    }

    #[test]
    fn the_first_mistake_in_the_file_comes_first() {
        let error = refuse(&format!("{JOB}[train]\nepochs = -1.0\nblock_size = 0\n"));
        assert!(error.message.starts_with("epochs"), "{error}");
    }

    #[test]
    fn every_published_size_is_consistent() {
        for preset in ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"] {
            JobSpec::parse(&format!("{JOB}[model]\npreset = \"{preset}\"\n"), "job.toml").expect(preset);
        }
    }

    #[test]
    fn a_near_word_is_suggested_and_else_all_are_listed() {
        let hint = |added: &str| refuse(&format!("{JOB}{added}\n")).hint.expect("a hint");
        assert_eq!(hint("[train]\nlerning_rate = 1.0"), "did you mean `learning_rate`?");
        assert_eq!(hint("[train]\nlearning-rate = 1.0"), "did you mean `learning_rate`?");
        assert_eq!(hint("[train]\nschedule = \"Cosin\""), "did you mean `cosine`?");
        assert_eq!(hint("[retry]\nxyz = 1"), "keys here: on, attempts, backoff, max_backoff, shrink");
        assert_eq!(hint("[compute]\nsteps = 1"), "`steps` belongs in [train]");
        assert_eq!(hint("[retry]\nstore = \"x\""), "`store` belongs at the top of the file, before any [table]");
        assert_eq!(hint("[retry]\nkind = \"train\""), "`kind` belongs in [data.tokenizer]");
    }

    #[test]
    fn a_value_set_over_the_file_is_judged_like_the_file() {
        let read = |assignments: &[&str]| {
            let mut document = Document::new("job.toml", JOB.into()).expect("text");
            assignments
                .iter()
                .try_for_each(|assignment| document.set(assignment))
                .and_then(|()| JobSpec::read(&document, |_| Vec::new()))
        };
        let spec =
            read(&["train.steps=5", "name = other", "limits.ttl=2h", "model.preset=\"gpt2\"", "train.steps=7"]).expect("valid");
        assert_eq!((spec.train.steps, spec.name.as_str()), (Some(7), "other"));
        assert_eq!(spec.limits.ttl, Some(Span(std::time::Duration::from_secs(7_200))));
        assert_eq!(spec.data.expect("data").train, ["a.txt"], "what is not set stays");

        let spec = read(&["train.steps=5", "train.steps=", "train.epochs = 3"]).expect("valid");
        assert_eq!((spec.train.steps, spec.train.epochs), (None, Some(3.0)), "what is unset is not there");
        assert!(read(&["limits.ttl=", "retry="]).is_ok(), "what was not there either");
        let spec = read(&["train.steps=5", "train.steps=9"]).expect("valid");
        assert_eq!((spec.train.steps, spec.train.epochs), (Some(9), None));
        let of_epochs = format!("{JOB}[train]\nepochs = 2\n");
        let mut document = Document::new("job.toml", of_epochs.into()).expect("text");
        document.set("train.steps=5").expect("a setting");
        let spec = JobSpec::read(&document, |_| Vec::new()).expect("valid");
        assert_eq!((spec.train.steps, spec.train.epochs), (Some(5), None), "the length is one of both");

        let refuse = |assignments: &[&str]| read(assignments).expect_err("a mistake").to_string();
        assert_eq!(
            refuse(&["train.steps=5", "train.epochs=1"]),
            "--set train.epochs:1:16: a run has either `steps` or `epochs`, not both\n  |\n1 | train.epochs = 1\n  |                ^"
        );
        assert!(refuse(&["train.stepz=5"]).starts_with("--set train.stepz:1:7: unknown key `stepz` in [train]"));
        assert!(refuse(&["train.stepz="]).starts_with("--set train.stepz:1:7: unknown key `stepz` in [train]"));
        assert!(refuse(&["train.steps=many"]).contains("expected a whole number, 0 or more, found string \"many\""));
        assert!(refuse(&["train.steps"]).contains("a setting is written key=value"));
        assert!(refuse(&["name=\"x\"\nstore=\"y\""]).contains("on one line"));
        assert!(refuse(&["=5"]).contains("a setting is written key=value"));
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_at_their_place() {
        let at = |bytes: &[u8]| {
            let error = Document::new("job.toml", bytes.to_vec()).expect_err("no text");
            (error.line, error.column, error.message)
        };
        assert_eq!(at(b"name = \"a\"\nx = \"\xff\""), (2, 6, "not valid UTF-8 from here on".to_owned()));
        assert_eq!(at(b"\n\nna\0me"), (3, 3, "a NUL byte; a TOML file is text".to_owned()));
        for (bytes, wide) in
            [(&b"\xff\xfen\0a\0"[..], "UTF-16"), (b"\xfe\xff\0n\0a", "UTF-16"), (b"n\0a\0", "UTF-16LE"), (b"\0n\0a", "UTF-16BE")]
        {
            assert_eq!(at(bytes), (1, 1, format!("it is {wide} text; `iconv -f {wide} -t UTF-8` converts it")));
        }
        let marked = Document::new("job.toml", [&b"\xef\xbb\xbf"[..], JOB.as_bytes()].concat()).expect("text");
        assert_eq!(JobSpec::read(&marked, |_| Vec::new()).expect("valid"), JobSpec::parse(JOB, "job.toml").expect("valid"));
        let marked = Document::new("job.toml", b"\xef\xbb\xbfnam = 1".to_vec()).expect("text");
        assert_eq!(marked.parse::<JobSpec>().map(drop).expect_err("no key").column, 1, "the mark is no column");
    }

    #[test]
    fn a_long_line_is_cut_around_the_place_and_columns_count_characters() {
        let error = refuse(&format!("# {}\n\tname = \"ÄÖ\" # {}\n[data]\ntrain=[\"a\"]", "x".repeat(300), "y".repeat(300)));
        assert_eq!((error.line, error.column), (2, 9));
        let carets = error.excerpt.lines().last().expect("a line");
        assert_eq!(carets, "  | \t       ^^^^", "a tab keeps the caret below its place");
        assert!(error.excerpt.lines().all(|line| line.chars().count() < 120));
    }

    #[test]
    fn the_schema_describes_every_table() {
        let schema = JobSpec::schema();
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
        for key in ["name", "compute", "data", "model", "train", "sample", "retry", "limits"] {
            assert!(schema["properties"][key].is_object(), "{key}");
        }
        assert!(schema["$defs"]["TrainSettings"]["properties"]["steps"]["description"].is_string());
    }
}
