//! Words in a store that are orders to a terminal: they clear it, write to its clipboard, or show a line in another order than it
//! has.

use std::process::Command;

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
use serde_json::Value;

use crate::common::{Said, Sandbox};

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
        let ftctl = self.sandbox.command(arguments);
        let words: Vec<String> =
            [ftctl.get_program()].into_iter().chain(ftctl.get_args()).map(|word| word.to_str().unwrap().to_owned()).collect();
        let mut terminal = Command::new("script");
        terminal.args(["--quiet", "--return", "--command", &words.join(" "), "/dev/null"]);
        terminal.current_dir(self.sandbox.path("")).env_clear().stdin(std::process::Stdio::null());
        terminal.envs(ftctl.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("TERM", "xterm");
        String::from_utf8(terminal.output().unwrap().stdout).unwrap()
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
