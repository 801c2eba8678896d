//! The quickstart with its store in a blob container: the emulator keeps what a job is, and nothing on this machine is needed
//! besides.

use std::{env, ffi::OsString, fs};

use crate::{
    azurite::{self, Azurite},
    clock::with_moved_clock,
    entra::{Entra, HOUR},
    kills::continuous,
    sandbox::{Sandbox, kill},
    secrets::{self, MARK},
};

/// Seconds of training are left when the first checkpoints are in the store.
const STEPS: u64 = 240;

/// The settings that make the quickstart's model small enough for seconds.
pub const TOY: &[&str] = &[
    "data.limit_bytes=300_000",
    "data.tokenizer.vocabulary=400",
    "model.layers=2",
    "model.heads=2",
    "model.width=32",
    "model.context=32",
    "train.steps=60",
    "train.block_size=32",
    "train.micro_batch=4",
    "train.warmup_steps=5",
    "train.checkpoint_every=10",
    "train.log_every=1",
    "train.eval_sequences=8",
    "train.threads=1",
    "sample.tokens=10",
    "retry.backoff=0s",
];

/// The arguments that run it.
fn run(sandbox: &Sandbox) -> Vec<String> {
    sandbox.ok(&["init", "quickstart", "--out", "quickstart.toml"]);
    let steps = format!("train.steps={STEPS}");
    let sets = TOY.iter().copied().chain([steps.as_str()]).flat_map(|set| ["--set", set]);
    ["run", "quickstart.toml", "--quiet"].into_iter().chain(sets).map(str::to_owned).collect()
}

fn words(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

/// A home of its own, and the container as the store of every command.
pub fn with_container(azurite: &Azurite) -> Sandbox {
    let mut sandbox = Sandbox::new();
    sandbox.variables.extend(container(azurite));
    sandbox
}

/// A new container as the store, with a key for it. A simulated cloud is started before, so that its machines have none.
pub fn container(azurite: &Azurite) -> [(OsString, OsString); 2] {
    [("FTCTL_STORE".into(), azurite.container().into()), ("AZURE_STORAGE_KEY".into(), azurite::KEY.into())]
}

#[test]
#[ignore = "needs the trainer and Azurite: tests/run installs them"]
fn the_quickstart_in_a_container_survives_the_death_of_everything_on_this_machine() {
    assert!(env::var_os("FT_AZURITE").is_some(), "FT_AZURITE names the emulator: tests/run installs it");
    let near = Sandbox::new();
    near.ok(&words(&run(&near)));

    let azurite = azurite::start();
    let far = with_container(&azurite);
    let arguments = run(&far);
    let mut running = far.spawn(&words(&arguments));
    Sandbox::until("a checkpoint", || {
        let jobs = far.json(&["status", "--all"])["jobs"].clone();
        jobs[0]["step"].as_u64().is_some_and(|step| step > 15)
    });
    for pid in [running.id()].into_iter().chain(far.processes("ftctl agent")).chain(far.processes("ft-trainer train")) {
        kill(pid);
    }
    running.wait().unwrap();
    secrets::assert_none_below(&far.path(""), &[azurite::KEY, "sig="]);

    // The command that follows the log drives the job on.
    let log = far.ok(&["logs", "-f", "quickstart"]);
    assert!(log.contains(&format!("step {STEPS}/{STEPS}")), "{log}");
    let status = far.json(&["status", "quickstart"]);
    assert_eq!((status["state"].as_str(), status["attempt"].as_u64()), (Some("succeeded"), Some(2)));
    continuous(&far, "quickstart", STEPS);
    assert!(far.results("quickstart") == near.results("quickstart"), "the results differ from an undisturbed job's in a directory");

    let pruned = far.json(&["prune", "--data", "-y"]);
    assert_eq!((pruned["leftovers"].as_array().map(Vec::len), pruned["data"]["objects"].as_u64()), (Some(0), Some(0)), "{pruned}");
    secrets::assert_none_below(&far.path(""), &[azurite::KEY, "sig="]);

    // Another machine needs nothing but the store. Two days later what nothing names goes, and nothing else.
    let (mut other, hours) = with_moved_clock();
    other.variables.extend(far.variables.iter().cloned());
    fs::write(other.path("mistake"), "not what was meant").unwrap();
    other.ok(&["upload", "mistake"]);
    let prune = |further: &str| {
        let data = &other.json(&["prune", "--data", further])["data"];
        (data["datasets"].as_array().map(Vec::len), data["bytes"].as_u64())
    };
    assert_eq!(prune("-y"), (Some(0), Some(0)));
    fs::write(hours, "48").unwrap();
    // Nothing names the parts of a checkpoint that the killed agent had sent, either.
    let (datasets, bytes) = prune("--dry-run");
    assert!(datasets == Some(1) && bytes >= Some(18), "{datasets:?}, {bytes:?}");
    assert_eq!(prune("-y"), (datasets, bytes));
    assert_eq!(prune("-y"), (Some(0), Some(0)));
    let to = other.path("elsewhere");
    other.ok(&["download", "quickstart", "--to", to.to_str().unwrap()]);
    assert!(to.join("model.safetensors").is_file());
}

/// The submitter of a job signs in with Entra ID; the agent gets a signature that the service made for it, and nothing to sign in
/// with.
#[test]
#[ignore = "needs the trainer and Azurite: tests/run installs them"]
fn the_agent_of_an_identity_has_a_signature_in_the_place_of_its_secret() {
    let entra = Entra::start(HOUR);
    let azurite = entra.azurite();
    let mut sandbox = Sandbox::new();
    sandbox.variables = vec![("FTCTL_STORE".into(), azurite.container().into())];
    let identity = entra.kinds().swap_remove(0);
    sandbox.variables.extend(identity.variables.into_iter().map(|(name, value)| (name.into(), value.into())));
    let id = sandbox.submit(&sandbox.job("delegated", 100));
    let mut environment = String::new();
    Sandbox::until("an agent", || {
        let agents = sandbox.processes("ftctl agent");
        let found = agents.iter().find_map(|pid| fs::read(format!("/proc/{pid}/environ")).ok());
        environment = String::from_utf8_lossy(&found.unwrap_or_default()).replace('\0', "\n");
        !environment.is_empty()
    });
    assert!(!environment.contains(MARK), "the agent has the secret of the identity");
    let signature = environment.lines().find_map(|line| line.strip_prefix("AZURE_STORAGE_SAS_TOKEN=")).expect("a signature");
    for part in ["skoid=", "sktid=", "sr=c", "sp=racwdl"] {
        assert!(signature.contains(part), "the signature has no {part}");
    }
    let reads = environment.lines().find_map(|line| line.strip_prefix("FTCTL_STORE_READ_SAS=")).expect("a signature");
    assert!(reads.contains("skoid=") && reads.contains("sp=r&"), "beside its own container it only reads");
    let secret = signature.rsplit_once("sig=").expect("a signature").1;
    sandbox.ok(&["logs", "-f", &id]);
    assert_eq!(sandbox.json(&["status", &id])["state"], "succeeded");
    sandbox.results(&id);
    secrets::assert_none_below(&sandbox.path(""), &[MARK, secret, reads.rsplit_once("sig=").expect("a signature").1]);
}
