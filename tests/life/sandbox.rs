//! A home of its own for each test; only the cache (libtorch, the built trainer) is the machine's.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

pub struct Sandbox {
    directory: tempfile::TempDir,
    /// Further environment variables of every command of this sandbox.
    pub variables: Vec<(OsString, OsString)>,
}

/// Longest time that anything here may take on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(180);

impl Sandbox {
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("a temporary directory"), variables: Vec::new() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A job of a second or two: this project's own sources, a model of 40,000 parameters, a checkpoint every ten steps.
    pub fn job(&self, name: &str, steps: u64) -> PathBuf {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/job/**/*.rs");
        let file = self.path(&format!("{name}.toml"));
        let text = format!(
            r#"
name = "{name}"
[data]
train = ["{}"]
tokenizer = {{ kind = "train", vocabulary = 400 }}
[model]
layers = 2
heads = 2
width = 32
context = 32
[train]
steps = {steps}
block_size = 32
micro_batch = 4
learning_rate = 1e-3
checkpoint_every = 10
log_every = 1
eval_sequences = 8
threads = 1
[sample]
prompt = "pub fn "
tokens = 20
[retry]
backoff = "0s"
attempts = 200
"#,
            sources.display()
        );
        fs::write(&file, text).expect("the job file");
        file
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ftctl"));
        command.args(arguments).current_dir(self.directory.path()).stdin(Stdio::null());
        command.env("XDG_STATE_HOME", self.path("state")).env("XDG_CONFIG_HOME", self.path("config"));
        for name in ["FTCTL_STORE", "FTCTL_BACKEND", "FTCTL_PROFILE", "FTCTL_OUTPUT"] {
            command.env_remove(name);
        }
        command.env("FTCTL_TRUST_PROJECT", "1").envs(self.variables.iter().cloned());
        command
    }

    /// Runs a verb to its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("ftctl starts")
    }

    /// Runs a verb that must succeed and gives its stdout.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "ftctl {arguments:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("stdout is UTF-8")
    }

    pub fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let text = self.ok(&[arguments, &["-o", "json"]].concat());
        serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("ftctl {arguments:?} printed no single JSON value: {error}\n{text}"))
    }

    pub fn spawn(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("ftctl starts")
    }

    /// Submits a job and gives its id.
    pub fn submit(&self, job: &Path) -> String {
        self.ok(&["submit", job.to_str().unwrap()]).trim().to_owned()
    }

    /// Waits for the condition, or fails the test.
    pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < LIMIT, "waited in vain for: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Processes of this sandbox whose command line contains `part`, found by their environment.
    pub fn processes(&self, part: &str) -> Vec<u32> {
        let home = format!("XDG_STATE_HOME={}", self.path("state").display());
        let pids = fs::read_dir("/proc").expect("/proc").flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid: &u32| {
            let read = |name| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let command_line = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
            command_line.contains(part) && read("environ").split(|byte| *byte == 0).any(|variable| variable == home.as_bytes())
        })
        .collect()
    }

    /// Digests of the files by which a finished job is judged.
    pub fn results(&self, id: &str) -> Vec<(String, Vec<u8>)> {
        let to = self.path(&format!("download-{id}"));
        self.ok(&["download", id, "--to", to.to_str().unwrap()]);
        let mut files = Vec::new();
        collect(&to, &mut files);
        let wanted = ["model.safetensors", "optimizer.safetensors", "steps.jsonl"];
        files.sort();
        let mut results: Vec<_> = wanted
            .iter()
            .map(|name| {
                let path = files.iter().find(|path| path.ends_with(name)).unwrap_or_else(|| panic!("{name} was not downloaded"));
                ((*name).to_owned(), fs::read(path).expect("a downloaded file"))
            })
            .collect();
        results.sort();
        results
    }
}

impl Drop for Sandbox {
    /// A failed test leaves nothing running.
    fn drop(&mut self) {
        for pid in self.processes("") {
            if pid != std::process::id() {
                kill(pid);
            }
        }
    }
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("the download").flatten() {
        if entry.path().is_dir() { collect(&entry.path(), files) } else { files.push(entry.path()) }
    }
}

pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port()
}

/// SIGKILL; a process that is gone already is fine.
pub fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

pub fn signal(pid: u32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid as i32).expect("a process number"), signal);
}
