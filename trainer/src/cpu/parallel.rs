//! Work in pieces on several threads, with results that do not depend on how many there are.
//!
//! The threads are the program's own and stay awake for a moment after each piece of work: a layer of a small model is a dozen
//! pieces of some ten microseconds, and waking a thread takes longer than that on a virtual machine.

use std::any::Any;
use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::iter;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long a thread looks for the end of its wait before it sleeps. On a machine whose processors have other work, too, this much
/// is lost.
const AWAKE: Duration = Duration::from_micros(50);

/// Calls `work(first, chunk)` on consecutive chunks of `chunk_size` elements, spread over as many threads as libtorch's
/// kernels use. `first` is the index of the chunk's first element.
pub(crate) fn for_each_chunk<T: Send>(values: &mut [T], chunk_size: usize, work: impl Fn(usize, &mut [T]) + Sync) {
    let chunks: Vec<_> = values.chunks_mut(chunk_size).enumerate().map(|(index, chunk)| (index * chunk_size, chunk)).collect();
    run(chunks, |(first, chunk)| work(first, chunk));
}

/// Threads of the CPU's kernels, libtorch's and this crate's.
pub(crate) fn threads() -> usize {
    usize::try_from(tch::get_num_threads()).unwrap_or(1).max(1)
}

/// Calls `work` on every item. A thread takes a run of them when it has none left, shorter ones towards the end: processors are not
/// equally fast where they have other work too, or are of two kinds.
pub(crate) fn run<I: Send>(items: Vec<I>, work: impl Fn(I) + Sync) {
    let threads = threads().min(items.len());
    if threads <= 1 {
        return items.into_iter().for_each(work);
    }
    let items = Mutex::new(items.into_iter());
    let take = || {
        let mut left = items.lock().unwrap_or_else(PoisonError::into_inner);
        let count = left.len().div_ceil(2 * threads);
        left.by_ref().take(count).collect::<Vec<_>>()
    };
    TEAM.run(threads, &|_| {
        for run in iter::repeat_with(take).take_while(|run| !run.is_empty()) {
            run.into_iter().for_each(&work);
        }
    });
}

static TEAM: Team = Team { helpers: Mutex::new(Vec::new()) };

/// The threads beside the one that has work.
struct Team {
    /// Held while a piece of work is under way: a caller with another one meanwhile does it alone.
    helpers: Mutex<Vec<Helper>>,
}

struct Helper {
    thread: Thread,
    desk: Arc<Desk>,
}

/// Where a helper finds its work. `given` and `done` count pieces; the work itself is the helper's while they differ, and the
/// giver's while they do not.
struct Desk {
    given: AtomicUsize,
    done: AtomicUsize,
    helper_sleeps: AtomicBool,
    giver_sleeps: AtomicBool,
    work: UnsafeCell<Option<Work>>,
}

// SAFETY: see `Desk` for whose `work` is when.
unsafe impl Sync for Desk {}
// SAFETY: as above.
unsafe impl Send for Desk {}

struct Work {
    /// Lives as long as it is not done: [`Team::run`] waits for that.
    call: &'static (dyn Fn(usize) + Sync),
    giver: Thread,
    /// The panic of the call.
    panic: Option<Box<dyn Any + Send>>,
}

impl Team {
    /// Calls `call(0)` here and `call(1)` to `call(count - 1)` in other threads. A panic in one of them comes back here.
    fn run(&self, count: usize, call: &(dyn Fn(usize) + Sync)) {
        let mut helpers = match self.helpers.try_lock() {
            Ok(helpers) => helpers,
            Err(TryLockError::Poisoned(helpers)) => helpers.into_inner(),
            Err(TryLockError::WouldBlock) => return (0..count).for_each(call),
        };
        while helpers.len() + 1 < count {
            let Ok(helper) = Helper::start(helpers.len() + 1) else { return (0..count).for_each(call) };
            helpers.push(helper);
        }
        // SAFETY: nothing of `call` is used after it was done, which is waited for below, whatever panics.
        let lasting = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(call) };
        let helpers = &helpers[..count - 1];
        for helper in helpers {
            helper.give(lasting);
        }
        let mine = catch_unwind(AssertUnwindSafe(|| call(0))).err();
        let theirs: Vec<_> = helpers.iter().filter_map(Helper::panic_of_done).collect();
        if let Some(panic) = mine.into_iter().chain(theirs).next() {
            resume_unwind(panic);
        }
    }
}

