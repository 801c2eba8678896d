//! The container image with a real engine and real registries: built, started, sent, and the failures on the way.
//!
//! The programs in the image are those of this machine (`--prebuilt`); FT_DOCKER_FULL=VARIANT compiles them in containers instead,
//! from an `ftctl` that was installed elsewhere.

mod common;

use std::{
    env, fs,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
};

use common::{
    Said, Sandbox,
    registry::{Auth, Registry},
};
use flate2::{Compression, read::DeflateDecoder, write::DeflateEncoder};
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
    /// The images and containers that were at the engine before.
    others: [String; 2],
}

/// How many of them there are, and the containers and images at the engine before the first.
static WORLDS: Mutex<(usize, Vec<String>)> = Mutex::new((0, Vec::new()));

/// Its holder may leave stages at the engine, or remove everybody's.
static STAGES: Mutex<()> = Mutex::new(());

/// Containers and nameless images that builds left. A finished image is no stage, and neither are its containers.
fn stages() -> String {
    const OURS: &str = "label=ftctl.stage";
    let images = docker(&["images", "--quiet", "--filter", "dangling=true", "--filter", OURS]);
    let containers = docker(&["ps", "--all", "--filter", OURS, "--format", "{{.Label \"ftctl.stage\"}}"]);
    format!("{images}{}", containers.trim())
}

/// Volumes and networks, whosever they are.
fn others() -> [String; 2] {
    [&["volume", "ls", "--quiet"][..], &["network", "ls", "--quiet", "--filter", "type=custom"]].map(listed)
}

/// The output of docker's own command line; nothing where no engine answers.
fn listed(arguments: &[&str]) -> String {
    let listed = Command::new("docker").args(arguments).output().map(|output| output.stdout);
    String::from_utf8(listed.unwrap_or_default()).expect("names")
}

