//! Mishaps around the program: a full disk, a store that cannot be written, a clock that is moved, a set-up that is interrupted.
//!
//! Long, because each mishap is a test of its own.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::common::{Runs as _, Said, Sandbox};
use ftctl::job::id::{JobId, path};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

fn with_state_on(sandbox: &Sandbox, options: &str, arguments: &[&str]) -> Option<Said> {
    with_file_system(sandbox, ".local/state", options, arguments)
}

/// Runs ftctl with a file system of its own in a folder of its home. `None`, with the reason printed, where none may be mounted.
fn with_file_system(sandbox: &Sandbox, folder: &str, options: &str, arguments: &[&str]) -> Option<Said> {
    let may = Command::new("unshare").args(["-rm", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        println!("skipped: `unshare -rm mount -t tmpfs none /mnt` is not allowed here");
        return None;
    }
    let folder = sandbox.home().join(folder);
    fs::create_dir_all(&folder).expect("a directory");
    let script = format!("mount -t tmpfs -o {options} none '{}' && exec \"$@\"", folder.display());
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", &script, "sh", env!("CARGO_BIN_EXE_ftctl")]).args(arguments);
    command.current_dir(sandbox.path("")).env_clear().stdin(Stdio::null());
    command.env("HOME", sandbox.home()).env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let output = command.output().expect("unshare runs");
    let text = |bytes| String::from_utf8(bytes).expect("ftctl prints UTF-8");
    Some(Said { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) })
}

#[test]
fn a_full_disk_is_named_and_nothing_is_half_there() {
    let sandbox = Sandbox::new();
    sandbox.write("large.bin", vec![7; 1 << 20]);
    let Some(said) = with_state_on(&sandbox, "size=256k", &["-q", "upload", "large.bin"]) else { return };
    let store = sandbox.state().join("store");
    let message = format!("the disk of {} is full (0 MB are free); free some space, or use another store\n", store.display());
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    assert!(said.stderr.starts_with("error: cannot write ftctl/v1/contents/") && said.stderr.contains(&message), "{}", said.stderr);
    assert_eq!(said.stdout, "");

    // Full of its own folders: the job cannot even be begun.
    sandbox.write("job.toml", "name = \"a\"\ndataset = \"data\"\n");
    fs::create_dir(sandbox.path("data")).expect("a directory");
    sandbox.write("data/tokens", "tokens");
    let said = with_state_on(&sandbox, "size=4k,nr_inodes=4", &["-q", "submit", "job.toml"]).expect("allowed a moment ago");
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    assert!(said.stderr.starts_with("error: cannot ") && said.stderr.ends_with(&message), "{}", said.stderr);
}

#[test]
fn a_read_only_state_directory_can_be_read_and_says_so_when_it_is_written() {
    let sandbox = Sandbox::new();
    sandbox.write("small.bin", "tokens");
    let Some(said) = with_state_on(&sandbox, "ro", &["-q", "upload", "small.bin"]) else { return };
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    let why =
        "may not be written to or read from: Read-only file system (os error 30); change its permissions, or use another store";
    assert!(said.stderr.starts_with("error: cannot ") && said.stderr.contains(why), "{}", said.stderr);
    let said = with_state_on(&sandbox, "ro", &["status"]).expect("allowed a moment ago");
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "reading needs no writing");
}

#[test]
fn a_read_only_cache_serves_what_prepares_nothing() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("cached");
    fs::remove_file(sandbox.path("ftctl.toml")).expect("removed");
    let on_it = |arguments: &[&str]| with_file_system(&sandbox, ".cache", "ro", arguments);
    let Some(said) = on_it(&["run", "job.toml", "--backend", "fake"]) else { return };
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    for verb in ["status", "show", "logs", "explain", "report"] {
        let said = on_it(&[verb, "cached"]).expect("allowed a moment ago");
        assert_eq!(said.code, Some(0), "{verb}: {}", said.stderr);
    }
    sandbox.write("text.txt", "one two three four five six seven eight nine ten\n".repeat(100));
    sandbox.write("text.toml", "name = \"text\"\n[data]\ntrain = [\"text.txt\"]\n[train]\nsteps = 1\nblock_size = 8\n");
    let said = on_it(&["submit", "text.toml", "--backend", "fake"]).expect("allowed a moment ago");
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    assert!(said.stderr.contains(".cache/ftctl/prepared: Read-only file system"), "{}", said.stderr);
    assert!(said.stderr.contains("make the cache directory writable, or name another one in XDG_CACHE_HOME"), "{}", said.stderr);
}

#[test]
fn a_state_directory_below_a_file_is_an_error_and_not_an_empty_one() {
    let sandbox = Sandbox::new();
    sandbox.write("file", "");
    sandbox.write("small.bin", "tokens");
    let output =
        sandbox.command(&["upload", "small.bin"]).env("XDG_STATE_HOME", sandbox.path("file")).output().expect("ftctl runs");
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("error: cannot ") && stderr.contains("Not a directory (os error 20)"), "{stderr}");
    assert!(stderr.contains("fix: name another place with --store or FTCTL_STORE, or XDG_STATE_HOME"), "{stderr}");
}

/// Moves every time in a job's record, as a clock that is set differently does.
fn shift(value: &mut Value, by: SignedDuration) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| shift(item, by)),
        Value::Object(fields) => fields.values_mut().for_each(|field| shift(field, by)),
        Value::String(text) => {
            if let Ok(time) = text.parse::<Timestamp>() {
                *text = (time + by).to_string();
            }
        }
        _ => {}
    }
}

