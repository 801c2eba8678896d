//! An engine of a test's own, beside the one that the tests use: with little room, or with other lines to it.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Longest time that an engine may take to come up on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

pub struct Engine {
    directory: tempfile::TempDir,
    program: Child,
}

impl Engine {
    /// With a disk of its own of that size; `None` where only root could start one.
    pub fn start(megabytes: u32, options: &[&str]) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("data")).expect("a directory");
        let size = format!("size={megabytes}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(path("data")).status();
        if !mounted.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: only root can make a disk that is full");
            return None;
        }
        let mut command = Command::new("dockerd");
        for (option, name) in [("--data-root", "data"), ("--exec-root", "exec"), ("--pidfile", "pid")] {
            command.arg(option).arg(path(name));
        }
        let log = fs::File::create(path("log")).expect("a log");
        command.args([
            "--iptables=false",
            "--ip-masq=false",
            "--ip-forward=false",
            "--host",
            &format!("unix://{}", path("engine.sock").display()),
        ]);
        command.args(options).stdout(log.try_clone().expect("a log")).stderr(log);
        let mut engine = Self { program: command.spawn().expect("dockerd runs"), directory };
        let began = Instant::now();
        while !engine.docker(&["version"]).status.success() {
            let ended = engine.program.try_wait().expect("a child").is_some();
            let said = || fs::read_to_string(engine.path().join("log")).unwrap_or_default();
            assert!(!ended && began.elapsed() < LIMIT, "dockerd does not come up: {}", said());
            thread::sleep(Duration::from_millis(200));
        }
        Some(engine)
    }

    /// With its socket, `engine.sock`.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn host(&self) -> String {
        format!("unix://{}", self.path().join("engine.sock").display())
    }

    /// Gives its disk another size.
    pub fn grow(&self, megabytes: u32) {
        let size = format!("remount,size={megabytes}m");
        let grown = Command::new("mount").args(["-o", &size]).arg(self.path().join("data")).status();
        assert!(grown.expect("mount runs").success());
    }

    /// docker's own command line.
    pub fn docker(&self, arguments: &[&str]) -> Output {
        Command::new("docker").env("DOCKER_HOST", self.host()).args(arguments).output().expect("docker runs")
    }

    /// Takes an image from the engine of the tests.
    pub fn load(&self, image: &str) {
        let mut save = Command::new("docker").args(["save", image]).stdout(Stdio::piped()).spawn().expect("docker runs");
        let mut load = Command::new("docker");
        load.env("DOCKER_HOST", self.host()).args(["load", "--quiet"]).stdin(save.stdout.take().expect("its output"));
        assert!(load.stdout(Stdio::null()).status().expect("docker runs").success() && save.wait().expect("waited").success());
    }

    /// All images that it has.
    pub fn images(&self) -> String {
        String::from_utf8(self.docker(&["images", "--all", "--quiet"]).stdout).expect("identifiers")
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ended = Command::new("kill").arg(self.program.id().to_string()).status();
        let _waited = self.program.wait();
        for mount in ["exec/netns/default", "data"] {
            let _unmounted = Command::new("umount").arg("--lazy").arg(self.path().join(mount)).output();
        }
    }
}
