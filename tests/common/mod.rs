//! Runs the program as a user does: in a directory of its own, with a home of its own and nothing else of the environment.

// Each test program uses its own part of this.
#![allow(dead_code)]

pub mod azurite;
pub mod engine;
pub mod entra;
pub mod hub;
pub mod model;
pub mod proxy;
pub mod registry;
pub mod secrets;

use std::{
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

/// A place in which the program runs with an environment of its own.
pub trait Runs {
    fn run(&self, arguments: &[&str]) -> Said;

    /// The output of a run that ends well.
    fn ok(&self, arguments: &[&str]) -> String {
        let said = self.run(arguments);
        assert_eq!(said.code, Some(0), "{arguments:?}: {}", said.stderr);
        said.stdout
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[arguments, &["-o", "json"]].concat())).expect("one JSON value")
    }
}

impl Runs for Sandbox {
    fn run(&self, arguments: &[&str]) -> Said {
        Sandbox::run(self, arguments)
    }
}

pub struct Sandbox {
    root: tempfile::TempDir,
}

/// The output and the exit code of a run of the program.
pub struct Said {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Sandbox {
    pub fn new() -> Self {
        Self::at(tempfile::tempdir().expect("a directory"))
    }

    /// In memory where the system has a place for that: for the thousandth sandbox of a test the disk would be too slow.
    pub fn in_memory() -> Self {
        Self::at(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory"))
    }

    fn at(root: tempfile::TempDir) -> Self {
        std::fs::create_dir(root.path().join("home")).expect("a home");
        std::fs::create_dir(root.path().join("work")).expect("a directory");
        Self { root }
    }

    /// A path in the working directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join("work").join(name)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), bytes).expect("written");
    }

    pub fn home(&self) -> PathBuf {
        self.root.path().join("home")
    }

    /// Where the program keeps what must survive: the embedded store and the fake cloud.
    pub fn state(&self) -> PathBuf {
        self.home().join(".local/state/ftctl")
    }

    /// Sets the script of the fake cloud from now on.
    pub fn script(&self, script: &Value) {
        let directory = self.state().join("fake");
        std::fs::create_dir_all(&directory).expect("a directory");
        std::fs::write(directory.join("script.json"), script.to_string()).expect("written");
    }

    /// A job of ten steps in `job.toml`, and the fake cloud as the backend of every command.
    pub fn write_rehearsal(&self, name: &str) {
        self.write("ftctl.toml", "backend = \"fake\"\n");
        std::fs::create_dir_all(self.path("data")).expect("a directory");
        self.write("data/train.bin", "tokens");
        let text = format!("name = \"{name}\"\ndataset = \"data\"\n[train]\nsteps = 10\ncheckpoint_every = 5\n");
        self.write("job.toml", text);
    }

    /// Makes `data` of a rehearsal a dataset that a trainer would take: a backend that trains refuses anything else.
    pub fn write_dataset(&self) {
        const TOKENS: usize = 20_000;
        // The header of a shard: its magic, version 1, two bytes a token, and their number.
        let mut bytes = b"FTTOKENS\x01\0\0\0\x02\0\0\0".to_vec();
        bytes.extend((TOKENS as u64).to_le_bytes());
        bytes.resize(64 + 2 * TOKENS, 0);
        self.write("data/train.tokens", bytes);
        let shard = serde_json::json!({ "file": "train.tokens", "tokens": TOKENS, "sha256": "0".repeat(64) });
        let split =
            |tokens: usize, shards: &[Value]| serde_json::json!({ "tokens": tokens, "documents": 1, "bytes": 1, "shards": shards });
        let description = serde_json::json!({
            "schema": "ft.dataset/1", "tokenizer": { "kind": "gpt2", "files": [] }, "vocabulary": 50_257, "end_of_text": 50_256, "dtype": "u16",
            "train": split(TOKENS, &[shard]), "validation": split(0, &[]),
        });
        self.write("data/dataset.json", description.to_string());
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ftctl"));
        command.args(arguments).current_dir(self.path("")).env_clear().stdin(Stdio::null());
        command.env("FTCTL_TRUST_PROJECT", "1");
        command.env("HOME", self.home()).env("PATH", std::env::var_os("PATH").unwrap_or_default());
        // `down --all` asks the engine of the user who runs the tests otherwise.
        command.env("DOCKER_HOST", format!("unix://{}", self.home().join("no-engine.sock").display()));
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Said {
        Self::said(&mut self.command(arguments))
    }

    pub fn said(command: &mut Command) -> Said {
        Said::of(command.output().expect("ftctl runs"))
    }
}

impl Said {
    pub fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("ftctl prints UTF-8");
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

/// Lets a command find cargo, which has the text of the quickstart: the tests were built from it.
pub fn with_cargo(command: &mut Command) {
    for (variable, folder) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
        let home = std::env::var_os(variable).map(PathBuf::from);
        command.env(variable, home.unwrap_or_else(|| std::env::home_dir().expect("a home").join(folder)));
    }
}

/// Longest time that a service may take to listen on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port()
}

pub fn listening(port: u16) {
    let began = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(began.elapsed() < LIMIT, "nothing listens on port {port}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
