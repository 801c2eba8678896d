//! A person who may write to a store, or has put a repository together, wants files outside of it: written, removed, read, or the
//! reader held up.

use std::{
    fs::{self, File},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant, SystemTime},
};

use ftctl::job::digest::Digest;
use serde_json::{Value, json};

use crate::common::{Said, Sandbox, model::write_model};

/// It was never submitted: the job is only the objects in the store.
const JOB: &str = "hostile-bcdfgh";

const CHUNK: usize = 4 << 20;

/// A store in a directory, another user's work, and a file of the user's.
struct Place {
    sandbox: Sandbox,
}

impl Place {
    fn new() -> Self {
        let place = Self { sandbox: Sandbox::new() };
        place.put("record.json", "{}");
        fs::create_dir(place.sandbox.path("mine")).unwrap();
        place.sandbox.write("mine/keys", "mine");
        let long_ago = SystemTime::now() - Duration::from_secs(10 * 86_400);
        for name in ["mine/old.txt", "mine/.tmpabcdef"] {
            File::create(place.sandbox.path(name)).unwrap().set_modified(long_ago).unwrap();
        }
        place
    }

    fn of_job(&self, path: &str) -> PathBuf {
        let path = self.sandbox.path("store/ftctl/v1/jobs").join(JOB).join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    fn put(&self, path: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.of_job(path), bytes).unwrap();
    }

    fn content(&self, bytes: &[u8]) -> Digest {
        let digest = Digest::of(bytes);
        self.put(&format!("contents/{}/{digest}", &digest.as_str()[..2]), bytes);
        digest
    }

    fn checkpoint(&self, step: u64, files: &Value) {
        let manifest = json!({ "schema": "ftctl.checkpoint/2", "step": 7, "attempt": 1, "files": files });
        self.put(&format!("checkpoints/{step:010}/manifest.json"), manifest.to_string());
    }

    fn run(&self, arguments: &[&str]) -> Said {
        let mut command = self.sandbox.command(arguments);
        Sandbox::said(command.env("FTCTL_STORE", self.sandbox.path("store")))
    }

    fn download(&self) -> Said {
        self.run(&["download", JOB, "--to", "model", "--overwrite"])
    }

    fn is_untouched(&self) {
        assert_eq!(fs::read_to_string(self.sandbox.path("mine/keys")).unwrap(), "mine");
        assert_eq!(fs::read_dir(self.sandbox.path("mine")).unwrap().count(), 3);
    }
}

