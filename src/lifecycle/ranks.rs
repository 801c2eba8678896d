//! The output of each rank of a job: as its agents sent it to the store and, before they did, as the backend itself keeps it.

use std::{collections::BTreeMap, time::Duration};

use super::{
    Result, World, journal,
    lines::Lines,
    logs::{self, Filter, Sink},
    observe,
};
use crate::{
    exit::{Exit, Failure},
    job::{
        id::{AttemptId, JobId, path},
        record::{Ranks, Record},
        state::State,
    },
    provider::{Class, Cursor, Output},
    store::log::LogReader,
};

/// How often a service is asked for more.
const EVERY: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Only this rank; absent: all of them.
    pub rank: Option<u32>,
    /// Go on until the job is over.
    pub follow: bool,
    /// Only this attempt; absent: all of them.
    pub attempt: Option<u32>,
}

/// Writes the output of each attempt's ranks, oldest attempt first, to `sink`; of all ranks with the rank before each line.
/// [`Exit::NotFound`] for a rank that the attempt does not have, or no attempt.
pub async fn show(world: &World, id: &JobId, options: &Options, sink: &mut dyn Sink) -> Result<()> {
    let record = journal::read(world.store.as_ref(), id).await?.0;
    let latest = observe::latest_attempt(world.store.as_ref(), &record).await?.max(record.attempt);
    let mut attempt = logs::admit(options.attempt, latest, id)?.unwrap_or(1);
    has_rank(&record, options)?;
    loop {
        sink.begin(attempt);
        let record = one_attempt(world, id, attempt, options, sink).await?;
        if options.attempt.is_some() || attempt >= latest.max(record.attempt) {
            return Ok(());
        }
        attempt += 1;
        world.report.line(&format!("-- attempt {attempt} of {id}{} --", record.shrunk_to(attempt)));
    }
}

fn has_rank(record: &Record, options: &Options) -> Result<()> {
    let Some(rank) = options.rank else { return Ok(()) };
    let (whose, ranks) = if let Some(attempt) = options.attempt {
        (format!("attempt {attempt} of the job {}", record.id), record.ranks(attempt).all)
    } else {
        let of_attempts = record.attempts.iter().map(|one| record.ranks(one.attempt).all);
        (format!("the job {}", record.id), of_attempts.fold(record.plan.processes, usize::max))
    };
    if (rank as usize) < ranks {
        return Ok(());
    }
    Err(Failure::new(Exit::NotFound, format!("{whose} has no rank {rank}: it has {ranks}, counted from 0")))
}

/// Writes all that an attempt's ranks wrote, which is known when the attempt is over. Answers the record seen last.
async fn one_attempt(world: &World, id: &JobId, attempt: u32, options: &Options, sink: &mut dyn Sink) -> Result<Record> {
    let (of, mut cursor, mut lines) = (AttemptId::new(id, attempt), Cursor::new(), Apart::new(options.rank.is_none()));
    let mut stored: Option<Stored> = None;
    loop {
        // The record first: what is written between the two looks belongs to a reading that comes after.
        let record = journal::read(world.store.as_ref(), id).await?.0;
        let over = record.attempt > attempt || record.state == State::Finished;
        let stored = stored.get_or_insert_with(|| Stored::of(world, &record, attempt, options.rank));
        let mut pieces = stored.read().await?;
        if let Some(service) = world.provider.service().filter(|_| !stored.has_begun) {
            let on_node = u32::try_from(record.ranks(attempt).on_node).unwrap_or(u32::MAX);
            let node = options.rank.map(|rank| rank / on_node);
            pieces = match service.output(&of, node, &mut cursor).await {
                Err(error) if error.class == Class::Network && options.follow => {
                    world.clock.sleep(EVERY).await;
                    continue;
                }
                outputs => outputs?.into_iter().map(Piece::from).collect(),
            };
        }
        let is_all = pieces.is_empty();
        logs::give(lines.take(pieces), sink).await?;
        if is_all && (over || !options.follow) {
            logs::give(lines.take(stored.finish()), sink).await?;
            logs::give(lines.finish(), sink).await?;
            return Ok(record);
        }
        if is_all {
            world.clock.sleep(EVERY).await;
        }
    }
}

/// The writer of a line. Until the agents send what their ranks write, the backend tells nodes apart, and no ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Writer {
    Rank(u32),
    Node(u32),
    Service,
}

struct Piece {
    writer: Writer,
    text: String,
}

impl From<Output> for Piece {
    fn from(Output { node, text }: Output) -> Self {
        Self { writer: node.map_or(Writer::Service, Writer::Node), text }
    }
}

/// The logs of an attempt's ranks in the store.
struct Stored {
    logs: Vec<Log>,
    /// Something of them is there.
    has_begun: bool,
}

struct Log {
    rank: u32,
    reader: LogReader,
    filter: Filter,
    lines: Lines,
}