#[test]
fn a_clock_that_is_moved_by_eight_hours_ends_no_job() {
    for hours in [8, -8] {
        let sandbox = Sandbox::new();
        sandbox.write_rehearsal("moved");
        let submit = ["submit", "job.toml", "--idempotency-key", "one"];
        let id = sandbox.run(&submit).stdout.trim().to_owned();
        let file = sandbox.state().join(format!("store/ftctl/v1/jobs/{id}/record.json"));
        let mut record: Value = serde_json::from_slice(&fs::read(&file).expect("a record")).expect("JSON");
        let before = record.to_string();
        shift(&mut record, SignedDuration::from_hours(hours));
        assert_ne!(record.to_string(), before);
        fs::write(&file, record.to_string()).expect("written");
        for arguments in [&["status", &id][..], &["explain", &id], &["bill"], &[&submit[..], &["--wait"]].concat()] {
            let said = sandbox.run(arguments);
            assert_eq!(said.code, Some(0), "{hours} h, {arguments:?}: {}", said.stderr);
        }
        let status: Value = serde_json::from_str(&sandbox.run(&["status", &id, "-o", "json"]).stdout).expect("JSON");
        assert_eq!((&status["state"], &status["attempt"], &status["step"]), (&json!("succeeded"), &json!(1), &json!(10)));
    }
}

#[test]
fn a_machine_out_of_sight_is_told_once_and_once_when_it_is_back() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("hidden");
    sandbox.script(&json!({ "out_of_sight": [{ "attempt": 1, "after": "1m", "lasting": "3m" }] }));
    let said = sandbox.run(&["submit", "job.toml", "--wait"]);
    let id = said.stdout.trim();
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let lines: Vec<_> = said.stderr.lines().filter(|line| line.contains("cannot reach") || line.ends_with("again")).collect();
    let machine = format!("the fake cloud cannot say how {id}-a1 is");
    let expected =
        [format!("warning: cannot reach the machine of {id}: {machine}; ftctl keeps trying"), format!("{id} answers again")];
    assert_eq!(lines, expected);
}

#[test]
fn two_jobs_with_one_name() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("one");
    let first = sandbox.run(&["submit", "job.toml"]).stdout.trim().to_owned();
    for verb in ["submit", "up", "run"] {
        let said = sandbox.run(&[verb, "job.toml"]);
        let message = format!(
            "error: the name `one` belongs to the job {first}, which is not finished\n  fix: follow it with `ftctl logs -f {first}`, end it \
             with `ftctl cancel {first}`, or give this job another name\n"
        );
        assert_eq!((said.code, said.stdout.as_str(), said.stderr.as_str()), (Some(12), "", message.as_str()), "{verb}");
    }
    assert_eq!(sandbox.run(&["down", &first, "-y"]).code, Some(0));
    let second = sandbox.run(&["submit", "job.toml", "--wait"]);
    assert_eq!(second.code, Some(0), "{}", second.stderr);
    assert_ne!(second.stdout.trim(), first, "a finished job gives its name back, and stays");
    assert_eq!(sandbox.run(&["status", &first, "-o", "name"]).stdout.trim(), first);
}

#[test]
fn prune_leaves_machines_alone_whose_job_is_in_another_store() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("elsewhere");
    let id = sandbox.run(&["submit", "job.toml", "--store", "other"]).stdout.trim().to_owned();
    let said = sandbox.run(&["prune", "-y"]);
    let other = sandbox.path("other");
    assert!(said.code == Some(0) && said.stdout.ends_with("0 destroyed\n"), "{}", said.stdout);
    assert!(
        said.stderr.contains(&format!("{id}-a1 is left alone until its time is over: its job is in the store {}", other.display()))
    );
    // A record that is lost is not elsewhere.
    std::fs::remove_dir_all(other.join("ftctl")).expect("removed");
    let dry = sandbox.run(&["prune", "--dry-run", "--store", "other"]);
    assert!(dry.stdout.contains("no record of its job in this store") && dry.stdout.ends_with("1 found\n"), "{}", dry.stdout);
    // A lost store stays lost: there is no proof any more that it was this one.
    std::fs::remove_dir_all(&other).expect("removed");
    let said = sandbox.run(&["prune", "-y", "--store", "other"]);
    assert!(said.stdout.ends_with("0 destroyed\n") && said.stderr.contains("is left alone"), "{}", said.stderr);
    let said = sandbox.run(&["down", &id, "-y", "--store", "other"]);
    assert!(said.code == Some(12) && said.stderr.contains(&format!("ftctl down {id} --everybody")), "{}", said.stderr);
    let said = sandbox.run(&["prune", "--everybody", "-y", "--store", "other"]);
    assert!(said.stdout.contains(&format!("{id}-a1")) && said.stdout.ends_with("1 destroyed\n"), "{}", said.stdout);
}

#[test]
fn following_what_up_made_ready_does_not_start_it() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("ready");
    let id = sandbox.run(&["up", "job.toml"]).stdout.trim().to_owned();
    assert_eq!(sandbox.json(&["status", "--state", "ready"])["jobs"][0]["state"], "ready");
    let said = sandbox.run(&["logs", "-f", &id]);
    let message = format!(
        "error: the job {id} is ready, and was not submitted\n  fix: `ftctl submit` with its file starts it, `ftctl down {id}` undoes it\n"
    );
    assert_eq!((said.code, said.stdout.as_str(), said.stderr.as_str()), (Some(12), "", message.as_str()));
    assert!(sandbox.run(&["explain", &id]).stdout.contains("`ftctl submit` starts it"));
    let said = sandbox.run(&["submit", "job.toml", "--wait"]);
    assert_eq!((said.code, said.stdout.trim()), (Some(0), id.as_str()), "{}", said.stderr);
}

