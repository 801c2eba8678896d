//! Lines on their way to stderr. Whoever supervises a job waits for no reader: not for a pager that stands still, and not for one that is gone.

use std::{
    io::{self, Write as _},
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, SyncSender, TrySendError},
    },
    thread,
};

/// Lines that wait for their reader at most; what comes on top is left out, and that is said.
const MOST: usize = 1 << 16;

enum Message {
    Line(String),
    /// Answered when everything before it is written.
    Settle(SyncSender<()>),
}

#[derive(Default)]
pub(super) struct Stderr {
    /// To the thread that writes, which the first line starts; `None` where the system has no thread to spare.
    writer: OnceLock<Option<SyncSender<Message>>>,
    left_out: AtomicUsize,
}

impl Stderr {
    pub fn line(&self, text: String) {
        match self.writer.get_or_init(start) {
            Some(writer) => {
                if let Err(TrySendError::Full(_)) = writer.try_send(Message::Line(text)) {
                    self.left_out.fetch_add(1, Ordering::Relaxed);
                }
            }
            None => write(&text),
        }
    }

    /// Returns when every line is written: before something else is, and before the program ends.
    pub fn settle(&self) {
        let Some(Some(writer)) = self.writer.get() else { return };
        let left_out = self.left_out.swap(0, Ordering::Relaxed);
        let said = format!("({left_out} lines were left out here: nobody read them; `ftctl logs` has what a job wrote)");
        let (done, written) = mpsc::sync_channel(1);
        let messages = (left_out > 0).then_some(Message::Line(said)).into_iter().chain([Message::Settle(done)]);
        if messages.into_iter().all(|message| writer.send(message).is_ok()) {
            let _ = written.recv();
        }
    }
}

fn start() -> Option<SyncSender<Message>> {
    let (sender, messages) = mpsc::sync_channel(MOST);
    let work = move || {
        for message in messages {
            match message {
                Message::Line(text) => write(&text),
                Message::Settle(done) => drop(done.send(())),
            }
        }
    };
    thread::Builder::new().name("stderr".to_owned()).spawn(work).ok().map(|_| sender)
}

/// A reader that has gone misses what it did not want.
pub(super) fn write(text: &str) {
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}
