//! An engine's reports while it builds, BuildKit's way and the classic way: steps for the user, everything for a log.

use std::{
    collections::HashMap,
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value;

use super::{ImageError, Result, io_error};
use crate::job::report::{Report, Unit};

/// How much of a failed step's output is shown.
const TAIL: usize = 25;
/// Longest name of a step that is shown.
const NAME: usize = 100;

/// The steps of one build.
pub struct Steps<'r> {
    report: &'r dyn Report,
    log: File,
    log_path: PathBuf,
    known: HashMap<String, Step>,
    /// The classic builder works at one step at a time.
    current: Option<String>,
    failed: Option<String>,
}

#[derive(Default)]
struct Step {
    name: String,
    begun: bool,
    over: bool,
    lines: Vec<String>,
    /// The last of them is not at its end: engines cut what a program prints anywhere.
    open: bool,
}

impl Step {
    fn add(&mut self, text: &str) {
        for piece in text.split_inclusive('\n') {
            let line = piece.trim_end_matches(['\n', '\r']);
            match self.lines.last_mut().filter(|_| self.open) {
                Some(last) => last.push_str(line),
                None if line.trim().is_empty() => continue,
                None => self.lines.push(line.to_owned()),
            }
            self.open = !piece.ends_with('\n');
        }
    }
}

impl<'r> Steps<'r> {
    pub fn new(log_path: &Path, report: &'r dyn Report) -> Result<Self> {
        let log = File::create(log_path).map_err(io_error("create", log_path))?;
        let log_path = log_path.to_owned();
        Ok(Self { report, log, log_path, known: HashMap::new(), current: None, failed: None })
    }

    /// Takes the next value of the engine's answer.
    pub fn take(&mut self, said: &Value) -> Result<()> {
        if said["id"] == "moby.buildkit.trace" {
            let bytes = said["aux"].as_str().and_then(|text| BASE64_STANDARD.decode(text).ok()).unwrap_or_default();
            return self.trace(&bytes);
        }
        if let Some(text) = said["stream"].as_str() {
            // The classic builder colours each piece of what comes from stderr, in the middle of lines too.
            self.classic(&text.replace("\x1b[91m", "").replace("\x1b[0m", ""))?;
        }
        match said["errorDetail"]["message"].as_str() {
            Some(why) => Err(self.failure(why)),
            None => Ok(()),
        }
    }