#[test]
fn what_a_job_reads_and_is_not_there() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("reads");
    sandbox.write("text.toml", "name = \"text\"\ninitial_weights = \"gpt2\"\n[data]\ntrain = [\"none.txt\"]\n");
    let said = sandbox.run(&["submit", "job.toml", "--set", "dataset=nowhere"]);
    let reason = format!(
        "there is no {}; correct the path; a relative path in a job file starts at the file's directory",
        sandbox.path("nowhere").display()
    );
    let id = said.stdout.trim();
    let error = format!("error: the job {id} failed: {reason}\n  fix: `ftctl resume {id}` goes on after that; ");
    assert!(said.code == Some(3) && said.stderr.contains(&error), "{}", said.stderr);
    let shown = sandbox.run(&["status", id, "-o", "json"]).stdout;
    assert_eq!(serde_json::from_str::<Value>(&shown).expect("JSON")["reason"], reason, "one line with one fix");
    let found = |arguments: &[&str]| {
        let said = sandbox.run(&[&["doctor", "-o", "name", "--job"], arguments].concat());
        (said.code, said.stdout)
    };
    assert_eq!(found(&["job.toml"]), (Some(0), String::new()));
    assert_eq!(found(&["text.toml"]), (Some(1), "data\ninitial weights\n".to_owned()));
}

/// Everything that the program keeps, by path; not what the fake cloud was asked.
fn kept(sandbox: &Sandbox) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    let mut directories = vec![sandbox.home(), sandbox.path("")];
    while let Some(directory) = directories.pop() {
        for path in fs::read_dir(directory).expect("a directory").flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                directories.push(path);
            } else if !path.ends_with("fake/calls.jsonl") {
                files.push((path.clone(), fs::read(path).expect("a file")));
            }
        }
    }
    files.sort();
    files
}

#[test]
fn a_dry_run_of_every_verb_says_what_it_would_do_and_changes_nothing() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("dry");
    sandbox.write("text.txt", "some text");
    let dry = |arguments: &[&str]| {
        let before = kept(&sandbox);
        let said = sandbox.run(&[arguments, &["--dry-run"]].concat());
        assert_eq!(said.code, Some(0), "{arguments:?}: {}", said.stderr);
        let changed: Vec<_> = kept(&sandbox).into_iter().filter(|file| !before.contains(file)).map(|(path, _)| path).collect();
        assert!(changed.is_empty(), "{arguments:?} changed {changed:?}");
        said.stdout
    };
    let plan = sandbox.run(&["plan", "job.toml"]).stdout;
    for verb in ["run", "up", "submit", "plan"] {
        assert_eq!(dry(&[verb, "job.toml"]), plan, "{verb}");
    }
    assert_eq!(dry(&["plan", "job.toml", "--out", "plan.json"]), plan);
    let id = sandbox.run(&["submit", "job.toml"]).stdout.trim().to_owned();
    let end = format!("would cancel {id}\nwould destroy {id}-a1\n");
    for arguments in [&["cancel", &id][..], &["down", &id], &["down", "--all"]] {
        assert_eq!(dry(arguments), end, "{arguments:?}");
    }
    assert_eq!(dry(&["drill", "preempt", &id]), format!("would take {id}-a1 away\nwould recover {id} in attempt 2\n"));
    assert_eq!(sandbox.run(&["down", &id, "-y"]).code, Some(0));
    for arguments in [&["cancel", &id][..], &["down", &id], &["down", "--all"]] {
        assert_eq!(dry(arguments), "there is nothing to do\n", "{arguments:?}");
    }
    assert!(dry(&["prune"]).ends_with("0 found\n"));
    assert!(dry(&["upload", "data", "--name", "texts", "--verify"]).contains("0 to send"));
    assert_eq!(dry(&["prepare", "text.txt", "--out", "prepared"]), "would turn the text of 1 file into tokens in prepared\n");
    assert_eq!(dry(&["init", "--out", "b.toml"]).lines().count(), 2);
    assert!(dry(&["build", "--print", "path"]).ends_with("would build the trainer\n"));
    let intent: Value = serde_json::from_str(&sandbox.run(&["down", &id, "--dry-run", "-o", "json"]).stdout).expect("JSON");
    assert_eq!(intent, json!({ "schema": "ftctl.intent/1", "would": [] }));
}

#[test]
fn a_plan_tells_the_memory_of_what_computes() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.run(&["init", "--out", "job.toml"]).code, Some(0));
    let memory = |sets: &[&str]| {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let said = sandbox.run(&["plan", "job.toml"].into_iter().chain(sets).collect::<Vec<_>>());
        said.stdout.lines().find(|line| line.starts_with("memory")).expect(&said.stderr).to_owned()
    };
    assert!(!memory(&["train.device=cpu"]).contains("GPU"));
    assert!(memory(&["train.device=cuda"]).ends_with(" MiB of the GPU"));
    let apart = memory(&["train.device=cuda", "train.offload=optimizer"]);
    assert!(apart.contains(" MiB of the GPU, and ") && apart.ends_with(" MiB of main memory besides"), "{apart}");
}

#[test]
fn a_plan_warns_of_a_model_that_no_machine_of_its_kind_holds() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.run(&["init", "gpt2-xl-v100", "--out", "job.toml"]).code, Some(0));
    fs::create_dir(sandbox.path("gpt2-xl")).expect("a directory");
    let shape =
        json!({ "model_type": "gpt2", "n_layer": 48, "n_head": 25, "n_embd": 1600, "n_positions": 1024, "vocab_size": 50257 });
    sandbox.write("gpt2-xl/config.json", shape.to_string());
    let warned = |sets: &[&str]| {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let plan = ["plan", "job.toml", "--store", "azure://account/container"];
        let said = sandbox.run(&plan.into_iter().chain(sets).collect::<Vec<_>>());
        // Of the weights there is only the configuration.
        assert!(said.code == Some(2) && said.stderr.contains("gpt2-xl has none of model.safetensors"), "{}", said.stderr);
        said.stderr.contains("MiB of memory even for one sequence at a time, and a v100 has 16384 MiB").then_some(said.stderr)
    };
    assert_eq!(warned(&[]), None);
    let warned = warned(&["train.offload=none"]).expect("a warning");
    assert!(warned.contains("what helps: train.recompute = \"host\", train.offload = \"optimizer\", "), "{warned}");
}

