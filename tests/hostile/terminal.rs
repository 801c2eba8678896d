//! Words in a store, of a machine, an engine or a registry that are orders to a terminal: they clear it, write to its clipboard, or
//! show a line in another order than it has.

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use ftctl::{
    job::{
        id::{JobId, path},
        record::{Attempt, Record},
        state::{Outcome, State},
        units::Money,
    },
    store::{self, Condition},
};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    common::{Runs, Said, Sandbox},
    listener::Listener,
    project::{IMAGE, Project},
    pty::{Environment, said_on_one},
};

/// Clears the screen, names the window, writes to the clipboard (in both ways of beginning an order), and turns the direction
/// around.
const ORDERS: &str =
    "\u{1b}[2J\u{1b}]0;FAKE\u{7}\u{1b}]52;c;cm0gLXJm\u{7}\u{9d}52;c;cm0gLXJm\u{9c}\r\u{7f}\u{202e}elif\u{2066}\u{2028}";

fn wait<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// A job that ended, by the word of a user who may write to the store.
struct Job {
    sandbox: Sandbox,
    id: JobId,
    log: Vec<u8>,
}

impl Job {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        sandbox.write("job.toml", "name = \"talks\"\n[data]\ntrain = [\"job.toml\"]\n");
        let plan = serde_json::from_str(&sandbox.run(&["plan", "job.toml", "-o", "json"]).stdout).unwrap();
        let id: JobId = serde_json::from_str("\"talks-bcdfgh\"").unwrap();
        let now = Timestamp::now();
        let mut record = Record::new(id.clone(), plan, now);
        let reason = Some(format!("an end {ORDERS}"));
        record.attempts.push(Attempt { started: Some(now), ended: Some(now), reason, ..Attempt::new(1, 0, Money::ZERO) });
        (record.state, record.attempt, record.submitted) = (State::Finished, 1, true);
        (record.outcome, record.reason) = (Some(Outcome::Failed), Some(format!("no reason {ORDERS}")));
        let log = [
            format!("2026-11-20T14:03:22.512Z step 1 {ORDERS}\n").as_bytes(),
            b"2026-11-20T14:03:23.512Z \xff\x9b2J \xe6\xbc\xa2\n",
        ]
        .concat();
        let directory = sandbox.state().join("store");
        let store = store::open(directory.to_str().unwrap()).unwrap();
        wait(store.put(&path::record(&id), serde_json::to_vec(&record).unwrap().into(), Condition::IfAbsent)).unwrap();
        wait(store.append(&path::log(&id, 1), 0, log.clone().into())).unwrap();
        Self { sandbox, id, log }
    }

    fn run(&self, arguments: &[&str]) -> Said {
        self.sandbox.run(arguments)
    }

    /// [`Job::run`] on a terminal, which says what it was told.
    fn on_a_terminal(&self, arguments: &[&str]) -> String {
        said_on_one(&self.sandbox.command(arguments), Environment::Own)
    }
}

/// Nothing but text, line ends and tabs, and ftctl's own output with colours.
fn is_text(said: &str) -> bool {
    let own = ["\u{1b}[1;31m", "\u{1b}[1;32m", "\u{1b}[1;33m", "\u{1b}[1;36m", "\u{1b}[2m", "\u{1b}[0m"];
    let rest = own.iter().fold(said.replace("\r\n", "\n"), |rest, order| rest.replace(order, ""));
    let order = |c: char| c.is_control() && c != '\n' && c != '\t' || "\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}".contains(c);
    !rest.chars().any(|c| order(c) || ('\u{202a}'..='\u{202e}').contains(&c) || ('\u{2066}'..='\u{2069}').contains(&c))
}

#[test]
fn what_a_record_says_is_no_order_to_a_terminal() {
    let job = Job::new();
    let verbs: [&[&str]; 8] = [
        &["status"],
        &["status", job.id.as_str()],
        &["explain", job.id.as_str()],
        &["status", "-o", "name"],
        &["status", "-o", "json"],
        &["status", "-o", "jsonl"],
        &["status", job.id.as_str(), "-o", "json"],
        &["status", ORDERS.trim_start_matches('\u{1b}')],
    ];
    for arguments in verbs {
        let said = job.run(arguments);
        assert!(is_text(&said.stdout) && is_text(&said.stderr), "{arguments:?}: {:?} {:?}", said.stdout, said.stderr);
    }
    let shown = job.run(&["status", job.id.as_str()]).stdout;
    assert!(shown.contains("no reason \u{fffd}[2J"), "{shown}");
    // A program gets what the store has.
    let json: Value = serde_json::from_str(&job.run(&["status", job.id.as_str(), "-o", "json"]).stdout).unwrap();
    assert!(
        json.to_string().contains("no reason") && json["reason"].as_str().is_none_or(|reason| reason.contains(ORDERS)),
        "{json}"
    );
    for arguments in [&["status", job.id.as_str()][..], &["explain", job.id.as_str()]] {
        let said = job.on_a_terminal(arguments);
        assert!(said.contains("no reason") && is_text(&said), "{arguments:?}: {said:?}");
    }
}

