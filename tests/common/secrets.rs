//! Looks for what must not be found in what a program wrote.

#![allow(dead_code)]

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// Neither as it is nor as a URL has it.
pub fn assert_none(what: &str, text: &str, secrets: &[&str]) {
    for secret in secrets {
        let encoded = secret.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
        assert!(!text.contains(*secret) && !text.contains(&encoded), "{what} has a secret:\n{text}");
    }
}

/// In no file.
pub fn assert_none_below(folder: &Path, secrets: &[&str]) {
    for entry in fs::read_dir(folder).expect("a directory").flatten() {
        let kind = entry.file_type().expect("a kind");
        if kind.is_dir() {
            assert_none_below(&entry.path(), secrets);
        } else if kind.is_file() {
            let bytes = fs::read(entry.path()).unwrap_or_default();
            assert_none(&entry.path().display().to_string(), &String::from_utf8_lossy(&bytes), secrets);
        }
    }
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
