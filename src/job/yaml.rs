//! YAML from outside: texts, lists and tables with their lines. Nothing in it refers to something else, is obeyed, or goes deep.

use std::collections::BTreeMap;

use saphyr_parser::{Event, Parser, ScalarStyle, StrInput};

use super::printable;

/// Bytes of a file. Those that people write have two thousand.
pub const MOST: usize = 256 << 10;
/// Tables and lists in one another.
const DEPTH: usize = 16;
/// Bytes of a key.
const LONGEST_KEY: usize = 256;

/// A value.
#[derive(Debug)]
pub struct Node {
    /// That of its key, where it has one; counts from 1.
    pub line: usize,
    pub value: Value,
}

#[derive(Debug)]
pub enum Value {
    /// `null`, `~`, or not a character.
    Nothing,
    /// Numbers and truth values too, as they are written.
    Text(String),
    List(Vec<Node>),
    Table(BTreeMap<String, Node>),
}

/// A line, and what is wrong there.
pub type Fault = (usize, String);

/// The one document of a text.
pub fn read(text: &str) -> Result<Node, Fault> {
    if text.len() > MOST {
        return Err((1, format!("the file has {} bytes, and {MOST} are the most that are read", text.len())));
    }
    let mut reader = Reader(Parser::new_from_str(text));
    let document = loop {
        match reader.next()? {
            (Event::StreamStart | Event::DocumentStart(_), _) => {}
            (Event::StreamEnd, line) => return Err((line, "the file is empty".to_owned())),
            (event, line) => break reader.node(event, line, 0)?,
        }
    };
    loop {
        match reader.next()? {
            (Event::DocumentEnd, _) => {}
            (Event::StreamEnd, _) => return Ok(document),
            (_, line) => return Err((line, "a second document begins; a job is one".to_owned())),
        }
    }
}

/// Asks for one event after another: an event that is not asked for is not parsed.
struct Reader<'t>(Parser<'t, StrInput<'t>>);

impl<'t> Reader<'t> {
    fn next(&mut self) -> Result<(Event<'t>, usize), Fault> {
        match self.0.next() {
            Some(Ok((event, place))) => Ok((event, place.start.line())),
            Some(Err(error)) => Err((error.marker().line(), format!("this is not YAML: {}", error.info()))),
            None => Ok((Event::StreamEnd, 1)),
        }
    }

    /// The value that begins with `event`.
    fn node(&mut self, event: Event<'t>, line: usize, depth: usize) -> Result<Node, Fault> {
        let fault = |what: String| Err((line, what));
        if depth > DEPTH {
            return fault(format!("more than {DEPTH} tables and lists in one another"));
        }
        let value = match event {
            Event::Alias(_) => return fault("an alias (`*name`) is not followed; write out what it stands for".to_owned()),
            Event::Scalar(.., Some(_)) | Event::SequenceStart(_, Some(_)) | Event::MappingStart(_, Some(_)) => {
                return fault("a tag (`!name`) is not obeyed; take it out".to_owned());
            }
            Event::Scalar(text, ..) if printable::text(&text) != text => {
                return fault("a character that a terminal would obey; take it out".to_owned());
            }
            Event::Scalar(text, ScalarStyle::Plain, ..) if ["", "~", "null", "Null", "NULL"].contains(&&*text) => Value::Nothing,
            Event::Scalar(text, ..) => Value::Text(text.into_owned()),
            Event::SequenceStart(..) => self.list(depth + 1)?,
            Event::MappingStart(..) => self.table(depth + 1)?,
            _ => return fault("a value is missing".to_owned()),
        };
        Ok(Node { line, value })
    }

