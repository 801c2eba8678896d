//! Files come from the hub, or from where it points, into the cache: continued where an earlier fetch was cut off, and verified
//! before they have their name.

use std::{
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use reqwest::{Response, StatusCode, header::CONTENT_RANGE};

use super::{
    Class, HubError, Result,
    cache::{Cache, make_folder_of},
    line::{Line, PAUSE, Span, TRIES},
    listing::{Listed, Proof},
};
use crate::{
    job::{
        hub::{Commit, Repository},
        report::{Report, Unit},
    },
    transit,
};

/// Files on their way at once.
const AT_ONCE: usize = 4;

/// Where files come from, and where they go.
struct Fetch<'f> {
    line: &'f Line,
    repository: &'f Repository,
    cache: &'f Cache,
    commit: &'f Commit,
    /// Bytes of all files that are here.
    done: AtomicU64,
    total: u64,
    report: &'f dyn Report,
}

/// Fetches files that are not there yet.
pub(super) async fn fetch(
    line: &Line,
    repository: &Repository,
    cache: &Cache,
    commit: &Commit,
    files: &[&Listed],
    report: &dyn Report,
) -> Result<()> {
    let total = files.iter().map(|file| file.bytes).sum();
    cache.check_room(total)?;
    let fetch = Fetch { line, repository, cache, commit, done: AtomicU64::new(0), total, report };
    fetch.tell(0);
    stream::iter(files).map(|file| fetch.one(file)).buffer_unordered(AT_ONCE).try_collect::<()>().await
}

/// The first bytes of a file.
pub(super) async fn beginning(line: &Line, repository: &Repository, commit: &Commit, file: &Listed, bytes: u64) -> Result<Vec<u8>> {
    let span = Span { first: 0, last: Some(bytes.saturating_sub(1)) };
    let mut answer = line.file(repository, commit, &file.path, Some(span)).await?;
    let mut found = Vec::new();
    while (found.len() as u64) < bytes {
        let Some(piece) = answer.chunk().await.map_err(|error| cut(repository, file, &error))? else { break };
        found.extend_from_slice(&piece);
    }
    found.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
    Ok(found)
}

fn cut(repository: &Repository, file: &Listed, error: &reqwest::Error) -> HubError {
    HubError::new(Class::Network, format!("{} of {repository} broke off: {}", file.path, transit::why(error)))
        .fix("try again; the download continues where it stopped")
}

