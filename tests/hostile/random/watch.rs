//! Runs a verb within limits, and says what of its manners was harm.

use std::{
    fs,
    io::Read,
    os::unix::process::ExitStatusExt as _,
    process::{Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use ftctl::exit::Exit;

use super::verbs::Verb;

/// Whatever a verb meets. On a busy machine `FT_PATIENCE` may say more seconds.
const LONGEST: u64 = 10;
/// Memory of a whole program in KiB, its code and its mappings included.
const MOST_MEMORY_KIB: u64 = 300 << 10;
/// Hundredths of a second of a processor in that time, for a verb that waits.
const MOST_PROCESSOR: u64 = 300;
/// Bytes that a reader takes of a stream before it closes it, as `head` does.
const MOST_READ: u64 = 16 << 20;

pub struct Harm {
    /// Equal for the same defect.
    pub kind: String,
    pub story: String,
}

impl Harm {
    pub fn new(kind: impl Into<String>, story: impl Into<String>) -> Self {
        Self { kind: kind.into(), story: story.into() }
    }
}

pub struct Ran {
    end: End,
    peak_kib: u64,
    /// Hundredths of a second, of a verb that was ended here.
    processor: u64,
    stdout: String,
    stderr: String,
}

enum End {
    Exit(ExitStatus),
    TooLong,
    TooLarge,
}

/// Runs the command to its end, or until it has taken more than it may.
pub fn run(mut command: Command) -> Ran {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("ftctl runs");
    let stdout = read(child.stdout.take().expect("a pipe"));
    let stderr = read(child.stderr.take().expect("a pipe"));
    let longest = Duration::from_secs(super::number("FT_PATIENCE").unwrap_or(LONGEST));
    let (began, mut peak_kib) = (Instant::now(), 0);
    let end = loop {
        peak_kib = peak_kib.max(peak_of(child.id()));
        match child.try_wait().expect("a child") {
            Some(status) => break End::Exit(status),
            None if peak_kib > MOST_MEMORY_KIB => break End::TooLarge,
            None if began.elapsed() > longest => break End::TooLong,
            None => thread::sleep(Duration::from_millis(2)),
        }
    };
    let mut processor = 0;
    if !matches!(end, End::Exit(_)) {
        processor = processor_time_of(child.id());
        child.kill().expect("killed");
        child.wait().expect("a child");
    }
    let text = |stream: Receiver<Vec<u8>>| {
        let bytes = stream.recv_timeout(Duration::from_secs(2)).unwrap_or_default();
        String::from_utf8(bytes).unwrap_or_else(|bytes| String::from_utf8_lossy(bytes.as_bytes()).into_owned())
    };
    Ran { end, peak_kib, processor, stdout: text(stdout), stderr: text(stderr) }
}

/// On a thread of its own: a program without a reader stands still.
fn read(stream: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.take(MOST_READ).read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    });
    receiver
}

/// Most memory that the process ever held; 0 when it is over, and for the moment in which a new one still has this program's: its
/// start is told just before it gets its own.
fn peak_of(process: u32) -> u64 {
    let program = |of: &str| fs::read_link(format!("/proc/{of}/exe"));
    if program(&process.to_string()).ok() == program("self").ok() {
        return 0;
    }
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// The time of all its threads: the 14th and 15th field of its status, behind a name that may hold anything.
fn processor_time_of(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields = status.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

impl Ran {
    /// `None` when it ended in time, with a code of the table, a sentence and no word to the terminal.
    pub fn harm(&self, verb: &Verb) -> Option<Harm> {
        let End::Exit(status) = &self.end else {
            let idle = self.waits_by_design(verb) && self.processor <= MOST_PROCESSOR;
            return (!idle).then(|| self.harm_of_resources(verb));
        };
        let story = format!("{}{}", end_of(&self.stdout), end_of(&self.stderr));
        if let Some(panic) = self.stderr.lines().find(|line| line.contains(" panicked at ")) {
            return Some(Harm::new(panic, story));
        }
        let Some(code) = status.code() else {
            return Some(Harm::new(format!("ended by signal {:?}", status.signal()), story));
        };
        if u8::try_from(code).ok().and_then(Exit::from_code).is_none() {
            return Some(Harm::new(format!("exit code {code}, which the table does not have"), story));
        }
        if code != 0 && !self.has_a_sentence() {
            return Some(Harm::new(format!("exit code {code} without a sentence"), story));
        }
        let streams = [(&self.stdout, verb.raw), (&self.stderr, false)];
        let told = streams.into_iter().filter(|(_, raw)| !raw).find_map(|(text, _)| control_character(text));
        told.map(|(character, line)| Harm::new(format!("prints {}", character.escape_unicode()), format!("{line:?}")))
    }

    fn harm_of_resources(&self, verb: &Verb) -> Harm {
        let story = format!("{}{}", end_of(&self.stdout), end_of(&self.stderr));
        match self.end {
            End::TooLarge => Harm::new("takes more than 300 MiB", format!("{} MiB; {story}", self.peak_kib >> 10)),
            _ if self.waits_by_design(verb) => {
                Harm::new("is busy while it waits", format!("{} hundredths of a second; {story}", self.processor))
            }
            _ => Harm::new("takes longer than 10 s", story),
        }
    }

    /// An agent outlasts a store that cannot be written, and so do those that the fake cloud plays. A follower of another user's
    /// job waits for them to go on with it, and is told. Who ends a job whose supervisor cannot be looked at waits until its lease
    /// has lapsed, and is told.
    fn waits_by_design(&self, verb: &Verb) -> bool {
        let told = ["the fake machine cannot write to its store", "no ftctl drives it", "another ftctl drives "];
        matches!(self.end, End::TooLong) && (verb.arguments[0] == "agent" || told.iter().any(|part| self.stderr.contains(part)))
    }

    /// On stderr, or as the one JSON value.
    fn has_a_sentence(&self) -> bool {
        self.stderr.contains("error: ") || self.stdout.contains("\"message\":")
    }
}

/// Anything that a terminal would obey, and its line.
fn control_character(text: &str) -> Option<(char, &str)> {
    let obeyed = |c: char| {
        (c.is_control() && !matches!(c, '\n' | '\t'))
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.split('\n').find_map(|line| line.chars().find(|c| obeyed(*c)).map(|c| (c, line)))
}

/// The end of a stream, for a reader who looks for a defect.
fn end_of(text: &str) -> String {
    let from = text.char_indices().rev().nth(600).map_or(0, |(at, _)| at);
    text[from..].trim().escape_debug().to_string()
}
