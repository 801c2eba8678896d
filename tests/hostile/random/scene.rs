//! A valid store of ten jobs in every state, a home around it, and things that must not change: the home, a stranger's machine,
//! other jobs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, SystemTime},
};

use ftctl::{
    job::id::{JobId, path},
    store::{
        FileEntry,
        artifacts::{ARTIFACTS_SCHEMA, ArtifactsManifest},
    },
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{
    remote::Remote,
    stub::{SECRET, Stub},
    verbs::{Reach, Verb},
    watch::Harm,
};
use crate::{
    common::Sandbox,
    project::{IMAGE, Project},
};

/// The jobs in the order in which they are made. Only the last four have machines: a wait passes the time of all.
pub const NAMES: [&str; 10] =
    ["succeeded", "failed", "cancelled", "preempted", "other", "owing", "ready", "running", "second", "killed"];
const OWING: usize = 5;
/// Those whose machines are on Compute Engine where there is one. They have no order yet: a cancelled agent that never began would
/// be waited for.
const IN_PROJECT: [&str; 2] = ["ready", "second"];

/// The directories that verbs may write to, below the home.
const THEIRS: [&str; 3] = ["team", ".local/state/ftctl", ".cache/ftctl"];

/// The files that no verb touches, below the home.
const CANARIES: [(&str, &str); 9] = [
    (".ssh/authorized_keys", "ssh-ed25519 mine\n"),
    (".ssh/id_ed25519", "-----BEGIN OPENSSH PRIVATE KEY-----\nCANARYSECRET\n"),
    (".bashrc", "# mine\n"),
    (".azure/msal_token_cache.json", r#"{"RefreshToken":{"a":{"secret":"CANARYSECRET"}}}"#),
    (
        ".config/gcloud/application_default_credentials.json",
        r#"{"type":"authorized_user","client_id":"a","client_secret":"CANARYSECRET","refresh_token":"CANARYSECRET"}"#,
    ),
    (".docker/config.json", r#"{"auths":{"registry.example":{"auth":"Q0FOQVJZU0VDUkVUOkNBTkFSWVNFQ1JFVA=="}}}"#),
    ("documents/thesis.txt", "CANARYSECRET\n"),
    ("documents/letters/one.txt", "mine\n"),
    (PROGRAM, "#!/bin/sh\n: >\"$0.ran\"\n"),
];

/// Leaves a file beside itself when it is run.
pub const PROGRAM: &str = "documents/program";

pub struct Scene {
    sandbox: Sandbox,
    /// Home and working directory as they were at first.
    pristine: tempfile::TempDir,
    /// Another user, whose machine is in our cloud.
    neighbour: Sandbox,
    /// Machines of others: theirs, and those in the project.
    strangers: Vec<String>,
    pub stub: Stub,
    /// Where the store is, when it is no directory; the directory then says what it shall hold.
    remote: Option<Remote>,
    /// A simulated Compute Engine, where the jobs of [`IN_PROJECT`] have their machines; the fake cloud has the others.
    project: Option<Project>,
    /// The project's machines as they were at first.
    made: Vec<Value>,
    /// The ids of [`NAMES`].
    pub jobs: Vec<String>,
}

/// Everything that a verb is judged by.
pub struct Look {
    /// Fingerprints of the files that must not change, by path.
    outside: BTreeMap<PathBuf, u64>,
    /// When each file of the store was written.
    store: BTreeMap<PathBuf, SystemTime>,
    machines: BTreeSet<String>,
}

impl Scene {
    pub fn in_directory() -> Self {
        Self::build(None, None)
    }

    pub fn on_devcloud() -> Self {
        // Machines that have power for as long as anybody looks, and never boot.
        Self::build(None, Some(Project::new(&json!({ "boot": "10000h" }))))
    }

    pub fn on_azurite() -> Self {
        Self::build(Some(Remote::new()), None)
    }

    fn build(remote: Option<Remote>, project: Option<Project>) -> Self {
        let mut scene = Self {
            sandbox: Sandbox::in_memory(),
            pristine: tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory"),
            neighbour: Sandbox::in_memory(),
            strangers: Vec::new(),
            stub: Stub::start(),
            remote,
            project,
            made: Vec::new(),
            jobs: Vec::new(),
        };
        scene.lay_out();
        scene.live();
        scene.leave_artifacts();
        scene.write_files();
        scene.add_a_stranger();
        scene.add_strangers_to_project();
        for part in ["home", "work"] {
            copy(&scene.root().join(part), &scene.pristine.path().join(part)).expect("a copy");
        }
        scene
    }

    fn lay_out(&self) {
        for (name, text) in CANARIES {
            write(&self.home().join(name), text);
        }
        fs::set_permissions(self.home().join(PROGRAM), fs::Permissions::from_mode(0o755)).expect("a program");
        // A clean-up takes what is old.
        let old = fs::File::open(self.home().join("documents/thesis.txt")).expect("a file");
        old.set_modified(SystemTime::now() - Duration::from_secs(9 * 86_400)).expect("an old file");
        for name in THEIRS {
            fs::create_dir_all(self.home().join(name)).expect("a directory");
        }
    }

    fn live(&mut self) {
        self.sandbox.write_rehearsal("rehearsal");
        self.sandbox.write_dataset();
        fs::write(self.work().join("large"), vec![0; (4 << 20) + 7]).expect("a file");
        for (path, name) in [("data", "texts"), ("large", "large")] {
            self.done(&["upload", path, "--name", name], 0);
        }
        fs::remove_file(self.work().join("large")).expect("removed");
        self.script(&json!({}));
        self.submit("succeeded", &["--wait"], 0);
        self.script(&json!({ "job": { "duration": "20s", "fails": "the loss is not a number" } }));
        self.submit("failed", &["--wait"], 20);
        self.script(&json!({}));
        self.submit("cancelled", &[], 0);
        self.done(&["cancel", "cancelled"], 0);
        self.script(&json!({ "preemptions": [{ "attempt": 1, "after": "10s", "notice": true }] }));
        self.submit("preempted", &["--wait"], 0);
        self.script(&json!({}));
        self.submit("other", &["--wait", "--set", "dataset=@texts"], 0);
        self.script(&json!({ "faults": [{ "call": "destroy", "kind": "denied", "times": 1_000_000 }] }));
        self.submit("owing", &[], 0);
        self.done(&["down", "owing", "-y"], 8);
        self.script(&json!({}));
        self.job("ready", &["up"], 0);
        self.submit("running", &[], 0);
        self.submit("second", &[], 0);
        self.script(&json!({ "crash_at": { "call": 12, "when": "after" } }));
        self.job("killed", &["submit"], -9);
        self.script(&json!({}));
        if let Some(remote) = &self.remote {
            remote.pull(&self.store());
        }
        self.jobs = NAMES.map(|name| self.id_of(name)).to_vec();
    }

    /// Sets the cloud's script from now on, for jobs of twenty seconds.
    fn script(&self, more: &Value) {
        let mut script = json!({ "job": { "staging": "1s", "duration": "20s" } });
        script.as_object_mut().zip(more.as_object()).map(|(script, more)| script.extend(more.clone())).expect("objects");
        self.sandbox.script(&script);
    }

    fn submit(&self, name: &str, more: &[&str], code: i32) {
        self.job(name, &[&["submit"], more].concat(), code);
    }

    fn job(&self, name: &str, verb: &[&str], code: i32) {
        let text = fs::read_to_string(self.work().join("job.toml")).expect("a job file");
        let line = text.lines().next().expect("a name").to_owned();
        self.sandbox.write("job.toml", text.replace(&line, &format!("name = \"{name}\"")));
        if self.project.is_some() && IN_PROJECT.contains(&name) {
            return self.done(&[&["up", "job.toml", "--backend", "gce", "--ttl", "1000h"][..], &IMAGE].concat(), code);
        }
        self.done(&[verb, &["job.toml"]].concat(), code);
    }

    /// The job's id by the store: a verb that was killed printed none.
    fn id_of(&self, name: &str) -> String {
        let entry = fs::read(self.store().join(path::name(name))).unwrap_or_else(|error| panic!("{name}: {error}"));
        let entry: Value = serde_json::from_slice(&entry).expect("JSON");
        entry["id"].as_str().expect("an id").to_owned()
    }

    fn done(&self, arguments: &[&str], code: i32) {
        let output = self.command(arguments).output().expect("ftctl runs");
        let found = output.status.code().unwrap_or(-9);
        assert_eq!(found, code, "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// The fake machines leave none.
    fn leave_artifacts(&self) {
        let id = JobId::parse(&self.jobs[0]).expect("an id");
        let files = ["summary.json", "samples/one.txt"].map(|name| FileEntry::of_bytes(name.to_owned(), name.as_bytes()));
        for file in &files {
            write(&self.store().join(path::content(&path::job_contents(&id), &file.sha256)), &file.path);
        }
        let manifest = ArtifactsManifest { schema: ARTIFACTS_SCHEMA.to_owned(), attempt: 1, files: files.to_vec() };
        write(&self.store().join(path::artifacts(&id)).join("manifest.json"), &json!(manifest).to_string());
    }

    /// Writes the files that the verbs of the rounds submit.
    fn write_files(&self) {
        let text = fs::read_to_string(self.work().join("job.toml")).expect("a job file");
        for (file, name, dataset) in [("job", "fresh", "data"), ("named", "named", "@texts"), ("taken", "succeeded", "@large")] {
            let text = text.replace("name = \"killed\"", &format!("name = \"{name}\""));
            self.sandbox.write(&format!("{file}.toml"), text.replace("dataset = \"data\"", &format!("dataset = \"{dataset}\"")));
        }
    }

    /// A machine in the same cloud, made by another user for a job in another store.
    fn add_a_stranger(&mut self) {
        let stranger = &self.neighbour;
        stranger.write_rehearsal("stranger");
        let mut command = stranger.command(&["submit", "job.toml", "--store", "theirs"]);
        let said = Sandbox::said(command.env("USER", "stranger").env("LOGNAME", "stranger"));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        let mut theirs = cloud(stranger);
        let (name, mut machine) = theirs["machines"]
            .as_object_mut()
            .and_then(|all| all.iter().next().map(|(name, machine)| (name.clone(), machine.clone())))
            .expect("a machine");
        machine["expires"] = "2999-01-01T00:00:00Z".into();
        let mut ours = cloud(&self.sandbox);
        ours["machines"][&name] = machine;
        fs::write(self.sandbox.state().join("fake/cloud.json"), ours.to_string()).expect("written");
        self.strangers.push(name);
    }

    /// Machines that have nothing to do with ftctl, and one of a colleague.
    fn add_strangers_to_project(&mut self) {
        let Some(project) = &self.project else { return };
        project.make("prod-database");
        self.neighbour.write_rehearsal("theirs");
        self.neighbour.write_dataset();
        let mut command =
            self.neighbour.command(&[&["up", "job.toml", "--store", "theirs", "--backend", "gce"][..], &IMAGE].concat());
        let said = Sandbox::said(command.envs(project.variables.iter().cloned()).env("USER", "stranger"));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        self.strangers.extend(["prod-database".to_owned(), format!("{}-a1", said.stdout.trim())]);
        self.made = project.instances();
        assert_eq!(self.made.len(), 2 + IN_PROJECT.len(), "{:?}", self.made);
    }

    pub fn home(&self) -> PathBuf {
        self.sandbox.home()
    }

    pub fn work(&self) -> PathBuf {
        self.sandbox.path("")
    }

    pub fn store(&self) -> PathBuf {
        self.home().join("team/store")
    }

    fn root(&self) -> PathBuf {
        self.home().parent().expect("a root").to_owned()
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.sandbox.command(arguments);
        let proxy = format!("http://127.0.0.1:{}", self.stub.port);
        command.env("HTTPS_PROXY", &proxy).env("HTTP_PROXY", &proxy).env("NO_PROXY", "127.0.0.1").env("MY_PASSWORD", SECRET);
        match &self.remote {
            Some(remote) => command.env("FTCTL_STORE", &remote.url).env("AZURE_STORAGE_SAS_TOKEN", &remote.signature),
            None => command.env("FTCTL_STORE", self.store()).env("AZURE_STORAGE_SAS_TOKEN", format!("sv=2024-11-04&sig={SECRET}")),
        };
        command.envs(self.project.iter().flat_map(|project| project.variables.iter().cloned()));
        command
    }

    /// Everything is as it was at first.
    pub fn restore(&self) {
        for part in ["home", "work"] {
            let live = self.root().join(part);
            fs::remove_dir_all(&live).expect("the last round");
            copy(&self.pristine.path().join(part), &live).expect("a copy");
        }
        let Some(project) = &self.project else { return };
        let there = project.machines();
        let gone = self.made.iter().filter(|machine| !there.iter().any(|name| machine["name"] == **name));
        gone.for_each(|machine| project.insert(machine));
        // Jobs of the last round.
        let added = |name: &&String| !self.made.iter().any(|machine| machine["name"] == **name);
        there.iter().filter(added).for_each(|name| project.delete(name));
    }

    /// Shows the verbs the changed files.
    pub fn publish(&self) {
        if let Some(remote) = &self.remote {
            remote.push(&self.store());
        }
    }

    /// Makes a colleague run the verbs from now on, who has submitted none of the jobs.
    pub fn become_a_colleague(&self) {
        let _ = fs::remove_dir_all(self.sandbox.state().join("submitted"));
    }

    pub fn look(&self) -> Look {
        let (mut outside, mut store) = (BTreeMap::new(), BTreeMap::new());
        walk(&self.root(), &|path| !self.is_theirs(path), &mut |path, metadata| {
            outside.insert(path.to_owned(), fingerprint(path, metadata));
        });
        walk(&self.store(), &|_| true, &mut |path, metadata| {
            store.insert(path.to_owned(), metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH));
        });
        let fake =
            cloud(&self.sandbox)["machines"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        let machines = fake.into_iter().chain(self.project.iter().flat_map(Project::machines)).collect();
        Look { outside, store, machines }
    }

    /// Whether verbs may write the path: the store and ftctl's own, and in the working directory the files that they were told to
    /// and a job's report.
    fn is_theirs(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_told = || name.contains("out") || name.strip_suffix(".html").is_some_and(|job| JobId::parse(job).is_some());
        THEIRS.iter().any(|name| path == self.home().join(name)) || (path.parent() == Some(&self.work()) && is_told())
    }

    /// The machine of a stranger, or of a job that the verb is not about.
    pub fn machines_lost(&self, before: &Look, after: &Look, verb: &Verb, touched: &[usize]) -> Option<Harm> {
        let spared = |name: &str| {
            let job = self.jobs.iter().position(|id| name.starts_with(id));
            self.strangers.iter().any(|stranger| stranger == name)
                || (verb.reach == Reach::Nothing && job.is_some_and(|job| job != OWING && !touched.contains(&job)))
        };
        let lost: Vec<_> = before.machines.difference(&after.machines).filter(|name| spared(name)).collect();
        let kind = if lost.iter().any(|name| self.strangers.contains(name)) {
            "ends a stranger's machine"
        } else {
            "ends another job's machine"
        };
        (!lost.is_empty()).then(|| Harm::new(kind, format!("{lost:?}")))
    }

    /// A secret that reached the stub, or the store.
    pub fn leak(&self, before: &Look, after: &Look) -> Option<Harm> {
        if let Some(heard) = self.stub.secret() {
            return Some(Harm::new("sends a secret to a stranger's server", heard));
        }
        if let Some(path) = self.remote.as_ref().and_then(|remote| remote.secret(&self.store())) {
            return Some(Harm::new("puts a secret into the store", path));
        }
        let written = after.store.iter().filter(|(path, time)| before.store.get(*path) != Some(time)).map(|(path, _)| path);
        let found = written
            .filter(|path| is_small_file(path))
            .find(|path| fs::read(path).is_ok_and(|bytes| bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes())))?;
        Some(Harm::new("puts a secret into the store", found.display().to_string()))
    }

    /// Ends the processes that a verb left running: they have this home in their environment.
    pub fn end_what_runs(&self) {
        let home = format!("HOME={}", self.home().display());
        let processes =
            fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        for process in processes {
            let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
            if environment.split(|byte| *byte == 0).any(|variable| variable == home.as_bytes()) {
                let _ = Pid::from_raw(process).map(|process| kill_process(process, Signal::KILL));
            }
        }
    }
}

impl Look {
    /// Whatever is not as it was.
    pub fn harm(&self, after: &Self) -> Option<Harm> {
        let paths: BTreeSet<_> = self.outside.keys().chain(after.outside.keys()).collect();
        let changed: Vec<_> = paths.into_iter().filter(|path| self.outside.get(*path) != after.outside.get(*path)).collect();
        let name = changed.first()?.file_name()?.to_string_lossy().into_owned();
        Some(Harm::new(format!("changes {name} outside of the store"), format!("{changed:?}")))
    }
}

fn cloud(sandbox: &Sandbox) -> Value {
    let bytes = fs::read(sandbox.state().join("fake/cloud.json")).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

fn is_small_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() < 1 << 20)
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, text).expect("written");
}

/// The fingerprint of all of a file; of a folder only that it is there: others are made and removed in it.
fn fingerprint(path: &Path, metadata: &fs::Metadata) -> u64 {
    let mut hasher = DefaultHasher::new();
    metadata.mode().hash(&mut hasher);
    if !metadata.is_dir() {
        (metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec()).hash(&mut hasher);
        fs::read(path).ok().hash(&mut hasher);
    }
    hasher.finish()
}

/// Everything below `folder`, through no link.
pub fn walk(folder: &Path, enters: &dyn Fn(&Path) -> bool, visit: &mut dyn FnMut(&Path, &fs::Metadata)) {
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        if !enters(&path) {
            continue;
        }
        visit(&path, &metadata);
        if metadata.is_dir() {
            walk(&path, enters, visit);
        }
    }
}

/// With times, and links as links.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let (path, target) = {
            let entry = entry?;
            (entry.path(), to.join(entry.file_name()))
        };
        let metadata = fs::symlink_metadata(&path)?;
        if metadata.is_dir() {
            copy(&path, &target)?;
        } else if metadata.is_symlink() {
            symlink(fs::read_link(&path)?, &target)?;
        } else {
            fs::copy(&path, &target)?;
            fs::File::open(&target)?.set_modified(metadata.modified()?)?;
        }
    }
    fs::set_permissions(to, fs::metadata(from)?.permissions())
}
