//! The part of an HTTP/1.1 server that a simulated cloud on loopback needs.

use std::{collections::BTreeMap, future::Future, io, sync::Arc};

use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

/// A startup script travels in a request; nothing that is sent here is larger.
const LARGEST_BODY: usize = 16 << 20;
const LARGEST_HEAD: u64 = 64 << 10;

#[derive(Debug, Default)]
pub struct Request {
    pub method: String,
    pub url: Option<reqwest::Url>,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn path(&self) -> &str {
        self.url.as_ref().map_or("", reqwest::Url::path)
    }

    pub fn query(&self, name: &str) -> Option<String> {
        self.url.as_ref()?.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
    }

    pub fn queries(&self) -> BTreeMap<String, String> {
        let pairs = self.url.iter().flat_map(reqwest::Url::query_pairs);
        pairs.map(|(name, value)| (name.into_owned(), value.into_owned())).collect()
    }

    /// Takes the secret from the start of the path, if it is there.
    pub fn enter(&mut self, secret: &str) -> bool {
        let below = self.path().strip_prefix('/').and_then(|path| path.strip_prefix(secret)).map(str::to_owned);
        let Some((url, below)) = self.url.as_mut().zip(below) else { return false };
        url.set_path(&below);
        true
    }
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn new(status: u16, kind: &str, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: vec![("content-type", kind.to_owned())], body: body.into() }
    }

    pub fn json(status: u16, body: &serde_json::Value) -> Self {
        Self::new(status, "application/json", body.to_string())
    }
}

/// Answers every connection until the task ends. `None` closes the connection without an answer. A request for another host than
/// this computer is refused: a page in a browser can have its own name lead here, and no more than that would make it a client.
pub async fn serve<H, F>(listener: TcpListener, handle: H)
where
    H: Fn(Request) -> F + Send + Sync + 'static,
    F: Future<Output = Option<Reply>> + Send,
{
    serve_over(None, listener, handle).await;
}

/// [`serve`], over TLS where that is given.
pub async fn serve_over<H, F>(tls: Option<TlsAcceptor>, listener: TcpListener, handle: H)
where
    H: Fn(Request) -> F + Send + Sync + 'static,
    F: Future<Output = Option<Reply>> + Send,
{
    let handle = Arc::new(handle);
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (tls, handle) = (tls.clone(), handle.clone());
        tokio::spawn(async move {
            // A client that goes away is its own affair.
            let _ = match tls {
                None => converse(stream, &*handle).await,
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => converse(stream, &*handle).await,
                    Err(error) => Err(error),
                },
            };
        });
    }
}

/// Whether the request is for this computer. The port may be that of a forwarder.
fn is_here(request: &Request) -> bool {
    let Some(host) = request.header("host") else { return false };
    let port = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
    ["127.0.0.1", "localhost", "[::1]"].contains(&port.map_or(host, |(name, _)| name))
}

async fn converse<F: Future<Output = Option<Reply>>>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    handle: &impl Fn(Request) -> F,
) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read(&mut stream).await? {
        let elsewhere = || Reply::new(403, "text/plain", "This service is for programs of this computer: ask 127.0.0.1.");
        let reply = if is_here(&request) { handle(request).await } else { Some(elsewhere()) };
        let Some(reply) = reply else { return Ok(()) };
        let mut bytes = format!("HTTP/1.1 {} \r\ncontent-length: {}\r\n", reply.status, reply.body.len()).into_bytes();
        for (name, value) in &reply.headers {
            bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&reply.body);
        stream.write_all(&bytes).await?;
        stream.flush().await?;
    }
    Ok(())
}

/// `None` at the end of the connection.
async fn read(stream: &mut BufReader<impl AsyncRead + Unpin>) -> io::Result<Option<Request>> {
    let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    let mut head = String::new();
    loop {
        let line = (&mut *stream).take(LARGEST_HEAD).read_line(&mut head).await?;
        if line == 0 {
            return Ok(None);
        }
        if head.len() as u64 > LARGEST_HEAD {
            return Err(wrong("the head is too long"));
        }
        if head.ends_with("\r\n\r\n") {
            break;
        }
    }
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let url = reqwest::Url::parse(&format!("http://devcloud{target}")).ok();
    let mut request = Request { method, url, headers, body: Vec::new() };
    let length = request.header("content-length").map_or(Ok(0), str::parse).map_err(|_| wrong("content-length is not a number"))?;
    if length > LARGEST_BODY {
        return Err(wrong("the body is too long"));
    }
    request.body.resize(length, 0);
    stream.read_exact(&mut request.body).await?;
    Ok(Some(request))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_computer_are_here() {
        let asked = |host: &str| is_here(&Request { headers: vec![("host".to_owned(), host.to_owned())], ..Request::default() });
        for here in ["127.0.0.1:80", "127.0.0.1", "localhost:65535", "[::1]:1", "[::1]"] {
            assert!(asked(here), "{here}");
        }
        for elsewhere in
            ["", "evil.example", "evil.example:80", "127.0.0.1.evil.example:80", "127.0.0.1:x", "10.0.0.1:80", "localhost:80:80"]
        {
            assert!(!asked(elsewhere), "{elsewhere}");
        }
        assert!(!is_here(&Request::default()), "no host at all");
    }
}
