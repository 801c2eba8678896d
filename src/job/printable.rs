//! Text from outside, made printable: characters that a terminal would obey, or that would show a line in another order, become
//! U+FFFD.

use std::borrow::Cow;

/// Stands for a character that is not shown.
pub const HIDDEN: char = '\u{fffd}';

/// Whether `c` is an order and no character: the controls of C0 and C1, DEL, the marks of direction, and the separators of lines
/// and paragraphs that some programs break lines at.
pub fn is_order(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text of several lines; its line ends and tabs stay.
pub fn text(text: &str) -> Cow<'_, str> {
    without(text, |c| is_order(c) && !matches!(c, '\n' | '\t'))
}

/// A text that must stay on one line.
pub fn line(text: &str) -> Cow<'_, str> {
    without(text, is_order)
}

fn without(text: &str, hidden: impl Fn(char) -> bool) -> Cow<'_, str> {
    if text.chars().any(&hidden) {
        Cow::Owned(text.chars().map(|c| if hidden(c) { HIDDEN } else { c }).collect())
    } else {
        Cow::Borrowed(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_hidden_and_characters_are_not() {
        for order in
            "\0\u{7}\u{8}\r\u{1b}\u{7f}\u{80}\u{9b}\u{9d}\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\u{2066}\u{2069}"
                .chars()
        {
            assert_eq!(text(&format!("a{order}b")), "a\u{fffd}b", "{order:?}");
        }
        let kept = "näme\t漢字 👩\u{200d}🔬 e\u{301} \u{a0}\n…";
        assert!(matches!(text(kept), Cow::Borrowed(same) if same == kept));
        assert_eq!(line("a\tb\nc"), "a\u{fffd}b\u{fffd}c");
    }
}
