//! How the agents of an attempt's nodes find each other: through what each leaves in the store.

use std::{
    net::IpAddr,
    num::NonZeroU16,
    ops::Not,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};

use super::{id::attempt_number, printable};

/// No object of this kind is larger.
pub const LARGEST: u64 = 64 << 10;
/// Most characters of a rank's last words.
const MOST_WORDS: usize = 600;

/// The file that the agent of another node than the first keeps locked for as long as it lives, where all are on one machine.
pub fn lock(directory: &Path, node: usize) -> PathBuf {
    directory.join(format!("node-{node}.lock"))
}

pub const RENDEZVOUS_SCHEMA: &str = "ftctl.rendezvous/1";

/// `rendezvous.json`: where the ranks of an attempt meet, written by the agent of node 0 when all nodes are ready, and once more
/// when a rank has failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rendezvous {
    pub schema: String,
    #[serde(deserialize_with = "attempt_number")]
    pub attempt: u32,
    /// Counts from 1: ranks that ran out of memory meet once more, with fewer sequences at a time.
    pub generation: u32,
    pub address: IpAddr,
    pub port: NonZeroU16,
    /// Most sequences that a rank takes at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batch_limit: Option<usize>,
    /// The agents that are meant, from node 1 on: one of an earlier life of its node does not come.
    pub agents: Vec<String>,
    /// No agent is to come any more, and ranks that came end: they may still be waiting for the one that failed.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_over: bool,
}

impl Rendezvous {
    /// Whether the agent `name` of this node is asked to come, having come to `generation` generations of this attempt before.
    pub fn invites(&self, attempt: u32, generation: u32, node: usize, name: &str) -> bool {
        self.schema == RENDEZVOUS_SCHEMA
            && self.attempt == attempt
            && self.generation > generation
            && !self.is_over
            && node.checked_sub(1).and_then(|index| self.agents.get(index)).is_some_and(|meant| meant == name)
    }
}

pub const PRESENCE_SCHEMA: &str = "ftctl.presence/1";

/// `nodes/<k>/heartbeat.json`: what the agent of another node than the first says of itself, once a second. Readers judge it by
/// whether it changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    pub schema: String,
    #[serde(deserialize_with = "attempt_number")]
    pub attempt: u32,
    /// Another one for each process.
    pub agent: String,
    pub beat: u64,
    pub time: Timestamp,
    /// The cloud's notice to its machine, in words, while it stands.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_words")]
    pub notice: Option<String>,
    #[serde(flatten)]
    pub word: Word,
}

/// How far a node is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Word {
    /// It has all that its ranks need.
    pub is_ready: bool,
    /// The generation that its ranks came to last; 0 before the first.
    pub generation: u32,
    /// One of them has failed there, and the others are about to end.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_over: bool,
    /// How that ended there; before the first, why the node cannot come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<RankEnd>,
}

/// How the ranks of a node ended: by the one that was the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankEnd {
    pub rank: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Its last ones, one line.
    #[serde(deserialize_with = "words")]
    pub words: String,
    #[serde(default)]
    pub out_of_memory: bool,
}

fn words<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let text = String::deserialize(from)?;
    Ok(printable::line(&text).chars().take(MOST_WORDS).collect())
}

fn some_words<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    words(from).map(Some)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rendezvous(change: &Value) -> Result<Rendezvous, String> {
        let mut value = json!({
            "schema": RENDEZVOUS_SCHEMA, "attempt": 2, "generation": 1, "address": "10.0.0.4", "port": 4000, "agents": ["b", "c"],
        });
        for (key, changed) in change.as_object().into_iter().flatten() {
            value[key] = changed.clone();
        }
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    #[test]
    fn a_rendezvous_is_for_the_agents_that_it_names() {
        let one = rendezvous(&json!({})).unwrap();
        assert!(one.invites(2, 0, 1, "b") && one.invites(2, 0, 2, "c"));
        for (attempt, generation, node, name) in
            [(1, 0, 1, "b"), (3, 0, 1, "b"), (2, 1, 1, "b"), (2, 0, 2, "b"), (2, 0, 0, "b"), (2, 0, 3, "")]
        {
            assert!(!one.invites(attempt, generation, node, name), "{attempt} {generation} {node} {name}");
        }
        assert!(!Rendezvous { is_over: true, ..one.clone() }.invites(2, 0, 1, "b"));
        assert!(!Rendezvous { schema: "ftctl.rendezvous/9".to_owned(), ..one }.invites(2, 0, 1, "b"));
    }

    #[test]
    fn an_address_is_an_address_and_a_port_a_port() {
        for change in [
            json!({ "address": "evil.example.org" }),
            json!({ "address": "10.0.0.4:80" }),
            json!({ "port": 0 }),
            json!({ "port": 70_000 }),
            json!({ "port": "80" }),
            json!({ "attempt": 10_001 }),
            json!({ "generation": -1 }),
        ] {
            assert!(rendezvous(&change).is_err(), "{change}");
        }
    }

    #[test]
    fn last_words_are_one_line_of_text() {
        let end = json!({ "rank": 3, "code": 1, "words": format!("a\u{1b}[2J\nb{}", "x".repeat(10_000)) });
        let end: RankEnd = serde_json::from_value(end).unwrap();
        assert!(end.words.starts_with("a\u{fffd}[2J\u{fffd}bx") && end.words.chars().count() == MOST_WORDS);
    }
}
