//! The command line's manners: streams, formats, exit codes, and the files that `init` writes.

use std::{
    io::{PipeReader, PipeWriter, Read as _, Write as _},
    process::{Child, Stdio},
    time::Duration,
};

use crate::common::{Runs as _, Sandbox};
use serde_json::Value;

#[test]
fn what_is_checked_in_of_the_job_file_is_what_is_printed() {
    for (arguments, file) in [(&["schema"][..], "templates/job.schema.json"), (&["schema", "--markdown"], "docs/job-file.md")] {
        let printed = Sandbox::new().run(arguments).stdout;
        let checked_in = std::fs::read_to_string(format!("{}/{file}", env!("CARGO_MANIFEST_DIR"))).expect("it is checked in");
        assert!(printed == checked_in, "{file} is stale: cargo run -- {} > {file}", arguments.join(" "));
    }
}

#[test]
fn every_template_names_its_schema_and_plans_as_it_is() {
    let sandbox = Sandbox::new();
    let list: Value = serde_json::from_str(&sandbox.run(&["init", "--list", "-o", "json"]).stdout).expect("JSON");
    for template in list["templates"].as_array().expect("a list") {
        let name = template["name"].as_str().expect("a name");
        let path = format!("{}/templates/jobs/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).expect("a template");
        assert!(text.starts_with("#:schema ../job.schema.json\n"), "{name}");
        let document = ftctl::job::document::Document::new(name, text.into()).expect(name);
        ftctl::job::spec::JobSpec::read(&document, ftctl::provider::registry::rules).expect(name);
    }
}

#[test]
fn init_writes_a_valid_job_once() {
    let sandbox = Sandbox::new();
    let said = sandbox.run(&["init", "-o", "name"]);
    assert_eq!((said.code, said.stdout.as_str()), (Some(0), "job.toml\n"));
    let text = std::fs::read_to_string(sandbox.path("job.toml")).expect("written");
    assert!(text.starts_with("#:schema ./job.schema.json\n"), "{text}");
    assert!(sandbox.path("job.schema.json").is_file());

    std::fs::write(sandbox.path("job.toml"), "mine").expect("written");
    let said = sandbox.run(&["init"]);
    assert_eq!(said.code, Some(2));
    assert!(said.stderr.contains("exists already"), "{}", said.stderr);
    assert_eq!(std::fs::read_to_string(sandbox.path("job.toml")).expect("read"), "mine");
    assert_eq!(sandbox.run(&["init", "--force", "--out", "a/b.toml"]).code, Some(0));
    assert!(sandbox.path("a/job.schema.json").is_file());

    // A job for each backend plans as it is, but for the image that only a user has.
    let digest = "0".repeat(64);
    let far = &["--store", "azure://acc/box"][..];
    for (backend, store) in [("local", &[][..]), ("docker", &[]), ("gce", far), ("azureml", far), ("fake", &[])] {
        for template in ["quickstart", "quickstart-docker"] {
            let said = sandbox.run(&["init", template, "--backend", backend, "--out", "b.toml", "--force"]);
            assert_eq!(said.code, Some(0), "{}", said.stderr);
            let verb = if far == store { "plan" } else { "run" };
            assert!(said.stderr.contains(&format!("next: ftctl {verb} b.toml\n")), "{backend}: {}", said.stderr);
            let text = std::fs::read_to_string(sandbox.path("b.toml")).expect("written");
            let text = text.replace("# image = ", "image = ").replace("sha256:...", &format!("sha256:{digest}"));
            sandbox.write("b.toml", &text);
            let plan = [&["plan", "b.toml", "-o", "json"], store].concat();
            let said = Sandbox::said(sandbox.command(&plan).env("AZURE_STORAGE_KEY", "a2V5"));
            assert_eq!(said.code, Some(0), "{template} on {backend}: {}\n{text}", said.stderr);
            let plan: Value = serde_json::from_str(&said.stdout).expect("JSON");
            assert_eq!(plan["backend"], backend, "{text}");
        }
    }
    let said = sandbox.run(&["init", "--backend", "dokcer", "--out", "c.toml"]);
    assert!(said.code == Some(2) && said.stderr.ends_with("did you mean `docker`?\n"), "{}", said.stderr);
    for translate in [&[][..], &["--from-command", "run_clm.py --model_name_or_path gpt2 --train_file a.txt --do_train"]] {
        let arguments = ["init", "--backend", "docker", "--out", "c.toml", "--force"];
        let said = sandbox.run(&[&arguments, translate].concat());
        let verb = if translate.is_empty() { "run" } else { "plan" };
        assert!(said.code == Some(0) && said.stderr.contains(&format!("next: ftctl {verb} ")), "{}", said.stderr);
        let text = std::fs::read_to_string(sandbox.path("c.toml")).expect("written");
        let spec = ftctl::job::spec::JobSpec::parse(&text, "c.toml").expect("a job");
        assert_eq!(spec.compute.backend.as_deref(), Some("docker"), "{text}");
    }
}

#[test]
fn a_command_that_trains_nothing_is_answered_with_one_of_ftctls() {
    let sandbox = Sandbox::new();
    for (command, missing) in [
        ("run_generation.py --model_type gpt2 --model_name_or_path none --prompt Once", "there is no directory"),
        ("multiprocessing_bpe_encoder.py --inputs none.txt --outputs prepared", "none.txt does not exist"),
    ] {
        let said = sandbox.run(&["init", "--from-command", command, "--out", "job.toml"]);
        assert!(said.code == Some(2) && !sandbox.path("job.toml").exists(), "{}", said.stderr);
        let fix = said.stderr.split_once("fix: ftctl ").expect("a command").1.trim().replace('\'', "");
        let said = sandbox.run(&fix.split(' ').collect::<Vec<_>>());
        assert!(said.stderr.contains(missing), "{fix}: {}", said.stderr);
    }
}

/// The parts that are left out are told, and the rest is a job that can be planned.
#[test]
fn a_job_of_azure_ml_becomes_one_of_ftctls() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("jobs")).expect("a directory");
    sandbox.write("jobs/a.txt", "words of a text\n".repeat(100));
    sandbox.write(
        "jobs/job.yml",
        "display_name: corpus\ncommand: python run_clm.py --model_name_or_path ./gpt2 --tokenizer_name gpt2 --train_file ${{inputs.corpus}} --max_steps 10\n\
         inputs: {corpus: {type: uri_file, path: ./a.txt}}\ndistribution: {type: pytorch, process_count_per_instance: 8}\n\
         resources: {instance_type: Standard_ND40rs_v2}\nlimits: {timeout: 7200}\nservices: {lab: {type: jupyter_lab}}\n",
    );
    let init = |out: &str| sandbox.run(&["init", "--from-azureml", "jobs/job.yml", "--out", out]);
    let said = init("a.toml");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    for part in ["note: line 7, services: nothing listens", "note: line 4, distribution.type: ftctl starts the processes"] {
        assert!(said.stderr.contains(part), "{part}: {}", said.stderr);
    }
    let plan = ["plan", "a.toml", "--store", "azure://account/container", "--set", "image.variant=cu126", "-o", "json"];
    let said = sandbox.run(&plan);
    let told: Value = serde_json::from_str(&said.stdout).expect("JSON");
    let missing: Vec<_> = told["missing"].as_array().expect("a list").iter().map(|finding| &finding["what"]).collect();
    assert_eq!(
        (said.code, missing),
        (Some(2), vec![&Value::from("image"), &Value::from("initial weights")]),
        "{} {}",
        said.stdout,
        said.stderr
    );
    assert_eq!(
        (told["azureml"]["size"].as_str(), told["azureml"]["compute"].as_str()),
        (Some("Standard_ND40rs_v2"), Some("serverless"))
    );
    assert_eq!(
        told["data"]["text"]["train"][0].as_str(),
        sandbox.path("jobs/a.txt").to_str(),
        "paths begin at the job's own folder"
    );
    let said = init("jobs/b.toml");
    let text = std::fs::read_to_string(sandbox.path("jobs/b.toml")).unwrap_or_else(|_| panic!("{}", said.stderr));
    assert!(text.contains("train = [\"a.txt\"]"), "{text}");

    sandbox.write("jobs/job.yml", "type: sweep\ncommand: run_clm.py\n");
    let said = init("c.toml");
    assert!(said.code == Some(2) && said.stderr.contains("line 1, type: `sweep` does not exist here"), "{}", said.stderr);
    let said = sandbox.run(&["init", "--from-azureml", "none.yml", "--out", "c.toml"]);
    assert!(said.code == Some(3) && said.stderr.contains("cannot read") && !sandbox.path("c.toml").exists(), "{}", said.stderr);
}

