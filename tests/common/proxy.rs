//! A proxy that misbehaves: it cuts connections before and after a request was served, delays, answers 429 and 503 in the service's
//! place, truncates answers, flips bits, and delivers requests twice.

// Each test program uses its own part of this.
#![allow(dead_code)]

use std::{
    io::{self, BufRead, BufReader, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    CutBefore,
    /// The request was served, and its answer is lost.
    CutAfter,
    Truncate,
    Delay,
    Busy,
    TooMany,
    FlipRequest,
    FlipAnswer,
    Twice,
    /// One request of a batch is signed for another account.
    SpoilPart,
}

const FAULTS: [Fault; 10] = [
    Fault::CutBefore,
    Fault::CutAfter,
    Fault::Truncate,
    Fault::Delay,
    Fault::Busy,
    Fault::TooMany,
    Fault::FlipRequest,
    Fault::FlipAnswer,
    Fault::Twice,
    Fault::SpoilPart,
];

#[derive(Clone)]
pub struct Proxy {
    pub port: u16,
    faults: Arc<AtomicU64>,
    requests: Arc<AtomicU64>,
    /// Bytes of requests' bodies, also of those that broke off.
    sent: Arc<AtomicU64>,
    connections: Arc<AtomicU64>,
    small_pages: bool,
}

/// One request or one answer, as it was read.
pub struct Message {
    pub head: Vec<u8>,
    pub body: Vec<u8>,
}

impl Proxy {
    /// In front of `upstream`; about one request in `every` fares badly.
    pub fn start(upstream: u16, every: u64) -> Self {
        Self::new(upstream, every, false)
    }

    /// Nothing fares badly, but listings come in pages of two entries. Keys sign the size of pages, signatures do not.
    pub fn with_small_pages(upstream: u16) -> Self {
        Self::new(upstream, u64::MAX, true)
    }

    fn new(upstream: u16, every: u64, small_pages: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let (faults, requests, sent, connections) = Default::default();
        let proxy = Self { port, faults, requests, sent, connections, small_pages };
        let own = proxy.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let own = own.clone();
                own.connections.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || {
                    // A connection that ends in an error has ended.
                    let _ = own.serve(client, upstream, every);
                    own.connections.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        proxy
    }

    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Waits until every client has gone and what they asked for has been answered.
    pub fn wait_for_quiet(&self) {
        // Connections are taken in turn: when this one has been, all earlier ones are counted.
        let mut last = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        last.shutdown(Shutdown::Write).expect("it was open");
        last.read_to_end(&mut Vec::new()).expect("nothing");
        while self.connections.load(Ordering::SeqCst) > 0 {
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn serve(&self, client: TcpStream, upstream: u16, every: u64) -> io::Result<()> {
        let service = TcpStream::connect(("127.0.0.1", upstream))?;
        let (mut from_client, mut from_service) = (BufReader::new(client.try_clone()?), BufReader::new(service.try_clone()?));
        let (mut client, mut service) = (client, service);
        while let Some(mut request) = read_counted(&mut from_client, false, &self.sent)? {
            let number = draw(self.requests.fetch_add(1, Ordering::Relaxed) + 1);
            if self.small_pages {
                replace(&mut request.head, b"maxresults=5000", b"maxresults=0002");
            }
            let fault = number.is_multiple_of(every).then(|| FAULTS[(number / every) as usize % FAULTS.len()]);
            let fault =
                fault.filter(|fault| *fault != Fault::SpoilPart || replace(&mut request.body, b" SharedKey d", b" SharedKey e"));
            let is_head = request.head.starts_with(b"HEAD");
            if fault.is_some() {
                self.faults.fetch_add(1, Ordering::Relaxed);
            }
            match fault {
                Some(Fault::CutBefore) => return client.shutdown(Shutdown::Both),
                Some(Fault::Delay) => thread::sleep(Duration::from_millis(50)),
                Some(Fault::Busy) => {
                    client.write_all(b"HTTP/1.1 503 Busy\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n")?;
                    continue;
                }
                Some(Fault::TooMany) => {
                    client.write_all(b"HTTP/1.1 429 Slow down\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n")?;
                    continue;
                }
                Some(Fault::FlipRequest) if guarded(&request) => flip(&mut request, number),
                _ => {}
            }
            let mut last = None;
            for _ in 0..=u8::from(fault == Some(Fault::Twice)) {
                service.write_all(&request.head)?;
                service.write_all(&request.body)?;
                let Some(mut answer) = read(&mut from_service, is_head)? else { return Ok(()) };
                if fault == Some(Fault::CutAfter) {
                    return client.shutdown(Shutdown::Both);
                }
                if fault == Some(Fault::FlipAnswer) && guarded(&answer) {
                    flip(&mut answer, number);
                }
                if fault == Some(Fault::Truncate) {
                    client.write_all(&answer.head)?;
                    client.write_all(&answer.body[..answer.body.len() / 2])?;
                    return client.shutdown(Shutdown::Both);
                }
                last = Some(answer);
            }
            if let Some(answer) = last {
                client.write_all(&answer.head)?;
                client.write_all(&answer.body)?;
            }
        }
        Ok(())
    }
}

/// A fixed sequence without a pattern (splitmix64).
fn draw(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Damage elsewhere is for TLS to find.
fn guarded(message: &Message) -> bool {
    !message.body.is_empty() && String::from_utf8_lossy(&message.head).to_lowercase().contains("\r\ncontent-md5:")
}

fn flip(message: &mut Message, number: u64) {
    let at = (number >> 8) as usize % message.body.len();
    message.body[at] ^= 1 << (number % 8);
}

/// Whether there was one to replace: the first.
fn replace(bytes: &mut [u8], what: &[u8], by: &[u8]) -> bool {
    let found = bytes.windows(what.len()).position(|window| window == what);
    found.is_some_and(|at| {
        bytes[at..at + by.len()].copy_from_slice(by);
        true
    })
}

/// `None` when the other side has ended.
pub fn read(from: &mut impl BufRead, without_body: bool) -> io::Result<Option<Message>> {
    read_counted(from, without_body, &AtomicU64::default())
}

/// `bytes` counts those of the body, however it ends.
fn read_counted(from: &mut impl BufRead, without_body: bool, bytes: &AtomicU64) -> io::Result<Option<Message>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if from.read_until(b'\n', &mut head)? == 0 {
            return Ok(None);
        }
    }
    let text = String::from_utf8_lossy(&head).to_lowercase();
    let header = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned());
    let mut body = Vec::new();
    match header("content-length:").filter(|_| !without_body) {
        Some(length) => {
            let length = length.parse().unwrap_or_default();
            let read = from.by_ref().take(length).read_to_end(&mut body);
            bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
            if (read? as u64) < length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        None if header("transfer-encoding:").is_some() && !without_body => read_chunks(from, &mut body)?,
        None => {}
    }
    Ok(Some(Message { head, body }))
}

/// Chunks as they are: the bytes that were read are passed on.
fn read_chunks(from: &mut impl BufRead, body: &mut Vec<u8>) -> io::Result<()> {
    loop {
        let begin = body.len();
        from.read_until(b'\n', body)?;
        let size = String::from_utf8_lossy(&body[begin..]).trim().to_owned();
        let size = usize::from_str_radix(&size, 16).map_err(io::Error::other)?;
        let end = body.len() + size + 2;
        let begin = body.len();
        body.resize(end, 0);
        from.read_exact(&mut body[begin..])?;
        if size == 0 {
            return Ok(());
        }
    }
}
