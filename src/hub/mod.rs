//! Hugging Face's hub: weights and text by their names, fetched into the cache that Hugging Face's own tools use. The hub is a
//! stranger: names, sizes and digests that it tells are checked before anything is done with them, and nothing of it is executed.

mod cache;
mod dataset;
mod fetch;
mod line;
mod listing;

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use ft_trainer::files;
use reqwest::Url;

use crate::{
    job::{
        hub::{Commit, HubName, Repository, Revision},
        report::{Report, Silent},
    },
    transit,
};
use cache::{Cache, Memory};
use line::Line;
pub use listing::{Listed, Listing};

pub type Result<T> = std::result::Result<T, HubError>;

/// The files of a split that an answer of the hub and a README tell of: for tests that make both up.
#[doc(hidden)]
pub fn read_answer(name: &HubName, answer: &[u8], readme: &str) -> std::result::Result<Vec<Listed>, String> {
    let (_, listing) = Listing::of_answer(answer)?;
    dataset::split(name, &listing, readme).map_err(|error| error.message)
}

/// Bytes of the README of a dataset. Those with hundreds of configurations have some hundred thousand.
const LARGEST_README: u64 = 4 << 20;
const USUAL_ENDPOINT: &str = "https://huggingface.co";
/// Bytes of a token; today's have 37.
const LONGEST_TOKEN: u64 = 4 << 10;

/// Why something of the hub is not here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct HubError {
    pub class: Class,
    /// Says what happened, to what, and why.
    pub message: String,
    /// The user's next step.
    pub fix: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Not signed in, or not allowed.
    Denied,
    NotFound,
    /// It may be there again later.
    Network,
    /// Bytes or answers are not what they should be.
    Integrity,
    /// The request can never work.
    Invalid,
    /// This machine's own trouble.
    Disk,
}

impl HubError {
    fn new(class: Class, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), fix: None }
    }

    fn fix(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }

    fn disk(act: &str, path: &Path, error: &std::io::Error) -> Self {
        Self::new(Class::Disk, format!("cannot {act} {}: {error}", path.display()))
            .fix("make room or the folder writable; HF_HUB_CACHE names another folder for what the hub has")
    }
}

/// The hub as the user's environment describes it, in the variables of Hugging Face's own tools. No file of a project has a say.
#[derive(Debug, Clone)]
pub struct Hub {
    endpoint: String,
    /// Where the token is: in a variable, or in this file.
    token: Token,
    cache: Option<PathBuf>,
    memory: PathBuf,
    is_offline: bool,
    /// Opened once: certificates of this machine are read for it.
    line: Arc<OnceLock<Line>>,
}

#[derive(Clone)]
enum Token {
    None,
    Given(String),
    In(PathBuf),
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Self::None) { "no token" } else { "a token" })
    }
}

impl Hub {
    /// The hub of this process's environment. `cache` is ftctl's own.
    pub fn of_environment(cache: &Path) -> Self {
        Self::new(&|name| env::var_os(name), env::home_dir().as_deref(), cache)
    }

    /// `variable` gives a variable's value, `home` is the user's.
    pub fn new(variable: &dyn Fn(&str) -> Option<OsString>, home: Option<&Path>, cache: &Path) -> Self {
        let text =
            |name: &str| variable(name)?.into_string().ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let path = |name: &str| variable(name).map(PathBuf::from).filter(|path| !path.as_os_str().is_empty());
        let of_home = |path: PathBuf| match (path.strip_prefix("~"), home) {
            (Ok(below), Some(home)) => home.join(below),
            _ => path,
        };
        let is_set = |name: &str| text(name).is_some_and(|text| ["1", "ON", "YES", "TRUE"].contains(&text.to_uppercase().as_str()));
        let usual = || path("XDG_CACHE_HOME").or_else(|| Some(home?.join(".cache"))).map(|cache| cache.join("huggingface"));
        let base = path("HF_HOME").or_else(usual).map(of_home);
        let file = path("HF_TOKEN_PATH").map(of_home).or_else(|| Some(base.as_ref()?.join("token")));
        let token = match text("HF_TOKEN").or_else(|| text("HUGGING_FACE_HUB_TOKEN")) {
            _ if is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN") => Token::None,
            Some(token) => Token::Given(token),
            None => file.map_or(Token::None, Token::In),
        };
        let hub = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE")).map(of_home);
        Self {
            endpoint: text("HF_ENDPOINT").unwrap_or_else(|| USUAL_ENDPOINT.to_owned()),
            token,
            cache: hub.or_else(|| Some(base?.join("hub"))),
            memory: cache.join("hub"),
            is_offline: is_set("HF_HUB_OFFLINE") || is_set("TRANSFORMERS_OFFLINE"),
            line: Arc::default(),
        }
    }

