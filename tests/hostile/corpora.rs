//! The finds of fuzzing, and one good example of everything that is parsed: all of it is answered, and so are variants with a few
//! other bits. `FT_FUZZ=100000` makes up so many of those for each file.

use std::{fs, panic, path::Path};

use fastrand::Rng;

use crate::parsers::PARSERS;

#[test]
fn bytes_that_were_kept_and_those_like_them_are_answered() {
    let times = std::env::var("FT_FUZZ").map_or(100, |times| times.parse().expect("a number"));
    for (name, parse) in PARSERS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
        let mut files: Vec<_> = fs::read_dir(&folder).expect("a corpus").map(|entry| entry.expect("a file").path()).collect();
        files.sort();
        for file in files {
            let kept = fs::read(&file).expect("a file");
            answered(*parse, &kept, &file);
            let mut dice = Rng::with_seed(0);
            (0..times).for_each(|_| answered(*parse, &changed(&mut dice, kept.clone()), &file));
        }
    }
}

/// Says which bytes make a parser panic: the file of the corpus alone does not.
fn answered(parse: fn(&[u8]), bytes: &[u8], like: &Path) {
    let parsed = panic::catch_unwind(|| parse(bytes));
    assert!(parsed.is_ok(), "a panic at bytes like those of {}: {}", like.display(), bytes.escape_ascii());
}

fn changed(dice: &mut Rng, mut bytes: Vec<u8>) -> Vec<u8> {
    for _ in 0..dice.usize(1..=4) {
        let at = dice.usize(..=bytes.len());
        let number = *dice
            .choice(&[&b"0"[..], b"-1", b"1e308", b"4294967295", b"9223372036854775808", b"18446744073709551615"])
            .expect("one");
        match dice.u8(..6) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, dice.u8(..)),
            2 if at < bytes.len() => bytes[at] = dice.u8(..),
            3 if at < bytes.len() => bytes[at] ^= 1 << dice.u8(..8),
            4 => {
                // A number of a text becomes another.
                let start = bytes[at..].iter().position(u8::is_ascii_digit).map_or(at, |digit| at + digit);
                let end = bytes[start..].iter().position(|byte| !byte.is_ascii_digit()).map_or(bytes.len(), |end| start + end);
                bytes.splice(start..end, number.iter().copied());
            }
            _ => {
                let end = (at + dice.usize(..64)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                let to = dice.usize(..=bytes.len());
                bytes.splice(to..to, part);
            }
        }
    }
    bytes
}
