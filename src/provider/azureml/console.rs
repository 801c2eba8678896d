//! What a job's first process wrote before its agent could send it: the files that the run history names, one behind the other,
//! each of the service's own retries after the one before. They grow at the end alone, so a position stays what it is.

use serde_json::Value;

use super::{super::Console, client::Client, refusal::Refusal};

/// The most of it that is read at once.
const PIECE: u64 = 1 << 20;
/// A run that the service tried again more often has failed for good.
const MOST_FILES: usize = 64;

/// From position `start` on.
pub async fn read(client: &Client, details: &Value, start: u64) -> Result<Console, Refusal> {
    let (mut text, mut before, mut next) = (String::new(), 0_u64, start);
    let mut files = files(details).into_iter().peekable();
    while let Some(address) = files.next() {
        let inside = next.saturating_sub(before);
        let most = PIECE.saturating_sub(text.len() as u64);
        if most == 0 {
            break;
        }
        let (bytes, total) = client.part(address, inside, most).await?;
        let is_whole = inside.saturating_add(bytes.len() as u64) >= total;
        let piece = plainly(&bytes, is_whole && files.peek().is_some());
        next += piece.len() as u64;
        text.push_str(&piece);
        before = before.saturating_add(total);
        if next < before {
            break;
        }
    }
    Ok(Console { text, start, next, own: None })
}

/// The addresses of what the first process wrote, in the order of its lives.
fn files(details: &Value) -> Vec<&str> {
    let named = details["logFiles"].as_object().into_iter().flatten();
    let mut found: Vec<(u32, &str, &str)> =
        named.filter_map(|(name, address)| Some((life(name)?, name.as_str(), address.as_str()?))).collect();
    found.sort_unstable();
    found.truncate(MOST_FILES);
    found.into_iter().map(|(_, _, address)| address).collect()
}

/// Which life of the first process a file is of; `None` for any other file.
fn life(name: &str) -> Option<u32> {
    let name = name.strip_prefix("user_logs/")?;
    let (folder, file) = name.rsplit_once('/').unwrap_or(("", name));
    let process = file.strip_prefix("std_log")?.strip_suffix(".txt")?;
    let is_first = process.is_empty() || process.strip_prefix("_process_").is_some_and(|rank| rank.parse() == Ok(0_u32));
    let life = if folder.is_empty() { 0 } else { folder.strip_prefix("retry_")?.parse().ok()? };
    is_first.then_some(life)
}

/// The bytes as text of the same length. A character that is cut off at the end is left for the next piece, unless there will be
/// none of this file.
fn plainly(bytes: &[u8], is_last: bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    let mut left = bytes.len();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        left -= chunk.valid().len() + chunk.invalid().len();
        if left > 0 || is_last || chunk.invalid().len() > 3 {
            text.extend(chunk.invalid().iter().map(|_| '?'));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_process_is_read_life_after_life() {
        let names = [
            "user_logs/retry_010/std_log_process_00.txt",
            "user_logs/std_log_process_00.txt",
            "user_logs/std_log_process_01.txt",
            "user_logs/retry_002/std_log_process_00.txt",
            "system_logs/lifecycler/lifecycler.log",
            "user_logs/std_log_ps.txt",
            "user_logs/retry_x/std_log.txt",
            "user_logs/../std_log.txt",
        ];
        let files_of: serde_json::Map<String, Value> = names.iter().map(|name| ((*name).to_owned(), json!(*name))).collect();
        assert_eq!(files(&json!({ "logFiles": files_of })), [names[1], names[3], names[0]]);
        assert_eq!(files(&json!({ "logFiles": { "user_logs/std_log.txt": "a" } })), ["a"]);
        assert_eq!(files(&json!({ "logFiles": { "user_logs/std_log.txt": 7 } })), [""; 0]);
        assert_eq!(files(&Value::Null), [""; 0]);
    }

    #[test]
    fn a_position_in_the_text_is_one_in_the_file() {
        assert_eq!(plainly("Größe".as_bytes(), true), "Größe");
        assert_eq!(plainly(b"a\xffb", true), "a?b");
        let cut = &"Größe".as_bytes()[..3];
        assert_eq!((plainly(cut, false).as_str(), plainly(cut, true).as_str()), ("Gr", "Gr?"));
    }
}