impl Stored {
    fn of(world: &World, record: &Record, attempt: u32, rank: Option<u32>) -> Self {
        let Ranks { all, on_node } = record.ranks(attempt);
        let ranks = rank.map_or(0..all, |rank| rank as usize..rank as usize + 1);
        let log = |rank| {
            let path = match rank {
                0 => path::log(&record.id, attempt),
                _ => path::rank_log(&record.id, attempt, rank / on_node, rank),
            };
            let (reader, filter) = (LogReader::new(world.store.clone(), path, 0), Filter::new(&logs::Options::default()));
            Log { rank: u32::try_from(rank).unwrap_or(u32::MAX), reader, filter, lines: Lines::default() }
        };
        Self { logs: ranks.map(log).collect(), has_begun: false }
    }

    /// The next piece of each, where there is one.
    async fn read(&mut self) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        for log in &mut self.logs {
            pieces.extend(log.read().await?);
        }
        self.has_begun |= !pieces.is_empty();
        Ok(pieces)
    }

    fn finish(&mut self) -> Vec<Piece> {
        self.logs.iter_mut().map(Log::finish).collect()
    }
}

impl Log {
    async fn read(&mut self) -> Result<Option<Piece>> {
        let bytes = self.reader.read().await?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let (mut text, written) = (Vec::new(), self.filter.write(&bytes));
        self.lines.take(&written, |line, _| write("", line, &mut text));
        Ok(Some(self.piece(&text)))
    }

    /// The end of a log that ends in the middle of a line.
    fn finish(&mut self) -> Piece {
        let (mut text, written) = (Vec::new(), self.filter.finish());
        self.lines.take(&written, |line, _| write("", line, &mut text));
        self.lines.finish(|line, _| write("", line, &mut text));
        self.piece(&text)
    }

    /// Takes whole lines, so that no character is cut in two.
    fn piece(&self, text: &[u8]) -> Piece {
        Piece { writer: Writer::Rank(self.rank), text: String::from_utf8_lossy(text).into_owned() }
    }
}

/// Output in whole lines, of each writer apart.
struct Apart {
    names_writers: bool,
    lines: BTreeMap<Writer, Lines>,
}

impl Apart {
    fn new(names_writers: bool) -> Self {
        Self { names_writers, lines: BTreeMap::new() }
    }

    fn take(&mut self, pieces: Vec<Piece>) -> Vec<u8> {
        let mut out = Vec::new();
        for Piece { writer, text } in pieces {
            let front = self.front(writer);
            self.lines.entry(writer).or_default().take(text.as_bytes(), |line, _| write(&front, line, &mut out));
        }
        out
    }

    /// The last lines, which have no end.
    fn finish(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        for (writer, mut lines) in std::mem::take(&mut self.lines) {
            lines.finish(|line, _| write(&self.front(writer), line, &mut out));
        }
        out
    }

    fn front(&self, writer: Writer) -> String {
        match writer {
            Writer::Rank(rank) if self.names_writers => format!("[{rank}] "),
            Writer::Node(node) if self.names_writers => format!("[node {node}] "),
            Writer::Rank(_) | Writer::Node(_) => String::new(),
            Writer::Service => "[service] ".to_owned(),
        }
    }
}

fn write(front: &str, line: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(front.as_bytes());
    out.extend_from_slice(line);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::{
        Writer::{Node, Rank, Service},
        *,
    };

    fn taken(lines: &mut Apart, pieces: &[(Writer, &str)]) -> String {
        let pieces = pieces.iter().map(|(writer, text)| Piece { writer: *writer, text: (*text).to_owned() });
        String::from_utf8(lines.take(pieces.collect())).unwrap()
    }

    #[test]
    fn lines_of_many_processes_stay_whole() {
        let mut lines = Apart::new(true);
        assert_eq!(taken(&mut lines, &[(Rank(0), "one\ntw"), (Rank(1), "eins\n")]), "[0] one\n[1] eins\n");
        assert_eq!(taken(&mut lines, &[(Rank(0), "o\n"), (Rank(1), "zwei"), (Service, "pulled\n")]), "[0] two\n[service] pulled\n");
        assert_eq!(String::from_utf8(lines.finish()).unwrap(), "[1] zwei\n");
        assert_eq!(lines.finish(), b"");
    }

    #[test]
    fn lines_from_before_the_agents_are_told_by_node() {
        assert_eq!(
            taken(&mut Apart::new(true), &[(Node(1), "pulling\n"), (Rank(8), "step 1\n")]),
            "[node 1] pulling\n[8] step 1\n"
        );
    }

    #[test]
    fn lines_of_one_process_are_as_it_wrote_them() {
        assert_eq!(taken(&mut Apart::new(false), &[(Rank(3), "a\nb\n"), (Service, "why\n")]), "a\nb\n[service] why\n");
    }
}