impl Helper {
    fn start(number: usize) -> std::io::Result<Self> {
        let desk = Arc::new(Desk {
            given: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            helper_sleeps: AtomicBool::new(false),
            giver_sleeps: AtomicBool::new(false),
            work: UnsafeCell::new(None),
        });
        let theirs = Arc::clone(&desk);
        let handle = thread::Builder::new().name(format!("kernels-{number}")).spawn(move || theirs.serve(number))?;
        Ok(Self { thread: handle.thread().clone(), desk })
    }

    fn give(&self, call: &'static (dyn Fn(usize) + Sync)) {
        // SAFETY: the work given before is done, so this is the giver's.
        unsafe { *self.desk.work.get() = Some(Work { call, giver: thread::current(), panic: None }) };
        self.desk.given.fetch_add(1, Ordering::SeqCst);
        if self.desk.helper_sleeps.load(Ordering::SeqCst) {
            self.thread.unpark();
        }
    }

    /// Waits until what was given is done.
    fn panic_of_done(&self) -> Option<Box<dyn Any + Send>> {
        let desk = &self.desk;
        await_that(|| desk.done.load(Ordering::SeqCst) == desk.given.load(Ordering::SeqCst), &desk.giver_sleeps);
        // SAFETY: all is done, so this is the giver's.
        unsafe { (*desk.work.get()).take() }.and_then(|work| work.panic)
    }
}

impl Desk {
    fn serve(&self, number: usize) {
        for done in 0.. {
            await_that(|| self.given.load(Ordering::SeqCst) != done, &self.helper_sleeps);
            // SAFETY: more is given than done, so this is the helper's.
            let Some(work) = (unsafe { &mut *self.work.get() }) else { return };
            work.panic = catch_unwind(AssertUnwindSafe(|| (work.call)(number))).err();
            let giver = work.giver.clone();
            self.done.fetch_add(1, Ordering::SeqCst);
            if self.giver_sleeps.load(Ordering::SeqCst) {
                giver.unpark();
            }
        }
    }
}

/// Returns when `happened`, which another thread makes true before it looks at `asleep` and wakes a sleeper.
fn await_that(happened: impl Fn() -> bool, asleep: &AtomicBool) {
    let begun = Instant::now();
    while begun.elapsed() < AWAKE {
        for _ in 0..16 {
            if happened() {
                return;
            }
            spin_loop();
        }
    }
    asleep.store(true, Ordering::SeqCst);
    while !happened() {
        thread::park();
    }
    asleep.store(false, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From several threads at once, which then have no helpers, and with pauses in which helpers fall asleep.
    #[test]
    fn every_share_is_done_once() {
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for round in 0..200 {
                        let done: Vec<_> = (0..round % 5).map(|_| AtomicUsize::new(0)).collect();
                        TEAM.run(done.len().max(1), &|number| {
                            done.get(number).map(|done| done.fetch_add(1, Ordering::SeqCst));
                        });
                        assert!(done.iter().all(|done| done.load(Ordering::SeqCst) == 1), "round {round}");
                        if round % 20 == 0 {
                            thread::sleep(4 * AWAKE);
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn items_are_split_in_their_order() {
        let mut numbers = [0; 1000];
        for_each_chunk(&mut numbers, 3, |first, chunk| chunk.iter_mut().zip(first..).for_each(|(number, place)| *number = place));
        assert!(numbers.iter().enumerate().all(|(place, number)| *number == place));
    }

    #[test]
    fn a_panic_comes_back_and_helpers_go_on() {
        for number in [0, 2] {
            let panic = catch_unwind(|| TEAM.run(3, &|share| assert_ne!(share, number, "share {number}"))).unwrap_err();
            assert!(panic.downcast_ref::<String>().unwrap().contains(&format!("share {number}")));
        }
        let done = AtomicUsize::new(0);
        TEAM.run(3, &|_| {
            done.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(done.into_inner(), 3);
    }
}
