//! Troubles in a cloud, one row for each, and their effect on the user: through the program, on the simulated cloud, with the real
//! agent and trainer. `FT_ROW=NAME` plays the rows that have this in their names.

use std::{
    path::PathBuf,
    process::{Output, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use crate::{
    azurite,
    blobs::container,
    devcloud::{Devcloud, on_gce},
    sandbox::Sandbox,
};

pub const STEPS: u64 = 300;
/// Rows at once: most of their time is waiting.
const WORKERS: usize = 4;

/// Whose troubles they are.
pub struct Cloud {
    pub start: fn(&mut Sandbox, &str) -> Devcloud,
    /// Writes the file of a job with this name, so many steps, and this image.
    pub job: fn(&Sandbox, &str, u64, &str) -> PathBuf,
}

/// A run of the job in a cloud that does not work as it should.
pub struct Row {
    pub cloud: &'static Cloud,
    pub name: &'static str,
    /// The trouble, for devcloud.
    pub script: &'static str,
    pub speed: &'static str,
    pub image: &'static str,
    /// Changes to the job, as for `--set`.
    pub set: &'static [&'static str],
    /// Whether the store is a container, which machines reach over the network.
    pub in_azurite: bool,
    /// The test's acts meanwhile.
    pub meanwhile: fn(&Scene),
    pub exit: i32,
    /// Each is on stderr.
    pub sees: &'static [&'static str],
    /// How many machines there were; at the end none is left.
    pub machines: std::ops::RangeInclusive<usize>,
}

/// The scene that a row is played in.
pub struct Scene {
    /// It is asked for its calls when it goes, and the sandbox ends all that runs in it.
    pub devcloud: Devcloud,
    pub sandbox: Sandbox,
}

impl Scene {
    pub fn steps(&self, more_than: u64) {
        Sandbox::until("a step of the training", || {
            let jobs = self.sandbox.json(&["status", "--all"])["jobs"].clone();
            jobs[0]["state"] == "failed" || jobs[0]["step"].as_u64().is_some_and(|step| step > more_than)
        });
    }

    pub fn until_explained(&self, what: &str) {
        Sandbox::until(what, || {
            let output = self.sandbox.run(&["explain", "job"]);
            String::from_utf8_lossy(&output.stdout).contains(what)
        });
    }
}

type Files = Vec<(String, Vec<u8>)>;

/// The weights, optimizer and step log of the job when nothing goes wrong; `set` may change how long it is.
fn undisturbed(set: &[&str]) -> Files {
    static KNOWN: Mutex<Vec<(String, Files)>> = Mutex::new(Vec::new());
    let steps = set.iter().filter(|set| set.starts_with("train.")).copied().collect::<Vec<_>>().join(" ");
    let mut known = KNOWN.lock().unwrap();
    if let Some((_, results)) = known.iter().find(|(of, _)| *of == steps) {
        return results.clone();
    }
    let mut sandbox = Sandbox::new();
    let _devcloud = Devcloud::start(&mut sandbox, "10");
    let job = on_gce(&sandbox, "job", STEPS, "ftctl");
    let sets = set.iter().filter(|set| set.starts_with("train.")).flat_map(|set| ["--set", set]);
    sandbox.ok(&["run", job.to_str().unwrap()].into_iter().chain(sets).collect::<Vec<_>>());
    let results = sandbox.results("job");
    known.push((steps, results.clone()));
    results
}

impl Row {
    /// An undisturbed run on this cloud.
    pub const fn quiet(cloud: &'static Cloud) -> Self {
        Self {
            cloud,
            name: "",
            script: "{}",
            speed: "10",
            image: "ftctl",
            set: &[],
            in_azurite: false,
            meanwhile: |_| {},
            exit: 0,
            sees: &[],
            machines: 1..=1,
        }
    }

    fn play(&self) {
        let begun = Instant::now();
        let mut sandbox = Sandbox::new();
        let devcloud = (self.cloud.start)(&mut sandbox, self.speed);
        devcloud.goes_wrong(self.script);
        let _azurite = self.in_azurite.then(|| {
            let azurite = azurite::start();
            sandbox.variables.extend(container(&azurite));
            azurite
        });
        let job = (self.cloud.job)(&sandbox, "job", STEPS, self.image);
        let sets = self.set.iter().flat_map(|set| ["--set", set]);
        let arguments: Vec<&str> = ["run", job.to_str().unwrap()].into_iter().chain(sets).collect();
        let running = sandbox.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Read all the time: a follower without a reader stands still, and supervises nothing.
        let running = thread::spawn(|| running.wait_with_output().unwrap());
        let scene = Scene { devcloud, sandbox };
        (self.meanwhile)(&scene);
        let output = running.join().unwrap();
        let seen = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(self.exit), "{}: {seen}", self.name);
        for part in self.sees {
            assert!(seen.contains(part), "{}: the user does not see `{part}`: {seen}", self.name);
        }
        let machines = scene.devcloud.machines();
        assert!(self.machines.contains(&machines.len()), "{}: {machines:?}", self.name);
        assert!(scene.devcloud.nothing_bills(), "{}: {machines:?}", self.name);
        if self.exit == 0 {
            assert!(scene.sandbox.results("job") == undisturbed(self.set), "{}: other bytes than the undisturbed job's", self.name);
        }
        println!("{:5.1} s  {}", begun.elapsed().as_secs_f64(), self.name);
    }
}