#[test]
fn a_plan_names_data_that_is_not_there() {
    let sandbox = Sandbox::new();
    sandbox.write("job.toml", "name = \"a\"\n[data]\ntrain = [\"nowhere.txt\"]\n");
    let plan = || sandbox.run(&["plan", "job.toml"]);
    let said = plan();
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.contains("nowhere.txt does not exist"), "{}", said.stderr);
    assert!(
        said.stdout.lines().any(|line| line.starts_with("missing") && line.contains("nowhere.txt does not exist")),
        "{}",
        said.stdout
    );
    sandbox.write("nowhere.txt", "text");
    assert!(!plan().stdout.contains("missing"));
}

#[test]
fn a_dataset_has_a_name_that_jobs_take_it_by() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("named");
    let submit = ["submit", "job.toml", "--wait", "--set", "dataset=@texts"];
    let said = sandbox.run(&submit);
    assert!(said.code == Some(3) && said.stderr.contains("ftctl upload PATH --name texts"), "{}", said.stderr);
    assert_eq!(sandbox.run(&["upload", "data", "--name", "No Name"]).code, Some(2));
    let digest = sandbox.run(&["upload", "data", "--name", "texts", "-o", "name"]).stdout;
    let said = sandbox.run(&submit);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let record =
        fs::read(sandbox.state().join(format!("store/ftctl/v1/jobs/{}/record.json", said.stdout.trim()))).expect("a record");
    let record: Value = serde_json::from_slice(&record).expect("JSON");
    assert_eq!(record["dataset"], digest.trim());
}

#[test]
fn causes_of_another_attempt() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("tried");
    sandbox.script(&json!({ "preemptions": [{ "attempt": 1, "after": "2m" }] }));
    let said = sandbox.run(&["submit", "job.toml", "--wait", "--retry-on", "capacity"]);
    assert_eq!(said.code, Some(6), "{}", said.stderr);
    assert!(said.stderr.contains("preempted in attempt 1 of 20"), "{}", said.stderr);
    assert_eq!(sandbox.run(&["submit", "job.toml", "--wait", "--retry-on", "capacity,preempt"]).code, Some(0));
    let said = sandbox.run(&["plan", "job.toml", "--retry-on", "preempted"]);
    assert!(said.code == Some(2) && said.stderr.contains("did you mean `preempt`?"), "{}", said.stderr);
    let said = sandbox.run(&["submit", "job.toml", "--timeout", "1s"]);
    assert!(said.code == Some(2) && said.stderr.contains("add --wait or --follow"), "{}", said.stderr);
}

#[test]
fn doctor_says_that_a_machine_of_a_cloud_reaches_no_directory() {
    let said = Sandbox::new().run(&["doctor", "--backend", "gce"]);
    let line = said.stdout.lines().find(|line| line.contains("backend and store")).expect("a finding");
    assert!(line.starts_with("BAD") && line.contains("gce: a machine of Compute Engine cannot reach the store"), "{}", said.stdout);
    assert!(said.code == Some(1) && !said.stdout.contains("exposure"), "{}", said.stdout);
}

#[test]
fn a_download_that_cannot_be() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("had");
    let id = sandbox.run(&["submit", "job.toml", "--wait"]).stdout.trim().to_owned();
    for (arguments, code, message) in [
        (["--checkpoint", "7"], 3, format!("error: the job {id} has no checkpoint of step 7\n  fix: it has those of 5, 10\n")),
        (["--to", "job.toml"], 2, "error: job.toml is a file; --to names a directory\n".to_owned()),
    ] {
        let said = sandbox.run(&[&["download", &id][..], &arguments].concat());
        assert_eq!((said.code, said.stdout.as_str(), said.stderr), (Some(code), "", message));
    }
}

#[test]
fn a_doctor_asked_about_a_job_looks_at_the_backend_of_the_job() {
    let sandbox = Sandbox::new();
    sandbox.write("data", "tokens");
    sandbox.write("job.toml", "name = \"a\"\ndataset = \"data\"\n[compute]\nbackend = \"fake\"\n");
    for (more, backend) in [(&[][..], "fake"), (&["--backend", "gce"], "gce")] {
        let said = sandbox.run(&[&["doctor", "--job", "job.toml"], more].concat());
        let line = said.stdout.lines().find(|line| line.contains("backend and store")).expect("a finding");
        assert!(line.contains(&format!("backend and store  {backend}")), "{more:?}: {}", said.stdout);
        assert!(!said.stdout.contains("libtorch"), "that is what `local`, the backend of the settings, needs: {}", said.stdout);
    }
    let said = sandbox.run(&["doctor", "--job", "job.toml", "--store", "azure://account/container", "-o", "name"]);
    assert_eq!(said.stdout, "backend and store\nsign-in\n", "a store that cannot be reached is told once");
}

