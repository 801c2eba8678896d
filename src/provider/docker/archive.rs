//! Files for a container as its engine takes them: a tar archive, POSIX.1-1988 ustar.

use bytes::Bytes;

/// Tar pads everything to this.
const BLOCK: usize = 512;

/// A directory, or a file with its bytes; for its owner alone.
pub struct Entry<'a> {
    pub path: &'a str,
    pub bytes: Option<&'a [u8]>,
}

/// `owner` is user and group. Paths are relative and shorter than 100 bytes.
pub fn pack(owner: (u32, u32), entries: &[Entry<'_>]) -> Bytes {
    let mut archive = Vec::new();
    for entry in entries {
        archive.extend_from_slice(&header(owner, entry));
        archive.extend_from_slice(entry.bytes.unwrap_or_default());
        archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    }
    // The end.
    archive.resize(archive.len() + 2 * BLOCK, 0);
    archive.into()
}

fn header((user, group): (u32, u32), entry: &Entry<'_>) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let (mode, kind, size) = match entry.bytes {
        None => (0o700, b'5', 0),
        Some(bytes) => (0o600, b'0', bytes.len() as u64),
    };
    header[..entry.path.len()].copy_from_slice(entry.path.as_bytes());
    number(&mut header[100..108], mode);
    number(&mut header[108..116], user.into());
    number(&mut header[116..124], group.into());
    number(&mut header[124..136], size);
    number(&mut header[136..148], 0);
    header[156] = kind;
    header[257..265].copy_from_slice(b"ustar\x0000");
    header[148..156].fill(b' ');
    let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
    number(&mut header[148..155], sum);
    header
}

/// Octal and a NUL; in base 256 with the first bit set, as GNU has it, where that is too short.
fn number(field: &mut [u8], value: u64) {
    let digits = field.len() - 1;
    let octal = format!("{value:0digits$o}");
    if octal.len() == digits {
        field[..digits].copy_from_slice(octal.as_bytes());
    } else {
        let bytes = value.to_be_bytes();
        let width = field.len().min(bytes.len());
        let start = field.len() - width;
        field[start..].copy_from_slice(&bytes[bytes.len() - width..]);
        field[0] |= 0x80;
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write as _,
        process::{Command, Stdio},
    };

    use super::*;

    #[test]
    fn tar_reads_it() {
        let long = vec![b'x'; 1_000];
        let entries = [Entry { path: "ftctl/", bytes: None }, Entry { path: "ftctl/order.json", bytes: Some(&long) }];
        let archive = pack((4_000_000_000, 77), &entries);
        let mut tar = Command::new("tar");
        tar.args(["-tv", "--numeric-owner"]);
        let mut tar = tar.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        tar.stdin.take().unwrap().write_all(&archive).unwrap();
        let listed = String::from_utf8(tar.wait_with_output().unwrap().stdout).unwrap();
        let lines: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!((lines[0][0], lines[0][1], lines[0][5]), ("drwx------", "4000000000/77", "ftctl/"), "{listed}");
        assert_eq!((lines[1][0], lines[1][2], lines[1][5]), ("-rw-------", "1000", "ftctl/order.json"), "{listed}");
    }
}