    /// BuildKit's `StatusResponse` (moby/buildkit, api/services/control/control.proto): field 1 are vertices, 3 what they print.
    fn trace(&mut self, bytes: &[u8]) -> Result<()> {
        for (number, field) in fields(bytes) {
            match number {
                1 => self.vertex(field)?,
                3 => {
                    let id = String::from_utf8_lossy(find(field, 1).unwrap_or_default()).into_owned();
                    self.print(&id, &String::from_utf8_lossy(find(field, 4).unwrap_or_default()))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Fields 1 identifier, 3 name, 4 cached, 5 begun, 6 over, 7 error.
    fn vertex(&mut self, vertex: &[u8]) -> Result<()> {
        let text = |wanted| String::from_utf8_lossy(find(vertex, wanted).unwrap_or_default()).into_owned();
        let (id, name) = (text(1), shortened(&text(3)));
        // When one step fails, those beside it are cancelled.
        let why = text(7);
        if !why.is_empty() && !why.contains("context canceled") {
            self.failed.get_or_insert_with(|| id.clone());
        }
        let step = self.known.entry(id.clone()).or_default();
        step.name.clone_from(&name);
        let begins = find(vertex, 5).is_some() && !std::mem::replace(&mut step.begun, true);
        if begins {
            self.record(&name)?;
        }
        if find(vertex, 6).is_some() {
            self.end(&id, find(vertex, 4).is_some());
        }
        Ok(())
    }

    /// `Step 3/8 : RUN …`, its output, ` ---> Using cache`, and an identifier at its end.
    fn classic(&mut self, text: &str) -> Result<()> {
        if let Some((number, command)) = text.strip_prefix("Step ").and_then(|rest| rest.split_once(" : ")) {
            self.end_current(false);
            let name = shortened(&format!("[{number}] {command}"));
            self.record(&name)?;
            self.known.insert(name.clone(), Step { name: name.clone(), begun: true, ..Step::default() });
            self.current = Some(name);
            return Ok(());
        }
        match text.trim() {
            "---> Using cache" => {
                self.end_current(true);
                Ok(())
            }
            said if said.starts_with("--->") || said.starts_with("Removing intermediate") => Ok(()),
            _ => match self.current.clone() {
                Some(current) => self.print(&current, text),
                // Its farewell.
                None => Ok(()),
            },
        }
    }

    fn end_current(&mut self, cached: bool) {
        if let Some(id) = self.current.take() {
            self.end(&id, cached);
        }
    }

    fn print(&mut self, id: &str, text: &str) -> Result<()> {
        self.log.write_all(text.as_bytes()).map_err(io_error("write", &self.log_path))?;
        let step = self.known.entry(id.to_owned()).or_default();
        step.add(text);
        if !step.lines.is_empty() && !step.over {
            self.report.progress(&step.name, step.lines.len() as u64, None, Unit::Items);
        }
        Ok(())
    }

    fn end(&mut self, id: &str, cached: bool) {
        let Some(step) = self.known.get_mut(id).filter(|step| !step.over) else { return };
        step.over = true;
        let lines = step.lines.len() as u64;
        if lines > 0 {
            self.report.progress(&step.name, lines, Some(lines), Unit::Items);
        } else if cached || !step.name.starts_with('[') || step.name.starts_with("[internal]") {
            self.report.detail(&step.name);
        } else {
            self.report.line(&step.name);
        }
    }

    fn record(&mut self, name: &str) -> Result<()> {
        writeln!(self.log, "== {name}").map_err(io_error("write", &self.log_path))
    }

    /// The build ended with this error.
    fn failure(&mut self, why: &str) -> ImageError {
        let _full_disk = writeln!(self.log, "== {why}");
        let failed = self.failed.take().or_else(|| self.current.take());
        let step = failed.and_then(|id| self.known.remove(&id)).unwrap_or_default();
        // Both builders repeat the command of the step, which can be long.
        let why = why.rsplit_once("]: ").filter(|_| why.starts_with("executor failed")).map_or(why, |(_, end)| end);
        ImageError::Step {
            step: if step.name.is_empty() { "its beginning".to_owned() } else { step.name },
            why: why.to_owned(),
            tail: step.lines[step.lines.len().saturating_sub(TAIL)..].join("\n"),
            log: self.log_path.clone(),
        }
    }
}

/// On one line, and not longer than a line.
fn shortened(name: &str) -> String {
    let words = name.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.chars().count() <= NAME {
        return words;
    }
    words.chars().take(NAME).chain("…".chars()).collect()
}

/// The length-delimited fields of a protobuf message; numbers show as empty. A field that cannot be read ends it.
fn fields(mut rest: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    std::iter::from_fn(move || {
        let key = number(&mut rest)?;
        let length = match key & 7 {
            0 => return number(&mut rest).map(|_| (key >> 3, &[][..])),
            1 => 8,
            2 => usize::try_from(number(&mut rest)?).ok()?,
            5 => 4,
            _ => return None,
        };
        let (field, after) = rest.split_at_checked(length)?;
        rest = after;
        Some((key >> 3, field))
    })
}

fn find(message: &[u8], wanted: u64) -> Option<&[u8]> {
    fields(message).find(|(number, _)| *number == wanted).map(|(_, field)| field)
}

/// A base-128 number, least significant group first.
fn number(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::job::report::Silent;

    fn failed(said: &[Value]) -> String {
        let directory = tempfile::tempdir().unwrap();
        let mut steps = Steps::new(&directory.path().join("build.log"), &Silent).unwrap();
        let error = said.iter().find_map(|said| steps.take(said).err()).expect("the build failed").to_string();
        error.split("\nThe whole log").next().unwrap().to_owned()
    }

    #[test]
    fn the_classic_builder_names_the_step_that_failed_and_what_it_said() {
        let said = [
            json!({"stream": "Step 1/2 : FROM x"}),
            json!({"stream": "noise of another step\n"}),
            json!({"stream": "Step 2/2 : RUN make"}),
            json!({"stream": " ---> Running in 123\n"}),
            json!({"stream": "\x1b[91mno \x1b[0m\x1b[91m"}),
            json!({"stream": "rule\n\x1b[0m"}),
            json!({"errorDetail": {"code": 2, "message": "returned a non-zero code: 2"}}),
        ];
        assert_eq!(failed(&said), "building the image failed at [2/2] RUN make: returned a non-zero code: 2\nno rule");
    }

    #[test]
    fn buildkit_names_the_step_that_failed_and_what_it_said() {
        // Recorded from Docker Engine 20.10: a vertex that begins, its two lines, and its end with an error.
        let said = [
            json!({"id": "moby.buildkit.trace", "aux": "CoYCCkdzaGEyNTY6YTI0Mjc0ZmE3YjMyNGNiODM1OTgzNTU1ZWEzNDU0ZTg3MDdiOTU1NzhlMDlhYzZhZDQxODI2MDdmY2MxNWRmNxJHc2hhMjU2OjY5YThmMzdjNDE3ZmE3NWVjNzRjZDRlYmQyOGUzZjU5YzUwNGE1Y2MzNzFhODE5MTgwYzc1M2RiNzA2ODVjOTgaZFtzdGFnZS0yIDMvM10gUlVOIGVjaG8gZmFpbGluZyBub3cgPiYyOyAoZXhlYyAzPD4vZGV2L3RjcC9kZWIuZGViaWFuLm9yZy84MCAmJiBlY2hvIG5ldCBvaykgOyBleGl0IDMqDAjWgIjYBhCpt5vGAw=="}),
            json!({"id": "moby.buildkit.trace", "aux": "GmYKR3NoYTI1NjphMjQyNzRmYTdiMzI0Y2I4MzU5ODM1NTVlYTM0NTRlODcwN2I5NTU3OGUwOWFjNmFkNDE4MjYwN2ZjYzE1ZGY3EgsI14CI2AYQ5Ye9FhgCIgxmYWlsaW5nIG5vdwo="}),
            json!({"id": "moby.buildkit.trace", "aux": "CpsDCkdzaGEyNTY6YTI0Mjc0ZmE3YjMyNGNiODM1OTgzNTU1ZWEzNDU0ZTg3MDdiOTU1NzhlMDlhYzZhZDQxODI2MDdmY2MxNWRmNxJHc2hhMjU2OjY5YThmMzdjNDE3ZmE3NWVjNzRjZDRlYmQyOGUzZjU5YzUwNGE1Y2MzNzFhODE5MTgwYzc1M2RiNzA2ODVjOTgaZFtzdGFnZS0yIDMvM10gUlVOIGVjaG8gZmFpbGluZyBub3cgPiYyOyAoZXhlYyAzPD4vZGV2L3RjcC9kZWIuZGViaWFuLm9yZy84MCAmJiBlY2hvIG5ldCBvaykgOyBleGl0IDMqDAjWgIjYBhCpt5vGAzILCNeAiNgGEMTypSQ6hQFleGVjdXRvciBmYWlsZWQgcnVubmluZyBbL2Jpbi9zaCAtYyBlY2hvIGZhaWxpbmcgbm93ID4mMjsgKGV4ZWMgMzw+L2Rldi90Y3AvZGViLmRlYmlhbi5vcmcvODAgJiYgZWNobyBuZXQgb2spIDsgZXhpdCAzXTogZXhpdCBjb2RlOiAz"}),
            json!({"errorDetail": {"message": "executor failed running [/bin/sh -c exit 3]: exit code: 3"}}),
        ];
        let words = failed(&said);
        assert!(words.starts_with("building the image failed at [stage-2 3/3] RUN echo failing now >&2; "), "{words}");
        assert!(words.ends_with(": exit code: 3\nfailing now"), "{words}");
    }

    #[test]
    fn nonsense_is_no_message() {
        assert_eq!(fields(&[0xff; 30]).count(), 0);
        assert_eq!(fields(&[0x0a, 0x7f, 1]).count(), 0);
    }
}
