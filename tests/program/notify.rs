//! A listener is told of a job's end and of preemptions, and is never in its way.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    thread::{self, JoinHandle},
};

use serde_json::{Value, json};

use crate::common::{Said, Sandbox};

const SECRET: &str = "T000-very-secret";

/// A webhook that takes so many messages.
fn webhook(messages: usize) -> (String, JoinHandle<Vec<Value>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}/services/{SECRET}", listener.local_addr().expect("an address"));
    let took = move || {
        let take = |_| {
            let mut stream = BufReader::new(listener.accept().expect("a message").0);
            let mut length = 0;
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).expect("a line");
                if let Some(bytes) = line.to_lowercase().strip_prefix("content-length:") {
                    length = bytes.trim().parse().expect("a length");
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).expect("a body");
            stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok").expect("sent");
            serde_json::from_slice(&body).expect("JSON")
        };
        (0..messages).map(take).collect()
    };
    (address, thread::spawn(took))
}

fn sandbox(name: &str) -> Sandbox {
    let sandbox = Sandbox::in_memory();
    sandbox.write_rehearsal(name);
    sandbox.script(&json!({ "preemptions": [{ "attempt": 1, "after": "7m" }] }));
    sandbox
}

fn write_user_file(sandbox: &Sandbox, text: &str) {
    let config = sandbox.home().join(".config/ftctl");
    std::fs::create_dir_all(&config).expect("a directory");
    std::fs::write(config.join("config.toml"), text).expect("written");
}

fn told_to(sandbox: &Sandbox, address: &str, arguments: &[&str]) -> Said {
    Sandbox::said(sandbox.command(arguments).env("FTCTL_NOTIFY_WEBHOOK", address))
}

#[test]
fn a_webhook_is_told_of_preemption_and_end_once() {
    let sandbox = sandbox("told");
    let (address, took) = webhook(2);
    let said = told_to(&sandbox, &address, &["submit", "job.toml", "--wait"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let id = said.stdout.trim();
    let messages = took.join().expect("two messages");
    let seen: Vec<_> = messages.iter().map(|message| [&message["event"], &message["job"], &message["attempt"]]).collect();
    assert_eq!(seen, [[&json!("next_attempt"), &json!(id), &json!(2)], [&json!("ended"), &json!(id), &json!(2)]]);
    assert!(messages[0]["text"].as_str().is_some_and(|text| text.contains("goes on with attempt 2 (")), "{}", messages[0]);
    let text = messages[1]["text"].as_str().expect("a text");
    assert!(text.starts_with(&format!("ftctl: {id} succeeded (finished at step 10); ")) && text.ends_with("USD so far"), "{text}");
    // No one listens any more, and looking is no news.
    for verb in ["status", "explain", "logs"] {
        assert!(!told_to(&sandbox, &address, &[verb, id]).stderr.contains("no message"), "{verb}");
    }
}

#[test]
fn a_listener_that_is_away_changes_nothing_and_its_address_is_shown_nowhere() {
    let sandbox = sandbox("away");
    let address = format!("http://127.0.0.1:{}/services/{SECRET}", crate::common::free_port());
    write_user_file(&sandbox, &format!("[notify]\nwebhook = \"{address}\"\n"));
    let said = sandbox.run(&["submit", "job.toml", "--wait"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let warned = "was sent: the webhook at 127.0.0.1: it cannot be reached";
    assert_eq!(said.stderr.matches(warned).count(), 2, "{}", said.stderr);
    let shown = sandbox.run(&["config", "show", "--origin"]).stdout;
    assert!(shown.contains("a webhook"), "{shown}");
    assert!(!said.stderr.contains(SECRET) && !shown.contains(SECRET));
}

#[test]
fn a_command_reads_the_message() {
    let sandbox = sandbox("heard");
    write_user_file(&sandbox, "[notify]\ncommand = [\"sh\", \"-c\", \"cat >> heard; echo >> heard\"]\n");
    let said = sandbox.run(&["submit", "job.toml", "--wait", "--retry-on", "capacity"]);
    assert_eq!(said.code, Some(6), "{}", said.stderr);
    let heard = std::fs::read_to_string(sandbox.path("heard")).expect("a message");
    let message: Value = serde_json::from_str(&heard).expect("one message");
    assert_eq!((&message["event"], &message["state"], &message["exit"]), (&json!("ended"), &json!("failed"), &json!(6)));
    // Its user lets it go on: that is no news to them, and its end is.
    let said = sandbox.run(&["resume", "heard", "--wait"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let heard = std::fs::read_to_string(sandbox.path("heard")).expect("messages");
    assert_eq!((heard.trim().lines().count(), heard.matches("\"event\":\"ended\"").count()), (2, 2), "{heard}");
}

#[test]
fn only_the_user_says_who_is_told_and_never_in_the_clear() {
    let sandbox = sandbox("clear");
    let said = told_to(&sandbox, "http://example.org/hook", &["submit", "job.toml"]);
    assert!(said.code == Some(2) && said.stderr.contains("begins with https://"), "{}", said.stderr);
    // A job that exists can be ended all the same.
    sandbox.run(&["submit", "job.toml"]);
    let ended = told_to(&sandbox, "http://example.org/hook", &["down", "clear", "-y"]);
    assert!(ended.code == Some(0) && ended.stderr.contains("warning: nobody is told of what happens"), "{}", ended.stderr);
    let doctor = told_to(&sandbox, "http://example.org/hook", &["doctor"]).stdout;
    assert!(doctor.contains("BAD") && doctor.contains("notify"), "{doctor}");
    sandbox.write("ftctl.toml", "backend = \"fake\"\n[notify]\ncommand = [\"touch\", \"mine\"]\n");
    let said = sandbox.run(&["submit", "job.toml", "--wait"]);
    assert!(said.code == Some(2) && said.stderr.contains("notify"), "{}", said.stderr);
    assert!(!sandbox.path("mine").exists());
}
