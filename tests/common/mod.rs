//! Runs the program as a user does: in a directory of its own, with a home of its own and nothing else of the environment.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

pub struct Sandbox {
    root: tempfile::TempDir,
}

/// What a run of the program said.
pub struct Said {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Sandbox {
    pub fn new() -> Self {
        let root = tempfile::tempdir().expect("a directory");
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

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ftctl"));
        command.args(arguments).current_dir(self.path("")).env_clear().stdin(Stdio::null());
        command.env("HOME", self.root.path().join("home")).env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Said {
        let output = self.command(arguments).output().expect("ftctl runs");
        let text = |bytes| String::from_utf8(bytes).expect("ftctl prints UTF-8");
        Said { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}
