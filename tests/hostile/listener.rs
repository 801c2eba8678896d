//! A listener for secrets.

use std::{
    fs,
    io::{self, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    sync::{Arc, Mutex},
    thread,
};

use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use crate::common::proxy;

/// The answer of a blob service about a container that does not exist.
pub const NO_CONTAINER: &str = "HTTP/1.1 404 Not Found\r\nx-ms-error-code: ContainerNotFound\r\ncontent-length: 0\r\n\r\n";

/// Redirects clients to `port`, with all that they sent.
pub fn moved_to(port: u16) -> String {
    format!("HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.1:{port}/elsewhere\r\ncontent-length: 0\r\n\r\n")
}

pub struct Listener {
    pub port: u16,
    /// Requests with their bodies; a connection is an empty one.
    heard: Arc<Mutex<Vec<String>>>,
}

impl Listener {
    /// Answers everything with `answer`.
    pub fn start(answer: impl Into<String>) -> Self {
        let answer = answer.into();
        Self::start_with(move |_| answer.clone())
    }

    /// Answers each request by its head.
    pub fn start_with(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        Self::serve(move |client, heard| plain(client, heard, &answer))
    }

    /// [`Listener::start`] over TLS, with the certificate in `directory`.
    pub fn start_tls(answer: impl Into<String>, directory: &Path) -> Self {
        let answer = answer.into();
        let certificates = CertificateDer::pem_file_iter(directory.join("cert.pem")).unwrap().collect::<Result<_, _>>().unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let key = PrivateKeyDer::from_pem_file(directory.join("key.pem")).unwrap();
        let config = Arc::new(config.with_no_client_auth().with_single_cert(certificates, key).unwrap());
        Self::serve(move |client, heard| {
            let connection = ServerConnection::new(Arc::clone(&config)).map_err(io::Error::other)?;
            let mut line = BufReader::new(StreamOwned::new(connection, client));
            while let Some(request) = proxy::read(&mut line, false)? {
                keep(heard, &request);
                line.get_mut().write_all(answer.as_bytes())?;
                line.get_mut().flush()?;
            }
            Ok(())
        })
    }

    /// Answers everything with spaces that never end.
    pub fn start_endless() -> Self {
        Self::serve(|mut client, _| {
            proxy::read(&mut BufReader::new(client.try_clone()?), false)?;
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
            loop {
                client.write_all(&[b' '; 4 << 10])?;
            }
        })
    }

    pub fn serve(serve: impl Fn(TcpStream, &Mutex<Vec<String>>) -> io::Result<()> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = Arc::<Mutex<Vec<String>>>::default();
        let (own, serve) = (Arc::clone(&heard), Arc::new(serve));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                own.lock().unwrap().push(String::new());
                let (own, serve) = (Arc::clone(&own), Arc::clone(&serve));
                // A connection that ends in an error has ended.
                thread::spawn(move || drop(serve(client, &own)));
            }
        });
        Self { port, heard }
    }

    /// The requests since the last call.
    pub fn take_heard(&self) -> Vec<String> {
        std::mem::take(&mut self.heard.lock().unwrap())
    }

    pub fn assert_heard_nothing(&self, what: &str) {
        let heard = self.take_heard();
        assert!(heard.is_empty(), "{what}: a client connected, and said {heard:?}");
    }
}

fn plain(client: TcpStream, heard: &Mutex<Vec<String>>, answer: &impl Fn(&str) -> String) -> io::Result<()> {
    let mut line = BufReader::new(client.try_clone()?);
    let mut client = client;
    while let Some(request) = proxy::read(&mut line, false)? {
        keep(heard, &request);
        client.write_all(answer(&String::from_utf8_lossy(&request.head)).as_bytes())?;
    }
    Ok(())
}

fn keep(heard: &Mutex<Vec<String>>, request: &proxy::Message) {
    let text = [&request.head, &request.body].map(|part| String::from_utf8_lossy(part).into_owned());
    heard.lock().unwrap().push(text.concat());
}

/// A file in `directory`, as a path for the environment.
pub fn write(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    fs::write(&path, text).unwrap();
    path.display().to_string()
}
