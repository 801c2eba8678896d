//! A project that says where jobs run: it counts with the user's word for it alone.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::common::{Said, Sandbox};

/// Without the word that other tests give.
fn run(sandbox: &Sandbox, arguments: &[&str]) -> Said {
    Sandbox::said(sandbox.command(arguments).env_remove("FTCTL_TRUST_PROJECT"))
}

impl Sandbox {
    /// `ftctl trust`, which must do it.
    pub fn ok_trust(&self, arguments: &[&str]) -> String {
        let said = run(self, &[&["trust"], arguments].concat());
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        said.stdout
    }
}

fn assert_asked(said: &Said, file: &str, value: &str) {
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    for part in [file, value, "`ftctl trust ", "--trust-project", "FTCTL_TRUST_PROJECT=1"] {
        assert!(said.stderr.contains(part), "{part}: {}", said.stderr);
    }
}

fn assert_done(said: &Said) {
    assert_eq!(said.code, Some(0), "{}", said.stderr);
}

#[test]
fn a_project_counts_when_the_user_trusts_it_with_its_present_values() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.path("elsewhere")).unwrap();
    sandbox.write("ftctl.toml", "store = \"elsewhere\"\nttl = \"1h\"\n");
    for verb in [&["status"][..], &["doctor"], &["bill"], &["down", "--all", "-y"], &["prune", "-y"], &["upload", "elsewhere"]] {
        assert_asked(&run(&sandbox, verb), "/ftctl.toml", "/elsewhere\"");
    }
    for verb in [&["version"][..], &["schema"], &["completion", "bash"], &["config", "path"], &["init", "--list"]] {
        assert_done(&run(&sandbox, verb));
    }
    let shown = run(&sandbox, &["config", "show", "--origin"]);
    assert!(shown.stdout.contains("not trusted yet") && shown.stdout.contains("/ftctl.toml: store;"), "{}", shown.stdout);
    let shown: Value = serde_json::from_str(&run(&sandbox, &["config", "show", "-o", "json"]).stdout).unwrap();
    assert_eq!(shown["not_trusted"], serde_json::json!(["store"]));

    // For once, which is not remembered.
    assert_done(&run(&sandbox, &["status", "--trust-project"]));
    assert_done(&sandbox.run(&["status"]));
    assert_asked(&run(&sandbox, &["status"]), "/ftctl.toml", "/elsewhere\"");
    assert_asked(&Sandbox::said(sandbox.command(&["status"]).env("FTCTL_TRUST_PROJECT", "0")), "/ftctl.toml", "/elsewhere\"");

    assert!(run(&sandbox, &["trust", "--dry-run"]).stdout.contains("/elsewhere"));
    assert_asked(&run(&sandbox, &["status"]), "/ftctl.toml", "/elsewhere\"");
    let told = sandbox.ok_trust(&[]);
    assert!(told.contains("store") && told.contains("/elsewhere") && !told.contains("ttl"), "{told}");
    assert_done(&run(&sandbox, &["status"]));
    assert!(!run(&sandbox, &["config", "show"]).stdout.contains("not trusted"));
    let folder = sandbox.state().join("trusted");
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let file = fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    assert_eq!((mode(&folder), mode(&file)), (0o700, 0o600));

    sandbox.write("ftctl.toml", "store = \"elsewhere\"\nbackend = \"fake\"\n");
    assert_asked(&run(&sandbox, &["status"]), "/ftctl.toml", "backend = \"fake\"");
    sandbox.ok_trust(&["."]);
    assert_done(&run(&sandbox, &["status"]));
    let told = sandbox.ok_trust(&["--remove"]);
    assert!(told.contains("nothing is trusted"), "{told}");
    assert_asked(&run(&sandbox, &["status"]), "/ftctl.toml", "backend = \"fake\"");
}

#[test]
fn what_holds_anyway_needs_no_word() {
    let sandbox = Sandbox::new();
    sandbox.write("ftctl.toml", "backend = \"local\"\nmax_cost = \"1USD\"\n");
    assert_done(&run(&sandbox, &["status"]));
    sandbox.write("ftctl.toml", "backend = \"fake\"\n");
    assert_asked(&run(&sandbox, &["status"]), "/ftctl.toml", "fake");
    assert_done(&Sandbox::said(sandbox.command(&["status"]).env_remove("FTCTL_TRUST_PROJECT").env("FTCTL_BACKEND", "fake")));
    fs::create_dir_all(sandbox.home().join(".config/ftctl")).unwrap();
    let own = format!("backend = \"fake\"\n[profiles.far]\nstore = \"{}\"\n", sandbox.path("").display());
    fs::write(sandbox.home().join(".config/ftctl/config.toml"), own).unwrap();
    assert_done(&run(&sandbox, &["status"]));
    // One of the user's own profiles.
    sandbox.write("ftctl.toml", "profile = \"far\"\n");
    assert_done(&run(&sandbox, &["status"]));
}

