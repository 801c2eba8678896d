//! The differences between settings of jobs, key by key.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::{plan::Plan, wording};

/// A key with another value. A key that is absent has none.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// The key as a job file spells it: `train.steps`.
    pub key: String,
    pub before: Option<Value>,
    pub after: Option<Value>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = |value: &Option<Value>| value.as_ref().map_or_else(|| "absent".to_owned(), wording::value);
        write!(f, "{} was {}, now {}", self.key, said(&self.before), said(&self.after))
    }
}

/// The keys of two plans whose values differ.
pub fn of_plans(before: &Plan, after: &Plan) -> Vec<Difference> {
    between(&[settings(before), settings(after)])
}

fn between(two: &[Settings; 2]) -> Vec<Difference> {
    let difference = |(key, values): (String, Vec<Option<Value>>)| {
        let [before, after] = [0, 1].map(|at| values[at].clone());
        Difference { key, before, after }
    };
    of(two).into_iter().map(difference).collect()
}

/// The keys that have not the same value in all of these settings, in the order in which they are met, with the value in each.
pub fn of(all: &[Settings]) -> Vec<(String, Vec<Option<Value>>)> {
    let mut found: Vec<(String, Vec<Option<Value>>)> = Vec::new();
    for (at, settings) in all.iter().enumerate() {
        for (key, value) in settings {
            let known = found.iter().position(|(name, _)| name == key).unwrap_or_else(|| {
                found.push((key.clone(), vec![None; all.len()]));
                found.len() - 1
            });
            found[known].1[at] = Some(value.clone());
        }
    }
    found.retain(|(_, values)| values.iter().any(|value| *value != values[0]));
    found
}

/// Each key that has a value, in a plan's order.
pub type Settings = Vec<(String, Value)>;

pub fn settings(plan: &Plan) -> Settings {
    let mut found = Vec::new();
    flatten(String::new(), serde_json::to_value(plan).unwrap_or_default(), &mut found);
    found
}

/// A list is one value.
fn flatten(key: String, value: Value, found: &mut Settings) {
    match value {
        Value::Object(table) => {
            for (name, value) in table {
                flatten(if key.is_empty() { name } else { format!("{key}.{name}") }, value, found);
            }
        }
        Value::Null => {}
        value => found.push((key, value)),
    }
}

/// At most this many are named in a sentence.
const NAMED: usize = 3;

/// In a sentence: the first few, and how many more there are.
pub fn sentence(differences: &[Difference]) -> String {
    let named = differences.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>().join("; ");
    match differences.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named}; and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_with_other_values_are_named_as_in_a_job_file() {
        let before =
            json!({ "train": { "steps": 60, "seed": 1, "schedule": { "kind": "cosine" } }, "data": ["a"], "name": "x", "old": 1 });
        let after = json!({ "train": { "steps": 50, "seed": 1, "schedule": { "kind": "constant" } }, "data": ["a", "b"], "name": "x", "new": true });
        let all = [before, after].map(|value| {
            let mut settings = Vec::new();
            flatten(String::new(), value, &mut settings);
            settings
        });
        let found = between(&all);
        let said: Vec<String> = found.iter().map(ToString::to_string).collect();
        let expected = [
            "train.steps was 60, now 50",
            "train.schedule.kind was cosine, now constant",
            "data was [\"a\"], now [\"a\",\"b\"]",
            "old was 1, now absent",
            "new was absent, now true",
        ];
        assert_eq!(said, expected);
        assert_eq!(sentence(&found), format!("{}; and 2 more", expected[..3].join("; ")));
        assert_eq!(sentence(&found[..1]), expected[0]);
    }
}
