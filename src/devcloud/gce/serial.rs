//! The serial port: the last MiB of what the machine said, at absolute positions.

/// Bytes of a console that are kept.
const KEPT: usize = 1 << 20;

#[derive(Debug, Default)]
pub struct Serial {
    bytes: Vec<u8>,
    dropped: u64,
}

impl Serial {
    /// Lines end with CR LF, as on a wire.
    pub fn line(&mut self, line: &str) {
        self.bytes.extend_from_slice(line.as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
        let excess = self.bytes.len().saturating_sub(KEPT);
        self.bytes.drain(..excess);
        self.dropped += excess as u64;
    }

    /// The output from position `start` on, where that begins, and where the next reading starts. A beginning after `start` is a
    /// gap.
    pub fn read(&self, start: u64) -> (u64, String, u64) {
        let end = self.dropped + self.bytes.len() as u64;
        let begin = start.clamp(self.dropped, end);
        let bytes = &self.bytes[usize::try_from(begin - self.dropped).unwrap_or(0)..];
        (begin, String::from_utf8_lossy(bytes).into_owned(), end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_comes_late_sees_the_gap() {
        let mut serial = Serial::default();
        serial.line("line 1");
        serial.line("line 2");
        assert_eq!(serial.read(0), (0, "line 1\r\nline 2\r\n".to_owned(), 16));
        assert_eq!(serial.read(8), (8, "line 2\r\n".to_owned(), 16));
        assert_eq!(serial.read(99), (16, String::new(), 16));
        serial.line(&"x".repeat(KEPT));
        let (begin, text, next) = serial.read(8);
        assert_eq!((begin, text.len(), next), (18, KEPT, 18 + KEPT as u64));
    }
}