    /// The commit that a name stands for now; without the hub, the one that it stood for when it was last fetched.
    pub async fn pin(&self, name: &HubName) -> Result<Commit> {
        let (repository, revision) = (&name.repository, &name.revision);
        if self.is_offline {
            let known = revision
                .commit()
                .or_else(|| self.memory(repository).pin(revision))
                .or_else(|| self.cache(repository).ok()?.commit(revision));
            return known.ok_or_else(|| self.absent(&name.to_string()));
        }
        let line = self.line()?;
        let (commit, listing) = self.listed(line, repository, revision).await?;
        if name.part.is_none() || !listing.has_program(&repository.name) {
            return Ok(commit);
        }
        match self.listed(line, repository, &Revision::of_parquet()).await {
            Err(error) if error.class == Class::NotFound => Err(dataset::made_by(repository, &format!("{}.py", repository.name))),
            copy => Ok(copy?.0),
        }
    }

    /// The files of a commit, from memory where they were listed before; without both, those of a model that are in the cache.
    pub async fn list(&self, name: &HubName, commit: &Commit) -> Result<Listing> {
        let repository = &name.repository;
        if let Some(listing) = self.memory(repository).listing(commit) {
            return Ok(listing);
        }
        if !self.is_offline {
            let revision = String::from(commit.clone()).parse().map_err(|why| HubError::new(Class::Invalid, why))?;
            return Ok(self.listed(self.line()?, repository, &revision).await?.1);
        }
        // Which files a dataset should have is not known of a cache that may have some of them.
        let found = if name.part.is_none() { self.cache(repository)?.listing(commit) } else { None };
        found.ok_or_else(|| self.absent(&name.to_string()))
    }

    /// The files of a dataset's split.
    pub async fn split(&self, name: &HubName, commit: &Commit, listing: &Listing) -> Result<Vec<Listed>> {
        let text = match listing.find(dataset::README) {
            Some(readme) => {
                if readme.bytes > LARGEST_README {
                    let message =
                        format!("the README of {} has {} bytes; ftctl reads at most 4 MiB", name.repository, readme.bytes);
                    return Err(HubError::new(Class::Invalid, message));
                }
                let folder = self.fetch(name, commit, std::slice::from_ref(readme), &Silent).await?;
                let path = folder.join(dataset::README);
                let text = files::read_at_most(&path, LARGEST_README).map_err(|error| HubError::disk("read", &path, &error))?;
                files::text(text).map_err(|why| HubError::new(Class::Invalid, format!("{}: {why}", path.display())))?
            }
            None => String::new(),
        };
        dataset::split(name, listing, &text)
    }

    /// Fetches files of a commit into the cache, verified. Answers the folder in which each lies under its name.
    pub async fn fetch(&self, name: &HubName, commit: &Commit, files: &[Listed], report: &dyn Report) -> Result<PathBuf> {
        let cache = self.cache(&name.repository)?;
        let absent: Vec<&Listed> = files.iter().filter(|file| !cache.has(commit, file)).collect();
        if self.is_offline && !absent.is_empty() {
            return Err(self.absent(&format!("{} of {name}", absent[0].path)));
        }
        if !absent.is_empty() {
            fetch::fetch(self.line()?, &name.repository, &cache, commit, &absent, report).await?;
        }
        Ok(cache.snapshot(commit))
    }

