//! The lines of output that comes in pieces.

/// No line is longer: a longer one is cut. What a machine writes must not fill the memory of the one that reads it.
const LONGEST: usize = 1 << 20;

/// The beginning of a line, between two pieces of output.
#[derive(Debug, Default)]
pub struct Lines {
    pending: Vec<u8>,
    /// It goes on from a line that was cut.
    goes_on: bool,
}

impl Lines {
    /// Gives each line without its end, as soon as it is whole, and whether it goes on from the one before, which was cut.
    pub fn take(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8], bool)) {
        // Earlier pieces have no end of a line, and are not searched again: that would cost the square of a long line's length.
        let mut searched = self.pending.len();
        self.pending.extend_from_slice(bytes);
        let pending = std::mem::take(&mut self.pending);
        let mut rest = &pending[..];
        loop {
            let end = memchr::memchr(b'\n', &rest[searched..rest.len().min(LONGEST)]).map(|end| searched + end);
            searched = 0;
            let (length, next) = match end {
                Some(end) => (end, end + 1),
                None if rest.len() > LONGEST => {
                    let part = whole_characters(&rest[..LONGEST]);
                    (part, part)
                }
                None => break,
            };
            each(&rest[..length], self.goes_on);
            (self.goes_on, rest) = (end.is_none(), &rest[next..]);
        }
        self.pending = rest.to_vec();
    }

    /// Gives what has no end of a line, if anything.
    pub fn finish(&mut self, each: impl FnOnce(&[u8], bool)) {
        let rest = std::mem::take(&mut self.pending);
        if !rest.is_empty() {
            each(&rest, self.goes_on);
        }
        self.goes_on = false;
    }
}

/// How many of these bytes do not cut a character of UTF-8 in two. (Its later bytes, three at most, begin with the bits 10.)
fn whole_characters(bytes: &[u8]) -> usize {
    let begins = |at: &usize| bytes[*at] & 0b1100_0000 != 0b1000_0000;
    let last = (bytes.len().saturating_sub(4)..bytes.len()).rev().find(begins);
    last.filter(|at| *at > 0 && str::from_utf8(&bytes[*at..]).is_err()).unwrap_or(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(pieces: &[&[u8]]) -> Vec<(Vec<u8>, bool)> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for piece in pieces {
            lines.take(piece, |line, goes_on| found.push((line.to_vec(), goes_on)));
        }
        lines.finish(|line, goes_on| found.push((line.to_vec(), goes_on)));
        found
    }

    #[test]
    fn lines_are_whole_wherever_the_output_is_cut() {
        let text = "one\n\ntwo \u{1F600}\nno end".as_bytes();
        let expected = ["one", "", "two \u{1F600}", "no end"].map(|line| (line.as_bytes().to_vec(), false));
        for at in 0..text.len() {
            assert_eq!(cut(&[&text[..at], &text[at..]]), expected, "{at}");
        }
    }

    #[test]
    fn a_line_without_an_end_does_not_fill_the_memory() {
        let (mut lines, mut total, mut parts) = (Lines::default(), 0, 0);
        for _ in 0..10 {
            lines.take(&vec![b'x'; LONGEST - 1], |line, goes_on| {
                assert!(line.len() <= LONGEST && goes_on == (parts > 0));
                (total, parts) = (total + line.len(), parts + 1);
            });
            assert!(lines.pending.len() <= LONGEST);
        }
        lines.take(b"\nnext\n", |line, goes_on| {
            assert_eq!((goes_on, line == b"next"), (parts < 10, parts == 10));
            (total, parts) = (total + line.len(), parts + 1);
        });
        assert_eq!((total, parts), (10 * (LONGEST - 1) + "next".len(), 11));
    }

    #[test]
    fn a_cut_goes_through_no_character() {
        for before in 0..4 {
            let text = "x".repeat(before) + &"\u{1F600}".repeat(LONGEST / 4 + 1);
            let found = cut(&[text.as_bytes()]);
            assert_eq!(found.len(), 2);
            assert!(found.iter().all(|(line, _)| str::from_utf8(line).is_ok()), "{before}");
        }
        assert_eq!(cut(&[&vec![0x80; LONGEST + 1]]).len(), 2, "no text at all");
    }
}
