//! The `filter` of lists: `labels.x = "y" AND name != z`, and the `name eq ".*\bx\b.*"` that gcloud makes of its own.

use serde_json::Value;

#[derive(Debug, PartialEq, Eq)]
pub struct Term {
    key: String,
    operator: Operator,
    value: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    Unequal,
    /// `key:*`
    Exists,
    /// gcloud's pattern: the value as a whole word.
    Word,
}

/// All terms must hold. `None` when it is not understood.
pub fn parse(expression: &str) -> Option<Vec<Term>> {
    expression.split(" AND ").map(|term| term.trim().trim_matches(['(', ')'])).filter(|term| !term.is_empty()).map(term).collect()
}

fn term(text: &str) -> Option<Term> {
    let operators = [(" eq ", Operator::Word), ("!=", Operator::Unequal), ("=", Operator::Equal), (":*", Operator::Exists)];
    let (key, operator, value) =
        operators.iter().find_map(|(sign, operator)| text.split_once(sign).map(|(key, value)| (key, *operator, value)))?;
    let value = value.trim().trim_matches('"');
    let value = value.trim_start_matches(".*").trim_end_matches(".*").replace("\\b", "").replace('\\', "");
    Some(Term { key: key.trim().to_owned(), operator, value })
}

pub fn fits(terms: &[Term], item: &Value) -> bool {
    terms.iter().all(|term| {
        let found = term.key.split('.').fold(item, |value, key| &value[key]);
        let text = found.as_str().map_or_else(|| found.to_string(), str::to_owned);
        match term.operator {
            Operator::Equal => text == term.value,
            Operator::Unequal => text != term.value,
            Operator::Exists => !found.is_null(),
            Operator::Word => has_word(&text, &term.value),
        }
    })
}

fn has_word(text: &str, word: &str) -> bool {
    let part_of_word = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    text.match_indices(word)
        .any(|(at, _)| !part_of_word(text[..at].chars().next_back()) && !part_of_word(text[at + word.len()..].chars().next()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn terms_are_understood() {
        let item = json!({ "name": "gpu-a1", "labels": { "job": "x" }, "operationType": "compute.instances.preempted" });
        for (filter, holds) in [
            ("", true),
            ("name = gpu-a1", true),
            ("name = \"gpu-a2\"", false),
            ("labels.job=x AND name != gpu-a2", true),
            ("(labels.job = x) AND (labels.owner:*)", false),
            ("labels.job:*", true),
            (r#"operationType eq ".*\bcompute\.instances\.preempted\b.*""#, true),
            (r#"name eq ".*\bgpu\-a\b.*""#, false),
        ] {
            assert_eq!(fits(&parse(filter).expect(filter), &item), holds, "{filter}");
        }
        assert_eq!(parse("name ~ x"), None);
    }
}
