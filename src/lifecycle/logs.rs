//! The logs of a job's attempts, read from the store: the same bytes after a lost connection, a preemption and the end.

use std::{
    io,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use jiff::Timestamp;

use super::{Result, World, console, journal, observe};
use crate::{
    exit::{Exit, Failure},
    job::{
        id::{AttemptId, JobId, path},
        record::Record,
        state::State,
    },
    store::{Store, log::LogReader},
};

#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Go on until the job is over.
    pub follow: bool,
    /// Only this attempt; absent: all of them.
    pub attempt: Option<u32>,
    /// Only the last lines.
    pub tail: Option<usize>,
    /// Only lines written since.
    pub since: Option<Timestamp>,
    /// Keep the time in front of each line.
    pub timestamps: bool,
}

/// How often a followed log is looked at.
const POLL: Duration = Duration::from_millis(300);

/// Lines since a time are looked for in so many bytes at the end of a log.
const MOST_SEARCHED: u64 = 1 << 30;

/// How often a console is looked at.
const CONSOLE: Duration = Duration::from_secs(1);

/// Where log bytes go.
#[async_trait]
pub trait Sink: Send {
    /// Returns when there is room for more: a reader may stand still, and the job is looked after meanwhile. A failure (a closed
    /// pipe) ends the reading.
    async fn take(&mut self, bytes: Vec<u8>) -> io::Result<()>;

    /// Begins an attempt: the next bytes are its own.
    fn begin(&mut self, _attempt: u32) {}

    /// Whether lines keep their time, whatever the user said.
    fn wants_times(&self) -> bool {
        false
    }
}

/// Writes the logs of the job's attempts, oldest first, to `sink`.
pub async fn show(world: &World, id: &JobId, options: &Options, sink: &mut dyn Sink) -> Result<()> {
    let record = journal::read(world.store.as_ref(), id).await?.0;
    let latest = observe::latest_attempt(world.store.as_ref(), &record).await?;
    let first = if options.tail.is_some() { latest.max(1) } else { 1 };
    let mut attempt = admit(options.attempt, latest, id)?.unwrap_or(first);
    let mut filter = Filter::new(options);
    loop {
        sink.begin(attempt);
        let record = one_attempt(world, id, attempt, options, &mut filter, sink).await?;
        give(filter.finish(), sink).await?;
        if options.attempt.is_some() || attempt >= latest.max(record.attempt) {
            return Ok(());
        }
        attempt += 1;
        world.report.line(&format!("-- attempt {attempt} of {id}{} --", record.shrunk_to(attempt)));
    }
}

/// The attempt that is asked for. [`Exit::NotFound`] when the job has none of that number.
pub(super) fn admit(asked: Option<u32>, latest: u32, id: &JobId) -> Result<Option<u32>> {
    match asked {
        Some(attempt) if attempt > latest || attempt == 0 => {
            let message = format!("the job {id} has no attempt {attempt}; its last is {latest}");
            Err(Failure::new(Exit::NotFound, message))
        }
        asked => Ok(asked),
    }
}

/// Writes one attempt's log to its end, which is when the attempt is over and every byte of it was read. Answers the record seen
/// last.
async fn one_attempt(
    world: &World,
    id: &JobId,
    attempt: u32,
    options: &Options,
    filter: &mut Filter,
    sink: &mut dyn Sink,
) -> Result<Record> {
    let store = &world.store;
    let path = path::log(id, attempt);
    let start = match (options.tail, options.since) {
        (Some(lines), _) => tail_offset(store.as_ref(), &path, lines).await?,
        // The lines of an hour are at the end, and a log may be as large as its machine's disk.
        (None, Some(_)) => store.head(&path).await?.map_or(0, |meta| meta.size).saturating_sub(MOST_SEARCHED),
        (None, None) => 0,
    };
    if start > 0 && options.since.is_some() {
        world.report.warn(&format!("the log of attempt {attempt} is searched in its last GiB alone"));
    }
    let mut reader = LogReader::new(store.clone(), path, start);
    let mut console = Consoled::default();
    loop {
        // The record first: bytes that arrive between the two looks belong to a reading that comes after.
        let record = journal::read(store.as_ref(), id).await?.0;
        let over = record.attempt > attempt || matches!(record.state, State::Finished);
        loop {
            let bytes = reader.read().await?;
            if bytes.is_empty() {
                break;
            }
            console.ends = true;
            give(filter.write(&bytes), sink).await?;
        }
        console.show(world, &record, attempt, over).await?;
        if over || !options.follow {
            return Ok(record);
        }
        world.clock.sleep(POLL).await;
    }
}

/// The console of an attempt's machine, until the attempt has a log of its own. It goes to stderr: it is not what the job wrote.
#[derive(Default)]
struct Consoled {
    next: u64,
    looked: Option<Instant>,
    /// The attempt has a log.
    ends: bool,
}

impl Consoled {
    async fn show(&mut self, world: &World, record: &Record, attempt: u32, over: bool) -> Result<()> {
        let fresh = self.looked.is_some_and(|looked| looked.elapsed() < CONSOLE);
        if self.ends || !world.provider.capabilities().signs || (fresh && !over) {
            return Ok(());
        }
        self.looked = Some(Instant::now());
        let piece = if over {
            console::kept(world.store.as_ref(), record, attempt, self.next).await?
        } else {
            // Output that cannot be read now is read later.
            world.provider.console(&AttemptId::new(&record.id, attempt), self.next).await.unwrap_or_default()
        };
        let Some(piece) = piece else { return Ok(()) };
        let (text, whole) = console::in_lines(&piece, self.next, over);
        for line in text.lines() {
            world.report.line(line);
        }
        self.next = whole;
        Ok(())
    }
}