    /// The bytes that [`Hub::fetch`] would fetch of these files.
    pub fn missing(&self, name: &HubName, commit: &Commit, files: &[Listed]) -> Result<u64> {
        let cache = self.cache(&name.repository)?;
        Ok(files.iter().filter(|file| !cache.has(commit, file)).map(|file| file.bytes).sum())
    }

    /// Keeps in mind that everything of this name is in the cache, for Hugging Face's tools, too: a revision that they know has
    /// its files.
    pub fn keep(&self, name: &HubName, commit: &Commit) -> Result<()> {
        self.memory(&name.repository).keep_pin(&name.revision, commit)?;
        if name.part.is_none() { self.cache(&name.repository)?.keep_commit(&name.revision, commit) } else { Ok(()) }
    }

    /// The first `bytes` of a file, which are not verified, and are not kept.
    pub async fn beginning(&self, name: &HubName, commit: &Commit, file: &Listed, bytes: u64) -> Result<Vec<u8>> {
        let bytes = bytes.min(file.bytes);
        if self.is_offline {
            return Err(self.absent(&format!("{} of {name}", file.path)));
        }
        let line = self.line()?;
        fetch::beginning(line, &name.repository, commit, file, bytes).await
    }

    async fn listed(&self, line: &Line, repository: &Repository, revision: &Revision) -> Result<(Commit, Listing)> {
        let (commit, listing) = line.list(repository, revision).await?;
        self.memory(repository).keep_listing(&commit, &listing)?;
        Ok((commit, listing))
    }

    fn line(&self) -> Result<&Line> {
        if let Some(line) = self.line.get() {
            return Ok(line);
        }
        let wrong = |why: &str| {
            HubError::new(Class::Invalid, format!("HF_ENDPOINT is not the address of a hub: {why}"))
                .fix(format!("give one like {USUAL_ENDPOINT}, or unset it"))
        };
        let endpoint = Url::parse(self.endpoint.trim_end_matches('/')).map_err(|error| wrong(&error.to_string()))?;
        if !transit::is_private(&endpoint) {
            return Err(wrong("it is asked by https, and by http on this machine alone"));
        }
        if !endpoint.username().is_empty() || endpoint.password().is_some() || endpoint.query().is_some() {
            return Err(wrong("it has a user, a password or a query"));
        }
        let line = Line::open(endpoint, self.token()?)?;
        Ok(self.line.get_or_init(|| line))
    }

    fn token(&self) -> Result<Option<String>> {
        let path = match &self.token {
            Token::None => return Ok(None),
            Token::Given(token) => return Ok(Some(token.clone())),
            Token::In(path) => path,
        };
        match fs::metadata(path) {
            Ok(found) if found.is_file() && found.len() <= LONGEST_TOKEN => {
                let token = fs::read_to_string(path).map_err(|error| HubError::disk("read", path, &error))?;
                Ok(Some(token.trim().to_owned()).filter(|token| !token.is_empty()))
            }
            Ok(_) => Err(HubError::new(Class::Invalid, format!("{} is no file with a token", path.display()))
                .fix("`hf auth login` writes one; HF_TOKEN has one for a single command")),
            Err(_) => Ok(None),
        }
    }

    fn cache(&self, repository: &Repository) -> Result<Cache> {
        let nowhere = || {
            HubError::new(Class::Invalid, "there is no home directory for the cache of the hub")
                .fix("name a folder in HF_HUB_CACHE")
        };
        Ok(Cache::of(self.cache.as_deref().ok_or_else(nowhere)?, repository))
    }

    fn memory(&self, repository: &Repository) -> Memory {
        Memory::of(&self.memory, repository)
    }

    fn absent(&self, what: &str) -> HubError {
        let folder = self.cache.as_deref().unwrap_or(Path::new("the cache")).display();
        HubError::new(Class::NotFound, format!("{what} is not in {folder}, and HF_HUB_OFFLINE forbids to ask the hub"))
            .fix("unset HF_HUB_OFFLINE once, so that it is fetched")
    }
}
