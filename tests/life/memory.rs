//! The kernel kills for memory, as it does in a container with a limit.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::sandbox::{Sandbox, kill};

/// More than six sequences at a time of this job take, less than twelve.
const LIMIT: &str = "650M";

/// A control group with a limit on memory.
struct Narrow(PathBuf);

impl Narrow {
    /// One where control groups can be made: by root, outside of most containers. Elsewhere it says that its test is not tried.
    fn new(name: &str) -> Option<Self> {
        Self::make(name).inspect_err(|error| eprintln!("not tried, because control groups cannot be made here: {error}")).ok()
    }

    /// In the first or the second version of control groups.
    fn make(name: &str) -> io::Result<Self> {
        let (parent, limit) = [("memory", "memory.limit_in_bytes"), ("", "memory.max")]
            .map(|(parent, limit)| (Path::new("/sys/fs/cgroup").join(parent), limit))
            .into_iter()
            .find(|(parent, _)| parent.join("cgroup.procs").exists())
            .ok_or(io::ErrorKind::NotFound)?;
        let group = Self(parent.join(format!("ftctl-test-{}-{name}", std::process::id())));
        fs::create_dir(&group.0)?;
        fs::write(group.0.join(limit), LIMIT)?;
        Ok(group)
    }

    fn kills(&self) -> u64 {
        let read = |name| fs::read_to_string(self.0.join(name)).unwrap_or_default();
        let text = read("memory.oom_control") + &read("memory.events");
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")).expect("the kernel counts").parse().unwrap()
    }
}

impl Drop for Narrow {
    fn drop(&mut self) {
        Sandbox::until("the end of everything in the control group", || fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn a_trainer_that_the_kernel_kills_for_memory_goes_on_with_fewer_sequences() {
    let Some(narrow) = Narrow::new("trainer") else { return };
    let sandbox = Sandbox::new();
    let job = sandbox.job("narrow", 2);
    let wide = [("layers = 2", "layers = 6"), ("width = 32", "width = 256"), ("context = 32", "context = 512")];
    let large = [("block_size = 32", "block_size = 512"), ("micro_batch = 4", "micro_batch = 12"), ("threads = 1", "threads = 2")];
    let text = wide.into_iter().chain(large).fold(fs::read_to_string(&job).unwrap(), |text, (from, to)| text.replace(from, to));
    fs::write(&job, text).unwrap();

    let mut command = sandbox.command(&["run", job.to_str().unwrap()]);
    let run = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // The machine and its trainer begin later, and so inside.
    fs::write(narrow.0.join("cgroup.procs"), run.id().to_string()).unwrap();
    let output = run.wait_with_output().unwrap();
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{talk}");
    assert!(narrow.kills() > 0, "{talk}");
    assert!(talk.contains("because memory ran out with 12") && talk.contains("step 2/2"), "{talk}");
}

#[test]
#[ignore = "needs the trainer: tests/run builds it"]
fn a_trainer_that_dies_while_the_kernel_kills_elsewhere_keeps_its_sequences() {
    let Some(elsewhere) = Narrow::new("elsewhere") else { return };
    let sandbox = Sandbox::new();
    let id = sandbox.submit(&sandbox.job("beside", 1000));
    let trainers = || sandbox.processes("ft-trainer train");
    Sandbox::until("a trainer", || !trainers().is_empty());

    // Reads one endless line into its memory.
    let mut glutton = Command::new("tail").arg("/dev/zero").stdout(Stdio::null()).spawn().unwrap();
    fs::write(elsewhere.0.join("cgroup.procs"), glutton.id().to_string()).unwrap();
    assert!(!glutton.wait().unwrap().success());
    assert!(elsewhere.kills() > 0);
    let beside = trainers();
    assert!(!beside.is_empty(), "{}", sandbox.ok(&["explain", &id]));
    beside.into_iter().for_each(kill);

    sandbox.ok(&["logs", "-f", &id]);
    let status = sandbox.json(&["status", &id]);
    assert_eq!((&status["state"], status["attempt"].as_u64()), (&"succeeded".into(), Some(2)), "{}", sandbox.ok(&["explain", &id]));
    let log = sandbox.ok(&["logs", &id]);
    assert!(!log.contains("because memory ran out"), "{log}");
}