/// Root may write wherever the permissions are looked at, and not below /proc.
#[test]
fn a_doctor_never_says_ok_of_a_directory_that_cannot_be_written() {
    let sandbox = Sandbox::new();
    sandbox.write("ftctl.toml", "backend = \"fake\"\n");
    for (variable, bad) in [
        ("XDG_STATE_HOME", "state directory\nbackend and store\n"),
        ("XDG_CACHE_HOME", "cache directory\n"),
        ("FTCTL_STORE", "backend and store\n"),
    ] {
        let said = Sandbox::said(sandbox.command(&["doctor", "-o", "name"]).env(variable, "/proc"));
        assert_eq!((said.code, said.stdout.as_str()), (Some(1), bad), "{variable}: {}", said.stderr);
    }
    let said = Sandbox::said(sandbox.command(&["doctor"]).env("FTCTL_STORE", "/proc"));
    assert!(
        said.stdout.contains("cannot write in /proc: ") && said.stdout.contains("another directory than /proc"),
        "{}",
        said.stdout
    );
    assert_eq!(sandbox.run(&["doctor"]).code, Some(0));
}

#[test]
fn a_doctor_never_says_ok_of_a_store_that_does_not_answer() {
    let sandbox = Sandbox::new();
    sandbox.write("ftctl.toml", "backend = \"fake\"\n");
    let endpoint = format!("http://127.0.0.1:{}/devstoreaccount1", crate::common::free_port());
    let mut doctor = sandbox.command(&["doctor"]);
    doctor.env("FTCTL_STORE", format!("{endpoint}/box")).env("AZURE_STORAGE_CONNECTION_STRING", "UseDevelopmentStorage=true");
    let said = Sandbox::said(&mut doctor);
    let line = said.stdout.lines().find(|line| line.contains("backend and store")).expect("a finding");
    assert!(said.code == Some(1) && line.starts_with("BAD"), "{}{}", said.stdout, said.stderr);
    assert!(
        said.stdout.contains("Connection refused") && said.stdout.contains("fix: correct the store's address"),
        "{}",
        said.stdout
    );
    assert!(said.stderr.contains("waiting for an answer of the store"), "{}", said.stderr);
}

#[test]
fn a_verb_whose_store_is_silent_says_what_it_waits_for() {
    // It takes connections, and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let store = format!("http://{}/devstoreaccount1/box", silent.local_addr().expect("an address"));
    let sandbox = Sandbox::new();
    let mut status = sandbox.command(&["status", "--store", &store]);
    status.env("AZURE_STORAGE_CONNECTION_STRING", "UseDevelopmentStorage=true");
    let mut waits = status.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it starts");
    let mut said = String::new();
    BufReader::new(waits.stderr.take().expect("piped")).read_line(&mut said).expect("a line");
    waits.kill().expect("it waits");
    waits.wait().expect("it ended");
    assert_eq!(said, "waiting for an answer of the store at 127.0.0.1\n");
}

fn ok(sandbox: &Sandbox, arguments: &[&str]) -> String {
    let said = sandbox.run(arguments);
    assert_eq!(said.code, Some(0), "{arguments:?}: {}", said.stderr);
    said.stdout
}

#[test]
fn a_download_replaces_only_what_it_may() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("had");
    ok(&sandbox, &["submit", "job.toml", "--wait"]);
    let last = ["download", "had", "--to", "model"];
    ok(&sandbox, &last);
    sandbox.write("model/notes", "mine");
    ok(&sandbox, &last);
    let before = kept(&sandbox);
    let earlier = [&last[..], &["--checkpoint", "5"]].concat();
    for arguments in [&earlier[..], &[&earlier[..], &["--dry-run"]].concat()] {
        let said = sandbox.run(arguments);
        let fix = "\n  fix: name another directory with --to, or replace it with --overwrite\n";
        assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""), "{}", said.stderr);
        assert!(said.stderr.starts_with("error: model/") && said.stderr.ends_with(fix), "{}", said.stderr);
    }
    assert!(kept(&sandbox) == before, "nothing was touched");
    ok(&sandbox, &[&earlier[..], &["--overwrite"]].concat());
    assert!(kept(&sandbox) != before && sandbox.path("model/notes").exists());
}

#[test]
fn what_is_damaged_in_the_store_is_told_as_such() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("had");
    let id = ok(&sandbox, &["submit", "job.toml", "--wait"]).trim().to_owned();
    let store = sandbox.state().join("store");
    let damaged = |path: &str, text: &str, arguments: &[&str], code: i32| {
        let whole = fs::read(store.join(path)).expect("an object");
        fs::write(store.join(path), text).expect("written");
        let said = sandbox.run(arguments);
        assert!(said.code == Some(code) && said.stderr.contains(path), "{path}: {:?} {}", said.code, said.stderr);
        fs::write(store.join(path), whole).expect("written");
    };
    let manifest = format!("{}/manifest.json", path::checkpoint(&JobId::parse(&id).expect("an id"), 10));
    let of_later = r#"{"schema": "ftctl.checkpoint/77", "step": 10, "attempt": 1, "files": []}"#;
    damaged(&manifest, &of_later[..20], &["download", &id], 9);
    damaged(&manifest, of_later, &["download", &id], 1);
    damaged(&path::name("had"), "", &["status", "had"], 9);
    ok(&sandbox, &["download", "had"]);
}

#[test]
fn a_job_that_is_over_is_neither_watched_nor_drilled() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("over");
    let id = ok(&sandbox, &["submit", "job.toml", "--wait"]).trim().to_owned();
    assert!(ok(&sandbox, &["status", "-w"]).contains(&id), "and it ends");
    let said = sandbox.run(&["drill", "preempt", &id]);
    let message =
        format!("error: the job {id} is not running; its state is succeeded\n  fix: `ftctl status` shows which jobs run\n");
    assert_eq!((said.code, said.stderr), (Some(3), message));
}

