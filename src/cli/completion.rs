//! `ftctl completion`: scripts for shells. They ask the program itself what fits: verbs, flags, files, jobs, backends and the keys
//! of a job file.

use std::{
    collections::BTreeSet,
    env,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use clap::Args;
use clap_complete::{
    Shell,
    engine::{ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter as _},
    env::{EnvCompleter, Shells},
};

use super::{App, init, schema::reference};
use crate::{
    exit::{Exit, Failure},
    job::{
        id::{JobId, path, valid_name},
        spec::JobSpec,
    },
    provider::registry,
    settings::{Layer, Settings, Surroundings},
    store,
};

/// Names the shell that asks.
const VARIABLE: &str = "FTCTL_COMPLETE";
const PROGRAM: &str = "ftctl";

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  source <(ftctl completion bash)\n  ftctl completion fish > ~/.config/fish/completions/ftctl.fish"
)]
pub struct Completion {
    /// The shell
    shell: Shell,
}

impl Completion {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        let mut script = Vec::new();
        match self.shell {
            Shell::Bash => script.extend(include_bytes!("completion/ftctl.bash")),
            Shell::Zsh => script.extend(include_bytes!("completion/ftctl.zsh")),
            Shell::Fish => script.extend(include_bytes!("completion/ftctl.fish")),
            other => completer(&other.to_string())?
                .write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)
                .map_err(|error| failed(&error))?,
        }
        app.output.data(&script)
    }
}

fn completer(shell: &str) -> Result<&'static dyn EnvCompleter, Failure> {
    const SHELLS: Shells<'static> = Shells::builtins();
    let unknown = || Failure::new(Exit::Usage, format!("{VARIABLE} names no shell: {shell}"));
    SHELLS.completer(shell).ok_or_else(unknown)
}

fn failed(error: &std::io::Error) -> Failure {
    Failure::new(Exit::Failure, format!("cannot complete the command line: {error}"))
}

/// The answer to a shell that completes a command line; `None` for any other run. The line stands after `--`.
pub fn answer(arguments: &[OsString]) -> Option<Result<Vec<u8>, Failure>> {
    let shell = env::var(VARIABLE).ok().filter(|shell| !shell.is_empty())?;
    let line = arguments.iter().skip_while(|argument| *argument != "--").skip(1).cloned().collect();
    let mut answer = Vec::new();
    let completed = completer(&shell).and_then(|shell| {
        let mut command = super::command();
        command.build();
        shell.write_complete(&mut command, line, env::current_dir().ok().as_deref(), &mut answer).map_err(|error| failed(&error))
    });
    Some(completed.map(|()| if QUOTING.contains(&shell.as_str()) { answer } else { of_plain_words(&answer) }))
}

/// Shells that quote what they put on the command line. bash puts it there as it is, and a name is another person's word: that of a
/// file in a cloned repository may hold a command.
const QUOTING: [&str; 3] = ["zsh", "fish", "elvish"];

/// The candidates that are one word of a shell, and names of files where our script has bash quote them.
fn of_plain_words(answer: &[u8]) -> Vec<u8> {
    let separator = env::var("_CLAP_IFS").ok().and_then(|text| text.bytes().next()).unwrap_or(b'\n');
    let quotes = env::var_os("FTCTL_QUOTES").is_some_and(|value| !value.is_empty());
    let is_plain =
        |word: &&[u8]| word.iter().all(|byte| byte.is_ascii_alphanumeric() || !byte.is_ascii() || b"-_./+@%=:,".contains(byte));
    let is_kept = |word: &&[u8]| is_plain(word) || quotes && is_file(word);
    answer.split(|byte| *byte == separator).filter(is_kept).collect::<Vec<_>>().join(&separator)
}

/// Whether a candidate, or the value in it, names a file by characters that can be typed.
fn is_file(word: &[u8]) -> bool {
    let Ok(word) = str::from_utf8(word) else { return false };
    let there = |path: &str| match (path.strip_prefix("~/"), env::home_dir()) {
        (Some(below), Some(home)) => home.join(below).exists(),
        _ => Path::new(path).exists(),
    };
    !word.chars().any(char::is_control) && (there(word) || word.split_once('=').is_some_and(|(_, value)| there(value)))
}

/// Jobs, and directories of this machine.
pub fn models() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let jobs = known_jobs().into_iter().filter(|job| typed.to_str().is_some_and(|typed| job.starts_with(typed)));
        candidates(jobs).into_iter().chain(PathCompleter::dir().complete(typed)).collect()
    })
}

/// Jobs of the user's store, by name and id, where that is a directory: completing a word waits for no network. A project's own
/// store is not asked, because pressing a key is no word of trust.
pub fn jobs() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(known_jobs()))
}

pub fn templates() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(init::templates().map(str::to_owned)))
}

pub fn backends() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(registry::names().map(str::to_owned)))
}

/// Those of every backend's machines.
pub fn gpus() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let offers = registry::names().into_iter().flat_map(|name| registry::offers(name).unwrap_or_default());
        candidates(offers.map(|offer| offer.gpu).collect::<BTreeSet<_>>())
    })
}

/// Keys of a job file, for `--set`, and after `=` the values that one takes.
pub fn keys() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let (typed, schema) = (typed.to_string_lossy(), JobSpec::schema());
        let Some((key, value)) = typed.split_once('=') else {
            let keys = reference::keys(&schema).into_iter().map(|key| format!("{key}="));
            return candidates(keys.filter(|key| key.starts_with(&*typed)));
        };
        if PATHS.contains(&key) {
            let paths = PathCompleter::any().complete(OsStr::new(value));
            return paths.into_iter().map(|path| path.add_prefix(format!("{key}="))).collect();
        }
        let values = reference::values(&schema, key).into_iter().filter(|one| one.starts_with(value));
        candidates(values.map(|value| format!("{key}={value}")))
    })
}

/// Keys whose value may be a path.
const PATHS: [&str; 3] = ["dataset", "initial_weights", "data.tokenizer.directory"];

fn candidates(words: impl IntoIterator<Item = String>) -> Vec<CompletionCandidate> {
    words.into_iter().map(CompletionCandidate::new).collect()
}

fn known_jobs() -> Vec<String> {
    let around = Surroundings {
        variable: &|name| env::var_os(name).filter(|value| !value.is_empty()),
        home: env::home_dir(),
        working_directory: PathBuf::from("/"),
    };
    let Ok(settings) = Settings::load(Layer::default(), &around) else { return Vec::new() };
    let Some(directory) = settings.store().ok().filter(|store| store.starts_with('/')) else { return Vec::new() };
    let Ok(store) = store::open(directory) else { return Vec::new() };
    let listed = super::block_on(async {
        let names = store.children(&path::names()).await?;
        Ok((names, store.children(&path::jobs()).await?))
    });
    let Ok((names, ids)) = listed else { return Vec::new() };
    let names = names.iter().filter_map(|file| file.strip_suffix(".json")).filter(|name| valid_name(name)).map(str::to_owned);
    let ids = ids.iter().filter_map(|id| JobId::parse(id)).map(|id| id.to_string());
    names.chain(ids).collect()
}