/// Where the last `lines` lines of a log begin, found from its end. Lines longer than 64 KiB on average begin in the middle of one:
/// a log without line ends would be read as a whole otherwise.
async fn tail_offset(store: &dyn Store, path: &str, lines: usize) -> Result<u64> {
    const WINDOW: u64 = 64 * 1024;
    let length = store.head(path).await?.map_or(0, |meta| meta.size);
    if lines == 0 {
        return Ok(length);
    }
    let first = length.saturating_sub(WINDOW.saturating_mul(lines as u64 + 1));
    let mut wanted = lines;
    let mut end = length;
    while end > first {
        let start = end.saturating_sub(WINDOW);
        let bytes = store.get_range(path, start..end).await?;
        for (index, _) in bytes.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            let offset = start + index as u64 + 1;
            // The line feed that ends the log ends its last line and begins none.
            if offset == length {
                continue;
            }
            wanted = wanted.saturating_sub(1);
            if wanted == 0 {
                return Ok(offset);
            }
        }
        end = start;
    }
    Ok(end)
}

pub(super) async fn give(bytes: Vec<u8>, sink: &mut dyn Sink) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    sink.take(bytes).await.map_err(|error| match error.kind() {
        // `ftctl logs | head`: the reader has seen enough.
        io::ErrorKind::BrokenPipe => Failure::new(Exit::Done, ""),
        _ => Failure::new(Exit::Failure, format!("cannot write the log: {error}")),
    })
}

/// Takes the time off each line, and lines before `since` out. Bytes of a line that began without a time pass as they are.
pub(super) struct Filter {
    since: Option<Timestamp>,
    timestamps: bool,
    /// The beginning of a line whose time is not complete yet.
    pending: Vec<u8>,
    in_line: bool,
    /// Whether the current line is shown; lines without a time follow the one before.
    visible: bool,
}

/// `2026-11-20T14:03:22.512Z ` as the trainer writes it in front of each line.
pub const STAMP: usize = 25;

impl Filter {
    pub fn new(options: &Options) -> Self {
        Self {
            since: options.since,
            timestamps: options.timestamps,
            pending: Vec::new(),
            in_line: false,
            visible: options.since.is_none(),
        }
    }

    pub fn write(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let ends = piece.ends_with(b"\n");
            if self.in_line {
                self.emit(piece, &mut out);
            } else {
                self.pending.extend_from_slice(piece);
                if ends || self.pending.len() >= STAMP {
                    self.begin_line(&mut out);
                }
            }
            if ends {
                self.in_line = false;
            }
        }
        out
    }

    /// The rest of a log that ends in the middle of a line.
    pub fn finish(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        self.begin_line(&mut out);
        self.in_line = false;
        out
    }

    fn begin_line(&mut self, out: &mut Vec<u8>) {
        let line = std::mem::take(&mut self.pending);
        self.in_line = true;
        let time = stamp(&line);
        if let (Some(since), Some(time)) = (self.since, time) {
            self.visible = time >= since;
        }
        let text = if time.is_some() && !self.timestamps { &line[STAMP..] } else { &line };
        self.emit(text, out);
    }

    fn emit(&self, text: &[u8], out: &mut Vec<u8>) {
        if self.visible {
            out.extend_from_slice(text);
        }
    }
}

/// The time in front of a line.
pub fn stamp(line: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(line.get(..STAMP)?).ok()?;
    text.strip_suffix(' ')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered(options: &Options, chunks: &[&str]) -> String {
        let mut filter = Filter::new(options);
        let mut out: Vec<u8> = chunks.iter().flat_map(|chunk| filter.write(chunk.as_bytes())).collect();
        out.extend(filter.finish());
        String::from_utf8(out).unwrap()
    }

    const LOG: &str =
        "2026-11-20T14:03:22.512Z one\nplain\n\n2026-11-20T14:05:00.000Z two\n2026-11-20T14:06:00.000Z end without line feed";

    #[test]
    fn times_are_taken_off_wherever_the_log_is_cut() {
        let expected = "one\nplain\n\ntwo\nend without line feed";
        for cut in 0..LOG.len() {
            assert_eq!(filtered(&Options::default(), &[&LOG[..cut], &LOG[cut..]]), expected, "cut at {cut}");
        }
    }

    #[test]
    fn times_can_be_kept_and_selected_by() {
        let keep = Options { timestamps: true, ..Options::default() };
        assert_eq!(filtered(&keep, &[LOG]), LOG);
        let since = Options { since: Some("2026-11-20T14:04:00Z".parse().unwrap()), ..Options::default() };
        assert_eq!(filtered(&since, &[LOG]), "two\nend without line feed");
    }

    #[test]
    fn bytes_without_times_pass_unchanged() {
        let text = "\u{1F600} no time\r\nnext\n";
        assert_eq!(filtered(&Options::default(), &[text]), text);
    }
}
