//! The real counterpart of the blob store: Microsoft's emulator, started by the tests on a free port with a directory of its own.
//! `tests/run` installs it and says where in `FT_AZURITE`.

// Each test program uses its own part of this.
#![allow(dead_code)]

use std::{
    ffi::OsStr,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU32, Ordering},
    },
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::secrets;

/// The emulator's only account, with the key that its documentation prints.
pub const ACCOUNT: &str = "devstoreaccount1";
pub const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

pub struct Azurite {
    process: Child,
    directory: tempfile::TempDir,
    scheme: &'static str,
    pub port: u16,
    containers: AtomicU32,
}

/// The one that is running for some other test, or a new one.
pub fn start() -> Arc<Azurite> {
    static RUNNING: Mutex<Weak<Azurite>> = Mutex::new(Weak::new());
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    running.upgrade().unwrap_or_else(|| {
        let azurite = Arc::new(Azurite::start("http", &[]));
        *running = Arc::downgrade(&azurite);
        azurite
    })
}

/// A signature that opens the container of `url` for these permissions and nothing else, until 2099: "Create a service SAS" in the
/// service's reference.
pub fn signature(url: &str, permissions: &str) -> String {
    let container = url.split(ACCOUNT).nth(1).and_then(|path| path.split('/').nth(1)).expect("a container");
    let (version, expiry, protocol) = ("2023-11-03", "2099-01-01T00:00:00Z", "https,http");
    let resource = format!("/blob/{ACCOUNT}/{container}");
    let text = [permissions, "", expiry, &resource, "", "", protocol, version, "c", "", "", "", "", "", "", ""].join("\n");
    let mut mac = Hmac::<Sha256>::new_from_slice(&BASE64_STANDARD.decode(KEY).expect("a key")).expect("of any length");
    mac.update(text.as_bytes());
    let signed = BASE64_STANDARD.encode(mac.finalize().into_bytes()).replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
    format!("sv={version}&sr=c&sp={permissions}&se={expiry}&spr={protocol}&sig={signed}")
}

impl Azurite {
    /// With further arguments, for `https` those that it needs.
    pub fn start(scheme: &'static str, arguments: &[&OsStr]) -> Self {
        let program = std::env::var_os("FT_AZURITE").expect("FT_AZURITE names the program azurite-blob: tests/run installs it");
        let directory = tempfile::tempdir().expect("a directory");
        let mut process = Command::new(program)
            .args(["--blobHost", "127.0.0.1", "--blobPort", "0", "--disableTelemetry", "--skipApiVersionCheck", "--location"])
            .arg(directory.path())
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("Azurite starts");
        let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let port = loop {
            let line = lines.next().expect("Azurite says where it listens").expect("text");
            if let Some((_, port)) = line.split_once("successfully listens on").and_then(|(_, url)| url.rsplit_once(':')) {
                break port.trim().parse().expect("a port");
            }
        };
        // It writes a line for every request, and stops when they are not read.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, directory, scheme, port, containers: AtomicU32::default() }
    }

    /// Nothing that it was sent has one of these.
    pub fn assert_has_none(&self, secrets: &[&str]) {
        secrets::assert_none_below(self.directory.path(), secrets);
    }

    /// The URL of a container of this test alone; it does not exist yet.
    pub fn container(&self) -> String {
        let number = self.containers.fetch_add(1, Ordering::Relaxed);
        format!("{}://127.0.0.1:{}/{ACCOUNT}/container-{number}", self.scheme, self.port)
    }
}

impl Drop for Azurite {
    /// Nothing that any test had it store holds a secret.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if !std::thread::panicking() {
            self.assert_has_none(&[KEY, "sig=", secrets::MARK]);
        }
    }
}