#[test]
fn a_log_is_filtered_on_a_terminal_and_as_it_is_in_a_pipe() {
    let job = Job::new();
    let arguments = ["logs", job.id.as_str(), "--timestamps"];
    let output = job.sandbox.command(&arguments).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.stdout.windows(job.log.len()).any(|part| part == job.log), "{shown:?}");
    let said = job.on_a_terminal(&arguments);
    assert!(
        is_text(&said) && said.contains("step 1 \u{fffd}[2J\u{fffd}]0;FAKE\u{fffd}") && said.contains("\u{fffd}\u{fffd}2J 漢"),
        "{said:?}"
    );
}

#[test]
fn an_error_that_quotes_a_store_or_a_file_is_no_order() {
    let job = Job::new();
    let directory = job.sandbox.state().join("store");
    std::fs::write(directory.join(path::record(&job.id)), format!("{{\"schema\": \"{}\"}}", "\\u001b]52;c;cm0\\u0007\\u202e"))
        .unwrap();
    job.sandbox.write("names.csv", format!("a{ORDERS},b\n1,2\n"));
    for arguments in [&["status"][..], &["status", job.id.as_str()], &["prepare", "names.csv", "--out", "prepared"]] {
        for format in [&[][..], &["-o", "json"], &["-o", "jsonl"], &["-o", "name"]] {
            let said = job.run(&[arguments, format].concat());
            assert!(is_text(&said.stdout) && is_text(&said.stderr), "{arguments:?}: {:?} {:?}", said.stdout, said.stderr);
        }
        assert!(is_text(&job.on_a_terminal(arguments)), "{arguments:?}");
    }
}

/// An order as it is shown.
const SHOWN: &str = "\u{fffd}[2J\u{fffd}]0;FAKE\u{fffd}";

/// Says what a command shows in every form, none of which is an order.
fn shown(command: impl Fn(&[&str]) -> Command, arguments: &[&str]) -> String {
    let mut texts = vec![said_on_one(&command(arguments), Environment::Own)];
    for format in [&[][..], &["-o", "json"], &["-o", "jsonl"]] {
        let Said { stdout, stderr, .. } = Sandbox::said(&mut command(&[arguments, format].concat()));
        texts.extend([stdout, stderr]);
    }
    for text in &texts {
        assert!(is_text(text), "{arguments:?}: {text:?}");
    }
    texts.concat()
}

/// A user whose machine runs another startup script than ftctl's.
struct Broken {
    project: Project,
    sandbox: Sandbox,
}

impl Broken {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.sandbox.command(arguments);
        command.envs(self.project.variables.iter().cloned()).env("FTCTL_BACKEND", "gce");
        command
    }

    /// The job's machine has another one in its place.
    fn start(&self, script: &str) {
        let mut machine = self.project.instances().remove(0);
        self.project.delete(machine["name"].as_str().unwrap());
        let began = Instant::now();
        while !self.project.machines().is_empty() {
            assert!(began.elapsed() < Duration::from_secs(60), "{machine} goes");
            thread::sleep(Duration::from_millis(20));
        }
        for item in machine["metadata"]["items"].as_array_mut().unwrap() {
            if item["key"] == "startup-script" {
                item["value"] = json!(script);
            }
        }
        // The cloud had derived it from the longest time that the machine may run.
        machine["scheduling"].as_object_mut().unwrap().remove("terminationTime");
        self.project.insert(&machine);
    }

    /// Waits until the verb shows the words.
    fn assert_says(&self, arguments: &[&str], words: &str) {
        let began = Instant::now();
        loop {
            let said = shown(|arguments| self.command(arguments), arguments);
            if said.contains(words) {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{arguments:?} without {words}: {said}");
        }
    }
}

impl Runs for Broken {
    fn run(&self, arguments: &[&str]) -> Said {
        Sandbox::said(&mut self.command(arguments))
    }
}

#[test]
fn what_a_serial_port_says_is_no_order() {
    let user = Broken { project: Project::new(&json!({})), sandbox: Sandbox::new() };
    user.sandbox.write_rehearsal("serial");
    user.sandbox.write_dataset();
    let job = user.ok(&[&["submit", "job.toml", "--set", "retry.attempts=1"][..], &IMAGE].concat()).trim().to_owned();
    user.start(&format!("echo 'begun {ORDERS}'; sleep 600"));
    user.assert_says(&["logs", &job], &format!("begun {SHOWN}"));
    user.start(&format!("echo 'ftctl: FAILED: broken {ORDERS}'; poweroff"));
    for verb in [&["status", &job, "--refresh"][..], &["logs", "-f", &job], &["explain", &job], &["logs", &job]] {
        user.assert_says(verb, &format!("broken {SHOWN}"));
    }
}

#[test]
fn what_an_engine_or_a_registry_answers_is_no_order() {
    let sandbox = Sandbox::new();
    for (asked, words) in [("/version", "broken"), ("/distribution/", "denied: no")] {
        let engine = Listener::start_with(move |head| {
            let refused = head.contains(asked);
            let body = if refused { json!({ "message": format!("{words} {ORDERS}") }) } else { json!({ "ApiVersion": "1.45" }) };
            let (status, body) = (if refused { "500 Refused" } else { "200 OK" }, body.to_string());
            format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        });
        let command = |arguments: &[&str]| {
            let mut command = sandbox.command(arguments);
            command.env("DOCKER_HOST", format!("tcp://127.0.0.1:{}", engine.port));
            command
        };
        let said = shown(command, &["push", "registry.example.org/ftctl"]);
        assert!(said.contains(&format!("{words} {SHOWN}")), "{asked}: {said}");
    }
}