#[test]
fn stdout_is_one_json_value_whatever_happens() {
    let sandbox = Sandbox::new();
    sandbox.write("ftctl.toml", "ttl = \"soon\"");
    let broken = sandbox.run(&["version", "-o", "json"]);
    for (said, code, class) in [
        (&broken, 2, "usage"),
        (&sandbox.run(&["-o", "json"]), 2, "usage"),
        (&sandbox.run(&["-o", "json", "frobnicate"]), 2, "usage"),
        (&sandbox.run(&["config", "show", "--output=json", "--nonsense"]), 2, "usage"),
    ] {
        assert_eq!((said.code, said.stderr.as_str()), (Some(code), ""));
        let value: Value = serde_json::from_str(&said.stdout).expect("exactly one JSON value");
        assert_eq!(value["schema"], "ftctl.error/1");
        let error = value["error"].as_object().expect("an error");
        assert_eq!(error.keys().collect::<Vec<_>>(), ["code", "class", "message", "fix", "retryable"]);
        assert_eq!((error["code"].as_i64(), error["class"].as_str()), (Some(i64::from(code)), Some(class)));
    }
    assert!(broken.stdout.contains("ftctl.toml:1:7"), "{}", broken.stdout);
    assert!(sandbox.run(&["-o", "json"]).stdout.contains("\"a verb is missing\""), "and not what users do not see");
}

