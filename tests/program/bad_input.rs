//! The program's answers to bad input: the message, the place, and the exit code.

use crate::common::{Said, Sandbox};

const JOB: &str = "name = \"a\"\n[data]\ntrain = [\"a.txt\"]\n";

/// Plans the bytes as a job file.
fn plan(bytes: impl AsRef<[u8]>) -> Said {
    let sandbox = Sandbox::new();
    sandbox.write("job.toml", bytes);
    sandbox.run(&["plan", "job.toml"])
}

#[test]
fn a_transcript_of_mistakes_in_a_job_file() {
    let cases: &[(&str, &str)] = &[
        (
            "[train]\nlerning_rate = 3e-4",
            "error: job.toml:5:1: unknown key `lerning_rate` in [train]\n  |\n5 | lerning_rate = 3e-4\n  | ^^^^^^^^^^^^\n  fix: did you mean `learning_rate`?\n",
        ),
        (
            "[train]\nsteps = \"many\"",
            "error: job.toml:5:9: train.steps: expected a whole number, 0 or more, found string \"many\"\n  |\n5 | steps = \"many\"\n  |         ^^^^^^\n",
        ),
        (
            "[train]\nlearning_rate = -1.0",
            "error: job.toml:5:17: learning_rate must be a finite number above 0, but is -1\n  |\n5 | learning_rate = -1.0\n  |                 ^^^^\n",
        ),
        (
            "[limits]\nttl = \"soon\"",
            "error: job.toml:5:7: limits.ttl: `soon` is not a duration; write it like 90s, 45m, 2h or 1d12h\n  |\n5 | ttl = \"soon\"\n  |       ^^^^^^\n",
        ),
        (
            "[train]\nschedule = \"cosin\"",
            "error: job.toml:5:12: train.schedule: `cosin` is not one of its values\n  |\n5 | schedule = \"cosin\"\n  |            ^^^^^^^\n  fix: did you mean `cosine`?\n",
        ),
        (
            "[train]\nstore = \"here\"",
            "error: job.toml:5:1: unknown key `store` in [train]\n  |\n5 | store = \"here\"\n  | ^^^^^\n  fix: `store` belongs at the top of the file, before any [table]\n",
        ),
    ];
    for (added, transcript) in cases {
        let said = plan(format!("{JOB}{added}\n"));
        assert_eq!((said.code, said.stdout.as_str(), said.stderr.as_str()), (Some(2), "", *transcript), "{added}");
    }
}

#[test]
fn a_step_that_processes_cannot_share_is_told_in_the_words_of_the_file() {
    for (compute, train, message) in [
        (
            "processes_per_node = 2",
            "leaves = 4",
            "7:10: 4 leaves do not divide a step of train.gradient_accumulation = 1 for each of 2 processes",
        ),
        ("processes_per_node = 2", "leaves = 1", "5:22: 2 processes cannot share a step of 1 leaf (train.leaves); each needs one"),
        (
            "processes_per_node = 18446744073709551615",
            "steps = 9",
            "5:22: a step has at most 1048576 micro-batches, and each of 18446744073709551615 processes has ",
        ),
        (
            "processes_per_node = 2",
            "gradient_accumulation = 1048576",
            "7:25: a step has at most 1048576 micro-batches, and each of 2 processes has ",
        ),
        ("processes_per_node = 0", "leaves = 4", "5:22: processes_per_node must be at least 1, but is 0"),
        ("", "leaves = 4", "7:10: 4 leaves do not divide train.gradient_accumulation = 1"),
    ] {
        let said = plan(format!("{JOB}[compute]\n{compute}\n[train]\n{train}\n"));
        assert_eq!(said.code, Some(2), "{}", said.stderr);
        assert!(said.stderr.starts_with(&format!("error: job.toml:{message}")), "{compute} {train} gave {}", said.stderr);
    }
}

