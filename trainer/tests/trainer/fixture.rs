//! A tiny dataset, a tiny configuration, and the program to run on them.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ft_trainer::data::prepare::prepare;
use ft_trainer::openmp;
use ft_trainer::settings::{DataConfig, DataFormat, OnBadRow, TokenizerConfig, TokenizerKind};

/// Documents that a model can learn something from: little functions.
const DOCUMENTS: usize = 160;

pub struct Fixture {
    pub directory: tempfile::TempDir,
}

impl Fixture {
    /// A directory with a prepared dataset in `data`.
    pub fn new() -> Self {
        let fixture = Self { directory: tempfile::tempdir().unwrap() };
        fixture.prepare("data", DOCUMENTS);
        fixture
    }

    /// The same with other documents to validate on, which have nothing in common with those: the more is learnt of the latter, the
    /// less likely the former become, on every machine.
    pub fn validated_by_strangers() -> Self {
        let fixture = Self { directory: tempfile::tempdir().unwrap() };
        let strangers = fixture.path("strangers.jsonl");
        let row = serde_json::json!({ "text": "QUARTZ GLYPH JOB VEX'D CWM FINKS; ".repeat(8) });
        fs::write(&strangers, format!("{row}\n").repeat(DOCUMENTS / 10)).unwrap();
        fixture.prepare_with("data", DOCUMENTS, vec![strangers.to_str().unwrap().to_owned()]);
        fixture
    }

    /// Prepares a dataset of that many documents.
    pub fn prepare(&self, name: &str, documents: usize) -> PathBuf {
        self.prepare_with(name, documents, Vec::new())
    }

    fn prepare_with(&self, name: &str, documents: usize, validation: Vec<String>) -> PathBuf {
        let text = self.path(&format!("{name}.jsonl"));
        fs::write(&text, rows(documents)).unwrap();
        let config = DataConfig {
            train: vec![text.to_str().unwrap().to_owned()],
            format: DataFormat::Text,
            validation,
            source: None,
            validation_fraction: 0.1,
            limit_bytes: None,
            column: None,
            on_bad_row: OnBadRow::Fail,
            end_of_text: None,
            tokenizer: TokenizerConfig { kind: TokenizerKind::Train, vocabulary: Some(300), directory: None },
        };
        let out = self.path(name);
        prepare(&config, None, &out, &mut |_, _, _| ()).unwrap();
        out
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A configuration that trains into `output`.
    pub fn config(&self, output: &str) -> PathBuf {
        let path = self.path(&format!("{output}.toml"));
        let text = format!(
            "data = '{}'\noutput = '{}'\n\
             [model]\nlayers = 2\nheads = 2\nwidth = 32\ncontext = 48\n\
             [sample]\nprompt = \"fn \"\ntokens = 20\n\
             [train]\nsteps = 40\nblock_size = 32\nmicro_batch = 2\ngradient_accumulation = 2\nlearning_rate = 3e-3\nwarmup_steps = 4\n\
             eval_every = 16\ncheckpoint_every = 5\nkeep_checkpoints = 3\nthreads = 1\nlog_every = 1\n",
            self.path("data").display(),
            self.path(output).display()
        );
        fs::write(&path, text).unwrap();
        path
    }

    /// `ft-trainer train` with the configuration and values to set in it.
    pub fn train(&self, config: &Path, values: &[&str]) -> Command {
        let mut command = program();
        command.arg("train").arg(config).args(values.iter().flat_map(|value| ["--set", value])).current_dir(self.directory.path());
        command
    }

    /// Runs to the end and returns the output directory.
    pub fn trained(&self, output: &str, values: &[&str]) -> PathBuf {
        let config = self.config(output);
        succeed(&mut self.train(&config, values));
        self.path(output)
    }
}

pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ft-trainer"));
    // Without this variable it would start itself again: a second loading of libtorch, of which there are hundreds here.
    command.env("OMP_NUM_THREADS", "1").envs(openmp::policy());
    command
}

/// Runs a command that must succeed; its stdout.
pub fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Name of the checkpoint that a finished run of 40 steps leaves.
pub fn last_checkpoint(output: &Path) -> PathBuf {
    output.join("checkpoints/step-0000000040")
}

fn rows(documents: usize) -> String {
    let names = ["load", "store", "merge", "split", "count"];
    (0..documents).fold(String::new(), |mut rows, number| {
        let (name, other) = (names[number % 5], names[number * 7 % 5]);
        let text = format!(
            "fn {name}_{number}(x: u32) -> u32 {{\n    let y = {other}_{}(x);\n    y + {}\n}}\n",
            number * 31 % 97,
            number % 10
        );
        writeln!(rows, "{}", serde_json::json!({ "text": text })).unwrap();
        rows
    })
}