#[test]
fn a_verb_with_letters_that_changed_places_is_recognised() {
    let said = Sandbox::new().run(&["rnu", "job.toml"]);
    assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""));
    assert_eq!(said.stderr, "error: unknown verb `rnu`\n  fix: did you mean `run`?\n");
}

#[test]
fn the_environment_chooses_the_format_before_anything_is_parsed() {
    let sandbox = Sandbox::new();
    let output = sandbox.command(&["frobnicate"]).env("FTCTL_OUTPUT", "json").output().expect("ftctl runs");
    assert!(serde_json::from_slice::<Value>(&output.stdout).expect("JSON")["error"].is_object());
}

#[test]
fn every_verb_has_help_with_an_example() {
    let sandbox = Sandbox::new();
    let help = sandbox.run(&["--help"]).stdout;
    let verbs = help.lines().skip_while(|line| *line != "Verbs:").skip(1).take_while(|line| !line.is_empty());
    let verbs: Vec<&str> = verbs
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(verbs.contains(&"run") && verbs.len() > 25, "{verbs:?}");
    for verb in verbs.into_iter().filter(|verb| *verb != "help") {
        let said = sandbox.run(&[verb, "--help"]);
        assert!(said.code == Some(0) && said.stdout.contains("Example"), "{verb}: {}", said.stdout);
    }
}

#[test]
fn help_can_be_asked_for_as_a_verb_and_as_manual_pages() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.ok(&["help", "submit"]), sandbox.ok(&["submit", "--help"]));
    assert_eq!(sandbox.ok(&["help"]), sandbox.ok(&["--help"]));
    assert_eq!(sandbox.run(&["help", "submitt"]).code, Some(2));

    sandbox.ok(&["man", "--out", "pages"]);
    let page = |verb: &str| std::fs::read_to_string(sandbox.path(&format!("pages/{verb}.1"))).expect(verb);
    let (whole, submit) = (page("ftctl"), page("ftctl-submit"));
    assert!(whole.contains("ftctl\\-submit(1)") && submit.starts_with(".ie"), "{whole}");
    assert_eq!(sandbox.ok(&["man", "submit"]), submit);
    assert!(!sandbox.path("pages/ftctl-agent.1").exists(), "no one calls it");
    let said = sandbox.run(&["man", "submitt"]);
    assert!(said.code == Some(2) && said.stderr.contains("did you mean `submit`?"), "{}", said.stderr);
}

