//! The container image with a real engine and real registries: built, started, sent, and what goes wrong on the way.
//!
//! The programs in the image are those of this machine (`--prebuilt`); FT_DOCKER_FULL=1 compiles them in containers instead, from an
//! `ftctl` that was installed elsewhere.

mod common;

use std::{
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
};

use common::{
    Said, Sandbox,
    registry::{Auth, Registry},
};
use serde_json::Value;

/// Runs docker's own command line and answers what it prints.
fn docker(arguments: &[&str]) -> String {
    let output = Command::new("docker").args(arguments).output().expect("docker runs");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "docker {arguments:?}: {said}");
    said.trim().to_owned()
}

/// A sandbox with the engine of the tests.
struct World {
    sandbox: Sandbox,
}

/// How many of them there are, and what the engine had before the first.
static WORLDS: Mutex<(usize, Vec<String>)> = Mutex::new((0, Vec::new()));

/// Names of images that tests here make; none where no engine answers.
fn images() -> Vec<String> {
    let listed =
        Command::new("docker").args(["images", "--format", "{{.Repository}}:{{.Tag}}"]).output().map(|output| output.stdout);
    let listed = String::from_utf8(listed.unwrap_or_default()).expect("names");
    listed.lines().filter(|name| ["ftctl:", "127.0.0.1:"].iter().any(|ours| name.starts_with(ours))).map(str::to_owned).collect()
}

/// The last one takes with it what all of them made.
impl Drop for World {
    fn drop(&mut self) {
        let Ok(mut worlds) = WORLDS.lock() else { return };
        worlds.0 -= 1;
        if worlds.0 == 0 {
            let made: Vec<String> = images().into_iter().filter(|name| !worlds.1.contains(name)).collect();
            let _reported_by_nobody = Command::new("docker").args(["image", "rm", "--force"]).args(made).output();
        }
    }
}

impl World {
    fn new() -> Self {
        let mut worlds = WORLDS.lock().expect("nobody has failed here");
        if worlds.0 == 0 {
            worlds.1 = images();
        }
        worlds.0 += 1;
        Self { sandbox: Sandbox::new() }
    }

    /// With an ftctl that was copied to where nothing else of it is.
    fn installed() -> Self {
        let world = Self::new();
        fs::copy(env!("CARGO_BIN_EXE_ftctl"), world.sandbox.home().join("ftctl")).expect("installed");
        world
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.sandbox.command(arguments);
        let installed = self.sandbox.home().join("ftctl");
        if installed.exists() {
            let built = std::mem::replace(&mut command, Command::new(installed));
            command.args(built.get_args()).current_dir(self.sandbox.path("")).env_clear().stdin(Stdio::null());
            command.envs(built.get_envs().filter_map(|(name, value)| Some((name, value?))));
        }
        for name in ["DOCKER_HOST", "SSL_CERT_FILE"] {
            command.envs(env::var_os(name).map(|value| (name, value)));
        }
        command
    }

    fn run(&self, arguments: &[&str]) -> Said {
        Sandbox::said(&mut self.command(arguments))
    }

    fn ok(&self, arguments: &[&str]) -> Said {
        let said = self.run(arguments);
        assert_eq!(said.code, Some(0), "{arguments:?}: {}", said.stderr);
        said
    }

    /// `[image]` for every command of this sandbox: this base, and the programs of this folder.
    fn image(&self, programs: &Path) {
        self.sandbox
            .write("ftctl.toml", format!("[image]\nbase = {:?}\nprebuilt = {:?}\n", base(), programs.display().to_string()));
    }

    /// Programs for tests of the way and not of the image: no libtorch, so a few megabytes. `mark` makes them others than before.
    fn small(&self, mark: &str) -> PathBuf {
        let folder = self.sandbox.path("programs");
        fs::create_dir_all(&folder).expect("a program for the image");
        let mut program = fs::read("/bin/ls").expect("a program for the image");
        program.extend(mark.as_bytes());
        for name in ["ftctl", "ft-trainer"] {
            fs::write(folder.join(name), &program).expect("a program for the image");
            fs::set_permissions(folder.join(name), std::os::unix::fs::PermissionsExt::from_mode(0o755))
                .expect("a program for the image");
        }
        folder
    }
}

/// What tests/docker.sh made.
fn base() -> String {
    env::var("FT_BASE").expect("tests/run names an image of a minimal system")
}

/// This machine's programs in a folder, other than in any earlier test: the engine's storage outlives a run of the tests.
fn programs(world: &World) -> PathBuf {
    let folder = world.sandbox.path("programs");
    fs::create_dir_all(&folder).expect("a program for the image");
    fs::copy(env!("CARGO_BIN_EXE_ftctl"), folder.join("ftctl")).expect("a program for the image");
    let trainer = folder.join("ft-trainer");
    fs::copy(env::var("FT_TRAINER").expect("tests/run builds the trainer"), &trainer).expect("a program for the image");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let mut opened = fs::OpenOptions::new().append(true).open(&trainer).expect("a program for the image");
    opened.write_all(&now.as_nanos().to_le_bytes()).expect("a program for the image");
    folder
}

