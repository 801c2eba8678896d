//! A list that is printed while it grows.

use serde_json::Value;

use super::{clean, error_json, lines, stamped};
use crate::{exit::Failure, job::report::Format};

/// Items as JSON: objects of their own, or with `-o json` the list of one value.
pub struct List {
    schema: &'static str,
    key: &'static str,
    one_value: bool,
    begun: bool,
}

impl List {
    pub fn new(schema: &'static str, key: &'static str, format: Format) -> Self {
        Self { schema, key, one_value: format == Format::Json, begun: false }
    }

    /// The text that the next item adds to the output.
    pub fn item(&mut self, item: Value) -> String {
        if !self.one_value {
            return clean::json(lines([stamped(self.schema, item)]));
        }
        let front = if self.begun { ",".to_owned() } else { self.head() };
        clean::json(format!("{front}\n    {item}"))
    }

    /// The text that the end adds. It closes the value, and has the verdict if that is a failure.
    pub fn end(&mut self, verdict: &Result<(), Failure>) -> String {
        if !self.one_value {
            return String::new();
        }
        let mut text = if self.begun { "\n  ]".to_owned() } else { self.head() + "]" };
        if let Err(failure) = verdict {
            text = text + ",\n  \"error\": " + &error_json(failure)["error"].to_string();
        }
        clean::json(text + "\n}\n")
    }

    fn head(&mut self) -> String {
        self.begun = true;
        format!("{{\n  \"schema\": {:?},\n  {:?}: [", self.schema, self.key)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::exit::Exit;

    fn printed(format: Format, items: &[Value], verdict: &Result<(), Failure>) -> String {
        let mut list = List::new("ftctl.list/1", "items", format);
        let text: String = items.iter().map(|item| list.item(item.clone())).collect();
        text + &list.end(verdict)
    }

    #[test]
    fn a_list_is_one_value_or_many() {
        let items = [json!({ "text": "a\u{9b}b" }), json!({ "text": "]" })];
        let failed = Err(Failure::new(Exit::NotFound, "it is gone"));
        for (items, verdict) in [(&items[..], &Ok(())), (&items[..], &failed), (&[], &Ok(())), (&[], &failed)] {
            let text = printed(Format::Json, items, verdict);
            let value: Value = serde_json::from_str(&text).unwrap();
            assert_eq!((&value["schema"], &value["items"]), (&json!("ftctl.list/1"), &json!(items)));
            assert_eq!(value["error"]["message"].as_str(), verdict.as_ref().err().map(|failure| failure.message.as_str()));
            assert!(!text.contains('\u{9b}'), "an order to a terminal: {text}");
            let lines = printed(Format::Jsonl, items, verdict);
            let found: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert_eq!(
                found.iter().map(|line| &line["text"]).collect::<Vec<_>>(),
                items.iter().map(|item| &item["text"]).collect::<Vec<_>>()
            );
        }
    }
}
