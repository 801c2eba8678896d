//! A blob service that reads and forgets: what is measured against it is the client. `sink PORT [MILLISECONDS]` serves on loopback
//! and waits so long before each answer.

use std::{
    collections::HashMap,
    env,
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

/// Sizes of what was written, for clients that look.
type Sizes = Arc<Mutex<HashMap<String, u64>>>;

fn main() {
    let number = |index, default| env::args().nth(index).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (port, latency) = (number(1, 0), Duration::from_millis(u64::from(number(2, 0))));
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
    println!("listening on {}", listener.local_addr().expect("an address").port());
    let sizes = Sizes::default();
    for client in listener.incoming().flatten() {
        let sizes = Arc::clone(&sizes);
        thread::spawn(move || drop(serve(&client, latency, &sizes)));
    }
}

fn serve(client: &TcpStream, latency: Duration, sizes: &Sizes) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut from = BufReader::with_capacity(256 << 10, client.try_clone()?);
    let mut to = client;
    while let Some((line, length)) = head(&mut from)? {
        let read = io::copy(&mut from.by_ref().take(length), &mut io::sink())?;
        thread::sleep(latency);
        to.write_all(answer(&line, read, sizes).as_bytes())?;
    }
    Ok(())
}

/// The request line and the length of the body.
fn head(from: &mut impl BufRead) -> io::Result<Option<(String, u64)>> {
    let (mut first, mut length) = (String::new(), 0);
    if from.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    loop {
        let mut line = String::new();
        from.read_line(&mut line)?;
        if line.trim().is_empty() {
            return Ok(Some((first, length)));
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or_default();
        }
    }
}

const DATES: &str =
    "etag: \"0x1\"\r\nlast-modified: Fri, 20 Nov 2026 00:00:00 GMT\r\nx-ms-request-id: 1\r\nx-ms-version: 2023-11-03\r\n";

fn answer(line: &str, read: u64, sizes: &Sizes) -> String {
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut sizes = sizes.lock().unwrap_or_else(PoisonError::into_inner);
    let known = sizes.get(path).copied();
    match (method, known) {
        ("PUT", _) => {
            // The list of the blocks is no part of the blob.
            let grown = if query.contains("comp=blocklist") { 0 } else { read };
            *sizes.entry(path.to_owned()).or_default() += grown;
            format!("HTTP/1.1 201 Created\r\n{DATES}content-length: 0\r\n\r\n")
        }
        ("GET", _) if query.contains("comp=list") && query.contains("restype=container") => {
            let body = "<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults><Blobs /><NextMarker /></EnumerationResults>";
            format!("HTTP/1.1 200 OK\r\n{DATES}content-type: application/xml\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        }
        ("GET" | "HEAD", _) if query.contains("restype=container") => {
            format!("HTTP/1.1 200 OK\r\n{DATES}content-length: 0\r\n\r\n")
        }
        ("HEAD", Some(size)) => format!("HTTP/1.1 200 OK\r\n{DATES}x-ms-blob-type: BlockBlob\r\ncontent-length: {size}\r\n\r\n"),
        _ => format!("HTTP/1.1 404 Not Found\r\n{DATES}x-ms-error-code: BlobNotFound\r\ncontent-length: 0\r\n\r\n"),
    }
}