#[test]
#[ignore = "needs a container engine: tests/run starts one"]
fn docker_the_image_trains_and_the_same_input_is_no_work() {
    let world = World::installed();
    world.image(&programs(&world));
    let built = world.ok(&["build", "-v"]);
    let reference = built.stdout.trim();
    assert!(reference.starts_with("ftctl:") && reference.len() == "ftctl:".len() + 64, "{reference}");
    assert!(built.stderr.contains("/opt/ftctl/lib/"), "the steps are told: {}", built.stderr);
    let again = world.ok(&["build", "-v"]);
    assert_eq!(again.stdout, built.stdout);
    assert!(again.stderr.contains("already") && !again.stderr.contains("building"), "{}", again.stderr);
    assert!(world.ok(&["build", "--dry-run"]).stdout.contains("nothing to do"));

    starts_and_trains(&world, reference);
}

/// The image is what it says it is, has nothing that compiles, and learns.
fn starts_and_trains(world: &World, reference: &str) {
    let inspected: Value = serde_json::from_str(&docker(&["image", "inspect", reference])).expect("JSON");
    let config = &inspected[0]["Config"];
    assert_eq!(config["User"], "10001:10001");
    assert_eq!(config["Entrypoint"], serde_json::json!(["/opt/ftctl/bin/ftctl", "agent"]));
    assert_eq!(config["Labels"]["ftctl.variant"], "cpu");
    assert_eq!(config["Labels"]["org.opencontainers.image.revision"].as_str().map(str::len), Some(64));
    let inside = |script: &str| docker(&["run", "--rm", "--entrypoint", "/bin/sh", reference, "-c", script]);
    assert_eq!(
        inside(
            "id -u; ftctl --version | cut -d' ' -f1; for tool in cc gcc c++ cargo rustc python3; do command -v $tool; done; true"
        ),
        "10001\nftctl"
    );

    let data = world.sandbox.path("text.txt");
    fs::write(&data, "fn main() { println!(\"again and again\"); }\n".repeat(200)).expect("written");
    world.ok(&["prepare", "text.txt", "--out", "prepared", "--tokenizer", "train", "--vocabulary", "300"]);
    let config = serde_json::json!({
        "data": "/data/prepared", "output": "/home/ftctl/output",
        "model": { "layers": 1, "heads": 2, "width": 16, "context": 16 },
        "train": { "steps": 3, "block_size": 16, "micro_batch": 2, "learning_rate": 1e-3, "threads": 1 },
    });
    world.sandbox.write("config.json", config.to_string());
    let mount = format!("{}:/data:ro", world.sandbox.path("").display());
    let trained = docker(&[
        "run",
        "--rm",
        "-v",
        &mount,
        "--entrypoint",
        "/opt/ftctl/bin/ft-trainer",
        reference,
        "train",
        "/data/config.json",
    ]);
    assert!(trained.contains("step 3/3"), "{trained}");
}

#[test]
#[ignore = "needs a container engine: tests/run starts one"]
fn docker_a_changed_trainer_sends_its_own_layer_and_nothing_else() {
    let world = World::new();
    let folder = programs(&world);
    world.image(&folder);
    let registry = Registry::start(Auth::Open);
    let repository = registry.repository("ftctl");
    let first = world.ok(&["push", &repository]);
    let before = registry.blobs();
    let digest = first.stdout.trim().rsplit_once("sha256:").unwrap().1;
    let manifest: Value = serde_json::from_slice(&registry.blob(digest)).unwrap();
    let layer = manifest["layers"].as_array().unwrap().last().unwrap()["size"].as_u64().unwrap();

    // One changed line: another word in what the trainer says of itself.
    let trainer = fs::read(folder.join("ft-trainer")).unwrap();
    let saying = b"continues text; measures perplexity";
    let at = trainer.windows(saying.len()).position(|bytes| bytes == saying).expect("the trainer says what it does");
    let mut changed = trainer.clone();
    changed[at..at + saying.len()].make_ascii_uppercase();
    fs::write(folder.join("ft-trainer"), changed).unwrap();
    let second = world.ok(&["push", &repository, "-v"]);
    assert_ne!(first.stdout, second.stdout);
    let sent: u64 = registry.blobs().iter().filter(|blob| !before.contains(blob)).map(|(_, size)| size).sum();
    assert!(sent > layer / 2 && sent <= layer + layer / 100, "{sent} bytes were sent, the trainer's layer has {layer}");
    assert!(second.stderr.matches("is there already").count() >= 4, "{}", second.stderr);

    let third = world.ok(&["push", &repository, "-v"]);
    assert_eq!(third.stdout, second.stdout);
    assert!(third.stderr.contains("has it already") && !third.stderr.contains("layer "), "{}", third.stderr);
    println!("trainer's layer {layer} bytes, sent {sent}");
}

