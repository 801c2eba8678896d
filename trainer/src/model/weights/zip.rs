//! The members of a zip archive that are not packed, as places in the file. `torch.save` packs nothing, so that its tensors can be
//! read where they lie.

use std::ops::Range;

const END: &[u8] = b"PK\x05\x06";
const END_64: &[u8] = b"PK\x06\x06";
const LOCATOR_64: &[u8] = b"PK\x06\x07";
const MEMBER: &[u8] = b"PK\x01\x02";
const LOCAL: &[u8] = b"PK\x03\x04";
/// Bytes of the last record, and of those before it in a large archive, without what follows them.
const END_SIZE: usize = 22;
const LOCATOR_SIZE: usize = 20;
const MEMBER_SIZE: usize = 46;
const LOCAL_SIZE: usize = 30;
/// The longest comment.
const COMMENT: usize = 1 << 16;
/// More than a model has tensors.
const MOST_MEMBERS: u64 = 1 << 20;
/// The extra field that has what does not fit into 32 bits.
const EXTRA_64: u16 = 1;

/// Names, and where the bytes are.
pub fn members(file: &[u8]) -> Result<Vec<(String, Range<usize>)>, String> {
    let early = || "it ends too early".to_owned();
    let (count, start) = directory(file).ok_or_else(early)?;
    if count > MOST_MEMBERS {
        return Err(format!("it has {count} members"));
    }
    let mut rest = usize::try_from(start).ok().and_then(|start| file.get(start..)).ok_or_else(early)?;
    let mut found = Vec::new();
    for _ in 0..count {
        let head = rest.get(..MEMBER_SIZE).filter(|head| head.starts_with(MEMBER)).ok_or_else(early)?;
        let [name, extra, comment] = [28, 30, 32].map(|at| usize::from(u16_at(head, at)));
        let tail = rest.get(MEMBER_SIZE..MEMBER_SIZE + name + extra + comment).ok_or_else(early)?;
        rest = &rest[MEMBER_SIZE + name + extra + comment..];
        let (name, extra) = (String::from_utf8_lossy(&tail[..name]).into_owned(), &tail[name..name + extra]);
        if u16_at(head, 10) != 0 || u16_at(head, 8) & 1 != 0 {
            return Err(format!("its member {} is packed or encrypted", name.escape_debug()));
        }
        let bytes = bytes(file, head, extra).ok_or_else(early)?;
        found.push((name, bytes));
    }
    Ok(found)
}

/// How many members there are, and where the list of them begins.
fn directory(file: &[u8]) -> Option<(u64, u64)> {
    let tail = file.len().saturating_sub(END_SIZE + COMMENT);
    let end = tail + file[tail..].windows(END.len()).rposition(|window| window == END)?;
    let record = file.get(end..end + END_SIZE)?;
    let (count, start) = (u64::from(u16_at(record, 10)), u64::from(u32_at(record, 16)));
    let locator = end.checked_sub(LOCATOR_SIZE).and_then(|at| file.get(at..end)).filter(|bytes| bytes.starts_with(LOCATOR_64));
    let Some(locator) = locator else { return Some((count, start)) };
    let at = usize::try_from(u64_at(locator, 8)?).ok()?;
    let large = file.get(at..)?.strip_prefix(END_64)?;
    Some((u64_at(large, 28)?, u64_at(large, 44)?))
}

/// The bytes of one member, by its entry in the list.
fn bytes(file: &[u8], head: &[u8], extra: &[u8]) -> Option<Range<usize>> {
    let [packed, plain, start] = [20, 24, 42].map(|at| u32_at(head, at));
    let mut wide = wide_numbers(extra);
    let mut number = |short: u32| if short == u32::MAX { wide.next() } else { Some(u64::from(short)) };
    // In this order, and only those that do not fit.
    let [plain, packed, start] = [number(plain)?, number(packed)?, number(start)?];
    let start = usize::try_from(start).ok()?;
    let local = file.get(start..)?.get(..LOCAL_SIZE).filter(|local| local.starts_with(LOCAL))?;
    let start = start + LOCAL_SIZE + usize::from(u16_at(local, 26)) + usize::from(u16_at(local, 28));
    let range = start..start.checked_add(usize::try_from(plain).ok()?)?;
    (packed == plain && file.get(range.clone()).is_some()).then_some(range)
}

fn wide_numbers(mut extra: &[u8]) -> impl Iterator<Item = u64> {
    let mut found = &[][..];
    while let Some((head, rest)) = extra.split_at_checked(4) {
        let Some((field, rest)) = rest.split_at_checked(usize::from(u16_at(head, 2))) else { break };
        if u16_at(head, 0) == EXTRA_64 {
            found = field;
        }
        extra = rest;
    }
    found.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Numbers of a record of which the length is known.
fn u16_at(record: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([record[at], record[at + 1]])
}

fn u32_at(record: &[u8], at: usize) -> u32 {
    u32::from(u16_at(record, at)) | u32::from(u16_at(record, at + 2)) << 16
}

fn u64_at(record: &[u8], at: usize) -> Option<u64> {
    record.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}
