//! A command on a machine through Google's own command line, which knows OS Login, keys and tunnels.

use std::{path::PathBuf, process::Command};

use serde_json::Value;

use super::client::last;
use crate::job::wording::shell_word;

/// `gcloud compute ssh` to a machine as the service describes it; through the Identity-Aware Proxy where it has no external
/// address. With a terminal the command gets one, and gcloud may ask questions.
pub fn session(gcloud: PathBuf, project: &str, machine: &Value, command: &[String], terminal: bool) -> Command {
    let mut session = Command::new(gcloud);
    session.args(["compute", "ssh", last(&machine["name"])]);
    session.args(["--project", project, "--zone", last(&machine["zone"])]);
    let interfaces = machine["networkInterfaces"].as_array();
    if !interfaces.into_iter().flatten().any(|interface| interface["accessConfigs"][0]["natIP"].is_string()) {
        session.arg("--tunnel-through-iap");
    }
    let words: Vec<String> = command.iter().map(|word| shell_word(word)).collect();
    session.arg(format!("--command={}", words.join(" ")));
    if terminal {
        session.args(["--", "-t"]);
    } else {
        session.arg("--quiet");
    }
    session
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_machine_without_an_external_address_is_reached_through_the_proxy() {
        let machine = |interface: Value| json!({ "name": "job-a1", "zone": "https://x/zones/us-central1-a", "networkInterfaces": [interface] });
        let arguments = |interface: Value, terminal| {
            let command = ["echo".to_owned(), "it's  $HOME".to_owned()];
            let session = session("gcloud".into(), "mine", &machine(interface), &command, terminal);
            session.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        let outside = json!({ "networkIP": "10.0.0.2", "accessConfigs": [{ "natIP": "203.0.113.10" }] });
        let named = ["compute", "ssh", "job-a1", "--project", "mine", "--zone", "us-central1-a"];
        let command = r"--command='echo' 'it'\''s  $HOME'";
        assert_eq!(arguments(outside, true), [&named[..], &[command, "--", "-t"]].concat());
        // An address that the cloud has promised and not given is none.
        for inside in [json!({ "networkIP": "10.0.0.2" }), json!({ "accessConfigs": [{ "name": "external-nat" }] })] {
            assert_eq!(arguments(inside, false), [&named[..], &["--tunnel-through-iap", command, "--quiet"]].concat());
        }
    }
}