#[test]
fn help_and_version_need_no_readable_settings() {
    let sandbox = Sandbox::new();
    sandbox.write("ftctl.toml", "broken");
    for arguments in [&["--help"][..], &["-h"], &["--version"], &["init", "--help"]] {
        let said = sandbox.run(arguments);
        assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{arguments:?}");
        assert!(!said.stdout.is_empty());
    }
    assert_eq!(sandbox.run(&["version"]).code, Some(2), "a verb does need them");
}

#[test]
fn a_rehearsed_job_is_as_old_as_its_own_clock_says() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("rehearsed");
    assert_eq!(sandbox.run(&["submit", "job.toml", "--wait"]).code, Some(0));
    let shown: Value = serde_json::from_str(&sandbox.run(&["status", "-o", "json"]).stdout).expect("JSON");
    assert_eq!(shown["jobs"][0]["state"], "succeeded", "{shown}");
    // It took minutes, and began in another year.
    let table = sandbox.run(&["status"]).stdout;
    assert!(table.lines().nth(1).is_some_and(|job| job.ends_with('s')), "{table}");
}

#[test]
fn a_reader_that_goes_away_ends_the_program_quietly() {
    let sandbox = Sandbox::new();
    let mut child = sandbox.command(&["schema"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("ftctl runs");
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("read");
    assert_eq!((child.wait().expect("waited").code(), stderr.as_str()), (Some(0), ""));
}

#[test]
fn a_job_that_fails_fails_whether_or_not_anybody_reads() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("unread");
    for arguments in [&["run", "job.toml", "--ttl", "1m"][..], &["submit", "job.toml", "--wait", "--ttl", "1m"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let status = sandbox.command(arguments).stdout(writer).stderr(Stdio::null()).status().expect("ftctl runs");
        assert_eq!(status.code(), Some(10), "{arguments:?}");
    }
}

/// A pipe whose reader stands still.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    rustix::io::ioctl_fionbio(&writer, true).expect("a pipe that does not wait");
    while writer.write(&[b'\n'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).expect("a pipe that is full");
    (reader, writer)
}

fn until_over(sandbox: &Sandbox, job: &str) {
    let began = std::time::Instant::now();
    while !sandbox.run(&["status", job]).stdout.contains("succeeded") {
        assert!(began.elapsed() < Duration::from_secs(60), "no one reads, and nothing happens");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_job_is_supervised_to_its_end_whoever_listens() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("unheard");
    let (mut reader, writer) = full_pipe();
    let mut run = sandbox.command(&["run", "job.toml"]).stdout(Stdio::null()).stderr(writer).spawn().expect("ftctl runs");
    until_over(&sandbox, "unheard");
    let mut heard = String::new();
    reader.read_to_string(&mut heard).expect("read");
    assert!(run.wait().expect("waited").success() && heard.trim_end().ends_with("Tearing down"), "{heard}");

    let id = sandbox.run(&["submit", "job.toml"]).stdout;
    let (mut reader, writer) = full_pipe();
    let follow = ["logs", "-f", id.trim()];
    let mut logs = sandbox.command(&follow).stdout(writer).stderr(Stdio::null()).spawn().expect("ftctl runs");
    until_over(&sandbox, id.trim());
    let mut heard = String::new();
    reader.read_to_string(&mut heard).expect("read");
    assert!(logs.wait().expect("waited").success() && heard.ends_with("its work is done\n"), "{heard}");

    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let status = sandbox.command(&["run", "job.toml"]).stdout(Stdio::null()).stderr(writer).status().expect("ftctl runs");
    assert_eq!(status.code(), Some(0), "no one is there at all");
}

/// Ends with its test: one that is stopped would wait for ever otherwise, with the output of the tests in its hands.
struct Terminal(Child);

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_job_is_supervised_while_its_terminal_is_stopped() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("stopped");
    let mut command = sandbox.command(&[]);
    let run = format!("read begin; exec {} run job.toml", env!("CARGO_BIN_EXE_ftctl"));
    let mut script = std::process::Command::new("script");
    script.args(["-qec", &run, "/dev/null"]).current_dir(sandbox.path("")).env_clear();
    script.envs(command.env("TERM", "xterm").get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut terminal = Terminal(script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a terminal"));
    let terminal = &mut terminal.0;
    let mut keys = terminal.stdin.take().expect("piped");
    // Ctrl-S.
    keys.write_all(b"\x13begin\n").expect("typed");
    until_over(&sandbox, "stopped");
    assert_eq!(terminal.try_wait().expect("waited"), None, "it waits for its terminal alone");
    // Ctrl-Q.
    keys.write_all(b"\x11").expect("typed");
    let mut seen = String::new();
    terminal.stdout.take().expect("piped").read_to_string(&mut seen).expect("read");
    assert!(terminal.wait().expect("waited").success(), "{seen}");
    let (tearing_down, receipt) =
        (seen.find("Tearing down").expect("the last stage"), seen.find("1 attempt, ").expect("a receipt"));
    assert!(tearing_down < receipt, "{seen}");
}

#[test]
#[ignore = "the bar is for the program that users get: FT_OPTIMISED=1 tests/run"]
fn optimised_the_program_is_under_36_megabytes() {
    let size = std::fs::metadata(env!("CARGO_BIN_EXE_ftctl")).expect("the program").len();
    assert!(size < 36_000_000, "{size} bytes");
}

/// A shell's question: the words of the line, of which the last is being completed.
fn completed(sandbox: &Sandbox, words: &[&str]) -> Vec<String> {
    let mut command = sandbox.command(&[&["--"], words].concat());
    command.env("FTCTL_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string()).env("_CLAP_IFS", "\n");
    let said = Sandbox::said(&mut command);
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    said.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn a_shell_completes_verbs_files_jobs_backends_and_keys() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("shown");
    let id = sandbox.run(&["submit", "job.toml", "--wait"]).stdout.trim().to_owned();
    assert_eq!(completed(&sandbox, &["ftctl", "rep"]), ["report"]);
    assert_eq!(completed(&sandbox, &["ftctl", "plan", "jo"]), ["job.toml"]);
    assert_eq!(completed(&sandbox, &["ftctl", "logs", "sh"]), ["shown", &id]);
    assert_eq!(completed(&sandbox, &["ftctl", "plan", "--backend", "az"]), ["azureml"]);
    assert_eq!(completed(&sandbox, &["ftctl", "init", "quickstart-"]), ["quickstart-docker"]);
    assert_eq!(completed(&sandbox, &["ftctl", "prices", "--gpu", "v"]), ["v100"]);
    assert_eq!(completed(&sandbox, &["ftctl", "bill", "sh"]), ["shown", &id]);
    std::fs::create_dir(sandbox.path("shown-model")).expect("a directory");
    for verb in ["generate", "eval"] {
        assert_eq!(completed(&sandbox, &["ftctl", verb, "show"]), ["shown", &id, "shown-model/"], "{verb}");
        let would =
            sandbox
                .ok(&[&[verb, "shown", "--dry-run"][..], if verb == "eval" { &["--data", "x"] } else { &["--prompt", "x"] }]
                    .concat());
        assert!(would.ends_with(" the model shown, after fetching and building what is missing\n"), "{would}");
    }
    let keys = completed(&sandbox, &["ftctl", "run", "job.toml", "--set", "train.st"]);
    assert!(keys.contains(&"train.steps=".to_owned()) && keys.iter().all(|key| key.starts_with("train.st")), "{keys:?}");
    // What a name would say to a shell is not put on its command line.
    for name in ["job;touch x;.toml", "job$(x).toml", "job x.toml", "job\u{b}x`x`.toml", "job*.toml"] {
        sandbox.write(name, "");
    }
    assert_eq!(completed(&sandbox, &["ftctl", "plan", "jo"]), ["job.toml"]);
    // Pressing a key is no trust in a project: its store is not looked into.
    sandbox.write("ftctl.toml", "store = \"mine\"\n");
    assert_eq!(completed(&sandbox, &["ftctl", "logs", "sh"]).len(), 2);
    for shell in ["bash", "zsh", "fish"] {
        let said = sandbox.run(&["completion", shell]);
        assert!(said.code == Some(0) && said.stdout.contains("FTCTL_COMPLETE"), "{shell}: {}", said.stdout);
    }
}
