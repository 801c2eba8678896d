//! Lines and bars on their way to stderr. A supervisor waits for no reader: not for a pager that stands still or a terminal that
//! Ctrl-S stopped, and not for one that is gone.

use std::{
    collections::HashMap,
    io::{self, Write as _},
    mem,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, Receiver, SyncSender, TrySendError},
    },
    thread,
};

use indicatif::MultiProgress;

use super::bars::{Bars, Reached};

/// Most lines that wait for their reader; further ones are left out, and that is said.
const MOST: usize = 1 << 16;

enum Message {
    Line(String),
    /// There is news of the bars.
    Look,
    /// Work that still goes on when the program ends has no bar any more.
    ClearBars,
    /// Answered when everything before it is written.
    Settle(SyncSender<()>),
}

/// How far each piece of work is that moved since its bar was drawn: the newest word counts, so that waiting news stay few.
#[derive(Clone, Default)]
struct News(Arc<Mutex<HashMap<String, Reached>>>);

impl News {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Reached>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Stderr {
    /// Where bars are; `None`: there are none.
    screen: Option<MultiProgress>,
    /// To the thread that writes, which the first line starts; `None` where the system has no thread to spare.
    writer: OnceLock<Option<SyncSender<Message>>>,
    news: News,
    left_out: AtomicUsize,
}

impl Stderr {
    pub fn new(bars: bool) -> Self {
        Self {
            screen: bars.then(MultiProgress::new),
            writer: OnceLock::new(),
            news: News::default(),
            left_out: AtomicUsize::new(0),
        }
    }

    fn writer(&self) -> Option<&SyncSender<Message>> {
        self.writer.get_or_init(|| start(self.screen.clone().map(Bars::new), self.news.clone())).as_ref()
    }

    pub fn line(&self, text: String) {
        match self.writer() {
            Some(writer) => {
                if let Err(TrySendError::Full(_)) = writer.try_send(Message::Line(text)) {
                    self.left_out.fetch_add(1, Ordering::Relaxed);
                }
            }
            None => write(&text),
        }
    }

    /// Moves the bar of `what`, where there are bars.
    pub fn progress(&self, what: &str, reached: Reached) {
        let Some((_, writer)) = self.screen.as_ref().zip(self.writer()) else { return };
        let mut news = self.news.lock();
        let is_first = news.is_empty();
        news.insert(what.to_owned(), reached);
        drop(news);
        if is_first {
            // Whatever else waits is followed by a look, too.
            let _ = writer.try_send(Message::Look);
        }
    }

    pub fn clear_bars(&self) {
        if let Some(Some(writer)) = self.writer.get() {
            let _ = writer.send(Message::ClearBars);
        }
    }

    /// Returns when every line is written: before something else is, and before the program ends.
    pub fn settle(&self) {
        let Some(Some(writer)) = self.writer.get() else { return };
        let left_out = self.left_out.swap(0, Ordering::Relaxed);
        let said = format!("({left_out} lines were left out here: stderr was read too slowly; `ftctl logs` has a job's whole log)");
        let (done, written) = mpsc::sync_channel(1);
        let messages = (left_out > 0).then_some(Message::Line(said)).into_iter().chain([Message::Settle(done)]);
        if messages.into_iter().all(|message| writer.send(message).is_ok()) {
            let _ = written.recv();
        }
    }

    /// Runs `print` after everything that was said, while no bar is on the screen.
    pub fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.settle();
        match &self.screen {
            Some(screen) => screen.suspend(print),
            None => print(),
        }
    }
}

fn start(bars: Option<Bars>, news: News) -> Option<SyncSender<Message>> {
    let (sender, messages) = mpsc::sync_channel(MOST);
    thread::Builder::new().name("stderr".to_owned()).spawn(move || write_all(&messages, bars, &news)).ok().map(|_| sender)
}

fn write_all(messages: &Receiver<Message>, mut bars: Option<Bars>, news: &News) {
    for message in messages {
        match message {
            Message::Line(text) => match &bars {
                Some(bars) => bars.suspend(|| write(&text)),
                None => write(&text),
            },
            Message::Look => {}
            Message::ClearBars => bars.iter_mut().for_each(Bars::clear),
            Message::Settle(done) => drop(done.send(())),
        }
        if let Some(bars) = &mut bars {
            let moved = mem::take(&mut *news.lock());
            for (what, reached) in moved {
                bars.draw(what, reached);
            }
        }
    }
}

/// A reader that has gone misses what it did not want.
fn write(text: &str) {
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}