#[test]
fn what_jobs_cost_lately() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("paid");
    let id = sandbox.run(&["submit", "job.toml", "--wait"]).stdout.trim().to_owned();
    let receipt: Value = serde_json::from_str(&sandbox.run(&["bill", &id, "-o", "json"]).stdout).expect("JSON");
    let spent: Value = serde_json::from_str(&sandbox.run(&["bill", "--since", "1d", "-o", "json"]).stdout).expect("JSON");
    assert_eq!((&spent["receipts"][0]["id"], &spent["simulated_cost"]), (&json!(id), &receipt["cost"]));
    assert_eq!((&spent["cost"], receipt["simulated"].as_bool()), (&json!("0USD"), Some(true)), "its cloud is not real");
    assert!(sandbox.run(&["bill", "--since", "1d"]).stdout.contains(&id));
}

#[test]
fn a_bill_has_the_machines_of_every_backend_that_costs_money() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("billed");
    sandbox.write("ftctl.toml", "backend = \"local\"\n");
    let machine = format!("{}-a1\n", sandbox.run(&["submit", "job.toml", "--backend", "fake"]).stdout.trim());
    let bill = |arguments: &[&str]| sandbox.run(&[&["bill", "-o", "name"], arguments].concat()).stdout;
    assert_eq!((bill(&[]), bill(&["--backend", "local"])), (machine.clone(), String::new()));
}

#[test]
fn a_key_means_one_job_and_one_version_of_its_file() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("keyed");
    let submit = ["submit", "job.toml", "--idempotency-key", "one"];
    // Also a job that `up` began before anybody named a key.
    let id = sandbox.run(&["up", "job.toml"]).stdout;
    for _ in 0..2 {
        let said = sandbox.run(&submit);
        assert_eq!((said.code, &said.stdout), (Some(0), &id), "{}", said.stderr);
    }
    let said = sandbox.run(&[&submit[..], &["--set", "train.steps=20"]].concat());
    let message = format!("error: the job {} was planned with other settings: train.steps was 10, now 20\n", id.trim());
    assert!(said.code == Some(12) && said.stderr.starts_with(&message), "{}", said.stderr);
    let said = sandbox.run(&["submit", "job.toml", "--idempotency-key", "two"]);
    assert!(said.code == Some(12) && said.stderr.contains("which is not finished"), "{}", said.stderr);
    for _ in 0..2 {
        let said = sandbox.run(&[&submit[..], &["--wait"]].concat());
        assert_eq!((said.code, &said.stdout), (Some(0), &id), "{}", said.stderr);
    }
}

#[test]
fn a_job_that_is_not_there() {
    let sandbox = Sandbox::new();
    let store = sandbox.state().join("store");
    for verb in ["status", "logs", "explain", "cancel", "download"] {
        let said = sandbox.run(&[verb, "nobody-bcdfgh"]);
        let message = format!(
            "error: there is no job `nobody-bcdfgh` in the store {}\n  fix: `ftctl status --all` lists the jobs of this store\n",
            store.display()
        );
        assert_eq!((said.code, said.stdout.as_str(), said.stderr.as_str()), (Some(3), "", message.as_str()), "{verb}");
    }
}

#[test]
fn a_cache_on_a_noexec_mount_is_told_by_the_doctor() {
    let sandbox = Sandbox::new();
    let doctor = |options| with_file_system(&sandbox, ".cache", options, &["doctor", "--backend", "local", "-o", "json"]);
    let Some(said) = doctor("noexec") else { return };
    let programs = |said: &Said| {
        let told: Value = serde_json::from_str(&said.stdout).expect("JSON");
        told["findings"].as_array().expect("a list").iter().find(|finding| finding["what"] == "programs").cloned()
    };
    let finding = programs(&said).expect("a finding");
    assert_eq!((said.code, finding["health"].as_str()), (Some(1), Some("bad")), "{finding}");
    assert!(finding["message"].as_str().is_some_and(|message| message.contains("mounted noexec")), "{finding}");
    assert!(finding["fix"].as_str().is_some_and(|fix| fix.contains("XDG_CACHE_HOME")), "{finding}");
    assert_eq!(programs(&doctor("exec").expect("allowed a moment ago")), None);
}

/// Programs that stand in for python3 and cargo: the real ones take minutes.
struct SetUp {
    sandbox: Sandbox,
}

