//! Processes that meet by libtorch's c10d: a store at one of them, where they find each other and tell each other why they end, and
//! Gloo for everything else.
//!
//! A process that computes comes to no exchange for as long as that takes, so an exchange waits for an hour. Signs of life end
//! sooner: a thread of each process gives one each second, and all end when one of them has been silent for a minute, or, within a
//! second, when it has said why it fails. They end at once, wherever they are: a run may be killed at any instant.

use std::io::{Error, ErrorKind};
use std::mem::ManuallyDrop;
use std::net::{IpAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{BorrowedFd, FromRawFd as _, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, park_timeout, sleep};
use std::time::{Duration, Instant};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

use super::addresses::{check_addresses, own_address};
use super::environment::Place;
use super::{Link, World};
use crate::aten::c10d::{Gloo, Store};
use crate::error::{Failure, STOPPED};

/// How long processes wait until all have come.
pub(super) const PATIENCE: Duration = Duration::from_mins(1);
/// Between two signs of life.
pub(super) const BEAT: Duration = Duration::from_secs(1);
/// Looks, for each of them, whether another has said why it fails.
const LOOKS_PER_BEAT: u32 = 4;
/// Signs of life of this process in which another has given none.
const SILENCE: u64 = PATIENCE.as_secs() / BEAT.as_secs();
/// How long one waits for others that live: longer than what one does alone, as a sample of the largest model on a processor.
/// A process that hangs, on a GPU or a file system that does not answer, gives signs of life for ever, and its machine is billed.
pub(super) const LONGEST: Duration = Duration::from_hours(1);
/// Signs of life in which a process that has ended gives none.
const FEW: u32 = 3;
/// The key in the store that says why the processes end.
const END: &str = "end";

/// This process, among others.
#[derive(Debug)]
struct Processes {
    place: Place,
    store: Store,
    /// It no longer cares for the others: it is through, or has failed.
    is_apart: AtomicBool,
    beats: Mutex<Option<JoinHandle<()>>>,
}

/// One way to the others.
#[derive(Debug)]
struct Line {
    processes: Arc<Processes>,
    gloo: Gloo,
}

/// News that a process learns from the store.
enum News {
    /// How many signs of life each rank has given.
    Beats(Vec<i64>),
    /// Why all end.
    End(String),
}

impl World {
    /// The process that the environment describes, after it has met the others: fails when one of them has not come in a minute.
    pub fn from_environment() -> Result<Self, Failure> {
        Place::read(|name| std::env::var(name).ok())?.map_or_else(|| Ok(Self::alone()), Self::meet)
    }

    fn meet(place: Place) -> Result<Self, Failure> {
        let (rank, size, beside, local) = (place.rank, place.size, place.beside, place.local);
        let node = place.node.filter(|_| place.is_sent);
        let (processes, own) = Processes::enter(place)?;
        let processes = Arc::new(processes);
        // From here on each hears of the failure of another, also while it waits for a third.
        processes.watch()?;
        let gloos = processes.connect(own).map_err(|failure| processes.failed(failure))?;
        let over = |gloo| -> Arc<dyn Link> { Arc::new(Line { processes: Arc::clone(&processes), gloo }) };
        let [link, aside @ ..] = gloos.map(|gloo| Some(over(gloo)));
        Ok(Self { rank, size, beside, local, node, link, aside })
    }
}

impl Processes {
    /// Opens the store, where there is one such rank; the address by which the others reach this process.
    fn enter(place: Place) -> Result<(Self, IpAddr), Failure> {
        let Place { rank, host, port, .. } = &place;
        let listener = place.serves.then(|| place.listen()).transpose()?;
        if !place.serves {
            await_host(host, *port).map_err(|error| Failure::other(place.unmet(&error.to_string())))?;
        }
        let store = open(&place, listener, "")?;
        let own = own_address(host, *port)?;
        let twice = || Failure::input(format!("two processes have RANK = {rank}, or another run meets at {host}:{port}"));
        if store.add(&format!("rank/{rank}"), 1).map_err(|error| Failure::Lost(place.unmet(&error)))? > 1 {
            return Err(twice());
        }
        Ok((Self { place, store, is_apart: AtomicBool::new(false), beats: Mutex::new(None) }, own))
    }

    /// The ways to the others, when all have come.
    fn connect(&self, own: IpAddr) -> Result<[Gloo; 4], Failure> {
        let Place { rank, size, host, port, .. } = &self.place;
        let own = own.to_string();
        self.store.claim(&format!("address/{rank}"), &own).map_err(|error| Failure::Lost(self.place.unmet(&error)))?;
        let their = |rank| {
            // It may have been killed on its way, as one may whose connection breaks: the run goes on another time.
            let absent = |_| Failure::Lost(format!("{} has not come to {host}:{port} within a minute", self.place.name_of(rank)));
            self.store.get(&format!("address/{rank}")).map_err(absent)
        };
        check_addresses(&(0..*size).map(their).collect::<Result<Vec<_>, _>>()?)?;
        let connect = |store: &Store| {
            let opened = Gloo::open(store, &own, (*rank, *size), [PATIENCE, LONGEST]);
            opened.map_err(|error| self.unconnected(first_line(&error)))
        };
        let aside = |name| connect(&open(&self.place, None, name)?);
        Ok([connect(&self.store)?, aside("/tensors")?, aside("/between")?, aside("/checkpoints")?])
    }

    /// Where all live that have come, nothing but the network is between them: another attempt would fare no better.
    fn unconnected(&self, error: &str) -> Failure {
        let beats = || (0..self.place.size).map(|rank| self.store.add(&format!("beats/{rank}"), 0)).collect::<Result<Vec<_>, _>>();
        let before = beats();
        sleep(FEW * BEAT);
        match (before, beats()) {
            (Ok(before), Ok(after)) if all_live(&before, &after) => Failure::other(format!(
                "cannot connect with the other processes, all of which live: {error}; let each machine reach the others at every port"
            )),
            _ => Failure::Lost(format!("cannot connect with the other processes: {error}")),
        }
    }

    /// Gives signs of life, and ends the process when another has ended or is silent.
    fn watch(self: &Arc<Self>) -> Result<(), Failure> {
        let (beats, (tell, told)) = (open(&self.place, None, "")?, mpsc::channel());
        let processes = Arc::clone(self);
        let beating = thread::spawn(move || {
            for look in 0_u32.. {
                if processes.is_apart.load(Ordering::SeqCst) {
                    return;
                }
                let news = processes.look(&beats, look.is_multiple_of(LOOKS_PER_BEAT));
                let is_last = news.is_err();
                if news.transpose().is_some_and(|news| tell.send(news).is_err()) || is_last {
                    return;
                }
                park_timeout(BEAT / LOOKS_PER_BEAT);
            }
        });
        *self.beats.lock().unwrap_or_else(PoisonError::into_inner) = Some(beating);
        let processes = Arc::clone(self);
        thread::spawn(move || {
            if let Some(why) = processes.await_end(&told) {
                processes.end(&why);
            }
        });
        Ok(())
    }

    fn look(&self, store: &Store, is_time_to_beat: bool) -> Result<Option<News>, String> {
        if store.has(END)? {
            return store.get(END).map(|why| Some(News::End(why)));
        }
        let count = |rank| store.add(&format!("beats/{rank}"), i64::from(rank == self.place.rank));
        let beat = || (0..self.place.size).map(count).collect::<Result<_, _>>().map(News::Beats);
        is_time_to_beat.then(beat).transpose()
    }

    /// Why all end; none when this process is through.
    fn await_end(&self, told: &Receiver<Result<News, String>>) -> Option<String> {
        let mut heard = vec![(0, 0); self.place.size];
        loop {
            match next(told, BEAT) {
                Ok(Ok(News::Beats(beats))) => {
                    for ((last, silent), beats) in heard.iter_mut().zip(beats) {
                        (*last, *silent) = (beats, if *last == beats { *silent + 1 } else { 0 });
                    }
                    let silent = heard.iter().position(|(_, silent)| *silent > SILENCE);
                    if let Some(rank) = silent {
                        return Some(self.first_cause(format!("{} has been silent for a minute", self.place.name_of(rank))));
                    }
                }
                Ok(Ok(News::End(why))) => return Some(why),
                Ok(Err(_)) => {
                    // The one with the store may be gone because all are through, which this one is about to see.
                    sleep(2 * BEAT);
                    return Some("lost the process that the others meet at, rank 0".to_owned());
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Some("the process that the others meet at has been silent for a minute".to_owned());
                }
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// Tells the others why they end, unless one of them was first: what all end of.
    fn first_cause(&self, why: String) -> String {
        self.store.claim(END, &why).unwrap_or(why)
    }

    /// Ends the process, unless it is through or tells of a failure of its own.
    fn end(&self, why: &str) {
        if !self.is_apart.swap(true, Ordering::SeqCst) {
            eprintln!("error: {why}");
            self.let_others_hear();
            // SAFETY: ends the process without destructors, which other threads would not survive.
            unsafe { libc::_exit(STOPPED.into()) };
        }
    }

    /// They hear why all end from the store, which goes with the process that has it.
    fn let_others_hear(&self) {
        if self.place.serves {
            sleep(BEAT);
        }
    }

    /// Gives no more signs of life, and minds none.
    fn part(&self) {
        let beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(beats) = beats {
            beats.thread().unpark();
            let _ = beats.join();
        }
    }
}

impl Link for Line {
    fn exchange(&self, sent: &[(usize, &[u8])], arrived: &mut [(usize, &mut [u8])]) -> Result<(), Failure> {
        self.gloo.exchange(sent, arrived).map_err(|error| self.lost(&error))
    }

    fn sum(&self, numbers: &mut [f32]) -> Result<(), Failure> {
        self.gloo.sum(numbers).map_err(|error| self.lost(&error))
    }

    /// The others hear of it at once, and not when this process has waited for its other threads: those may wait for another
    /// process, which waits for its own in the same way.
    fn lost(&self, error: &str) -> Failure {
        let why = format!("{} has lost another process: {}", self.processes.place.name(), first_line(error));
        Failure::Lost(self.processes.first_cause(why))
    }

    fn failed(&self, failure: Failure) -> Failure {
        self.processes.failed(failure)
    }

    fn end(&self, why: &str) {
        self.processes.end(&self.processes.first_cause(why.to_owned()));
    }

    fn through(&self) {
        self.processes.is_apart.store(true, Ordering::SeqCst);
        self.processes.part();
    }
}

impl Processes {
    fn failed(&self, failure: Failure) -> Failure {
        if self.is_apart.swap(true, Ordering::SeqCst) {
            // The process ends for another reason.
            sleep(PATIENCE);
        }
        let failure = match failure {
            Failure::Lost(why) => Failure::Lost(self.first_cause(why)),
            failure => {
                self.first_cause(format!("{} failed: {failure}", self.place.name()));
                failure
            }
        };
        self.let_others_hear();
        failure
    }
}

impl Place {
    fn name(&self) -> String {
        self.name_of(self.rank)
    }

    /// Nodes have as many each.
    fn name_of(&self, rank: usize) -> String {
        let node = self.node.map_or(String::new(), |_| format!(" on node {}", rank / self.beside));
        format!("rank {rank}{node}")
    }

    fn listen(&self) -> Result<TcpListener, Failure> {
        let Self { host, port, .. } = self;
        let failed = |error: Error| Failure::input(format!("cannot listen at {host}:{port}: {error}; {}", advice(&error)));
        let left = |socket: u16| {
            inherited(socket.into(), *port).map_err(|error| {
                Failure::input(format!("FTCTL_LISTENER = {socket} is no socket that listens at port {port}: {error}; unset it"))
            })
        };
        self.listener.map_or_else(|| TcpListener::bind((host.as_str(), *port)).map_err(failed), left)
    }

    fn unmet(&self, error: &str) -> String {
        let Self { host, port, .. } = self;
        let advice = "start all processes within a minute, and set MASTER_ADDR to an address that all reach";
        format!("cannot meet the other processes at {host}:{port}: {}; {advice}", first_line(error))
    }
}

/// The next news. The waits for it are counted, of which one is longer where this process is stopped for a while, and the others
/// with it.
fn next<T>(told: &Receiver<T>, wait: Duration) -> Result<T, RecvTimeoutError> {
    let mut waits = (0..SILENCE).map(|_| told.recv_timeout(wait));
    waits.find(|heard| !matches!(heard, Err(RecvTimeoutError::Timeout))).unwrap_or(Err(RecvTimeoutError::Timeout))
}

/// When rank 0 cannot listen.
fn advice(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::AddrInUse | ErrorKind::PermissionDenied => "choose another MASTER_PORT",
        _ => "set MASTER_ADDR to an address of the machine of rank 0",
    }
}

/// `name`: of the keys that its own are apart from.
fn open(place: &Place, listener: Option<TcpListener>, name: &str) -> Result<Store, Failure> {
    let prefix = format!("{}{name}", place.prefix);
    Store::open((&place.host, place.port), listener, &prefix, PATIENCE).map_err(|error| Failure::Lost(place.unmet(&error)))
}

/// The socket of this number, of which nothing else in this process knows.
fn inherited(number: RawFd, port: u16) -> Result<TcpListener, Error> {
    // SAFETY: the number is used before anything else could be opened under it, and only asked about.
    fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) })?;
    // SAFETY: the call above says that it is open. It belongs to this process alone, which closes it.
    let listener = ManuallyDrop::new(unsafe { TcpListener::from_raw_fd(number) });
    if listener.local_addr()?.port() != port {
        return Err(Error::from(ErrorKind::AddrNotAvailable));
    }
    fcntl_setfd(&*listener, FdFlags::CLOEXEC)?;
    Ok(ManuallyDrop::into_inner(listener))
}

