//! The line to an engine: one connection for each request, over whatever leads there.

use std::{
    io,
    path::Path,
    pin::Pin,
    process::Stdio,
    sync::Arc,
    task::{Context, Poll},
};

use bollard::{BollardRequest, errors::Error};
use hyper::{Response, Uri, body::Incoming, client::conn::http1, header::HOST};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
};
use tokio_rustls::TlsConnector;

use super::{
    Endpoint, EngineError,
    endpoint::{Address, Tls},
};
use crate::job::wording::shell_word;

/// How much of what ssh says is shown.
const SSH_WORDS: u64 = 2_000;

#[derive(Clone)]
pub(super) struct Transport {
    address: Arc<Address>,
    tls: Option<TlsConnector>,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection, and what the program says that makes it where there is one.
struct Line {
    stream: Box<dyn Stream>,
    words: Option<ChildStderr>,
}

/// The streams of a program, which lives as long as they do.
struct Piped {
    output: ChildStdout,
    /// `None` once it is closed: only that tells the other end.
    input: Option<ChildStdin>,
    _program: Child,
}

impl AsyncRead for Piped {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.output).poll_read(context, buffer)
    }
}

impl AsyncWrite for Piped {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.input {
            Some(input) => Pin::new(input).poll_write(context, bytes),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.as_mut().map_or(Poll::Ready(Ok(())), |input| Pin::new(input).poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input = None;
        Poll::Ready(Ok(()))
    }
}

impl Transport {
    pub fn new(endpoint: &Endpoint) -> Result<Self, EngineError> {
        let tls = match &endpoint.address {
            Address::Tcp { tls: Some(folder), .. } => {
                Some(connector(folder).map_err(|why| EngineError::Setting { origin: endpoint.origin.clone(), why })?)
            }
            _ => None,
        };
        Ok(Self { address: Arc::new(endpoint.address.clone()), tls })
    }

    pub async fn request(&self, mut request: BollardRequest) -> Result<Response<Incoming>, Error> {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() = path.parse::<Uri>()?;
        request.headers_mut().insert(HOST, hyper::header::HeaderValue::from_static("docker"));
        let Line { stream, words } = self.dial().await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Ends with the answer, or hands the stream on to the owner of the upgraded one.
        tokio::spawn(connection.with_upgrades());
        match (sender.send_request(request).await, words) {
            (Err(error), Some(words)) => Err(refused(error, words).await),
            (answer, _) => Ok(answer?),
        }
    }

    async fn dial(&self) -> io::Result<Line> {
        Ok(match self.address.as_ref() {
            Address::Unix(path) => Line { stream: Box::new(UnixStream::connect(path).await?), words: None },
            Address::Tcp { host, port, .. } => {
                let plain = TcpStream::connect((host.as_str(), *port)).await?;
                let stream: Box<dyn Stream> = match &self.tls {
                    None => Box::new(plain),
                    Some(tls) => {
                        let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                        Box::new(tls.connect(name, plain).await?)
                    }
                };
                Line { stream, words: None }
            }
            Address::Ssh { destination, port, socket } => ssh(destination, *port, socket.as_deref())?,
        })
    }
}

/// Connects as docker does, with the system's own ssh: its configuration, its agent and its known hosts hold.
fn ssh(destination: &str, port: Option<u16>, socket: Option<&str>) -> io::Result<Line> {
    let mut command = Command::new("ssh");
    command.args(["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=30"]);
    if let Some(port) = port {
        command.args(["-p", &port.to_string()]);
    }
    command.args(["--", destination, "docker"]);
    if let Some(socket) = socket {
        command.arg(format!("--host=unix://{}", shell_word(socket)));
    }
    command.args(["system", "dial-stdio"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| io::Error::new(error.kind(), format!("cannot start ssh: {error}")))?;
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    let words = child.stderr.take();
    Ok(Line { stream: Box::new(Piped { output, input: Some(input), _program: child }), words })
}

/// Why ssh brought no answer, in its own words.
async fn refused(error: hyper::Error, words: ChildStderr) -> Error {
    let mut said = Vec::new();
    let _partly = words.take(SSH_WORDS).read_to_end(&mut said).await;
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    match (said.is_empty(), said.contains("Permission denied")) {
        (true, _) => error.into(),
        (_, true) => io::Error::new(io::ErrorKind::PermissionDenied, said).into(),
        _ => io::Error::new(io::ErrorKind::ConnectionRefused, said).into(),
    }
}

/// Trusts `ca.pem` alone, as docker does, and shows the client's certificate where there is one.
fn connector(Tls(folder): &Tls) -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&folder.join("ca.pem"))? {
        roots.add(certificate).map_err(|error| format!("{}: {error}", folder.join("ca.pem").display()))?;
    }
    let builder = ClientConfig::builder().with_root_certificates(roots);
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    let config = if cert.exists() {
        let key = PrivateKeyDer::from_pem_file(&key).map_err(|error| format!("cannot read {}: {error}", key.display()))?;
        builder.with_client_auth_cert(certificates(&cert)?, key).map_err(|error| format!("{}: {error}", cert.display()))?
    } else {
        builder.with_no_client_auth()
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    read.map_err(|error| format!("cannot read {}: {error}", path.display()))
}
