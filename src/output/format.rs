//! Numbers and long texts as people read them.

use std::time::Duration;

use jiff::Timestamp;

use crate::job::report::Unit;

/// `1.2 GiB`, `17 B`.
pub fn bytes(count: u64) -> String {
    let mut value = count as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{count} B") } else { format!("{value:.1} {unit}") }
}

/// `12,345,678`.
pub fn number(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 file`, `12,345 files`.
pub fn of(count: u64, thing: &str) -> String {
    format!("{} {thing}{}", number(count), if count == 1 { "" } else { "s" })
}

/// The two largest parts: `1d 2h`, `3m 5s`, `42s`, `0.3s`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{:.1}s", time.as_secs_f64()),
        1..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h {}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// Where a job runs, or ran.
pub fn backend(name: &str, simulated: bool) -> String {
    if simulated { format!("{name} (simulated)") } else { name.to_owned() }
}

/// How long ago, as a column of a table shows it; a clock that went backwards shows `0s`.
pub fn age(since: Timestamp, now: Timestamp) -> String {
    duration(
        Duration::try_from(now.duration_since(since)).map_or(Duration::ZERO, |time| Duration::from_secs(time.as_secs().max(1))),
    )
}

/// A count in its unit.
pub fn count(done: u64, unit: Unit) -> String {
    match unit {
        Unit::Bytes => bytes(done),
        Unit::Items => number(done),
        Unit::Steps => format!("step {}", number(done)),
    }
}

/// Each line broken between words into lines of at most `width` characters; a longer word has a line of its own.
pub fn wrap(text: &str, width: usize) -> String {
    text.lines().map(|line| wrap_line(line, width)).collect::<Vec<_>>().join("\n")
}

fn wrap_line(line: &str, width: usize) -> String {
    let mut out = String::with_capacity(line.len());
    let mut column = 0;
    for (index, word) in line.split(' ').enumerate() {
        let length = word.chars().count();
        let fits = column + 1 + length <= width;
        if index > 0 {
            out.push(if fits { ' ' } else { '\n' });
            column = if fits { column + 1 } else { 0 };
        }
        out.push_str(word);
        column += length;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts() {
        for (count, text) in
            [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1_288_490_189, "1.2 GiB"), (u64::MAX, "16777216.0 TiB")]
        {
            assert_eq!(bytes(count), text);
        }
        for (count, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (124_439_808, "124,439,808")] {
            assert_eq!(number(count), text);
        }
    }

    #[test]
    fn long_texts_are_broken_between_words() {
        for (text, lines) in [
            ("", &[""][..]),
            ("one two", &["one two"]),
            ("one two three", &["one two", "three"]),
            ("a longer-than-that word", &["a", "longer-than-that", "word"]),
            ("one two\nsix ten", &["one two", "six ten"]),
            ("äö üß éè", &["äö üß", "éè"]),
        ] {
            assert_eq!(wrap(text, 7), lines.join("\n"), "{text}");
        }
    }

    #[test]
    fn times() {
        for (millis, text) in [(300, "0.3s"), (42_000, "42s"), (185_000, "3m 5s"), (7_260_000, "2h 1m"), (93_600_000, "1d 2h")] {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
        let now = Timestamp::from_second(1_000).expect("in range");
        assert_eq!(age(Timestamp::from_second(940).expect("in range"), now), "1m 0s");
        assert_eq!(age(Timestamp::from_second(9_000).expect("in range"), now), "0.0s");
    }
}