#[test]
#[ignore = "needs a container engine: tests/run starts one"]
fn docker_three_kinds_of_registry_take_the_image_and_refuse_a_stranger() {
    let world = World::new();
    let home = world.sandbox.home();
    for auth in [Auth::Open, Auth::Basic, Auth::Token] {
        let registry = Registry::start(auth);
        let repository = registry.repository("team/ftctl");
        world.image(&world.small(&repository));
        if auth != Auth::Open {
            for (user, password) in [("me", "wrong"), ("stranger", "right")] {
                registry.login(&home, user, password);
                refused(&world, &repository);
            }
            fs::remove_dir_all(home.join(".docker")).unwrap();
            refused(&world, &repository);
            registry.login(&home, "me", "right");
        }
        let pushed = world.ok(&["push", &repository]);
        let reference = pushed.stdout.trim();
        assert!(reference.starts_with(&format!("{repository}@sha256:")), "{reference}");
        assert_eq!(registry.tags("team/ftctl").len(), 1);
        if auth == Auth::Token {
            refused(&world, &registry.repository("others/ftctl"));
            assert!(registry.tags("others/ftctl").is_empty());
        }
    }
}

#[test]
#[ignore = "needs a container engine: tests/run starts one"]
fn docker_a_base_in_a_registry_that_asks_who_comes_is_fetched() {
    let world = World::new();
    let home = world.sandbox.home();
    let registry = Registry::start(Auth::Basic);
    let private = format!("{}:1", registry.repository("team/base"));
    registry.login(&home, "me", "right");
    docker(&["tag", &base(), &private]);
    docker(&["--config", &home.join(".docker").display().to_string(), "push", "--quiet", &private]);
    docker(&["image", "rm", &private]);
    world.image(&world.small("private"));
    registry.login(&home, "me", "wrong");
    let said = world.run(&["build", "--base", &private]);
    assert_eq!(said.code, Some(4), "{}", said.stderr);
    assert!(
        said.stderr.contains(&format!("cannot fetch the image {private}")) && said.stderr.contains("docker login"),
        "{}",
        said.stderr
    );
    registry.login(&home, "me", "right");
    world.ok(&["build", "--base", &private]);
}

fn refused(world: &World, repository: &str) {
    let said = world.run(&["push", repository]);
    assert_eq!(said.code, Some(4), "{}", said.stderr);
    assert!(said.stderr.contains(repository) && said.stderr.contains("docker login"), "{}", said.stderr);
    assert_eq!(said.stdout, "");
    unnamed(repository);
}

/// No name that was meant for this repository is left at the engine.
fn unnamed(repository: &str) {
    assert_eq!(docker(&["images", "--quiet", repository]), "");
}

#[test]
#[ignore = "needs a container engine: tests/run starts one"]
fn docker_a_registry_killed_in_the_middle_leaves_nothing_and_a_reborn_one_gets_it_all() {
    let world = World::new();
    let mut registry = Registry::start(Auth::Open);
    let repository = registry.repository("ftctl");
    let folder = world.small("killed");
    // Long enough on its way, and nothing that compresses.
    let mut noise = fs::read("/bin/ls").unwrap();
    let mut state = 1_u64;
    noise.extend(
        std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(200 << 20),
    );
    fs::write(folder.join("ft-trainer"), noise).unwrap();
    world.image(&folder);
    world.ok(&["build"]);
    for reborn in [false, true] {
        let child = world
            .command(&["push", &repository])
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        while registry.coming("ftctl") < 1 << 20 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        registry.kill();
        assert!(registry.tags("ftctl").is_empty(), "it was killed in the middle");
        if reborn {
            registry.begin();
        }
        let output = child.wait_with_output().unwrap();
        let talk = String::from_utf8_lossy(&output.stderr);
        if reborn {
            assert!(output.status.success(), "{talk}");
            assert_eq!(registry.tags("ftctl").len(), 1);
        } else {
            assert_eq!(output.status.code(), Some(7), "{talk}");
            assert!(talk.contains(&repository) && talk.contains("connection refused") && talk.contains("fix:"), "{talk}");
            unnamed(&repository);
            registry.begin();
            assert!(registry.tags("ftctl").is_empty());
        }
    }
}

