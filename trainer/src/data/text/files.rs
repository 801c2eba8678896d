//! Which files `[data]` names.

use std::path::{Path, PathBuf};

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
    files.retain(|file| seen.insert(file.clone()));
    Ok(files)
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

fn matches(pattern: &str) -> Result<Vec<PathBuf>, DataError> {
    let bad = |error: glob::PatternError| DataError::BadPattern { pattern: pattern.to_owned(), reason: error.to_string() };
    let mut files = Vec::new();
    for entry in glob::glob(pattern).map_err(bad)? {
        let path = entry.map_err(|error| DataError::reading(error.path(), std::io::Error::from(error.error().kind())))?;
        if !is_hidden(&path) && is_file(&path)? {
            files.push(path);
        }
    }
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
    let mut files = Vec::new();
    walk(path, &mut files)?;
    if files.is_empty() { Err(DataError::EmptyDirectory { path: path.to_owned() }) } else { Ok(files) }
}

/// Adds all regular files below a directory, sorted by name. Links to directories are followed, and each
/// directory is read once: links can form a circle.
pub(super) fn walk(directory: &Path, files: &mut Vec<PathBuf>) -> Result<(), DataError> {
    walk_once(directory, &mut FxHashSet::default(), files)
}

fn walk_once(directory: &Path, seen: &mut FxHashSet<PathBuf>, files: &mut Vec<PathBuf>) -> Result<(), DataError> {
    let reading = |error| DataError::reading(directory, error);
    if !seen.insert(directory.canonicalize().map_err(reading)?) {
        return Ok(());
    }
    let list = || std::fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>();
    let mut paths = list().map_err(reading)?;
    paths.sort();
    for path in paths.into_iter().filter(|path| !is_hidden(path)) {
        if path.is_dir() {
            walk_once(&path, seen, files)?;
        } else if is_file(&path)? {
            files.push(path);
        }
    }
    Ok(())
}

/// Whether a regular file is there. A link that leads to nothing stood for one.
fn is_file(path: &Path) -> Result<bool, DataError> {
    match std::fs::read_link(path) {
        Ok(target) if !path.exists() => Err(DataError::Dangling { path: path.to_owned(), target }),
        _ => Ok(path.is_file()),
    }
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
}
