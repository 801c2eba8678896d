//! The cloud's word that it takes this machine away, which may be withdrawn. Where a host hands the word in, as on Compute Engine,
//! it is SIGTERM; else the cloud's own folder here asks for it.

use std::{
    convert::Infallible,
    fs::OpenOptions,
    io::{self, Write as _},
};

use jiff::Timestamp;

use super::{Agent, local_failure};

/// That this machine is to be taken away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    pub event: String,
    /// Not before this moment; absent once it has begun.
    pub at: Option<Timestamp>,
}

impl Agent<'_> {
    /// A notice that may be withdrawn ends nothing: the trainer writes a checkpoint and goes on, until the machine is no more. An
    /// agent that ended by itself would be a job that is done, or has failed, for the service that runs it.
    pub(super) async fn heed(&self) -> Infallible {
        match &self.notices {
            Some(source) => source.listen(self.report, |notice| self.take_note(notice)).await,
            None => std::future::pending().await,
        }
    }

    fn take_note(&self, notice: Option<&Notice>) {
        let text = notice.map(|notice| {
            let when = notice.at.map_or_else(|| "now".to_owned(), |at| format!("at {at}"));
            format!("will be preempted {when}, unless the cloud withdraws the notice")
        });
        self.tell(&match &text {
            Some(text) => format!("this machine {text}; a checkpoint is saved now, and the training goes on"),
            None => "the cloud has withdrawn the notice: this machine stays".to_owned(),
        });
        self.notice.send_replace(text);
    }

    /// Writes one line to the agent's own output, and to the log of its first rank: on node 0 the job's.
    pub(super) fn tell(&self, text: &str) {
        self.report.line(text);
        let log = self.folder.log_of(self.order.ranks(self.seat.node()).start);
        let log = OpenOptions::new().append(true).open(log);
        if let Err(error) = log.and_then(|mut log| log.write_all(format!("ftctl: {text}\n").as_bytes()))
            && error.kind() != io::ErrorKind::NotFound
        {
            self.report.warn(&local_failure(&self.folder, error).to_string());
        }
    }
}
