//! The `filter` of lists, as Google documents it: `labels.x = "y" AND (name != z OR labels.owner:*)`, and the `name eq ".*\bx\b.*"`
//! that gcloud makes of its own. A value that is not quoted ends at the first space, so what goes unquoted into a filter can say
//! more than one thing.

use std::collections::VecDeque;

use serde_json::Value;

use crate::job::wording;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    All(Vec<Filter>),
    Any(Vec<Filter>),
    Term { key: String, operator: Operator, value: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    Equal,
    Unequal,
    /// `key:*`
    Exists,
    /// `key:part`
    Holds,
    /// gcloud's pattern: the value as a whole word.
    Word,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Open,
    Close,
    Sign(Operator),
    Word(String),
    /// The text between quotes, with its backslashes.
    Quoted(String),
}

type Tokens = VecDeque<Token>;

/// `None` when it is not understood.
pub fn parse(expression: &str) -> Option<Filter> {
    let mut tokens = tokens(expression)?;
    let filter = if tokens.is_empty() { Filter::All(Vec::new()) } else { all(&mut tokens)? };
    tokens.is_empty().then_some(filter)
}

fn tokens(expression: &str) -> Option<Tokens> {
    let mut tokens = Tokens::new();
    let mut rest = expression.trim_start();
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            '(' => (Token::Open, 1),
            ')' => (Token::Close, 1),
            '=' => (Token::Sign(Operator::Equal), 1),
            '!' if rest.starts_with("!=") => (Token::Sign(Operator::Unequal), 2),
            ':' => (Token::Sign(Operator::Holds), 1),
            '"' => {
                let quoted = quoted(&rest[1..])?;
                (Token::Quoted(quoted.to_owned()), quoted.len() + 2)
            }
            _ => {
                let word =
                    rest.split(|c: char| c.is_whitespace() || "()=!:\"<>".contains(c)).next().filter(|word| !word.is_empty())?;
                (Token::Word(word.to_owned()), word.len())
            }
        };
        tokens.push_back(token);
        rest = rest[length..].trim_start();
    }
    Some(tokens)
}

/// Up to the next quote that no backslash takes for itself.
fn quoted(text: &str) -> Option<&str> {
    let mut escaped = false;
    let end = text.find(|c| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    })?;
    Some(&text[..end])
}

/// Terms side by side are as good as `AND` between them; `OR` binds closer than either.
fn all(tokens: &mut Tokens) -> Option<Filter> {
    let mut parts = vec![any(tokens)?];
    while tokens.front().is_some_and(|next| *next != Token::Close) {
        take_word(tokens, "AND");
        parts.push(any(tokens)?);
    }
    Some(Filter::All(parts))
}

fn any(tokens: &mut Tokens) -> Option<Filter> {
    let mut parts = vec![one(tokens)?];
    while take_word(tokens, "OR") {
        parts.push(one(tokens)?);
    }
    Some(Filter::Any(parts))
}

fn one(tokens: &mut Tokens) -> Option<Filter> {
    match tokens.pop_front()? {
        Token::Open => {
            let inner = all(tokens)?;
            (tokens.pop_front()? == Token::Close).then_some(inner)
        }
        Token::Word(key) => term(key, tokens),
        _ => None,
    }
}

fn term(key: String, tokens: &mut Tokens) -> Option<Filter> {
    let operator = match tokens.pop_front()? {
        Token::Sign(operator) => operator,
        Token::Word(word) if word == "eq" => Operator::Word,
        _ => return None,
    };
    let (text, is_quoted) = match tokens.pop_front()? {
        Token::Word(text) => (text, false),
        Token::Quoted(text) => (text, true),
        _ => return None,
    };
    let (operator, value) = match operator {
        Operator::Word => (operator, text.trim_start_matches(".*").trim_end_matches(".*").replace("\\b", "").replace('\\', "")),
        Operator::Holds if text == "*" && !is_quoted => (Operator::Exists, text),
        _ => (operator, text.replace("\\\"", "\"").replace("\\\\", "\\")),
    };
    Some(Filter::Term { key, operator, value })
}

fn take_word(tokens: &mut Tokens, word: &str) -> bool {
    let is_next = tokens.front().is_some_and(|next| matches!(next, Token::Word(text) if text == word));
    if is_next {
        tokens.pop_front();
    }
    is_next
}

pub fn fits(filter: &Filter, item: &Value) -> bool {
    match filter {
        Filter::All(parts) => parts.iter().all(|part| fits(part, item)),
        Filter::Any(parts) => parts.iter().any(|part| fits(part, item)),
        Filter::Term { key, operator, value } => {
            let found = key.split('.').fold(item, |value, key| &value[key]);
            let text = wording::value(found);
            match operator {
                Operator::Equal => text == *value,
                Operator::Unequal => text != *value,
                Operator::Exists => !found.is_null(),
                Operator::Holds => !found.is_null() && text.contains(value),
                Operator::Word => has_word(&text, value),
            }
        }
    }
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
        let item = json!({ "name": "gpu-a1", "labels": { "job": "x" }, "operationType": "compute.instances.preempted", "note": "a \"b\" OR c" });
        for (filter, holds) in [
            ("", true),
            ("name = gpu-a1", true),
            ("name = \"gpu-a2\"", false),
            ("labels.job=x AND name != gpu-a2", true),
            ("(labels.job = x) AND (labels.owner:*)", false),
            ("(labels.job = x) (labels.owner:*)", false),
            ("labels.job:*", true),
            ("name:gpu", true),
            // As documented: OR binds closer.
            ("labels.job = y OR labels.job = x AND name = gpu-a1", true),
            ("labels.job = x OR labels.job = y AND name = gpu-a2", false),
            ("name = gpu-a2 OR (labels.job = x AND name = gpu-a1)", true),
            (r#"operationType eq ".*\bcompute\.instances\.preempted\b.*""#, true),
            (r#"name eq ".*\bgpu\-a\b.*""#, false),
            // Between quotes a value says nothing but itself; without them it may.
            (r#"note = "a \"b\" OR c""#, true),
            (r#"labels.job = "y OR name:*""#, false),
            ("labels.job = y OR name:*", true),
        ] {
            assert_eq!(fits(&parse(filter).expect(filter), &item), holds, "{filter}");
        }
        for wrong in ["name ~ x", "labels.job = x!=y", "name = \"x", "name =", "(name = x", "name = x)", "AND", "name"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
