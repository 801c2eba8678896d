//! The page on every key of a job file, with type, default and meaning: `docs/job-file.md`.

use std::fmt::Write as _;

use serde_json::Value;

/// The page, in Markdown, from the JSON Schema of a job file.
pub fn page(schema: &Value) -> String {
    let mut page = format!(
        "# The job file\n\n{} Every key may be set on the command line, too: `--set train.steps=500`.\n\n\
         This page is the output of `ftctl schema --markdown`. `ftctl schema` prints the JSON Schema that editors use to check and complete a \
         job file.\n",
        text(&schema["description"])
    );
    Types { schema }.write_table(&mut page, "", schema, &Value::Null);
    page
}

/// Every key of a job file that takes a value, with the tables it stands in: `train.steps`.
pub fn keys(schema: &Value) -> Vec<String> {
    let (types, mut found, mut tables) = (Types { schema }, Vec::new(), vec![(String::new(), schema)]);
    while let Some((name, table)) = tables.pop() {
        for (key, property) in table["properties"].as_object().into_iter().flatten() {
            let (kind, name) = (types.kind(property), if name.is_empty() { key.clone() } else { format!("{name}.{key}") });
            if kind["properties"].is_object() { tables.push((name, kind)) } else { found.push(name) }
        }
    }
    found.sort();
    found
}

/// The words that a key takes, or its default.
pub fn values(schema: &Value, key: &str) -> Vec<String> {
    let types = Types { schema };
    let mut at = schema;
    for part in key.split('.') {
        at = &types.kind(at)["properties"][part];
    }
    let kind = types.kind(at);
    let choices = ["oneOf", "anyOf"].iter().filter_map(|list| kind[list].as_array()).flatten().chain([kind]);
    let words = choices.flat_map(|choice| choice["enum"].as_array().into_iter().flatten().chain(choice.get("const")));
    let mut found: Vec<String> = words.filter_map(Value::as_str).map(str::to_owned).collect();
    if kind["type"] == "boolean" || kind["type"][0] == "boolean" {
        found.extend(["true", "false"].map(str::to_owned));
    }
    if found.is_empty() && (at["default"].is_number() || at["default"].is_string()) {
        found.push(at["default"].as_str().map_or_else(|| at["default"].to_string(), str::to_owned));
    }
    found
}

#[derive(Clone, Copy)]
struct Types<'a> {
    schema: &'a Value,
}

impl<'a> Types<'a> {
    /// Writes a table of a job file with the tables below it. `defaults`: the values of its keys when the whole table is absent.
    fn write_table(self, page: &mut String, name: &str, table: &'a Value, defaults: &Value) {
        let (mut rows, mut below) = (String::new(), Vec::new());
        for (key, property) in table["properties"].as_object().into_iter().flatten() {
            let kind = self.kind(property);
            let default = if property["default"].is_null() { &defaults[key] } else { &property["default"] };
            if kind["properties"].is_object() {
                below.push((if name.is_empty() { key.clone() } else { format!("{name}.{key}") }, kind, default.clone(), property));
                continue;
            }
            let required = table["required"].as_array().is_some_and(|keys| keys.iter().any(|required| required == key));
            let (meaning, absent) = without_default(&self.meaning(property));
            let default = if required { "(required)".to_owned() } else { absent.unwrap_or_else(|| shown(default)) };
            let _ = writeln!(rows, "| `{key}` | {} | {} | {} |", self.takes(property), cell(&default), cell(&meaning));
        }
        if !rows.is_empty() {
            let _ = write!(page, "\n| key | takes | default | meaning |\n|---|---|---|---|\n{rows}");
        }
        for (name, table, default, property) in below {
            let described = if property["description"].is_null() { table } else { property };
            let _ = writeln!(page, "\n## `[{name}]`\n\n{}", text(&described["description"]));
            self.write_table(page, &name, table, &default);
        }
    }

    /// The definition that a property refers to, or the property itself. An optional one is `anyOf: [reference, null]`.
    fn kind(self, property: &'a Value) -> &'a Value {
        let reference = property["$ref"].as_str().or(property["anyOf"][0]["$ref"].as_str());
        let found = reference.and_then(|reference| self.schema.pointer(reference.trim_start_matches('#')));
        found.unwrap_or(property)
    }

    fn takes(self, property: &'a Value) -> String {
        let kind = self.kind(property);
        if kind["oneOf"].is_array() {
            return "a word".to_owned();
        }
        if let Some(choices) = kind["anyOf"].as_array().filter(|choices| choices.iter().all(|choice| choice["$ref"].is_null())) {
            let takes = choices.iter().filter(|choice| choice["type"] != "null").map(|choice| match choice["const"].as_str() {
                Some(word) => format!("`{word}`"),
                None => self.takes(choice),
            });
            return takes.collect::<Vec<_>>().join(" or ");
        }
        let named = kind["type"].as_str().or(kind["type"][0].as_str());
        match named {
            Some("array") => format!("list: {}", self.takes(&kind["items"])),
            Some("object") => format!("`{{ NAME = {} }}`", self.takes(&kind["additionalProperties"])),
            Some("integer") => "whole number".to_owned(),
            Some("boolean") => "`true`, `false`".to_owned(),
            Some(other) => other.to_owned(),
            None => String::new(),
        }
    }

    /// The meaning of the key, of its type, and of each word that it takes.
    fn meaning(self, property: &'a Value) -> String {
        let kind = self.kind(if property["items"].is_object() { &property["items"] } else { property });
        let mut meaning = vec![text(&property["description"]).to_owned()];
        let of_type = text(&kind["description"]);
        // Of a type with words of its own, those say enough.
        let says_more = !meaning[0].contains(of_type.trim_end_matches('.')) && kind["oneOf"].is_null();
        if !std::ptr::eq(kind, property) && (says_more || meaning[0].is_empty()) {
            meaning.push(of_type.to_owned());
        }
        for choice in kind["oneOf"].as_array().into_iter().flatten() {
            let plain = choice["enum"].as_array().into_iter().flatten().filter_map(Value::as_str).map(|word| format!("`{word}`."));
            let told = choice["const"].as_str().map(|word| format!("`{word}`: {}", text(&choice["description"])));
            meaning.extend(plain.chain(told));
        }
        meaning.retain(|part| !part.is_empty());
        meaning.join(" ")
    }
}

/// Splits a description: the part about the key's absence has a column of its own.
fn without_default(meaning: &str) -> (String, Option<String>) {
    let meaning = meaning.replace('\n', " ");
    for (mark, end) in [("; absent: ", "."), (" Absent: ", "")] {
        let Some((before, after)) = meaning.split_once(mark) else { continue };
        let (default, rest) = after.split_once(". ").unwrap_or((after.trim_end_matches('.'), ""));
        return (format!("{before}{end} {rest}").trim().to_owned(), Some(default.to_owned()));
    }
    (meaning, None)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The default in a job file's spelling.
fn shown(default: &Value) -> String {
    match default {
        Value::Null => "none".to_owned(),
        Value::Array(all) if all.is_empty() => "`[]`".to_owned(),
        Value::Object(all) if all.is_empty() => "none".to_owned(),
        default => format!("`{default}`"),
    }
}

/// In a row of a table.
fn cell(text: &str) -> String {
    text.replace('\n', " ").replace('|', "\\|")
}
