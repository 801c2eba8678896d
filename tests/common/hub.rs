//! A hub on loopback that answers as Hugging Face's does: small files by itself, large ones by pointing to a content store on
//! another port. It remembers who was asked what, and with which token.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    sync::{Arc, Mutex},
    thread,
};

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use serde_json::{Value, json};

pub const TOKEN: &str = "hf_very-secret";

/// A fault of answers whose path has the text; each counts once.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The connection ends after so many bytes.
    Cut(usize),
    /// Another status, with headers.
    Status(u16, &'static str),
    /// Points there.
    Redirect(String),
    /// Other bytes of the same length.
    Flip,
    /// Headers in the place of its own.
    Header(&'static str, &'static str),
    /// All bytes, whatever was asked for.
    Whole,
    /// Another list of files.
    Answer(Value),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Whether the content store was asked, and not the hub.
    pub of_store: bool,
    pub path: String,
    pub token: Option<String>,
    pub range: Option<String>,
    pub sent: usize,
}

#[derive(Default)]
pub struct State {
    /// By `models/OWNER/NAME`.
    repositories: BTreeMap<String, Repository>,
    faults: Vec<(String, Fault)>,
    calls: Vec<Call>,
}

#[derive(Default)]
struct Repository {
    /// The files of each commit.
    commits: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    /// Branches.
    revisions: BTreeMap<String, String>,
    is_gated: bool,
    is_private: bool,
}

pub struct Hub {
    pub port: u16,
    pub store: u16,
    state: Arc<Mutex<State>>,
}

impl Hub {
    pub fn start() -> Self {
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
        let [port, store] = [0, 1].map(|at: usize| listeners[at].local_addr().expect("an address").port());
        let state = Arc::new(Mutex::new(State::default()));
        for (listener, of_store) in listeners.into_iter().zip([false, true]) {
            let state = state.clone();
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let state = state.clone();
                    // A client that hangs up has had its answer.
                    thread::spawn(move || serve(&state, stream, of_store, store).is_ok());
                }
            });
        }
        Self { port, store, state }
    }

    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Puts files into a repository (`models/OWNER/NAME`), and has a branch name them. Answers the commit.
    pub fn commit(&self, repository: &str, branch: &str, files: &[(&str, Vec<u8>)]) -> String {
        let mut state = self.state.lock().expect("held");
        let repository = state.repositories.entry(repository.to_owned()).or_default();
        let files: BTreeMap<String, Vec<u8>> = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone())).collect();
        let named = files.iter().flat_map(|(name, bytes)| [name.as_bytes(), bytes]).collect::<Vec<_>>().concat();
        let commit = hex::encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &named).as_ref());
        repository.commits.insert(commit.clone(), files);
        repository.revisions.insert(branch.to_owned(), commit.clone());
        commit
    }

    /// [`Hub::commit`] of what lies in a directory, without folders.
    pub fn commit_directory(&self, repository: &str, directory: &Path) -> String {
        let entries = std::fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
        let files: Vec<(String, Vec<u8>)> = entries
            .filter(|path| path.is_file())
            .map(|path| (path.file_name().expect("a name").to_string_lossy().into_owned(), std::fs::read(&path).expect("read")))
            .collect();
        let files: Vec<(&str, Vec<u8>)> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
        self.commit(repository, "main", &files)
    }

    pub fn gate(&self, repository: &str) {
        self.state.lock().expect("held").repositories.get_mut(repository).expect("there").is_gated = true;
    }

    pub fn hide(&self, repository: &str) {
        self.state.lock().expect("held").repositories.get_mut(repository).expect("there").is_private = true;
    }

    /// The next answer whose path has the text fares so.
    pub fn spoil(&self, path: &str, fault: Fault) {
        self.state.lock().expect("held").faults.push((path.to_owned(), fault));
    }

    /// Everything that was asked since the last time.
    pub fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.state.lock().expect("held").calls)
    }
}

struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Reply {
    fn error(status: u16, code: &str) -> Self {
        let body = json!({ "error": code }).to_string().into_bytes();
        Self { status, headers: vec![("X-Error-Code".to_owned(), code.to_owned())], body }
    }
}

fn serve(state: &Mutex<State>, stream: TcpStream, of_store: bool, store: u16) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        lines.push(line.trim().to_owned());
    }
    let target = lines.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
    let header = |name: &str| {
        let found = |line: &String| {
            line.split_once(": ").filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
        };
        lines.iter().find_map(found)
    };
    let (token, range) = (header("authorization"), header("range"));
    let path = target.split('?').next().unwrap_or_default().replace("%2F", "/");
    let mut state = state.lock().expect("held");
    let fault = state.faults.iter().position(|(part, _)| path.contains(part.as_str())).map(|at| state.faults.remove(at).1);
    let signed_in = token.as_deref() == Some(&format!("Bearer {TOKEN}"));
    let mut reply =
        if of_store { content(&state, &path, range.as_deref()) } else { answer(&state, &path, signed_in, range.as_deref(), store) };
    let mut most = usize::MAX;
    match fault {
        Some(Fault::Cut(bytes)) => most = bytes,
        Some(Fault::Status(status, header)) => {
            let headers = header.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
            reply = Reply { status, headers: Vec::from_iter(headers), body: Vec::new() };
        }
        Some(Fault::Redirect(to)) => reply = Reply { status: 302, headers: vec![("Location".to_owned(), to)], body: Vec::new() },
        Some(Fault::Flip) => reply.body.iter_mut().for_each(|byte| *byte ^= 1),
        Some(Fault::Header(name, value)) => {
            reply.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
            reply.headers.push((name.to_owned(), value.to_owned()));
        }
        Some(Fault::Whole) => reply = content(&state, &path, None),
        Some(Fault::Answer(value)) => reply.body = value.to_string().into_bytes(),
        None => {}
    }
    let sent = reply.body.len().min(most);
    state.calls.push(Call { of_store, path, token, range, sent });
    drop(state);
    let mut head = format!("HTTP/1.1 {} x\r\nContent-Length: {}\r\nConnection: close\r\n", reply.status, reply.body.len());
    for (name, value) in &reply.headers {
        head.extend([name.as_str(), ": ", value, "\r\n"]);
    }
    let stream = reader.get_mut();
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    stream.write_all(&reply.body[..sent])
}