/// Plays every row.
pub fn play_all(rows: &'static [Row]) {
    let next = AtomicUsize::new(0);
    let only = std::env::var("FT_ROW").ok();
    let failed = thread::scope(|scope| {
        let work = || {
            let following = || rows.get(next.fetch_add(1, Ordering::Relaxed));
            let rows = std::iter::from_fn(following).filter(|row| only.as_ref().is_none_or(|only| row.name.contains(only)));
            // A row that fails does not keep the others from being played.
            rows.filter(|row| thread::spawn(|| row.play()).join().is_err()).map(|row| row.name).collect::<Vec<_>>()
        };
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(failed.is_empty(), "{failed:?}; they say why above");
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A machine that cannot be destroyed.
#[derive(Clone, Copy)]
pub struct Debt {
    pub cloud: &'static Cloud,
    pub speed: &'static str,
    /// Other keys of the script, each with a comma behind it.
    pub script: &'static str,
    /// The call that fails, and how: each is played.
    pub call: &'static str,
    pub kinds: &'static [&'static str],
    /// Why something may still exist, as the user sees it.
    pub why: &'static str,
}

impl Debt {
    pub fn owe(self) {
        let workers: Vec<_> = self.kinds.iter().map(|kind| thread::spawn(move || self.owe_for(kind))).collect();
        let ended: Vec<_> = workers.into_iter().map(thread::JoinHandle::join).collect();
        assert!(ended.iter().all(Result::is_ok), "one failed; it says why above");
    }

    fn owe_for(self, kind: &str) {
        let Self { cloud, speed, script, call, why, .. } = self;
        let mut sandbox = Sandbox::new();
        let devcloud = (cloud.start)(&mut sandbox, speed);
        devcloud.goes_wrong(&format!(r#"{{ {script} "faults": [{{ "call": "{call}", "kind": {kind}, "times": 1000000 }}] }}"#));
        let job = (cloud.job)(&sandbox, "job", 20, "ftctl");
        let run = sandbox.run(&["run", job.to_str().unwrap()]);
        assert_eq!(run.status.code(), Some(8), "{kind}: {}", stderr(&run));
        assert!(stderr(&run).contains(&format!("may still exist: {why}")), "{kind}: {}", stderr(&run));
        // A cloud that does not answer takes each command the time that it waits for one.
        let commands = [&["status"][..], &["bill"], &["logs", "job"]];
        for command in &commands[..if kind.contains("hang") { 1 } else { 3 }] {
            let said = sandbox.run(command);
            assert!(said.status.success(), "{kind}, {command:?}: {}", stderr(&said));
            assert!(stderr(&said).contains("MAY STILL BILL since "), "{kind}, {command:?}: {}", stderr(&said));
        }
        let receipt = sandbox.json(&["bill", "job"]);
        assert_eq!(receipt["may_still_bill"], true, "{kind}: {receipt}");
        let down = sandbox.run(&["down", "job", "-y"]);
        assert_eq!(down.status.code(), Some(8), "{kind}: {}", stderr(&down));
        let owed = sandbox.json(&["bill"])["resources"].clone();
        assert_eq!(owed.as_array().map(Vec::len), Some(1), "{kind}: what is owed exists: {owed}");

        devcloud.goes_wrong("{}");
        let said = sandbox.run(&["status"]);
        assert!(stderr(&said).contains("are gone"), "{kind}: {}", stderr(&said));
        assert_eq!(sandbox.json(&["bill"])["resources"].as_array().map(Vec::len), Some(0), "{kind}");
        let said = sandbox.run(&["status", "job"]);
        assert_eq!(stderr(&said), "", "{kind}: paid once");
        let receipt = sandbox.json(&["bill", "job"]);
        assert_eq!((&receipt["state"], &receipt["may_still_bill"]), (&"succeeded".into(), &false.into()), "{kind}: {receipt}");
        println!("{kind}: billed {}", receipt["cost"]);
    }
}

/// Credentials end while a follower supervises, and are renewed.
pub fn sign_out(cloud: &Cloud) {
    let mut sandbox = Sandbox::new();
    let devcloud = (cloud.start)(&mut sandbox, "10");
    let job = (cloud.job)(&sandbox, "job", 2_000, "ftctl");
    let id = sandbox.submit(&job);
    let follower = sandbox.command(&["logs", "-f", &id]).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    devcloud.goes_wrong(r#"{ "faults": [{ "call": "*", "kind": { "status": 401 }, "times": 1000000 }] }"#);
    let output = follower.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).contains("goes on by itself"), "{}", stderr(&output));
    devcloud.goes_wrong("{}");
    sandbox.ok(&["logs", "-f", &id]);
    assert_eq!(sandbox.json(&["status", &id])["attempt"], 1);
    assert!(devcloud.nothing_bills());
}

/// Two commands submit the same job at once.
pub fn two_at_once(cloud: &Cloud) {
    let mut sandbox = Sandbox::new();
    let devcloud = (cloud.start)(&mut sandbox, "10");
    let job = (cloud.job)(&sandbox, "job", 20, "ftctl");
    let arguments = ["submit", job.to_str().unwrap(), "--wait", "--idempotency-key", "one"];
    let both = [(); 2].map(|()| sandbox.command(&arguments).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let said = both.map(|child| child.wait_with_output().unwrap());
    assert!(said.iter().all(|output| output.status.success()), "{} {}", stderr(&said[0]), stderr(&said[1]));
    assert_eq!(said[0].stdout, said[1].stdout, "one job");
    assert_eq!(devcloud.machines().len(), 1);
    assert!(devcloud.nothing_bills());
}