#[test]
fn bytes_that_are_no_job_file() {
    let cases: &[(&[u8], &str)] = &[
        (b"", "job.toml:1:1: the key `name` is missing"),
        (b"name = \"\xff\"", "job.toml:1:9: not valid UTF-8 from here on"),
        (b"na\0me = \"a\"", "job.toml:1:3: a NUL byte; a TOML file is text"),
        (b"PK\x03\x04", "job.toml:1:"),
        (b"{\"name\": \"a\"}", "job.toml:1:1: "),
    ];
    for (bytes, message) in cases {
        let said = plan(bytes);
        assert_eq!(said.code, Some(2), "{}", said.stderr);
        assert!(said.stderr.starts_with(&format!("error: {message}")), "{bytes:?} gave {}", said.stderr);
    }
}

#[test]
fn a_file_too_long_or_a_line_too_long_is_refused_without_being_shown() {
    let said = plan("x".repeat(100 << 20));
    assert_eq!(
        (said.code, said.stderr.as_str()),
        (Some(2), "error: job.toml is larger than 1 MiB, so it is not a job or settings file\n")
    );
    let said = plan(format!("name = \"{}\"", "x".repeat(1 << 19)));
    assert_eq!(said.code, Some(2));
    assert!(said.stderr.len() < 1_000, "{} bytes of message", said.stderr.len());
}

#[test]
fn files_that_cannot_be_read() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("folder")).expect("a folder");
    // A link to itself cannot be read by anyone, root included.
    std::os::unix::fs::symlink("loop.toml", sandbox.path("loop.toml")).expect("a link");
    let cases = [
        (
            "missing.toml",
            3,
            "error: there is no file missing.toml\n  fix: `ftctl init --out missing.toml` writes one to start from\n",
        ),
        ("folder", 2, "error: folder is a directory, not a file\n  fix: name a job file, such as folder/job.toml\n"),
        ("loop.toml", 2, "error: cannot read loop.toml: Too many levels of symbolic links (os error 40)\n"),
        (
            "folder/../folder/x/y.toml",
            3,
            "error: there is no file folder/../folder/x/y.toml\n  fix: `ftctl init --out folder/../folder/x/y.toml` writes one to start \
             from\n",
        ),
    ];
    for (file, code, message) in cases {
        let said = sandbox.run(&["plan", file]);
        assert_eq!((said.code, said.stderr.as_str()), (Some(code), message), "{file}");
    }
}

#[test]
fn a_path_with_a_slip_leads_to_the_file() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("jobs")).expect("a folder");
    sandbox.write("job.toml", JOB);
    sandbox.write("jobs/first.toml", JOB);
    for (typed, meant) in [
        ("job.tml", "job.toml"),
        ("./job.toml.", "./job.toml"),
        ("job.TOML", "job.toml"),
        ("jobs/frist.toml", "jobs/first.toml"),
        ("job/first.toml", "jobs/first.toml"),
    ] {
        let reads: [&[&str]; 7] = [
            &["plan"],
            &["submit"],
            &["run"],
            &["up"],
            &["prepare", "--out", "x", "--job"],
            &["build", "--job"],
            &["push", "r/x", "--job"],
        ];
        for verb in reads {
            let said = sandbox.run(&[verb, &[typed]].concat());
            let expected = format!("error: there is no file {typed}\n  fix: did you mean {meant}?\n");
            assert_eq!((said.code, said.stderr), (Some(3), expected), "{verb:?}");
        }
    }
}

#[test]
fn values_set_on_the_command_line_are_judged_like_the_file() {
    let sandbox = Sandbox::new();
    sandbox.write("job.toml", JOB);
    let said = sandbox.run(&["plan", "job.toml", "--set", "train.stepz=5"]);
    assert_eq!(said.code, Some(2));
    assert!(said.stderr.starts_with("error: --set train.stepz:1:7: unknown key `stepz` in [train]\n"), "{}", said.stderr);
    assert!(said.stderr.ends_with("fix: did you mean `steps`?\n"), "{}", said.stderr);
    sandbox.write("a.txt", "Once upon a time there was a small town by the sea. ".repeat(300));
    let said = sandbox.run(&["plan", "job.toml", "--set", "train.steps=5", "--set", "name=other"]);
    assert!(said.code == Some(0) && said.stdout.contains("other") && said.stdout.contains("5 steps"), "{}", said.stderr);
}

