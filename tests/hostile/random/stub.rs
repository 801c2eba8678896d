//! A server that listens for secrets: every name that a hostile store gives may lead to it, and every proxy does.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// In every secret of the scene: the environment's, the home's, a file's.
pub const SECRET: &str = "CANARYSECRET";

pub struct Stub {
    pub port: u16,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Stub {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&heard);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let kept = Arc::clone(&kept);
                thread::spawn(move || answer(stream, &kept));
            }
        });
        Self { port, heard }
    }

    /// The text of a request with a secret, or with proof of one, since the last time.
    pub fn secret(&self) -> Option<String> {
        let heard = String::from_utf8_lossy(&std::mem::take(&mut *self.heard.lock().expect("heard"))).into_owned();
        let low = heard.to_lowercase();
        ["authorization:", "sig=", &SECRET.to_lowercase()].iter().any(|sign| low.contains(sign)).then_some(heard)
    }
}

/// Refuses: a refused request is not tried again.
fn answer(mut stream: TcpStream, heard: &Mutex<Vec<u8>>) {
    let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
    let mut buffer = [0; 16 << 10];
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        heard.lock().expect("heard").extend(&buffer[..read]);
        if buffer[..read].windows(4).any(|end| end == b"\r\n\r\n") {
            break;
        }
    }
    let _ = stream.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
}
