//! Text from outside is data, and no command to a terminal.

use std::{fmt::Write as _, mem, str};

use crate::job::printable::{self, HIDDEN, is_order};

/// JSON as it was, with every such character of a string escaped.
pub fn json(json: String) -> String {
    // A line end outside the strings is the layout's; inside, the library has escaped it.
    let is_order = |c: char| is_order(c) && c != '\n';
    if !json.contains(is_order) {
        return json;
    }
    json.chars().fold(String::with_capacity(json.len()), |mut out, c| {
        let _ = if is_order(c) { write!(out, "\\u{:04x}", u32::from(c)) } else { out.write_char(c) };
        out
    })
}

/// Bytes that come in pieces, for a terminal.
#[derive(Default)]
pub struct Stream {
    /// The beginning of a character whose end has not come yet.
    begun: Vec<u8>,
}

impl Stream {
    /// The next piece as text; bytes that are no UTF-8 show as U+FFFD.
    pub fn clean(&mut self, bytes: &[u8]) -> String {
        let mut whole = mem::take(&mut self.begun);
        whole.extend_from_slice(bytes);
        let mut out = String::with_capacity(whole.len());
        let mut chunks = whole.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            out.push_str(&printable::text(chunk.valid()));
            if chunks.peek().is_none() && may_go_on(chunk.invalid()) {
                chunk.invalid().clone_into(&mut self.begun);
            } else if !chunk.invalid().is_empty() {
                out.push(HIDDEN);
            }
        }
        out
    }
}

/// Whether these bytes are the beginning of a character.
fn may_go_on(bytes: &[u8]) -> bool {
    str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_stays_the_same_value() {
        let value = serde_json::json!({ "a\u{9b}": "\u{1b}]52;c;x\u{7}\u{7f}\u{85}\u{202e}\u{2028}\n", "b": ["ä漢👩\u{200d}🔬"] });
        let text = json(format!("{value:#}\n"));
        assert!(text.chars().all(|c| c == '\n' || !is_order(c)), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        assert!(text.contains("\\u202e") && text.contains("ä漢👩"), "{text}");
    }

    #[test]
    fn pieces_give_what_the_whole_gives_wherever_they_are_cut() {
        let whole = "ok\t\u{1b}[2J\u{9b}31m漢\r\n👩\u{202e}"
            .bytes()
            .chain(*b"\xff\x9b\xc3(\xe2\x80")
            .chain("end\n".bytes())
            .collect::<Vec<u8>>();
        let expected = "ok\t\u{fffd}[2J\u{fffd}31m漢\u{fffd}\n👩\u{fffd}\u{fffd}\u{fffd}\u{fffd}(\u{fffd}end\n";
        for first in 0..=whole.len() {
            for second in first..=whole.len() {
                let mut stream = Stream::default();
                let pieces = [&whole[..first], &whole[first..second], &whole[second..]];
                assert_eq!(pieces.map(|piece| stream.clean(piece)).concat(), expected, "{first} {second}");
            }
        }
    }
}