/// S4, S18, S19: a manifest's text becomes no path, and its word on its files is compared before a byte is written.
#[test]
fn a_manifest_writes_what_it_says_below_its_folder_or_nothing() {
    let place = Place::new();
    let (tokens, other) = (place.content(b"tokens"), place.content(b"other"));
    let one = |path: &str, size: u64, sha256: &Value| json!({ "path": path, "size": size, "sha256": sha256 });
    let (tokens, other) = (json!(tokens), json!(other));
    let first = place.content(&vec![7; CHUNK]);
    let way_out = json!(format!("/../../{}/mine/keys", place.sandbox.path("").display()));
    let chunked = |sha256: &Value| json!({ "path": "a", "size": 2 * CHUNK, "sha256": sha256, "chunks": [first, first] });
    let cases = [
        ("a digest that leads out", json!([one(".ftctl-partial-/x", 6, &tokens), chunked(&way_out)])),
        ("a digest that is one, of something else", json!([chunked(&tokens)])),
        ("a folder for the way out", json!([one(".ftctl-partial-/x", 6, &tokens)])),
        ("a way out", json!([one("../mine/keys", 6, &tokens)])),
        ("an absolute path", json!([one(place.sandbox.path("mine/keys").to_str().unwrap(), 6, &tokens)])),
        ("an order to the terminal", json!([one("a\u{1b}]52;c;eA==\u{7}", 6, &tokens)])),
        ("the same name twice", json!([one("a", 6, &tokens), one("a", 5, &other)])),
        ("a name for two systems", json!([one("a", 6, &tokens), one("A", 5, &other)])),
        ("a file and a folder", json!([one("a", 6, &tokens), one("a/b", 5, &other)])),
        ("a size that is not the object's", json!([one("a", 4_000_000, &tokens)])),
        ("a size that an earlier version might have stored", json!([one("a", 1 << 40, &tokens)])),
        ("the largest size", json!([one("a", u64::MAX, &tokens)])),
        ("sizes that wrap", json!([one("a", 1 << 63, &tokens), one("b", 1 << 63, &other)])),
    ];
    for (what, files) in cases {
        place.checkpoint(7, &files);
        let began = Instant::now();
        for dry in [&["--dry-run"][..], &[]] {
            let said = place.run(&[&["download", JOB, "--to", "model", "--overwrite"], dry].concat());
            let harmless = said.code == Some(0) && !dry.is_empty();
            assert!(said.code == Some(9) || harmless, "{what}: {:?} {}", said.code, said.stderr);
            assert!(!said.stderr.contains(|c: char| c.is_control() && c != '\n'), "{what}: {:?}", said.stderr);
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{what}");
        assert!(!place.sandbox.path("model").exists(), "{what}");
        place.is_untouched();
    }
    // A checkpoint under another step's name.
    place.checkpoint(9, &json!([one("a", 6, &tokens)]));
    assert_eq!(place.download().code, Some(9));
    fs::remove_dir_all(place.of_job("checkpoints/0000000009")).unwrap();
    place.checkpoint(7, &json!([one("a", 6, &tokens)]));
    assert_eq!(place.download().code, Some(0));
    assert_eq!(fs::read_to_string(place.sandbox.path("model/a")).unwrap(), "tokens");
}

/// Links that another user left where the files are to go.
#[test]
fn a_download_goes_through_no_link() {
    let place = Place::new();
    let tokens = place.content(b"tokens");
    place.checkpoint(7, &json!([{ "path": "folder/keys", "size": 6, "sha256": tokens }]));
    fs::create_dir(place.sandbox.path("model")).unwrap();
    symlink("../mine", place.sandbox.path("model/folder")).unwrap();
    let said = place.download();
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    assert!(said.stderr.contains("`folder` is a symbolic link, which ftctl does not open"), "{}", said.stderr);
    place.is_untouched();
    place.checkpoint(7, &json!([{ "path": "keys", "size": 6, "sha256": tokens }]));
    symlink("../mine/keys", place.sandbox.path("model/keys")).unwrap();
    assert_eq!(place.run(&["download", JOB, "--to", "model"]).code, Some(2), "the link is the user's");
    assert_eq!(place.download().code, Some(0));
    assert!(place.sandbox.path("model/keys").symlink_metadata().unwrap().is_file());
    place.is_untouched();
}

/// The same of the folder of what a job left beside its checkpoints, and of the one that nobody named.
#[test]
fn what_a_job_left_goes_through_no_link() {
    let place = Place::new();
    let left = place.content(b"a key of mine");
    let manifest = json!({ "schema": "ftctl.artifacts/1", "attempt": 1, "files": [{ "path": "authorized_keys", "size": 13, "sha256": left }] });
    let file = place.of_job("artifacts/manifest.json");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, manifest.to_string()).unwrap();
    fs::create_dir(place.sandbox.path("model")).unwrap();
    symlink("../mine", place.sandbox.path("model/artifacts")).unwrap();
    let said = place.run(&["download", JOB, "--to", "model"]);
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    assert!(said.stderr.contains("`artifacts` is a symbolic link, which ftctl does not open"), "{}", said.stderr);
    place.is_untouched();
    symlink("mine", place.sandbox.path(JOB)).unwrap();
    let said = place.run(&["download", JOB]);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.contains("is a symbolic link that you did not name"), "{}", said.stderr);
    place.is_untouched();
    fs::remove_file(place.sandbox.path("model/artifacts")).unwrap();
    assert_eq!(place.run(&["download", JOB, "--to", "model"]).code, Some(0));
    assert_eq!(fs::read(place.sandbox.path("model/artifacts/authorized_keys")).unwrap(), b"a key of mine");
}

/// A cloned repository's data may hold links to anything that its reader has.
#[test]
fn an_upload_takes_no_private_file_by_a_link() {
    let place = Place::new();
    fs::create_dir(place.sandbox.path("data")).unwrap();
    place.sandbox.write("data/text", "a text");
    symlink("../mine/keys", place.sandbox.path("data/more")).unwrap();
    let mode = |mode| fs::set_permissions(place.sandbox.path("mine/keys"), fs::Permissions::from_mode(mode)).unwrap();
    mode(0o600);
    let said = place.run(&["upload", "data"]);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.contains("data/more links to ") && said.stderr.contains("only its owner may read"), "{}", said.stderr);
    assert!(!place.sandbox.path("store/ftctl/v1/datasets").exists());
    // A dataset that lies elsewhere, and a private one that does not.
    mode(0o644);
    place.sandbox.write("data/own", "a text");
    fs::set_permissions(place.sandbox.path("data/own"), fs::Permissions::from_mode(0o600)).unwrap();
    symlink("own", place.sandbox.path("data/same")).unwrap();
    assert_eq!(place.run(&["upload", "data"]).code, Some(0));
}

