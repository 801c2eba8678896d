//! What differs between two settings of jobs, key by key.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

use super::{plan::Plan, wording};

/// A key with another value. A key that is absent has none.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// As in a job file: `train.steps`.
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

/// The keys of two plans whose values differ, in their order.
pub fn of_plans(before: &Plan, after: &Plan) -> Vec<Difference> {
    let json = |plan| serde_json::to_value(plan).unwrap_or_default();
    let mut found = Vec::new();
    compare("", Some(&json(before)), Some(&json(after)), &mut found);
    found
}

/// Every key of a plan that has a value, in the plan's order.
pub fn settings(plan: &Plan) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    compare("", Some(&Value::Object(Map::new())), Some(&serde_json::to_value(plan).unwrap_or_default()), &mut found);
    flat(found)
}

/// Tables that only one side has are one difference; here each of their keys is.
fn flat(differences: Vec<Difference>) -> Vec<(String, Value)> {
    let mut settings = Vec::new();
    for Difference { key, after, .. } in differences {
        match after {
            Some(Value::Object(table)) => {
                let below = |(name, value)| Difference { key: format!("{key}.{name}"), before: None, after: Some(value) };
                settings.extend(flat(table.into_iter().map(below).collect()));
            }
            Some(value) if !value.is_null() => settings.push((key, value)),
            _ => {}
        }
    }
    settings
}

/// Tables are compared key by key, everything else as a whole.
fn compare(key: &str, before: Option<&Value>, after: Option<&Value>, found: &mut Vec<Difference>) {
    let table = |value: Option<&Value>| value.and_then(Value::as_object).cloned();
    match (table(before), table(after)) {
        (Some(old), Some(new)) => {
            let below = |name: &String| if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
            let added = new.keys().filter(|name| !old.contains_key(*name));
            old.keys().chain(added).for_each(|name| compare(&below(name), old.get(name), new.get(name), found));
        }
        _ if before != after => {
            found.push(Difference { key: key.to_owned(), before: before.cloned(), after: after.cloned() });
        }
        _ => {}
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
        let mut found = Vec::new();
        let before =
            json!({ "train": { "steps": 60, "seed": 1, "schedule": { "kind": "cosine" } }, "data": ["a"], "name": "x", "old": 1 });
        let after = json!({ "train": { "steps": 50, "seed": 1, "schedule": { "kind": "constant" } }, "data": ["a", "b"], "name": "x", "new": true });
        compare("", Some(&before), Some(&after), &mut found);
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
