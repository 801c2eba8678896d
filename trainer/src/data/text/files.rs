//! Which files `[data]` names.

use std::io;
use std::path::{Path, PathBuf};

use glob::{Pattern, PatternError};
use rustc_hash::FxHashSet;

use crate::data::DataError;

/// The files behind paths, directories (all files below, hidden ones skipped) and glob patterns, each once, in the order named
/// and sorted inside a directory or pattern.
pub fn find(names: &[String]) -> Result<Vec<PathBuf>, DataError> {
    let mut files = Vec::new();
    for name in names {
        // A file may be called like a pattern.
        let plain = Path::new(name).exists() || !is_pattern(name);
        files.extend(if plain { expand(Path::new(name))? } else { matches(name)? });
    }
    let mut seen = FxHashSet::default();
    files.retain(|file| seen.insert(place(file)));
    Ok(files)
}

/// The first name that stands there before, in whatever spelling.
pub fn repeated(names: &[String]) -> Option<&String> {
    let mut seen = FxHashSet::default();
    names.iter().find(|name| !seen.insert(place(Path::new(name))))
}

/// A path in the one spelling that all of its spellings share. A link to a file is a file of its own: in the hub's cache each file
/// is one, and those of the same content lead to the same place.
fn place(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let found = match (whole.parent(), whole.file_name()) {
        (Some(folder), Some(name)) if !whole.is_dir() => folder.canonicalize().map(|folder| folder.join(name)),
        _ => whole.canonicalize(),
    };
    found.unwrap_or(whole)
}

/// Names of files that tell of the data beside them, without the extension: those of repositories, and of `datasets`' own.
const ABOUT: [&str; 8] = ["readme", "license", "licence", "copying", "citation", "dataset_infos", "dataset_info", "dataset_dict"];

/// The first of these files that only tells of the data, by its name, and was not named itself. Where all are called like that,
/// none is: they are the data.
pub fn about_the_data<'f>(files: &'f [PathBuf], names: &[String]) -> Option<&'f Path> {
    let is_about = |file: &&PathBuf| {
        let stem = file.file_stem().map(|stem| stem.to_string_lossy().to_lowercase());
        stem.is_some_and(|stem| ABOUT.contains(&stem.as_str()))
    };
    let is_named = |file: &PathBuf| names.iter().any(|name| Path::new(name) == file);
    let found = files.iter().filter(is_about).find(|file| !is_named(file))?;
    files.iter().any(|file| !is_about(&file)).then_some(found)
}

fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?', '['])
}

/// A folder's part of a pattern that stands for any number of folders, also for none.
const ANY_DEPTH: &str = "**";

fn matches(pattern: &str) -> Result<Vec<PathBuf>, DataError> {
    let files = search(Path::new(if pattern.starts_with('/') { "/" } else { "" }), pattern)?;
    if files.is_empty() { Err(DataError::NoMatch { pattern: pattern.to_owned() }) } else { Ok(files) }
}

fn expand(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    let metadata = std::fs::metadata(path).map_err(|error| DataError::reading(path, error))?;
    if metadata.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    if !metadata.is_dir() {
        return Err(DataError::NotAFile { path: path.to_owned() });
    }
    let files = walk(path)?;
    if files.is_empty() { Err(DataError::EmptyDirectory { path: path.to_owned() }) } else { Ok(files) }
}

/// All regular files below a directory, as a pattern finds them.
pub(super) fn walk(directory: &Path) -> Result<Vec<PathBuf>, DataError> {
    search(directory, ANY_DEPTH)
}

fn search(directory: &Path, pattern: &str) -> Result<Vec<PathBuf>, DataError> {
    let bad = |error: PatternError| DataError::BadPattern { pattern: pattern.to_owned(), reason: error.to_string() };
    Pattern::new(pattern).map_err(bad)?;
    let any_file = pattern.ends_with(ANY_DEPTH).then_some("*");
    let parts = pattern.split('/').chain(any_file).map(Pattern::new).collect::<Result<Vec<_>, _>>().map_err(bad)?;
    let mut search = Search::default();
    search.below(directory, &parts)?;
    Ok(search.files)
}

/// The regular files that a pattern finds, sorted by name. Links to directories are followed, and nothing hidden is found that
/// the pattern does not name with its dot.
#[derive(Default)]
struct Search {
    /// Directories, each with the length of the pattern that was left there. One is read once: links can form a circle.
    seen: FxHashSet<(PathBuf, usize)>,
    files: Vec<PathBuf>,
}

impl Search {
    /// `parts` are what the names below the directory have to match, one after another.
    fn below(&mut self, directory: &Path, parts: &[Pattern]) -> Result<(), DataError> {
        let reading = |error| DataError::reading(directory, error);
        let here = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        let any_depth = parts.iter().take_while(|part| part.as_str() == ANY_DEPTH).count();
        let Some((part, rest)) = parts[any_depth..].split_first() else { return Ok(()) };
        if !self.seen.insert((here.canonicalize().map_err(reading)?, rest.len())) {
            return Ok(());
        }
        if any_depth == 0 && !is_pattern(part.as_str()) {
            return self.found(&directory.join(part.as_str()), rest);
        }
        let list = || std::fs::read_dir(here)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>();
        let mut names = list().map_err(reading)?;
        names.sort();
        for name in names {
            let (path, name) = (directory.join(&name), name.to_string_lossy());
            let is_hidden = name.starts_with('.');
            if (!is_hidden || part.as_str().starts_with('.')) && part.matches(&name) {
                self.found(&path, rest)?;
            }
            if any_depth > 0 && !is_hidden && path.is_dir() {
                self.below(&path, parts)?;
            }
        }
        Ok(())
    }

    /// Takes a file that matches the whole pattern, or goes on below a directory.
    fn found(&mut self, path: &Path, rest: &[Pattern]) -> Result<(), DataError> {
        if !rest.is_empty() {
            return if path.is_dir() { self.below(path, rest) } else { Ok(()) };
        }
        if is_file(path)? {
            self.files.push(path.to_owned());
        }
        Ok(())
    }
}

/// Whether a regular file is there. A link that leads to nothing stood for one.
fn is_file(path: &Path) -> Result<bool, DataError> {
    match std::fs::read_link(path) {
        Ok(target) if !path.exists() => Err(DataError::Dangling { path: path.to_owned(), target }),
        _ => Ok(path.is_file()),
    }
}
