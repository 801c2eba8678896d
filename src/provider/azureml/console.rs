//! The output of a job's agents, in the files that the run history names. The service starts one process on each node, the agent,
//! and calls it by the node's number. It has a file for each of the service's own retries, one after the other. Last come the
//! service's words, where it has ended the job. Files grow at the end alone, so a position stays what it is.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    super::{Console, Cursor, Output},
    client::Client,
    refusal::{Refusal, reports_process, told},
};

/// The most of it that is read at once.
const PIECE: u64 = 1 << 20;
/// A run that the service tried again more often has failed for good.
const MOST_FILES: usize = 64;
/// No job of ours has so many nodes.
const MOST_NODES: usize = 1_024;
/// The node whose console is the job's.
const FIRST: u32 = 0;

/// The output of the first node before its agent could send it, or why there was none. It begins at position `start`.
pub async fn read(client: &Client, details: &Value, start: u64) -> Result<Console, Refusal> {
    let mut found = files(details);
    let addresses = found.remove(&Some(FIRST)).or_else(|| found.remove(&None)).unwrap_or_default();
    let (text, next) = part(client, addresses, start).await?;
    Ok(Console { text, start, next, own: None })
}

/// The output of each node, or of one of them, since `cursor`, which goes on.
pub async fn each(client: &Client, details: &Value, node: Option<u32>, cursor: &mut Cursor) -> Result<Vec<Output>, Refusal> {
    let mut outputs = Vec::new();
    for (of, addresses) in files(details).into_iter().rev() {
        if of.is_some() && node.is_some() && node != of {
            continue;
        }
        let position = cursor.entry(of).or_default();
        let (text, next) = part(client, addresses, *position).await?;
        *position = next;
        if !text.is_empty() {
            outputs.push(Output { node: of, text });
        }
    }
    // The nodes in their order, and the service after them.
    outputs.sort_by_key(|output| output.node.unwrap_or(u32::MAX));
    Ok(outputs)
}

/// A piece of files that are read as one, from position `start` on, and where the next piece begins.
async fn part(client: &Client, addresses: Vec<&str>, start: u64) -> Result<(String, u64), Refusal> {
    let (mut text, mut before, mut next) = (String::new(), 0_u64, start);
    let mut files = addresses.into_iter().peekable();
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
    Ok((text, next))
}

/// The addresses of what each node wrote, in the order of its lives; of `None` the service's own words.
pub fn files(details: &Value) -> BTreeMap<Option<u32>, Vec<&str>> {
    let named = details["logFiles"].as_object().into_iter().flatten();
    let named = named.filter_map(|(name, address)| Some((name.as_str(), address.as_str()?)));
    let is_to_blame = is_to_blame(details);
    let mut found: Vec<(Option<u32>, u32, &str, &str)> = named
        .filter_map(|(name, address)| match process(name) {
            Some((node, life)) => Some((Some(node), life, name, address)),
            None if is_to_blame && name.starts_with("system_logs/") => Some((None, 0, name, address)),
            None => None,
        })
        .collect();
    found.sort_unstable();
    let mut of: BTreeMap<Option<u32>, Vec<&str>> = BTreeMap::new();
    for (node, _, _, address) in found {
        if of.len() >= MOST_NODES && !of.contains_key(&node) {
            continue;
        }
        let addresses = of.entry(node).or_default();
        if addresses.len() < MOST_FILES {
            addresses.push(address);
        }
    }
    of
}

/// Whether the run has ended by something other than its processes.
fn is_to_blame(details: &Value) -> bool {
    details["status"] == "Failed" && !told(details).is_some_and(|(_, message)| reports_process(&message))
}

/// The node and the life of the process that wrote a file; `None` for any other file.
fn process(name: &str) -> Option<(u32, u32)> {
    let name = name.strip_prefix("user_logs/")?;
    let (folder, file) = name.rsplit_once('/').unwrap_or(("", name));
    let process = file.strip_prefix("std_log")?.strip_suffix(".txt")?;
    let node = if process.is_empty() { FIRST } else { process.strip_prefix("_process_")?.parse().ok()? };
    let life = if folder.is_empty() { 0 } else { folder.strip_prefix("retry_")?.parse().ok()? };
    Some((node, life))
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
    fn each_node_is_read_life_after_life() {
        let names = [
            "user_logs/retry_010/std_log_process_00.txt",
            "user_logs/std_log_process_00.txt",
            "user_logs/std_log_process_01.txt",
            "user_logs/retry_002/std_log_process_00.txt",
            "system_logs/lifecycler/lifecycler.log",
            "user_logs/std_log_ps.txt",
            "user_logs/retry_x/std_log.txt",
            "user_logs/../std_log.txt",
            "user_logs/retry_002/std_log_process_1.txt",
        ];
        let files_of: serde_json::Map<String, Value> = names.iter().map(|name| ((*name).to_owned(), json!(*name))).collect();
        let mut details = json!({ "logFiles": files_of, "status": "Running" });
        let of_first = (Some(0), vec![names[1], names[3], names[0]]);
        let of_second = (Some(1), vec![names[2], names[8]]);
        assert_eq!(files(&details), BTreeMap::from([of_first.clone(), of_second.clone()]));
        details["status"] = json!("Failed");
        assert_eq!(files(&details), BTreeMap::from([(None, vec![names[4]]), of_first.clone(), of_second.clone()]));
        details["error"] = json!({ "error": { "code": "UserError", "message": "Execution failed. User process exited with 1." } });
        assert_eq!(files(&details), BTreeMap::from([of_first, of_second]), "the processes say why");
        assert_eq!(files(&json!({ "logFiles": { "user_logs/std_log.txt": "a" } })), BTreeMap::from([(Some(0), vec!["a"])]));
        assert!(files(&json!({ "logFiles": { "user_logs/std_log.txt": 7 } })).is_empty() && files(&Value::Null).is_empty());
    }

    #[test]
    fn a_position_in_the_text_is_one_in_the_file() {
        assert_eq!(plainly("Größe".as_bytes(), true), "Größe");
        assert_eq!(plainly(b"a\xffb", true), "a?b");
        let cut = &"Größe".as_bytes()[..3];
        assert_eq!((plainly(cut, false).as_str(), plainly(cut, true).as_str()), ("Gr", "Gr?"));
    }
}