impl SetUp {
    const PYTHON: &str = r#"#!/bin/sh
case "$*" in
"-m pip --version") exit 0 ;;
"-c "*) echo 3 11; exit 0 ;;
--version) exit 0 ;;
*) echo installation >>"$HOME/installations" ;;
esac
while [ $# -gt 1 ] && [ "$1" != --target ]; do shift; done
mkdir -p "$2/torch/lib"
if [ -e "$HOME/hang" ]; then
    touch "$2/half"
    echo $$ >"$HOME/pid.new" && mv "$HOME/pid.new" "$HOME/pid"
    exec sleep 600
fi
[ -e "$HOME/elsewhere" ] || touch "$2/torch/lib/libtorch_cpu.so"
"#;

    fn new() -> Self {
        let sandbox = Sandbox::new();
        fs::create_dir(sandbox.path("bin")).expect("a directory");
        let set_up = Self { sandbox };
        set_up.program("python3", Self::PYTHON);
        set_up.program("cargo", "#!/bin/sh\n[ \"$1\" = --version ] && exit\necho no compiler today >&2\nexit 1\n");
        set_up
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.sandbox.path("bin").join(name);
        fs::write(&path, script).expect("written");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("executable");
    }

    fn build(&self) -> Command {
        self.command(&["build", "--print", "path"])
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let path = format!("{}:{}", self.sandbox.path("bin").display(), std::env::var("PATH").unwrap_or_default());
        let mut command = self.sandbox.command(arguments);
        command.env("PATH", path).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn libtorch(&self) -> PathBuf {
        self.sandbox.home().join(".cache/ftctl/libtorch")
    }

    /// The names in libtorch's part of the cache, without the version in front.
    fn entries(&self) -> Vec<String> {
        let names = fs::read_dir(self.libtorch()).expect("a directory").flatten().map(|entry| entry.file_name());
        let mut names: Vec<String> =
            names.map(|name| name.to_string_lossy().replace(ftctl::image::libtorch::VERSION, "V")).collect();
        names.sort();
        names
    }

    fn installations(&self) -> usize {
        fs::read_to_string(self.sandbox.home().join("installations")).expect("some").lines().count()
    }
}

#[test]
fn who_waits_for_another_set_up_can_be_interrupted() {
    is_undone_at(rustix::process::Signal::INT, 130);
    is_undone_at(rustix::process::Signal::TERM, 143);
    is_undone_at(rustix::process::Signal::HUP, 129);
}

fn is_undone_at(signal: rustix::process::Signal, code: i32) {
    let set_up = SetUp::new();
    let sandbox = &set_up.sandbox;
    sandbox.write_rehearsal("waits");
    sandbox.write_dataset();
    fs::create_dir_all(set_up.libtorch()).expect("a directory");
    let lock = fs::File::create(set_up.libtorch().join("lock")).expect("a lock");
    lock.lock().expect("locked");
    let mut run = set_up.command(&["run", "job.toml", "--backend", "local"]);
    let mut run = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("ftctl runs");
    let mut said = BufReader::new(run.stderr.take().expect("piped")).lines().map(|line| line.expect("a line"));
    assert!(said.any(|line| line == "waiting for another ftctl that is installing libtorch"));
    let pid = rustix::process::Pid::from_child(&run);
    rustix::process::kill_process(pid, signal).expect("interrupted");
    let start = Instant::now();
    let status = loop {
        match run.try_wait().expect("waited") {
            Some(status) => break status,
            None if start.elapsed() < Duration::from_secs(60) => thread::sleep(Duration::from_millis(5)),
            None => {
                run.kill().expect("killed");
                panic!("{signal:?} was not heard");
            }
        }
    };
    let last = said.last().expect("a last word");
    assert!(status.code() == Some(code) && last.starts_with("interrupted: nothing of waits-"), "{signal:?}: {status}: {last}");
}

/// The compilers are looked for before libtorch is fetched.
#[test]
fn a_set_up_without_compilers_fetches_nothing() {
    let set_up = SetUp::new();
    let build = || Sandbox::said(set_up.build().env("PATH", set_up.sandbox.path("bin")));
    let said = build();
    let fix = "\n  fix: install Rust from rustup.rs and a C++ compiler; `ftctl doctor` shows what is missing\n";
    let lacks = |what: &str| format!("error: {what} is not in PATH; ftctl builds the trainer with it{fix}");
    assert_eq!((said.code, said.stderr), (Some(1), lacks("C++ compiler")));
    fs::remove_file(set_up.sandbox.path("bin/cargo")).expect("there");
    assert_eq!(build().stderr, lacks("cargo"));
    set_up.program("cargo", NO_TOOLCHAIN);
    let said = build().stderr;
    assert!(said.starts_with("error: cargo does not work: ") && said.contains("could not choose a version of cargo"), "{said}");
    assert!(!set_up.libtorch().exists());
}

/// Installs as a uv does: pip's words, and no Python.
const UV: &str = r#"#!/bin/sh
[ "$1 $2" = "pip install" ] || exit 3
echo installation >>"$HOME/installations"
while [ $# -gt 1 ] && [ "$1" != --target ]; do shift; done
/bin/mkdir -p "$2/torch/lib"
: >"$2/torch/lib/libtorch_cpu.so"
"#;

#[test]
fn libtorch_is_installed_by_what_can_or_the_cause_is_named() {
    let set_up = SetUp::new();
    set_up.program("c++", "#!/bin/sh\n");
    let python = |pip: &str, venv: &str| {
        let cases = format!("\"-m pip --version\") {pip} ;;\n*ensurepip*) {venv} ;;\n\"-c \"*) echo 3 8 ;;\n*) exit 1 ;;");
        set_up.program("python3", &format!("#!/bin/sh\ncase \"$*\" in\n{cases}\nesac\n"));
    };
    let alone = |arguments: &[&str]| Sandbox::said(set_up.command(arguments).env("PATH", set_up.sandbox.path("bin")));
    let build = || alone(&["build", "--print", "path"]);
    let refused = |why: &str, fix: &str| {
        let message = format!("error: {why}; libtorch is installed by pip or uv\n  fix: {fix}; or name a libtorch ");
        let said = build();
        assert!(said.code == Some(1) && said.stderr.starts_with(&message), "{}", said.stderr);
        // Before anything is fetched; and the doctor knows.
        let doctor = alone(&["doctor", "--backend", "local", "-o", "json"]).stdout;
        assert!(doctor.contains(&format!("{why}; pip or uv installs libtorch")), "{doctor}");
        assert!(!set_up.sandbox.home().join("installations").exists());
    };
    let old = "echo pip 20.0.2 from /usr/lib/python3/dist-packages/pip '(python 3.8)'";
    python(old, "exit 1");
    let upgrade = "python3 -m pip install --user --upgrade pip, or install uv";
    refused("the pip of python3 is 20.0.2, and these wheels need 20.3", upgrade);
    python(old, "echo pip 20.0.2");
    refused("the pip of python3 is 20.0.2, and these wheels need 20.3", upgrade);
    python("exit 1", "exit 1");
    refused("python3 has neither pip nor venv", "install python3-pip, python3-venv or uv");
    fs::remove_file(set_up.sandbox.path("bin/python3")).expect("there");
    refused("python3 is not in PATH", "install Python 3 with pip, or uv");
    // uv needs none of them.
    set_up.program("uv", UV);
    let said = build();
    assert!(said.stderr.contains("building the trainer with cargo failed:\nno compiler today"), "{}", said.stderr);
    assert_eq!(set_up.installations(), 1);
}

/// The words of rustup.
const NO_TOOLCHAIN: &str = "#!/bin/sh
echo 'error: rustup could not choose a version of cargo to run, because one was not specified' >&2
echo 'help: run rustup default stable' >&2
exit 1
";

#[test]
fn a_doctor_never_says_ok_of_a_program_that_does_not_work() {
    let set_up = SetUp::new();
    let doctor = || {
        let said = Sandbox::said(&mut set_up.command(&["doctor", "--backend", "local", "-o", "json"]));
        let told: Value = serde_json::from_str(&said.stdout).expect("JSON");
        let findings = told["findings"].as_array().expect("a list").clone();
        let of = |what: &str| findings.iter().find(|finding| finding["what"] == what).expect("a finding").clone();
        (said.code, ["cargo", "C++ compiler", "python3"].map(of))
    };
    set_up.program("c++", "#!/bin/sh\n");
    let (code, tools) = doctor();
    assert!(code == Some(0) && tools.iter().all(|tool| tool["health"] == "good"), "{tools:?}");
    set_up.program("cargo", NO_TOOLCHAIN);
    set_up.program("python3", "#!/bin/sh\nexit 1\n");
    let (code, [cargo, compiler, python]) = doctor();
    assert_eq!(code, Some(1));
    assert_eq!([&cargo["health"], &compiler["health"], &python["health"]], ["bad", "good", "bad"]);
    let why = "does not work: ";
    let message = |finding: &Value| finding["message"].as_str().expect("a message").to_owned();
    assert!(message(&cargo).starts_with(why) && message(&cargo).contains(": rustup could not choose a version"), "{cargo}");
    assert!(message(&python).starts_with("python3 does not work: exit status: 1;"), "{python}");
}

/// The last lines of a log are often those of a backtrace.
#[test]
fn a_build_that_fails_is_explained_by_its_first_error() {
    let set_up = SetUp::new();
    let frames = "echo '  7: core::panicking' >&2\n".repeat(30);
    let errors = "echo 'error: linker `cc` not found' >&2\necho 'error: could not compile' >&2\n";
    set_up.program(
        "cargo",
        &format!("#!/bin/sh\n[ \"$1\" = --version ] && exit\necho '   Compiling a' >&2\n{errors}{frames}exit 1\n"),
    );
    let said = Sandbox::said(&mut set_up.build());
    let log = set_up.sandbox.home().join(".cache/ftctl/trainer/build.log");
    let message = format!("failed:\nerror: linker `cc` not found\nThe whole log is {}. ", log.display());
    assert!(said.code == Some(1) && said.stderr.contains(&message), "{}", said.stderr);
    assert_eq!(fs::read_to_string(log).expect("a log").lines().count(), 33);
}

/// By a `root` or a `dry-run` in its pip.conf.
#[test]
fn an_installer_that_installs_elsewhere_leaves_no_libtorch() {
    let set_up = SetUp::new();
    let elsewhere = set_up.sandbox.home().join("elsewhere");
    fs::write(&elsewhere, "").expect("written");
    let said = Sandbox::said(&mut set_up.build());
    assert!(said.code == Some(1) && said.stderr.contains("`pip config list` shows them"), "{}", said.stderr);
    assert!(!set_up.libtorch().join(ftctl::image::libtorch::VERSION).exists());
    fs::remove_file(elsewhere).expect("removed");
    assert!(Sandbox::said(&mut set_up.build()).stderr.contains("no compiler today"), "it is installed again");
}

#[test]
fn an_interrupted_set_up_of_libtorch_is_begun_anew() {
    let set_up = SetUp::new();
    let (hang, pid) = (set_up.sandbox.home().join("hang"), set_up.sandbox.home().join("pid"));
    fs::write(&hang, "").expect("written");
    let mut ftctl = set_up.build().spawn().expect("ftctl runs");
    let start = Instant::now();
    while !pid.exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "pip was not started");
        thread::sleep(Duration::from_millis(5));
    }
    ftctl.kill().expect("killed");
    ftctl.wait().expect("gone");
    let half: Vec<_> = set_up.entries().into_iter().filter(|name| name.starts_with("V.partial")).collect();
    assert_eq!(half.len(), 1, "{:?}", set_up.entries());
    assert!(!set_up.libtorch().join(ftctl::image::libtorch::VERSION).exists(), "a half is not under the name of a whole");

    fs::remove_file(hang).expect("removed");
    for _ in 0..2 {
        let output = set_up.build().output().expect("ftctl runs");
        let stderr = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(
            stderr.contains("error: building the trainer with cargo failed:\nno compiler today\nThe whole log is "),
            "{stderr}"
        );
        // Whole, without anything of the first try, and not installed again.
        assert_eq!(set_up.entries(), ["V", "V.log", "lock"]);
        let home = set_up.libtorch().join(ftctl::image::libtorch::VERSION);
        assert!(home.join("complete").is_file() && !home.join("site/half").exists());
        assert_eq!(set_up.installations(), 2);
    }
    // A killed ftctl leaves its pip behind; this one is ours to end.
    let orphan: i32 = fs::read_to_string(pid).expect("a number").trim().parse().expect("a number");
    let _ =
        rustix::process::kill_process(rustix::process::Pid::from_raw(orphan).expect("a process"), rustix::process::Signal::KILL);
}