impl Fetch<'_> {
    async fn one(&self, file: &Listed) -> Result<()> {
        if self.cache.has_blob(file) {
            self.add(file.bytes);
        } else {
            let _lock = self.lock(file).await?;
            // Another program may have fetched it meanwhile.
            if self.cache.has_blob(file) { self.add(file.bytes) } else { self.blob(file).await? }
        }
        self.cache.link(self.commit, file)
    }

    /// Waits on a thread: the program that has it may take long.
    async fn lock(&self, file: &Listed) -> Result<File> {
        let (cache, file) = (self.cache.clone(), file.clone());
        on_thread(move || cache.lock(&file)).await
    }

    async fn blob(&self, file: &Listed) -> Result<()> {
        let blob = self.cache.blob(file);
        let partial = PathBuf::from(format!("{}.incomplete", blob.display()));
        let opened = Partial::open(&partial, file).await?;
        let began = opened.bytes;
        let verified = match self.fill(file, opened).await {
            // What another program left may be of another file.
            Err(failed) if failed.class == Class::Integrity && began > 0 => {
                self.fill(file, Partial::open(&partial, file).await?).await
            }
            filled => filled,
        };
        verified?;
        fs::rename(&partial, &blob).map_err(|error| HubError::disk("make", &blob, &error))
    }

    /// Fetches what a file lacks, and verifies the whole. One that is wrong is removed.
    async fn fill(&self, file: &Listed, mut partial: Partial) -> Result<()> {
        self.add(partial.bytes);
        let filled = self.pieces(file, &mut partial).await.and_then(|()| partial.verify(self.repository, file));
        if let Err(failed) = &filled {
            self.done.fetch_sub(partial.bytes, Ordering::Relaxed);
            if failed.class == Class::Integrity {
                fs::remove_file(&partial.path).map_err(|error| HubError::disk("remove", &partial.path, &error))?;
            }
        }
        filled
    }

    /// Asks for the rest until there is none; gives up after a few answers that bring nothing.
    async fn pieces(&self, file: &Listed, partial: &mut Partial) -> Result<()> {
        let (mut tried, mut pause) = (1, PAUSE);
        while partial.bytes < file.bytes {
            let before = partial.bytes;
            let Err(failed) = self.rest(file, partial).await else { continue };
            if failed.class != Class::Network || tried == TRIES {
                return Err(failed);
            }
            (tried, pause) = if partial.bytes > before { (1, PAUSE) } else { (tried + 1, pause * 2) };
            self.report.detail(&format!("{}; asking for the rest", failed.message));
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    /// One answer of the hub. Whatever came of it is kept.
    async fn rest(&self, file: &Listed, partial: &mut Partial) -> Result<()> {
        let span = (partial.bytes > 0).then_some(Span { first: partial.bytes, last: None });
        let mut answer = self.line.file(self.repository, self.commit, &file.path, span).await?;
        self.check(file, &answer)?;
        if answer.status() != StatusCode::PARTIAL_CONTENT {
            self.done.fetch_sub(partial.bytes, Ordering::Relaxed);
            partial.begin_again(file)?;
        } else if first_byte(&answer) != Some(partial.bytes) {
            return Err(self.wrong(file, "the hub answers with other bytes than were asked for"));
        }
        loop {
            let piece = match answer.chunk().await {
                Ok(Some(piece)) => piece,
                Ok(None) if partial.bytes == file.bytes => return Ok(()),
                Ok(None) => return Err(self.wrong_end(file)),
                Err(error) => return Err(cut(self.repository, file, &error)),
            };
            if partial.bytes + piece.len() as u64 > file.bytes {
                return Err(self.wrong(file, &format!("it has more than the {} bytes of the hub's list", file.bytes)));
            }
            partial.add(&piece)?;
            self.add(piece.len() as u64);
        }
    }

    /// Refuses the answer for another commit or other bytes than the hub's list names, where the hub says so.
    fn check(&self, file: &Listed, answer: &Response) -> Result<()> {
        let said =
            |name: &str| Some(answer.headers().get(name)?.to_str().ok()?.trim_start_matches("W/").trim_matches('"').to_owned());
        if said("x-repo-commit").is_some_and(|commit| commit != self.commit.as_str()) {
            return Err(self.wrong(file, "the hub answers with that of another commit"));
        }
        if said("x-linked-etag").is_some_and(|digest| digest != file.proof.as_str()) {
            return Err(self.wrong(file, "the hub answers with a file of another digest"));
        }
        Ok(())
    }

    fn wrong(&self, file: &Listed, why: &str) -> HubError {
        HubError::new(Class::Integrity, format!("{} of {} is not what it should be: {why}", file.path, self.repository))
            .fix("try again; if it stays so, name another revision")
    }

    fn wrong_end(&self, file: &Listed) -> HubError {
        HubError::new(Class::Network, format!("{} of {} ended early", file.path, self.repository))
            .fix("try again; the download continues where it stopped")
    }

    fn add(&self, bytes: u64) {
        // No other thread sees this sum, so the end is said once.
        self.tell(self.done.fetch_add(bytes, Ordering::Relaxed) + bytes);
    }

    fn tell(&self, done: u64) {
        self.report.progress(&format!("Fetching {}", self.repository), done.min(self.total), Some(self.total), Unit::Bytes);
    }
}

/// The first of the bytes that an answer has.
fn first_byte(answer: &Response) -> Option<u64> {
    let range = answer.headers().get(CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split('-').next()?.parse().ok()
}

/// A file on its way. Its lock is held.
struct Partial {
    path: PathBuf,
    file: File,
    bytes: u64,
    context: Context,
}

impl Partial {
    /// Opens the part of the file that an earlier fetch left, or an empty one.
    async fn open(path: &Path, file: &Listed) -> Result<Self> {
        let (path, listed) = (path.to_owned(), file.clone());
        let cannot = |error| HubError::disk("write", &path, &error);
        make_folder_of(&path).map_err(cannot)?;
        let opened = File::options().create(true).truncate(false).read(true).write(true).open(&path);
        let mut partial = Self { file: opened.map_err(cannot)?, bytes: 0, context: context(&listed), path: path.clone() };
        on_thread(move || {
            match partial.file.metadata() {
                Ok(found) if found.len() <= listed.bytes => {
                    partial.read().map_err(|error| HubError::disk("read", &path, &error))?;
                }
                _ => partial.begin_again(&listed)?,
            }
            Ok(partial)
        })
        .await
    }

    fn read(&mut self) -> std::io::Result<()> {
        let mut piece = vec![0; 1 << 20];
        loop {
            match self.file.read(&mut piece)? {
                0 => return Ok(()),
                read => self.context.update(&piece[..read]),
            }
            self.bytes = self.file.stream_position()?;
        }
    }

    fn begin_again(&mut self, file: &Listed) -> Result<()> {
        let emptied = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.map_err(|error| HubError::disk("write", &self.path, &error))?;
        (self.bytes, self.context) = (0, context(file));
        Ok(())
    }

    fn add(&mut self, piece: &[u8]) -> Result<()> {
        self.file.write_all(piece).map_err(|error| HubError::disk("write", &self.path, &error))?;
        self.context.update(piece);
        self.bytes += piece.len() as u64;
        Ok(())
    }

    fn verify(&self, repository: &Repository, file: &Listed) -> Result<()> {
        let found = hex::encode(self.context.clone().finish());
        if found == file.proof.as_str() {
            return Ok(());
        }
        let message = format!("{} of {repository} is damaged: its digest is {found}, and not {}", file.path, file.proof.as_str());
        Err(HubError::new(Class::Integrity, message).fix("try again; if it stays so, name another revision"))
    }
}

fn context(file: &Listed) -> Context {
    match file.proof {
        Proof::Sha256(_) | Proof::Cached => Context::new(&SHA256),
        Proof::Git(_) => {
            let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
            context.update(format!("blob {}\0", file.bytes).as_bytes());
            context
        }
    }
}

async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|panic| HubError::new(Class::Disk, panic.to_string()))?
}