#[test]
fn wrong_usage_and_unknown_things() {
    let sandbox = Sandbox::new();
    sandbox.write("job.toml", JOB);
    let cases: &[(&[&str], i32, &str)] = &[
        (&["plna"], 2, "unknown verb `plna`\n  fix: did you mean `plan`?"),
        (&["runn"], 2, "unknown verb `runn`\n  fix: did you mean `run`?"),
        (&["devcloud", "gec"], 2, "unknown verb `gec`\n  fix: did you mean `gce`?"),
        (&["devcloud", "azure"], 2, "fix: choose azureml or gce"),
        (
            &["sweep", "--data", "-y"],
            2,
            "error: `ftctl sweep` is called `ftctl prune` now\n  fix: ftctl prune, with the same flags",
        ),
        (
            &["run", "job.toml", "--stpes", "5"],
            2,
            "unexpected argument '--stpes' found\n  fix: did you mean `--set train.steps=VALUE`?",
        ),
        (&["resume", "a", "--learning-rate=1"], 2, "fix: did you mean `--set train.learning_rate=VALUE`?"),
        (&["plan", "job.toml", "--bakcend", "local"], 2, "fix: did you mean `--backend`?"),
        (&["drill", "preempt", "a", "--waht"], 2, "fix: write it like: ftctl drill preempt"),
        (&["plan", "job.toml", "--gpu", "v100"], 2, "fix: Compute Engine has `--set compute.gce.accelerator=v100`, Azure ML"),
        (&["logs", "a", "--flolow"], 2, "fix: did you mean `--follow`?"),
        (&["status", "--otuput", "json"], 2, "fix: did you mean `--output`?"),
        (&["down", "--all", "--cloud-is-gone"], 2, "fix: leave out `--all`, or `--cloud-is-gone`"),
        (&["down", "a", "--all"], 2, "fix: leave out JOB, or `--all`"),
        (&["logs", "a", "--rank", "1", "--rank", "2"], 2, "fix: write `--rank` once"),
        (&["status", "--steps"], 2, "fix: write it like: ftctl status"),
        (&["status", "-o", "jsno"], 2, "fix: did you mean `json`?"),
        (&["status", "-o", "yaml"], 2, "[possible values: table, json, jsonl, name]\n"),
        (&["plan", "job.toml", "--set", "train.stpes=5"], 2, "fix: did you mean `steps`?"),
        (&["plan"], 2, "<FILE>"),
        (&["plan", "job.toml", "--backend", "locl"], 2, "there is no backend `locl`\n  fix: did you mean `local`?"),
        (&["plan", "job.toml", "--ttl", "5w"], 2, "`5w` is not a duration"),
        (&["plan", "job.toml", "--ttl", "1000001d"], 2, "`1000001d` is longer than 1000000d"),
        (&["plan", "job.toml", "--ttl", "0s"], 2, "a time to live of 0s leaves no time to train"),
        (&["plan", "job.toml", "--max-cost", "-1USD"], 2, "`-1USD` is not an amount of money; write it like 12USD or 0.36USD"),
        (&["run", "job.toml", "--timeout", "-1s"], 2, "fix: write it like: ftctl run [OPTIONS] <FILE>"),
        (&["status", "--store", "nowhere"], 3, "/nowhere (from flag --store)\n  fix: correct the path; the first `ftctl submit`"),
        (&["plan", "job.toml", "--store", ""], 2, "unknown kind of store ``; give a directory, or a file:/// or azure:// URL"),
        (&["plan", "job.toml", "--max-cost", "5"], 2, "`5` is not an amount of money"),
        (&["plan", "job.toml", "--profile", "p"], 2, "there is no profile `p` (from flag --profile)"),
        (&["plan", "job.toml", "--store", "ftp://x"], 2, "unknown kind of store `ftp://x`"),
        (&["plan", "job.toml", "--store", "azure:acc/box"], 2, "unknown kind of store `azure:`, without `//`"),
        (&["upload", "job.toml", "--store", "acc.blob.core.windows.net/box"], 2, "its address lacks `https://` at its beginning"),
        (&["status", "nobody"], 3, "there is no job `nobody` in the store"),
        (&["logs", "nobody-bcdfgh"], 3, "there is no job `nobody-bcdfgh` in the store"),
        (&["explain", "nobody"], 3, "there is no job"),
        (&["cancel", "nobody"], 3, "there is no job"),
        (&["download", "nobody"], 3, "there is no job"),
        (&["download", "nobody", "--checkpoint", "last"], 2, "write a step or `latest`"),
        (&["upload", "hf:a/b"], 3, "there is no file or directory hf:a/b\n  fix: name text of the hub in a job file's data.train"),
        (&["upload", "nowhere"], 3, "there is no file or directory nowhere"),
        (
            &["trust", "nowhere"],
            3,
            "there is no file or directory nowhere\n  fix: name a directory with job files, or one job file",
        ),
        (&["upload", "/dev/null"], 2, "/dev/null is neither a file nor a directory"),
        (&["down"], 2, "fix: name a job, or add --all for every job of this store"),
        (&["logs", "nobody", "--tail", "x"], 2, "invalid value 'x' for '--tail <LINES>': write a whole number"),
        (&["generate", "m", "--prompt", "x", "--top-p", "x"], 2, "invalid value 'x' for '--top-p <TOP_P>': write a number"),
        (&["status", "-w", "-o", "json"], 2, "-w prints repeatedly, and -o json is one value"),
        (&["prepare", "--out", "x"], 2, "required"),
        (&["prepare", "", "--out", "x"], 2, "a value is required for '[TEXT]...'"),
        (&["prepare", "none.txt", "--out", "x"], 3, "none.txt does not exist; correct the path"),
        (&["prepare", "hf:a/b", "--out", "x"], 2, "`a/b` names no text of the hub: write OWNER/NAME/SPLIT"),
        (&["prepare", "*.txt", "--out", "x"], 3, "the pattern"),
        (&["generate", "none", "--prompt", "x"], 3, "none, and no job `none`\n  fix: name a directory, a job"),
        (&["eval", "none", "--data", "x"], 3, "none, and no job `none`\n  fix: name a directory, a job"),
        (&["prepare", "job.toml", "--out", "x", "--vocabulary", "300"], 2, "vocabulary needs kind = \"train\""),
        (&["init", "quickstrt"], 2, "did you mean `quickstart`?"),
    ];
    for (arguments, code, message) in cases {
        let said = sandbox.run(arguments);
        assert_eq!(said.code, Some(*code), "{arguments:?}: {}", said.stderr);
        let all = said.stderr + &said.stdout;
        assert!(all.contains(message), "{arguments:?} said {all}");
    }
}

