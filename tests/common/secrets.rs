//! Looks for secrets in a program's output.

#![allow(dead_code)]

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// Every secret of identities has this word in it.
pub const MARK: &str = "KEEPMESECRET";

/// Looked for as the beginning of a signature: the text after it is short elsewhere.
const SIGNATURE: &str = "sig=";

/// The secret in the encoding of a URL.
fn encoded(secret: &str) -> String {
    secret.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D")
}

/// Neither as it is nor as a URL has it.
pub fn assert_none(what: &str, text: &str, secrets: &[&str]) {
    for secret in secrets {
        assert!(!text.contains(*secret) && !text.contains(&encoded(secret)), "{what} has a secret:\n{text}");
    }
}

/// In no file.
pub fn assert_none_below(folder: &Path, secrets: &[&str]) {
    let patterns = secrets.iter().map(|secret| match *secret {
        SIGNATURE => "sig=[A-Za-z0-9%+/]{16}\n".to_owned(),
        secret => format!("{}\n{}\n", secret.replace('+', "[+]"), encoded(secret)),
    });
    let mut grep = Command::new("grep");
    // Not among the arguments, which may be searched for secrets.
    grep.args(["-rlasE", "-D", "skip", "-f", "-", "--"]).arg(folder).env("LC_ALL", "C");
    let mut grep = grep.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("grep runs");
    grep.stdin.take().expect("piped").write_all(patterns.collect::<String>().as_bytes()).expect("grep reads");
    let said = grep.wait_with_output().expect("grep ends");
    let looked = matches!(said.status.code(), Some(0 | 1));
    assert!(looked && said.stdout.is_empty(), "a secret is in {}", String::from_utf8_lossy(&said.stdout));
}

/// Watches the command lines of all processes until it is dropped, which fails if one had a secret.
pub struct CommandLines {
    over: Arc<AtomicBool>,
    watcher: Option<thread::JoinHandle<u64>>,
}

impl CommandLines {
    pub fn watch(secrets: &[&str]) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (ends, secrets) = (Arc::clone(&over), secrets.iter().map(|secret| (*secret).to_owned()).collect::<Vec<_>>());
        let watcher = thread::spawn(move || {
            let secrets: Vec<&str> = secrets.iter().map(String::as_str).collect();
            let mut seen = 0;
            while !ends.load(Ordering::Relaxed) {
                for process in fs::read_dir("/proc").expect("/proc").flatten() {
                    let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
                    let line = String::from_utf8_lossy(&line);
                    seen += u64::from(line.contains("ftctl"));
                    assert_none("a command line", &line, &secrets);
                }
                thread::sleep(Duration::from_millis(20));
            }
            seen
        });
        Self { over, watcher: Some(watcher) }
    }
}

impl Drop for CommandLines {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let seen = self.watcher.take().map(thread::JoinHandle::join);
        if !thread::panicking() {
            assert!(matches!(seen, Some(Ok(1..))), "no command line of ftctl was seen, or one had a secret");
        }
    }
}
