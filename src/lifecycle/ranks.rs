//! What each process of a job wrote, by the backend's own account: also before the agent lived, and where only one process of many
//! has a tale to tell.

use std::{collections::BTreeMap, time::Duration};

use super::{Result, World, journal, logs::Sink, observe};
use crate::{
    job::{
        id::{AttemptId, JobId},
        record::Record,
        state::State,
    },
    provider::{Class, Cursor, Output},
};

/// How often a service is asked for more.
const EVERY: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Of this process; absent: of all.
    pub rank: Option<u32>,
    /// Go on until the job is over.
    pub follow: bool,
    /// Only this attempt; absent: all of them.
    pub attempt: Option<u32>,
}

/// Writes the output of each attempt's processes, oldest attempt first, to `sink`; of all processes with the rank before each line.
pub async fn show(world: &World, id: &JobId, options: &Options, sink: &mut dyn Sink) -> Result<()> {
    let record = journal::read(world.store.as_ref(), id).await?.0;
    let latest = observe::latest_attempt(world.store.as_ref(), &record).await?.max(record.attempt);
    let mut attempt = super::logs::admit(options.attempt, latest, id)?.unwrap_or(1);
    loop {
        sink.begin(attempt);
        let record = one_attempt(world, id, attempt, options, sink).await?;
        if options.attempt.is_some() || attempt >= latest.max(record.attempt) {
            return Ok(());
        }
        attempt += 1;
        world.report.line(&format!("-- attempt {attempt} of {id} --"));
    }
}

/// Writes all that an attempt's processes wrote, which is known when the attempt is over. Answers the record seen last.
async fn one_attempt(world: &World, id: &JobId, attempt: u32, options: &Options, sink: &mut dyn Sink) -> Result<Record> {
    let (of, mut cursor, mut lines) = (AttemptId::new(id, attempt), Cursor::new(), Lines::new(options.rank.is_none()));
    loop {
        // The record first: what is written between the two looks belongs to a reading that comes after.
        let record = journal::read(world.store.as_ref(), id).await?.0;
        let over = record.attempt > attempt || record.state == State::Finished;
        let outputs = match world.provider.output(&of, options.rank, &mut cursor).await {
            Err(error) if error.class == Class::Network && options.follow => {
                world.clock.sleep(EVERY).await;
                continue;
            }
            outputs => outputs?,
        };
        let is_all = outputs.is_empty();
        super::logs::give(lines.take(outputs), sink).await?;
        if is_all && (over || !options.follow) {
            super::logs::give(lines.finish(), sink).await?;
            return Ok(record);
        }
        if is_all {
            world.clock.sleep(EVERY).await;
        }
    }
}

/// Output in whole lines, of each process apart.
struct Lines {
    names_ranks: bool,
    /// The beginnings of lines.
    pending: BTreeMap<Option<u32>, String>,
}

impl Lines {
    fn new(names_ranks: bool) -> Self {
        Self { names_ranks, pending: BTreeMap::new() }
    }

    fn take(&mut self, outputs: Vec<Output>) -> Vec<u8> {
        let mut out = String::new();
        for Output { rank, text } in outputs {
            let mut all = self.pending.remove(&rank).unwrap_or_default() + &text;
            let rest = all.split_off(all.rfind('\n').map_or(0, |end| end + 1));
            all.split_inclusive('\n').for_each(|line| self.write(rank, line, &mut out));
            self.pending.insert(rank, rest);
        }
        out.into_bytes()
    }

    /// What has no end of a line.
    fn finish(&mut self) -> Vec<u8> {
        let mut out = String::new();
        for (rank, line) in std::mem::take(&mut self.pending).into_iter().filter(|(_, line)| !line.is_empty()) {
            self.write(rank, &(line + "\n"), &mut out);
        }
        out.into_bytes()
    }

    fn write(&self, rank: Option<u32>, line: &str, out: &mut String) {
        match rank {
            Some(rank) if self.names_ranks => out.extend(["[", &rank.to_string(), "] "]),
            Some(_) => {}
            None => out.push_str("[service] "),
        }
        out.push_str(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(lines: &mut Lines, outputs: &[(Option<u32>, &str)]) -> String {
        let outputs = outputs.iter().map(|(rank, text)| Output { rank: *rank, text: (*text).to_owned() });
        String::from_utf8(lines.take(outputs.collect())).unwrap()
    }

    #[test]
    fn lines_of_many_processes_stay_whole() {
        let mut lines = Lines::new(true);
        assert_eq!(taken(&mut lines, &[(Some(0), "one\ntw"), (Some(1), "eins\n")]), "[0] one\n[1] eins\n");
        assert_eq!(taken(&mut lines, &[(Some(0), "o\n"), (Some(1), "zwei"), (None, "pulled\n")]), "[0] two\n[service] pulled\n");
        assert_eq!(String::from_utf8(lines.finish()).unwrap(), "[1] zwei\n");
        assert_eq!(lines.finish(), b"");
    }

    #[test]
    fn lines_of_one_process_are_as_it_wrote_them() {
        assert_eq!(taken(&mut Lines::new(false), &[(Some(3), "a\nb\n"), (None, "why\n")]), "a\nb\n[service] why\n");
    }
}