/// The bytes of a digest, or a part of them.
fn content(state: &State, path: &str, range: Option<&str>) -> Reply {
    let all = state.repositories.values().flat_map(|repository| repository.commits.values()).flat_map(BTreeMap::values);
    match all.into_iter().find(|bytes| path.ends_with(&sha256(bytes))) {
        Some(bytes) => part(bytes, range),
        None => Reply::error(404, ""),
    }
}

fn part(bytes: &[u8], range: Option<&str>) -> Reply {
    let Some((first, last)) = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-')) else {
        return Reply { status: 200, headers: Vec::new(), body: bytes.to_vec() };
    };
    let first: usize = first.parse().expect("a number");
    let end = last.parse::<usize>().map_or(bytes.len(), |last| (last + 1).min(bytes.len()));
    if first >= bytes.len() {
        return Reply::error(416, "");
    }
    let headers = vec![("Content-Range".to_owned(), format!("bytes {first}-{}/{}", end - 1, bytes.len()))];
    Reply { status: 206, headers, body: bytes[first..end].to_vec() }
}

fn answer(state: &State, path: &str, signed_in: bool, range: Option<&str>, store: u16) -> Reply {
    let (path, is_list) = path.strip_prefix("/api/").map_or((path, false), |path| (path, true));
    let path = path.trim_start_matches('/');
    let (kind, path) = match path.split_once('/') {
        Some((kind @ ("models" | "datasets"), rest)) => (kind, rest),
        _ => ("models", path),
    };
    let parts: Vec<&str> = path.splitn(4, '/').collect();
    let [owner, name, _, rest] = parts[..] else { return Reply::error(404, "RepoNotFound") };
    let Some(repository) = state.repositories.get(&format!("{kind}/{owner}/{name}")).filter(|found| !found.is_private || signed_in)
    else {
        return Reply::error(if signed_in { 404 } else { 401 }, "RepoNotFound");
    };
    let (revision, file) = if is_list { (rest, "") } else { rest.split_once('/').unwrap_or((rest, "")) };
    let commit = repository.revisions.get(revision).map_or(revision, String::as_str);
    let Some(files) = repository.commits.get(commit) else { return Reply::error(404, "RevisionNotFound") };
    if is_list {
        let siblings: Vec<Value> = files.iter().map(|(name, bytes)| sibling(name, bytes)).collect();
        let body = json!({ "id": format!("{owner}/{name}"), "sha": commit, "siblings": siblings }).to_string();
        return Reply { status: 200, headers: Vec::new(), body: body.into_bytes() };
    }
    if repository.is_gated {
        return Reply::error(if signed_in { 403 } else { 401 }, "GatedRepo");
    }
    let Some(bytes) = files.get(file) else { return Reply::error(404, "EntryNotFound") };
    let mut headers = vec![("X-Repo-Commit".to_owned(), commit.to_owned())];
    if !is_large(file) {
        headers.push(("ETag".to_owned(), format!("\"{}\"", git(bytes))));
        let part = part(bytes, range);
        return Reply { headers: [headers, part.headers].concat(), ..part };
    }
    let linked = [("X-Linked-Etag", format!("\"{}\"", sha256(bytes))), ("X-Linked-Size", bytes.len().to_string())];
    headers.extend(linked.map(|(name, value)| (name.to_owned(), value)));
    headers.push(("Location".to_owned(), format!("http://127.0.0.1:{store}/repos/{}?X-Amz-Signature=s", sha256(bytes))));
    Reply { status: 302, headers, body: Vec::new() }
}

fn is_large(name: &str) -> bool {
    [".safetensors", ".bin", ".parquet", ".jsonl", ".h5"].iter().any(|end| name.ends_with(end))
}

fn sibling(name: &str, bytes: &[u8]) -> Value {
    let mut value = json!({ "rfilename": name, "size": bytes.len(), "blobId": git(bytes) });
    if is_large(name) {
        value["lfs"] = json!({ "sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 134 });
    }
    value
}

fn git(bytes: &[u8]) -> String {
    let whole = [format!("blob {}\0", bytes.len()).as_bytes(), bytes].concat();
    hex::encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &whole).as_ref())
}

pub fn sha256(bytes: &[u8]) -> String {
    hex::encode(digest(&SHA256, bytes))
}