#[test]
fn no_word_is_asked_for_a_backend_or_a_store_that_cannot_be() {
    let sandbox = Sandbox::new();
    for (value, message) in
        [("backend = \"dokcer\"", "did you mean `docker`?"), ("store = \"ftp://x\"", "unknown kind of store `ftp://x`")]
    {
        sandbox.write("ftctl.toml", value);
        let said = run(&sandbox, &["status"]);
        assert!(said.code == Some(2) && said.stderr.contains(message), "{}", said.stderr);
        assert!(!said.stderr.contains("ftctl trust"), "{}", said.stderr);
    }
}

#[test]
fn how_an_image_is_built_is_asked_about() {
    let sandbox = Sandbox::new();
    for (key, value) in [("pip_index", "https://any.host/simple"), ("base", "any.host/debian"), ("prebuilt", "programs")] {
        sandbox.write("ftctl.toml", format!("[image]\n{key} = \"{value}\"\n"));
        assert_asked(&run(&sandbox, &["build"]), "/ftctl.toml", &format!("image.{key} = "));
    }
}

#[test]
fn whose_code_a_job_runs_is_asked_about() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("own");
    let text = fs::read_to_string(sandbox.path("job.toml")).unwrap();
    fs::remove_file(sandbox.path("ftctl.toml")).unwrap();
    let plan = |further: &[&str]| {
        let mut command = sandbox.command(&[&["plan", "job.toml"], further].concat());
        Sandbox::said(command.env_remove("FTCTL_TRUST_PROJECT").env("FTCTL_BACKEND", "fake"))
    };
    assert_done(&plan(&[]));
    for (table, key, value) in [
        ("docker", "image", "\"any.host/image\""),
        ("docker", "mounts", "[\"/:/host\"]"),
        ("docker", "user", "\"0:0\""),
        ("docker", "network", "\"host\""),
        ("gce", "image", "\"any.host/image@sha256:00\""),
        ("gce", "image_family", "\"theirs\""),
        ("gce", "image_project", "\"theirs\""),
        ("gce", "boot_image", "\"theirs\""),
        ("gce", "service_account", "\"default\""),
        ("environment", "CUDA_INJECTION64_PATH", "\"data/theirs.so\""),
    ] {
        sandbox.write("job.toml", format!("{text}[compute.{table}]\n{key} = {value}\n"));
        assert_asked(&plan(&[]), "/job.toml", &format!("compute.{table}.{key} = "));
    }
    assert_done(&plan(&["--set", "compute.environment.CUDA_INJECTION64_PATH=mine.so"]));
    sandbox.ok_trust(&["job.toml"]);
    assert_done(&plan(&[]));
}

#[test]
fn a_job_file_counts_when_the_user_trusts_it_with_its_present_values() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("there");
    sandbox.write_dataset();
    fs::remove_file(sandbox.path("ftctl.toml")).unwrap();
    let job = fs::read_to_string(sandbox.path("job.toml")).unwrap();
    fs::create_dir(sandbox.path("jobs")).unwrap();
    let write = |backend: &str, name: &str| {
        let text = job.replace("\"data\"", "\"../data\"");
        sandbox.write(name, format!("{text}[compute]\nbackend = \"{backend}\"\n"));
    };
    write("local", "jobs/a.toml");
    assert_done(&run(&sandbox, &["plan", "jobs/a.toml"]));
    write("fake", "jobs/a.toml");
    for arguments in [
        &["plan", "jobs/a.toml"][..],
        &["submit", "jobs/a.toml"],
        &["run", "jobs/a.toml", "-y", "--dry-run"],
        &["up", "jobs/a.toml"],
    ] {
        assert_asked(&run(&sandbox, arguments), "jobs/a.toml", "backend = \"fake\"");
        assert_done(&run(&sandbox, &["plan", "jobs/a.toml", "--backend", "fake"]));
    }
    assert_done(&run(&sandbox, &["plan", "jobs/a.toml", "--set", "compute.backend=fake"]));
    sandbox.ok_trust(&["jobs/a.toml"]);
    for name in ["jobs/a.toml", "jobs/../jobs/a.toml", "./jobs/a.toml"] {
        assert_done(&run(&sandbox, &["plan", name]));
    }
    sandbox.write("here.toml", format!("{job}[compute]\nbackend = \"fake\"\n"));
    assert_asked(&run(&sandbox, &["plan", "here.toml"]), "here.toml", "fake");
    // A directory is trusted with all that its job files say.
    sandbox.write("store.toml", format!("store = \"kept\"\n{job}"));
    sandbox.write("Cargo.toml", "[package]\nname = \"other\"\n");
    let told = sandbox.ok_trust(&[]);
    assert!(told.contains("here.toml") && told.contains("store.toml") && !told.contains("Cargo.toml"), "{told}");
    assert_done(&run(&sandbox, &["plan", "here.toml"]));
    assert_done(&run(&sandbox, &["plan", "store.toml"]));
}