/// Waits until a process listens there. (The store's own attempts would last longer than they may.)
fn await_host(host: &str, port: u16) -> Result<(), Error> {
    let begun = Instant::now();
    // Where packets are dropped, the system tries for two minutes.
    let connect = || {
        let mut tried = Error::other("it has no address");
        for address in (host, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, PATIENCE.saturating_sub(begun.elapsed()).max(BEAT)) {
                Ok(_) => return Ok(()),
                Err(error) => tried = error,
            }
        }
        Err(tried)
    };
    loop {
        match connect() {
            Err(error) if begun.elapsed() > PATIENCE => return Err(error),
            Err(_) => sleep(BEAT / 10),
            Ok(()) => return Ok(()),
        }
    }
}

/// Whether each process has given another sign of life meanwhile.
fn all_live(before: &[i64], after: &[i64]) -> bool {
    before.iter().zip(after).all(|(before, after)| before < after)
}

fn first_line(error: &str) -> &str {
    error.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd as _, IntoRawFd as _};

    use super::*;

    #[test]
    fn only_a_socket_of_that_port_is_taken_over() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (file, number) = (std::fs::File::open("/dev/null").unwrap(), listener.into_raw_fd());
        assert!(inherited(file.as_raw_fd(), port).is_err() && inherited(1 << 20, port).is_err());
        assert_eq!(inherited(number, port ^ 1).unwrap_err().kind(), ErrorKind::AddrNotAvailable);
        assert_eq!(inherited(number, port).unwrap().local_addr().unwrap().port(), port);
    }

    #[test]
    fn the_variable_that_is_wrong_is_named() {
        let refused = |host: &str, port: u16| advice(&TcpListener::bind((host, port)).unwrap_err());
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(refused("127.0.0.1", taken.local_addr().unwrap().port()).ends_with("MASTER_PORT"));
        assert!(refused("192.0.2.1", 0).starts_with("set MASTER_ADDR"), "no machine has this address");
        assert!(refused("no such host", 0).starts_with("set MASTER_ADDR"));
    }

    #[test]
    fn news_are_awaited_often_and_not_long() {
        let (tell, told) = mpsc::channel();
        let wait = Duration::from_millis(5);
        let begun = Instant::now();
        assert_eq!(next(&told, wait), Err(RecvTimeoutError::Timeout));
        assert!(begun.elapsed() >= Duration::from_millis(5 * SILENCE), "{:?}", begun.elapsed());
        let telling = thread::spawn(move || {
            sleep(10 * wait);
            tell.send(7).unwrap();
        });
        assert_eq!(next(&told, wait), Ok(7));
        telling.join().unwrap();
        assert_eq!(next(&told, wait), Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn one_without_another_sign_of_life_is_taken_for_dead() {
        assert!(all_live(&[1, 2], &[2, 5]));
        assert!(!all_live(&[1, 2], &[2, 2]));
    }
}