    fn list(&mut self, depth: usize) -> Result<Value, Fault> {
        let mut list = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::List(list)),
                (event, line) => list.push(self.node(event, line, depth)?),
            }
        }
    }

    fn table(&mut self, depth: usize) -> Result<Value, Fault> {
        let mut table = BTreeMap::new();
        loop {
            let (event, line) = self.next()?;
            let key = match event {
                Event::MappingEnd => return Ok(Value::Table(table)),
                Event::Scalar(key, _, _, None) if key.len() <= LONGEST_KEY => key.into_owned(),
                Event::Scalar(..) => return Err((line, format!("a key has {LONGEST_KEY} bytes at most, and no tag"))),
                _ => return Err((line, "a key is a text".to_owned())),
            };
            let (event, at) = self.next()?;
            let node = Node { line, ..self.node(event, at, depth)? };
            if table.contains_key(&key) {
                return Err((line, format!("the key `{}` stands there twice", key.escape_debug())));
            }
            table.insert(key, node);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    fn table(text: &str) -> BTreeMap<String, Node> {
        match read(text).expect(text).value {
            Value::Table(table) => table,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn values_keep_their_lines() {
        let found = table("# a comment\na: 1e-5\nb:\n  c: \"null\"\n  d: ~\ne: >-\n  one\n  two\nf: [1, {g: 2}]\n");
        let lines: Vec<(&str, usize)> = found.iter().map(|(key, node)| (key.as_str(), node.line)).collect();
        assert_eq!(lines, [("a", 2), ("b", 3), ("e", 6), ("f", 9)]);
        assert!(matches!(&found["a"].value, Value::Text(text) if text == "1e-5"));
        assert!(matches!(&found["e"].value, Value::Text(text) if text == "one two"));
        assert!(matches!(&found["f"].value, Value::List(list) if list.len() == 2));
        let Value::Table(inner) = &found["b"].value else { panic!("a table") };
        assert!(matches!(&inner["c"].value, Value::Text(text) if text == "null"), "in quotes it is a text");
        assert!(matches!((&inner["d"].value, inner["d"].line), (Value::Nothing, 5)));
    }

    #[test]
    fn what_refers_swells_or_goes_deep_is_refused_at_its_line() {
        let mut laughs = "a0: &a0 [ha, ha]\n".to_owned();
        for level in 1..40 {
            let _ = writeln!(laughs, "a{level}: &a{level} [*a{0}, *a{0}, *a{0}]", level - 1);
        }
        let deep = |open: &str, times: usize| format!("a: 1\nb: {}", open.repeat(times));
        for (text, line, part) in [
            (laughs.as_str(), 2, "an alias (`*name`) is not followed"),
            ("a: 1\nb: &b\n  <<: *b\n", 3, "an alias"),
            ("a: 1\nb: !!python/object/apply:os.system [\"id\"]\n", 2, "a tag (`!name`) is not obeyed"),
            ("a: !include /etc/passwd\n", 1, "a tag"),
            ("a: 1\nb: \"x\\u001b[2J\"\n", 2, "a character that a terminal would obey"),
            ("a: \"x\\u202e\"\n", 1, "a character that a terminal would obey"),
            (&deep("[", 100), 2, "more than 16 tables and lists in one another"),
            (&deep("{a: ", 50_000), 2, "more than 16"),
            (&deep("[", 100_000), 2, "this is not YAML: recursion limit exceeded"),
            (&format!("a: 1\n{}", "- ".repeat(100_000)), 2, ""),
            ("a: 1\nb: 2\na: 3\n", 3, "the key `a` stands there twice"),
            ("a: 1\n[b]: 2\n", 2, "a key is a text"),
            (&format!("{}: 1\n", "k".repeat(300)), 1, "a key has 256 bytes at most"),
            ("a: 1\n---\nb: 2\n", 2, "a second document begins"),
            ("a: 1\nb: \"never closed\n", 2, "this is not YAML"),
            ("a: [1, 2\nb: 3\n", 2, "this is not YAML"),
            ("", 1, "the file is empty"),
            ("# nothing\n", 2, "the file is empty"),
            (&"# x\n".repeat(MOST / 4 + 1), 1, "the most that are read"),
        ] {
            let shown: String = text.chars().take(60).collect();
            let (at, what) = read(text).map(drop).expect_err(&shown);
            assert!(at == line && what.contains(part), "{shown:?} gave {at}: {what}");
        }
    }
}