#[test]
fn what_init_writes_is_trusted() {
    let sandbox = Sandbox::new();
    assert_done(&run(&sandbox, &["init", "--backend", "fake", "--out", "jobs/first.toml"]));
    assert_done(&run(&sandbox, &["plan", "jobs/first.toml"]));
    let text = fs::read_to_string(sandbox.path("jobs/first.toml")).unwrap();
    sandbox.write("jobs/first.toml", format!("store = \"elsewhere\"\n{text}"));
    assert_asked(&run(&sandbox, &["plan", "jobs/first.toml"]), "first.toml", "elsewhere");
}

/// Runs as a user at a terminal would, who answers once.
fn on_terminal(sandbox: &Sandbox, arguments: &[&str], answer: &str) -> (Option<i32>, String) {
    const RUN: &str = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
    let mut inner = sandbox.command(arguments);
    inner.env_remove("FTCTL_TRUST_PROJECT");
    let mut command = Command::new("python3");
    command.args(["-c", RUN]).arg(inner.get_program()).args(inner.get_args()).current_dir(sandbox.path("")).env_clear();
    command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("NO_COLOR", "1");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(answer.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_terminal_is_asked_once() {
    let sandbox = Sandbox::new();
    // The second value would write a question of its own.
    sandbox.write("ftctl.toml", "backend = \"fake\"\n[image]\nbase = \"x\\u001b[2K\\u202e\"\n");
    let (code, said) = on_terminal(&sandbox, &["status", "-y"], "n\n");
    assert!(code == Some(2) && said.contains("[y/N]") && said.contains("backend = \"fake\""), "{code:?} {said}");
    assert!(!said.contains("\u{1b}[2K") && !said.contains('\u{202e}'), "{said:?}");
    let (code, said) = on_terminal(&sandbox, &["status"], "y\n");
    assert!(code == Some(0) && said.contains("[y/N]"), "{code:?} {said}");
    let (code, said) = on_terminal(&sandbox, &["status"], "");
    assert!(code == Some(0) && !said.contains("[y/N]"), "{code:?} {said}");
    assert_done(&run(&sandbox, &["status"]));
}

/// Azure's tools leave it in a project, and so may another person.
#[test]
fn a_workspace_in_a_projects_file_is_asked_for() {
    let sandbox = Sandbox::new();
    let said =
        r#"{ "subscription_id": "00000000-0000-0000-0000-000000000001", "resource_group": "theirs", "workspace_name": "theirs" }"#;
    fs::create_dir(sandbox.path(".azureml")).unwrap();
    sandbox.write(".azureml/config.json", said);
    let of_backend = |more: &[&str]| run(&sandbox, &[&["prune", "-y", "--backend", "azureml"], more].concat());
    assert_asked(&of_backend(&[]), "/.azureml/config.json", "workspace = \"theirs\"");
    sandbox.ok_trust(&[".azureml/config.json"]);
    let trusted = of_backend(&[]);
    assert!(!trusted.stderr.contains("You have not trusted"), "{}", trusted.stderr);
    sandbox.write(".azureml/config.json", said.replace("\"theirs\" }", "\"others\" }"));
    assert_asked(&of_backend(&[]), "/.azureml/config.json", "workspace = \"others\"");
}