#[test]
#[ignore = "needs a container engine: tests/run starts one"]
fn docker_a_registry_with_a_full_disk_says_so_and_tags_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(directory.path()).status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: only root can make a disk that is full");
        return;
    }
    let mount = directory.path().to_owned();
    let world = World::new();
    world.image(&world.small("full"));
    {
        let registry = Registry::at(Auth::Open, directory);
        let repository = registry.repository("ftctl");
        let said = world.run(&["push", &repository]);
        assert_eq!(said.code, Some(7), "{}", said.stderr);
        assert!(said.stderr.contains("500") && said.stderr.contains("the registry's log"), "{}", said.stderr);
        assert!(registry.tags("ftctl").is_empty());
        unnamed(&repository);
        // The directory goes with the registry, and cannot while something is mounted on it.
        assert!(Command::new("umount").arg("--lazy").arg(&mount).status().unwrap().success());
    }
}

#[test]
#[ignore = "needs a container engine: tests/run starts one"]
fn docker_a_step_that_fails_is_named_with_its_last_words_by_both_builders() {
    let world = World::new();
    // A builder image in which nothing can be built.
    let arguments = ["build", "--builder", &base(), "--base", &base()];
    for classic in ["1", "0"] {
        let said = Sandbox::said(world.command(&arguments).env("DOCKER_BUILDKIT", classic));
        assert_eq!(said.code, Some(1), "{}", said.stderr);
        assert!(
            said.stderr.contains("building the image failed at [") && said.stderr.contains("ca-certificates.crt: No such file"),
            "{}",
            said.stderr
        );
        assert!(said.stderr.contains("The whole log is "), "{}", said.stderr);
        assert!(said.stderr.lines().count() < 60, "{}", said.stderr);
    }
    // What the classic builder had made by then goes with the rest, and nobody else's does.
    let stages = || docker(&["images", "--quiet", "--filter", "dangling=true", "--filter", "label=ftctl.stage"]);
    assert_ne!(stages(), "");
    let acts = world.ok(&["down", "--all", "--dry-run"]).stdout;
    assert!(acts.contains("remove image sha256:"), "{acts}");
    assert_ne!(stages(), "", "a rehearsal removes nothing");
    world.ok(&["down", "--all", "-y"]);
    assert_eq!(stages(), "");
    assert_eq!(docker(&["ps", "--all", "--quiet", "--filter", "label=ftctl.stage"]), "");

    let said = world.run(&["build", "--builder", "127.0.0.1:1/no/builder", "--base", &base()]);
    assert!(said.code != Some(0) && said.stderr.contains("127.0.0.1:1/no/builder"), "{}", said.stderr);
}

#[test]
#[ignore = "needs a container engine: tests/run starts one"]
fn docker_an_installed_ftctl_compiles_the_image_from_what_it_carries() {
    let Ok(builder) = env::var("FT_BUILDER") else {
        eprintln!("SKIPPED: FT_DOCKER_FULL=1 compiles the image in containers");
        return;
    };
    let world = World::installed();
    let roots = env::var("SSL_CERT_FILE").unwrap_or_else(|_| "/etc/ssl/certs/ca-certificates.crt".to_owned());
    let settings =
        [("base", base()), ("builder", builder), ("network", "host".into()), ("torch_index", "pypi".into()), ("ca_bundle", roots)];
    let settings: Vec<String> = settings.iter().map(|(key, value)| format!("{key} = {value:?}")).collect();
    world.sandbox.write("ftctl.toml", format!("[image]\n{}\n", settings.join("\n")));
    let reference = world.ok(&["build"]).stdout.trim().to_owned();
    let again = world.ok(&["build", "-v"]);
    assert!(again.stdout.trim() == reference && !again.stderr.contains("building"), "{}", again.stderr);
    starts_and_trains(&world, &reference);
    // The agent carries nothing that changes with the trainer.
    let inside = ["run", "--rm", "--entrypoint", "/bin/sh", &reference, "-c", "ftctl build --dry-run 2>&1 || true"];
    assert!(docker(&inside).contains("carries no sources"));
}

#[test]
fn wrong_values_are_refused_before_anything_is_built() {
    let world = World::new();
    world.sandbox.write("empty.pem", "");
    for (arguments, words) in [
        (&["push", "registry.example.org/Team/x"][..], "is no repository"),
        (&["build", "--ca-bundle", "missing.pem"], "missing.pem"),
        (&["build", "--ca-bundle", "empty.pem"], "no certificate"),
        (&["build", "--prebuilt", "nowhere"], "there is no ftctl in"),
        (&["build", "--variant", "cu999"], "cu999"),
    ] {
        let said = world.run(arguments);
        assert_eq!(said.code, Some(2), "{arguments:?}: {}", said.stderr);
        assert!(said.stderr.contains(words), "{arguments:?}: {}", said.stderr);
    }
    let mut nobody = world.sandbox.command(&["build"]);
    let said = Sandbox::said(nobody.env("DOCKER_HOST", "unix:///nonexistent/docker.sock"));
    assert_eq!(said.code, Some(7), "{}", said.stderr);
}
