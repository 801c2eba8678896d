//! Files that a user was given, and that want the machine's memory or time: each is refused, with a sentence.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    common::{Said, Sandbox},
    listener,
};

/// Kilobytes of addresses that ftctl may have, most of which it never touches: its threads' stacks and maps are among them. 300 MB
/// of memory fit, two gigabytes do not.
const ADDRESSES: u32 = 900_000;
/// Programs that are not optimised read a million rows slowly.
const LIMIT: Duration = Duration::from_secs(if cfg!(debug_assertions) { 200 } else { 10 });

/// Runs ftctl with bounded memory and time.
fn run(sandbox: &Sandbox, arguments: &[&str]) -> Said {
    run_with(sandbox, arguments, &[])
}

/// The same with these variables.
fn run_with(sandbox: &Sandbox, arguments: &[&str], variables: &[(&str, &str)]) -> Said {
    let mut ftctl = sandbox.command(arguments);
    ftctl.envs(variables.iter().copied());
    let mut bounded = Command::new("sh");
    bounded.args(["-c", &format!("ulimit -v {ADDRESSES}; exec \"$@\""), "sh"]).arg(ftctl.get_program()).args(ftctl.get_args());
    bounded.current_dir(sandbox.path("")).env_clear().stdin(std::process::Stdio::null());
    bounded.envs(ftctl.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let begun = Instant::now();
    let said = Sandbox::said(&mut bounded);
    assert!(begun.elapsed() < LIMIT, "{arguments:?} took {:?}", begun.elapsed());
    said
}

/// Each file has a few thousand bytes: a page of 40 MiB, of which there could be any number, and two million rows of one letter.
/// The trainer's own tests make such files by hand.
#[test]
fn parquet_files_that_swell_take_no_memory() {
    let inputs: [(&str, &[u8], &str); 2] = [
        ("page.parquet", include_bytes!("inputs/page.parquet"), "which is too much"),
        ("run.parquet", include_bytes!("inputs/run.parquet"), "bytes cannot be so much text"),
    ];
    for (name, bytes, reason) in inputs {
        let sandbox = Sandbox::new();
        sandbox.write(name, bytes);
        let said = run(&sandbox, &["prepare", name, "--out", "prepared"]);
        assert!(said.code == Some(2) && said.stderr.contains(reason), "{name}: {:?} {}", said.code, said.stderr);
        assert!(!sandbox.path("prepared").exists());
    }
}

#[test]
fn rows_without_end_take_no_memory() {
    let text = "a ".repeat(100 << 20);
    for (name, begin) in [("rows.csv", "text\n\""), ("rows.jsonl", "{\"text\": \"")] {
        let sandbox = Sandbox::new();
        sandbox.write(name, [begin, &text].concat());
        let said = run(&sandbox, &["prepare", name, "--out", "prepared"]);
        assert!(
            said.code == Some(2) && said.stderr.contains("a row has 32 MiB at most"),
            "{name}: {:?} {}",
            said.code,
            said.stderr
        );
    }
}

/// A model that a stranger offers for fine-tuning.
#[test]
fn a_models_numbers_take_no_memory() {
    let config = json!({ "model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 64, "vocab_size": 50_257 });
    let numbers =
        [("n_layer", 1_u64 << 62), ("n_layer", 10_001), ("n_embd", 1 << 62), ("n_positions", 1 << 40), ("vocab_size", u64::MAX)];
    for (key, number) in numbers {
        let sandbox = Sandbox::new();
        std::fs::create_dir(sandbox.path("weights")).unwrap();
        let mut config = config.clone();
        config[key] = number.into();
        sandbox.write("weights/config.json", config.to_string());
        sandbox.write("weights/model.safetensors", "");
        sandbox.write("text.txt", "some words\n".repeat(100));
        sandbox.write(
            "job.toml",
            "name = \"given\"\ninitial_weights = \"weights\"\n[data]\ntrain = [\"text.txt\"]\n[train]\nblock_size = 16\n",
        );
        let said = run(&sandbox, &["plan", "job.toml"]);
        assert_eq!(said.code, Some(2), "{key} = {number}: {} {}", said.stdout, said.stderr);
        assert!(said.stderr.contains("weights/config.json: "), "{key} = {number}: {}", said.stderr);
    }
}

/// A job of Azure ML that a stranger offers: it wants memory, or files of this machine.
#[test]
fn a_job_of_azure_ml_takes_no_memory_and_runs_nothing() {
    let laughs: Vec<String> = (1..60).map(|level| format!("a{level}: &a{level} [*a{0}, *a{0}, *a{0}]\n", level - 1)).collect();
    let laughs = format!("a0: &a0 [ha]\n{}", laughs.concat());
    let deep = format!("command: {}", "[".repeat(100_000));
    let long = format!("inputs: {{a: {}}}\ncommand: run_clm.py {}\n", "x".repeat(60_000), "${{inputs.a}}".repeat(10_000));
    for (text, reason) in [
        (laughs.as_str(), "job.yml:2: an alias"),
        (&deep, "recursion limit exceeded"),
        (&long, "more than 65536 bytes with everything filled in"),
        (&"# x\n".repeat(1 << 20), "has more than 262144 bytes"),
        ("command: !!python/object/apply:os.system ['touch here']\n", "job.yml:1: a tag"),
        ("command: touch here && run_clm.py $(touch here)\n", "the command has a `$`"),
        ("command: run_clm.py --train_file a.txt --deepspeed /dev/zero\n", "/dev/zero is not a file"),
    ] {
        let sandbox = Sandbox::new();
        sandbox.write("job.yml", text);
        let said = run(&sandbox, &["init", "--from-azureml", "job.yml"]);
        assert!(said.code == Some(2) && said.stderr.contains(reason), "{reason}: {:?} {}", said.code, said.stderr);
        assert!(!sandbox.path("here").exists() && !sandbox.path("job.toml").exists());
    }
    let sandbox = Sandbox::new();
    let said = run(&sandbox, &["init", "--from-azureml", "/dev/zero"]);
    assert!(said.code == Some(2) && said.stderr.contains("/dev/zero is not a file"), "{}", said.stderr);
}

/// A cloud, or who answers in its place.
#[test]
fn answers_without_end_take_no_memory() {
    let endless = listener::Listener::start_endless();
    let here = format!("http://127.0.0.1:{}", endless.port);
    let sandbox = Sandbox::new();
    let login =
        json!({ "type": "authorized_user", "client_id": "me", "client_secret": "s", "refresh_token": "r", "token_uri": here });
    let login = listener::write(&sandbox.home(), "login.json", &login.to_string());
    let gce = [("GOOGLE_CLOUD_PROJECT", "mine"), ("FTCTL_ENDPOINT_GCE", &here)];
    for credential in [("GOOGLE_APPLICATION_CREDENTIALS", login.as_str()), ("CLOUDSDK_AUTH_ACCESS_TOKEN", "token")] {
        let said = run_with(&sandbox, &["bill", "--backend", "gce"], &[&gce[..], &[credential]].concat());
        assert!(said.code == Some(7) && said.stderr.contains(" has more than "), "{credential:?}: {:?} {}", said.code, said.stderr);
    }
}