#[test]
fn what_destroys_asks_first_and_without_a_terminal_refuses() {
    let sandbox = Sandbox::new();
    let said = sandbox.run(&["down", "nobody-bcdfgh"]);
    assert_eq!(said.code, Some(2));
    assert!(said.stderr.contains("Destroy the machines of nobody-bcdfgh?") && said.stderr.contains("add -y"), "{}", said.stderr);
    let said = sandbox.run(&["down", "nobody-bcdfgh", "-y"]);
    assert!(said.stderr.contains("no record of nobody-bcdfgh to read, so only local is asked"), "{}", said.stderr);
    assert_eq!(
        (said.code, said.stdout.as_str()),
        (Some(0), "nobody-bcdfgh: no machine, and no record\n"),
        "destroying nothing is fine: {}",
        said.stderr
    );
}

#[test]
fn a_machine_without_an_image_is_refused_before_data_is_sent() {
    let sandbox = Sandbox::new();
    sandbox.write("job.toml", JOB);
    for verb in ["run", "up", "submit"] {
        let arguments = [verb, "job.toml", "--backend", "gce", "--store", "azure://account/container"];
        let said = Sandbox::said(sandbox.command(&arguments).env("AZURE_STORAGE_KEY", "a2V5"));
        let message = "error: the job names no container image\n  fix: run `ftctl push REGISTRY/ftctl --job FILE`";
        assert!(said.code == Some(2) && said.stderr.starts_with(message), "{verb}: {}", said.stderr);
    }
}