/// So may its weights.
#[test]
fn initial_weights_take_no_private_file_by_a_link() {
    let place = Place::new();
    place.sandbox.write_rehearsal("tuned");
    write_model(&place.sandbox.path("weights"));
    symlink("../mine/keys", place.sandbox.path("weights/vocab.json")).unwrap();
    fs::set_permissions(place.sandbox.path("mine/keys"), fs::Permissions::from_mode(0o600)).unwrap();
    let submit = ["submit", "job.toml", "--wait", "--set", "initial_weights=weights", "--set", "train.block_size=32"];
    let said = place.run(&submit);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(
        said.stderr.contains("weights/vocab.json links to ") && said.stderr.contains("only its owner may read"),
        "{}",
        said.stderr
    );
    let key = Digest::of(b"mine");
    assert!(!place.sandbox.path(&format!("store/ftctl/v1/contents/{}/{key}", &key.as_str()[..2])).exists(), "it was not sent");
    fs::remove_file(place.sandbox.path("weights/vocab.json")).unwrap();
    assert_eq!(place.run(&submit).code, Some(0));
}

/// Git keeps links, and a name that the user did not choose may be one. The page of a job has words from its store.
#[test]
fn files_that_nobody_named_go_through_no_link() {
    let place = Place::new();
    let sandbox = &place.sandbox;
    sandbox.write_rehearsal("trained");
    let id = place.run(&["submit", "job.toml", "--wait"]).stdout.trim().to_owned();
    let progress = sandbox.path("store/ftctl/v1/jobs").join(&id).join("attempts/1/progress.jsonl");
    let start = json!({ "v": 1, "time": 0, "event": "start", "step": 0, "steps": 9, "parameters": 1, "tokens_per_step": 64,
        "flops_per_token": 1.0, "device": "x\nssh-ed25519 KEY mallory\n" });
    let step = json!({ "v": 1, "time": 1, "event": "step", "step": 1, "steps": 9, "loss": 1.0, "learning_rate": 1e-3,
        "gradient_norm": 1.0, "tokens_per_second": 1.0, "mfu": 0.1, "eta_seconds": 0.0 });
    fs::write(progress, format!("{start}\n{step}\n")).unwrap();
    let page = sandbox.path(&format!("{id}.html"));
    symlink("mine/keys", &page).unwrap();
    assert_eq!(place.run(&["report", &id]).code, Some(0));
    place.is_untouched();
    let text = fs::read_to_string(&page).unwrap();
    assert!(!page.is_symlink() && text.contains("KEY mallory") && !text.lines().any(|line| line.starts_with("ssh-")), "{text}");

    fs::remove_file(sandbox.path("job.toml")).unwrap();
    symlink("mine/keys", sandbox.path("job.toml")).unwrap();
    symlink("mine/new", sandbox.path("job.schema.json")).unwrap();
    assert_eq!(place.run(&["init"]).code, Some(2), "it is there");
    assert_eq!(place.run(&["init", "--force"]).code, Some(0));
    place.is_untouched();
    assert!(!sandbox.path("job.toml").is_symlink() && !sandbox.path("job.schema.json").is_symlink());
}

