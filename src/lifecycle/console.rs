//! The console output of machines: the only witness of what happened before an agent lived. It is kept in the store when an attempt
//! ends without a log of its own, so that it can be read when the machine is gone.

use serde::{Deserialize, Serialize};

use super::{Result, World};
use crate::{
    job::{
        id::{AttemptId, path},
        record::Record,
    },
    provider::Console,
    store::{Condition, Store, StoreError, find_json, write_json},
};

const CONSOLE_SCHEMA: &str = "ftctl.console/1";

/// The part of a console that was read before its machine was destroyed, beginning at position `start`.
#[derive(Serialize, Deserialize)]
struct Kept {
    schema: String,
    start: u64,
    text: String,
    /// See [`Console::own`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    own: Option<String>,
}

/// The last line with something on it, in words. A console that cannot be read is no reason to leave its machine alone.
pub(super) async fn last_line(world: &World, attempt: &AttemptId) -> String {
    let console = match world.provider.console(attempt, 0).await {
        Ok(console) => console.unwrap_or_default(),
        Err(error) => return format!("its console cannot be read: {}", error.message),
    };
    match console.text.lines().rev().map(str::trim).find(|line| !line.is_empty()) {
        Some(line) => format!("the last on its console: {line}"),
        None => "there is nothing on its console".to_owned(),
    }
}

/// Keeps the console of the current attempt when that has no log. A machine that is gone has taken it along.
pub(super) async fn keep(world: &World, record: &Record) -> Result<()> {
    let attempt = AttemptId::new(&record.id, record.attempt);
    if !world.provider.capabilities().signs || world.store.head(&path::log(&record.id, record.attempt)).await?.is_some() {
        return Ok(());
    }
    // Best effort: a failed console read does not delay the end.
    let Ok(Some(Console { text, start, own, .. })) = world.provider.console(&attempt, 0).await else { return Ok(()) };
    let kept = Kept { schema: CONSOLE_SCHEMA.to_owned(), start, text, own };
    match write_json(world.store.as_ref(), &path::console(&record.id, record.attempt), &kept, Condition::IfAbsent).await {
        Ok(_) | Err(StoreError::Conflict { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The kept part of an attempt's console from position `from` on.
pub async fn kept(store: &dyn Store, record: &Record, attempt: u32, from: u64) -> Result<Option<Console>> {
    let found: Option<(Kept, _)> = find_json(store, &path::console(&record.id, attempt)).await?;
    Ok(found.map(|(Kept { start, text, own, .. }, _)| {
        let skipped = usize::try_from(from.saturating_sub(start)).unwrap_or(usize::MAX);
        let text = text.get(skipped..).unwrap_or_default().to_owned();
        let start = start.max(from);
        Console { next: start.saturating_add(text.len() as u64), text, start, own }
    }))
}

/// The whole lines of a piece that was asked for from `from` on, all of it when it is the last, and where the next piece begins. A
/// gap is said. Where ftctl started processes, only their lines are shown: the hundreds before them are the system's.
pub fn in_lines(console: &Console, from: u64, last: bool) -> (String, u64) {
    let end = if last { console.text.len() } else { console.text.rfind('\n').map_or(0, |end| end + 1) };
    let text = &console.text[..end];
    let is_own = |line: &&str| console.own.as_ref().is_none_or(|own| line.contains(own));
    let own: Vec<&str> = text.lines().filter(is_own).collect();
    let lines = if own.is_empty() && last { text.lines().collect() } else { own };
    let missing = console.start.saturating_sub(from);
    let gap = if missing > 0 { format!("[{missing} bytes of the console are lost]\n") } else { String::new() };
    (gap + &lines.join("\n"), console.start.saturating_add(end as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_are_shown_and_a_gap_is_said() {
        let own = Some("startup-script".to_owned());
        let text = "startup-script: one\r\nkernel\r\nstartup-script: tw".to_owned();
        let console = Console { text, start: 30, next: 80, own: own.clone() };
        assert_eq!(in_lines(&console, 30, false), ("startup-script: one".to_owned(), 59));
        let gap = "[20 bytes of the console are lost]\nstartup-script: one\nstartup-script: tw";
        assert_eq!(in_lines(&console, 10, true), (gap.to_owned(), 77));
        let kernel = Console { text: "panic\r\n".to_owned(), start: 0, next: 7, own };
        assert_eq!((in_lines(&kernel, 0, false).0.as_str(), in_lines(&kernel, 0, true).0.as_str()), ("", "panic"));
    }
}