/// Names of images that tests here make.
fn images() -> Vec<String> {
    let listed = listed(&["images", "--format", "{{.Repository}}:{{.Tag}}"]);
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
        let mut worlds = WORLDS.lock().expect("no test has failed here");
        if worlds.0 == 0 {
            worlds.1 = images();
        }
        worlds.0 += 1;
        Self { sandbox: Sandbox::new(), others: others() }
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

    /// After a failure: `down --all` finds nothing, or removes it.
    fn leaves_nothing(&self) {
        let _alone = STAGES.lock().unwrap_or_else(PoisonError::into_inner);
        self.ok(&["down", "--all", "-y"]);
        assert_eq!((stages().as_str(), others()), ("", self.others.clone()));
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

/// The base image that tests/docker.sh made.
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

    starts_and_trains(&world, reference, "cpu");
}

/// The image is the promised one, has nothing that compiles, and learns.
fn starts_and_trains(world: &World, reference: &str, variant: &str) {
    let inspected: Value = serde_json::from_str(&docker(&["image", "inspect", reference])).expect("JSON");
    let config = &inspected[0]["Config"];
    assert_eq!(config["User"], "10001:10001");
    assert_eq!(config["Entrypoint"], serde_json::json!(["/opt/ftctl/bin/ftctl", "agent"]));
    assert_eq!(config["Labels"]["ftctl.variant"], variant);
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
    let train = |before: &str| {
        let script = format!("{before} exec ft-trainer train /data/config.json");
        docker(&["run", "--rm", "-v", &mount, "--entrypoint", "/bin/sh", reference, "-c", &script])
    };
    let trained = train("");
    assert!(trained.contains("step 3/3"), "{trained}");
    // Each library finds all that it needs, and those that are loaded only where there is a GPU, too.
    let part = if variant == "cpu" { "libtorch_cpu.so" } else { "libtorch_cuda.so" };
    assert_eq!(inside(&format!("ls /opt/ftctl/lib | grep -x {part}")), part);
    let with_all = train("export LD_BIND_NOW=1 LD_PRELOAD=\"$(echo /opt/ftctl/lib/*)\";");
    assert!(with_all.contains("step 3/3") && !with_all.contains("ld.so"), "{with_all}");
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

    let mut trainer = fs::read(folder.join("ft-trainer")).unwrap();
    let at = position(&trainer, SAYING);
    trainer[at..at + SAYING.len()].make_ascii_uppercase();
    fs::write(folder.join("ft-trainer"), trainer).unwrap();
    let second = world.ok(&["push", &repository, "-v"]);
    assert_ne!(first.stdout, second.stdout);
    only_the_trainer_was_sent(&registry, &before, &registry.image(&first.stdout));
    assert!(second.stderr.matches("is there already").count() >= 4, "{}", second.stderr);

    let third = world.ok(&["push", &repository, "-v"]);
    assert_eq!(third.stdout, second.stdout);
    assert!(third.stderr.contains("has it already") && !third.stderr.contains("layer "), "{}", third.stderr);
}

/// A part of the trainer's description of itself, in one line.
const SAYING: &[u8] = b"continues text; measures perplexity";

fn position(bytes: &[u8], wanted: &[u8]) -> usize {
    bytes.windows(wanted.len()).position(|found| found == wanted).expect("it is there")
}

/// `layers` are the sizes of those of the image that the registry had, the trainer's the last.
fn only_the_trainer_was_sent(registry: &Registry, before: &[(String, u64)], layers: &[u64]) {
    let layer = layers.last().expect("a layer");
    let sent: u64 = registry.blobs().iter().filter(|blob| !before.contains(blob)).map(|(_, size)| size).sum();
    println!("trainer's layer {layer} bytes, sent {sent}");
    assert!(sent > layer / 2 && sent <= layer + layer / 100, "{sent} bytes were sent, the trainer's layer has {layer}");
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
    world.leaves_nothing();
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
fn docker_registries_killed_in_the_middle_leave_nothing_and_reborn_ones_get_it_all() {
    at_each_kind(|auth| killed_in_the_middle(&World::new(), auth));
}

/// All at once: engines wait for minutes before they give a registry up.
fn at_each_kind(test: impl Fn(Auth) + Sync) {
    std::thread::scope(|scope| {
        let test = &test;
        for auth in [Auth::Open, Auth::Basic, Auth::Token] {
            scope.spawn(move || test(auth));
        }
    });
}

fn killed_in_the_middle(world: &World, auth: Auth) {
    let folder = world.small("killed");
    // Long enough on its way, and nothing that compresses.
    let mut noise = fs::read("/bin/ls").expect("a program");
    let mut state = 1_u64;
    noise.extend(
        std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(64 << 20),
    );
    fs::write(folder.join("ft-trainer"), noise).expect("written");
    world.image(&folder);
    world.ok(&["build"]);
    let mut registry = Registry::start(auth);
    registry.login(&world.sandbox.home(), "me", "right");
    for reborn in [false, true] {
        killed(world, &mut registry, reborn);
    }
    world.leaves_nothing();
}

/// Pushes to a registry that dies once a megabyte has come. Another one in its place takes the image, or none comes and nothing is
/// left.
fn killed(world: &World, registry: &mut Registry, reborn: bool) {
    const PATH: &str = "team/ftctl";
    let repository = registry.repository(PATH);
    // The unfinished parts of an earlier push lie there still.
    let come = registry.coming(PATH);
    let mut push = world.command(&["push", &repository]);
    let child = push.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("ftctl runs");
    while registry.coming(PATH) < come + (1 << 20) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    registry.kill();
    assert!(registry.tags(PATH).is_empty(), "it was killed in the middle");
    if reborn {
        registry.begin();
    }
    let output = child.wait_with_output().expect("ftctl ends");
    let talk = String::from_utf8_lossy(&output.stderr);
    if reborn {
        assert!(output.status.success(), "{talk}");
        assert_eq!(registry.tags(PATH).len(), 1);
        return;
    }
    assert_eq!(output.status.code(), Some(7), "{talk}");
    assert!(talk.contains(&repository) && talk.contains("connection refused") && talk.contains("fix:"), "{talk}");
    unnamed(&repository);
    registry.begin();
    assert!(registry.tags(PATH).is_empty());
}

#[test]
#[ignore = "needs a container engine: tests/run starts one"]
fn docker_registries_with_a_full_disk_say_so_and_tag_nothing() {
    at_each_kind(|auth| full(&World::new(), auth));
}

fn full(world: &World, auth: Auth) {
    let directory = tempfile::tempdir().expect("a directory");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(directory.path()).status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: only root can make a disk that is full");
        return;
    }
    let mount = directory.path().to_owned();
    let registry = Registry::at(auth, directory);
    let repository = registry.repository("team/ftctl");
    world.image(&world.small("full"));
    registry.login(&world.sandbox.home(), "me", "right");
    let said = world.run(&["push", &repository]);
    assert_eq!(said.code, Some(7), "{}", said.stderr);
    assert!(said.stderr.contains("500") && said.stderr.contains("the registry's log"), "{}", said.stderr);
    assert!(registry.tags("team/ftctl").is_empty());
    unnamed(&repository);
    world.leaves_nothing();
    // The directory goes with the registry, and cannot while something is mounted on it.
    assert!(Command::new("umount").arg("--lazy").arg(&mount).status().is_ok_and(|status| status.success()));
}

#[test]
#[ignore = "needs a container engine: tests/run starts one"]
fn docker_a_step_that_fails_is_named_with_its_last_words_by_both_builders() {
    let _alone = STAGES.lock().unwrap_or_else(PoisonError::into_inner);
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
    // The classic builder's stages go with the rest, and other users' do not.
    assert_ne!(stages(), "");
    let acts = world.ok(&["down", "--all", "--dry-run"]).stdout;
    assert!(acts.contains("remove image sha256:"), "{acts}");
    assert_ne!(stages(), "", "a rehearsal removes nothing");
    world.ok(&["down", "--all", "-y"]);
    assert_eq!((stages().as_str(), others()), ("", world.others.clone()));

    let said = world.run(&["build", "--builder", "127.0.0.1:1/no/builder", "--base", &base()]);
    assert!(said.code != Some(0) && said.stderr.contains("127.0.0.1:1/no/builder"), "{}", said.stderr);
}

#[test]
#[ignore = "needs a container engine: tests/run starts one"]
fn docker_an_installed_ftctl_compiles_the_image_from_what_it_carries() {
    let (Ok(builder), Ok(variant)) = (env::var("FT_BUILDER"), env::var("FT_DOCKER_FULL")) else {
        eprintln!("SKIPPED: FT_DOCKER_FULL=cpu or cu130 compiles the image in containers");
        return;
    };
    let world = World::installed();
    let roots = env::var("SSL_CERT_FILE").unwrap_or_else(|_| "/etc/ssl/certs/ca-certificates.crt".to_owned());
    let settings = [
        ("variant", variant.clone()),
        ("base", base()),
        ("builder", builder),
        ("network", "host".into()),
        ("torch_index", "pypi".into()),
        ("ca_bundle", roots),
    ];
    let settings: Vec<String> = settings.iter().map(|(key, value)| format!("{key} = {value:?}")).collect();
    world.sandbox.write("ftctl.toml", format!("[image]\n{}\n", settings.join("\n")));
    let builder = env::var_os("DOCKER_BUILDKIT").map(|wish| ("DOCKER_BUILDKIT", wish));
    // The classic builder's stages are to be seen until its image is made, and gone after anybody's `down --all`.
    let is_classic = builder.as_ref().is_some_and(|(_, wish)| wish == "0");
    let _alone = is_classic.then(|| STAGES.lock().unwrap_or_else(PoisonError::into_inner));
    let ok = |arguments: &[&str]| {
        let said = Sandbox::said(world.command(arguments).envs(builder.clone()));
        assert_eq!(said.code, Some(0), "{arguments:?}: {}", said.stderr);
        said
    };
    let reference = ok(&["build"]).stdout.trim().to_owned();
    let again = ok(&["build", "-v"]);
    assert!(again.stdout.trim() == reference && !again.stderr.contains("building"), "{}", again.stderr);
    starts_and_trains(&world, &reference, &variant);
    // The agent carries nothing that changes with the trainer.
    let inside = ["run", "--rm", "--entrypoint", "/bin/sh", &reference, "-c", "ftctl build --dry-run 2>&1 || true"];
    assert!(docker(&inside).contains("carries no sources"));

    let registry = Registry::start(Auth::Open);
    let repository = registry.repository("ftctl");
    let first = registry.image(&ok(&["push", &repository]).stdout);
    let before = registry.blobs();
    change_a_line(&world.sandbox.home().join("ftctl"));
    let second = registry.image(&ok(&["push", &repository]).stdout);
    only_the_trainer_was_sent(&registry, &before, &first);
    println!("variant {variant}, layers of {first:?} bytes compressed, then {second:?}");
}

/// Turns an ftctl into that of another version, in which one line of the trainer is another.
fn change_a_line(ftctl: &Path) {
    let packed = include_bytes!(concat!(env!("OUT_DIR"), "/sources.deflate"));
    let mut sources = Vec::new();
    DeflateDecoder::new(&packed[..]).read_to_end(&mut sources).expect("build.rs packed them");
    let at = position(&sources, SAYING);
    sources[at..at + SAYING.len()].fill(b'x');
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&sources).expect("to memory");
    let mut changed = encoder.finish().expect("to memory");
    assert!(changed.len() <= packed.len(), "it has to fit into the place of what it replaces");
    changed.resize(packed.len(), 0);
    let mut program = fs::read(ftctl).expect("installed");
    let at = position(&program, packed);
    program[at..at + packed.len()].copy_from_slice(&changed);
    fs::write(ftctl, program).expect("installed");
}

#[test]
fn wrong_values_are_refused_before_anything_is_built() {
    let world = World::new();
    world.sandbox.write("empty.pem", "");
    for (arguments, words) in [
        (&["push", "registry.example.org/Team/x"][..], "is not a repository"),
        (&["push"], "the backend local has no registry of its own"),
        (&["build", "--ca-bundle", "missing.pem"], "missing.pem"),
        (&["build", "--ca-bundle", "empty.pem"], "no certificate"),
        (&["build", "--prebuilt", "nowhere"], "there is no ftctl in"),
        (&["build", "--variant", "cu999"], "cu999"),
        (&["build", "--variant", "cu126", "--torch-index", "pypi"], "no torch for cu126"),
    ] {
        let said = world.run(arguments);
        assert_eq!(said.code, Some(2), "{arguments:?}: {}", said.stderr);
        assert!(said.stderr.contains(words), "{arguments:?}: {}", said.stderr);
    }
    let mut nobody = world.sandbox.command(&["build"]);
    let said = Sandbox::said(nobody.env("DOCKER_HOST", "unix:///nonexistent/docker.sock"));
    assert_eq!(said.code, Some(7), "{}", said.stderr);
}