/// An archive of a project may have a pipe in it.
#[test]
fn a_projects_file_that_is_a_pipe_holds_nobody_up() {
    let sandbox = Sandbox::new();
    assert!(Command::new("mkfifo").arg(sandbox.path("ftctl.toml")).status().unwrap().success());
    let began = Instant::now();
    let said = sandbox.run(&["status"]);
    assert!(said.code == Some(2) && said.stderr.contains("ftctl.toml is a pipe or a device, not a file"), "{}", said.stderr);
    fs::remove_file(sandbox.path("ftctl.toml")).unwrap();
    fs::create_dir(sandbox.path("weights")).unwrap();
    for name in ["config.json", "weights/config.json", "weights/model.safetensors"] {
        assert!(Command::new("mkfifo").arg(sandbox.path(name)).status().unwrap().success());
    }
    sandbox.write("job.toml", "name = \"a\"\ninitial_weights = \"weights\"\ndataset = \"data\"\n[train]\nsteps = 1\n");
    assert!(sandbox.run(&["trust", "config.json"]).code.is_some());
    for verb in [&["prune", "--backend", "azureml"][..], &["plan", "job.toml"]] {
        assert_ne!(sandbox.run(verb).code, Some(0), "{verb:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(40));
}

/// S9: git keeps symbolic links, and a repository may bring a store.
#[test]
fn a_stores_links_delete_and_write_nothing_elsewhere() {
    for private in ["temporary", "locks"] {
        let place = Place::new();
        fs::create_dir(place.sandbox.path("store/.ftctl")).unwrap();
        symlink("../../mine", place.sandbox.path("store/.ftctl").join(private)).unwrap();
        place.sandbox.write("tokens", "tokens");
        let said = place.run(&["upload", "tokens"]);
        assert_eq!(said.code, Some(1), "{}", said.stderr);
        assert!(said.stderr.contains(&format!("`{private}` is a symbolic link, which ftctl does not open")), "{}", said.stderr);
        place.is_untouched();
    }
}

#[test]
fn a_log_is_not_written_at_the_end_of_a_link() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("linked");
    assert_eq!(sandbox.run(&["up", "job.toml"]).code, Some(0));
    let status: Value = serde_json::from_str(&sandbox.run(&["status", "linked", "-o", "json"]).stdout).unwrap();
    let id = status["id"].as_str().unwrap();
    let attempt = sandbox.state().join("store/ftctl/v1/jobs").join(id).join("attempts/1");
    fs::create_dir_all(&attempt).unwrap();
    symlink(sandbox.path("created"), attempt.join("log")).unwrap();
    let said = sandbox.run(&["submit", "job.toml", "--wait"]);
    assert!(!sandbox.path("created").exists(), "{}", said.stderr);
}

#[test]
fn a_pipe_or_an_endless_object_holds_nobody_up() {
    let place = Place::new();
    let pipe = |path: &Path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    fs::remove_file(place.of_job("record.json")).unwrap();
    pipe(&place.of_job("record.json"));
    let began = Instant::now();
    let said = place.run(&["status", JOB]);
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    assert!(place.run(&["status"]).code.is_some());
    fs::remove_file(place.of_job("record.json")).unwrap();
    File::create(place.of_job("record.json")).unwrap().set_len(1 << 40).unwrap();
    for arguments in [&["status", JOB][..], &["logs", JOB], &["explain", JOB]] {
        let said = place.run(arguments);
        assert_eq!(said.code, Some(9), "{arguments:?}: {}", said.stderr);
        assert!(said.stderr.contains("1099511627776 bytes"), "{}", said.stderr);
    }
    File::create(place.of_job("checkpoints/0000000007/manifest.json")).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(place.download().code, Some(9));
    // Nor does the order that a machine was handed.
    let order = place.of_job("order.json");
    File::create(&order).unwrap().set_len(1 << 40).unwrap();
    let said = place.run(&["agent", "--order", order.to_str().unwrap(), "--work", "work"]);
    assert!(said.code == Some(2) && said.stderr.contains("it is larger than 1 MiB"), "{}", said.stderr);
    assert!(began.elapsed() < Duration::from_secs(30));
}

/// A careless `umask` opens nothing; a store that a group shares on purpose stays as it is.
#[test]
fn what_ftctl_makes_is_for_its_owner_alone() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("private");
    let script = "umask 0; exec \"$@\"";
    let run = |arguments: &[&str]| {
        let ftctl = sandbox.command(arguments);
        let mut command = Command::new("sh");
        command
            .args(["-c", script, "sh"])
            .arg(ftctl.get_program())
            .args(ftctl.get_args())
            .current_dir(sandbox.path(""))
            .env_clear();
        command.envs(ftctl.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let said = Sandbox::said(&mut command);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
    };
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    run(&["submit", "job.toml", "--wait"]);
    for private in [sandbox.state(), sandbox.state().join("store"), sandbox.home().join(".cache/ftctl")] {
        assert_eq!(mode(&private), 0o700, "{}", private.display());
    }
    let shared = sandbox.path("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o2770)).unwrap();
    run(&["upload", "data", "--store", "shared"]);
    assert_eq!(mode(&shared), 0o2770);
    for (folder, expected) in [("shared/ftctl", 0o770), ("shared/.ftctl/locks", 0o770)] {
        assert_eq!(mode(&sandbox.path(folder)) & 0o777, expected, "{folder}");
    }
}
