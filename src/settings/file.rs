//! Job files and settings files, as they lie on the disk.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use crate::job::{
    document::{Document, DocumentError},
    wording::nearest,
};

/// Far above any file a person writes; keeps a mistyped path (a data set, a device) from filling the memory.
const MAX_BYTES: u64 = 1 << 20;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("there is no file {}", .0.display())]
    Missing(PathBuf),
    #[error("{} is a directory, not a file", .0.display())]
    Directory(PathBuf),
    #[error("{} is a pipe or a device, not a file", .0.display())]
    Special(PathBuf),
    #[error("{} is larger than 1 MiB, so it is not a job or settings file", .0.display())]
    TooLarge(PathBuf),
    #[error("cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Invalid(#[from] DocumentError),
}

/// The file that was probably meant by a path at which nothing is: its first part that is missing has a neighbour of a similar
/// name.
pub fn meant(path: &Path) -> Option<PathBuf> {
    let missing = path.ancestors().take_while(|part| part.file_name().is_some() && !part.exists()).last()?;
    let folder = missing.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
    let names: Vec<String> = fs::read_dir(folder).ok()?.filter_map(name).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let near = missing.with_file_name(nearest(missing.file_name()?.to_str()?, &names)?);
    let meant: PathBuf = near.iter().chain(path.strip_prefix(missing).ok()?).collect();
    meant.is_file().then_some(meant)
}

/// Reads a file of a project, which another person may have made: a pipe there would be waited for.
pub fn open_plain(path: &Path) -> Result<Document, OpenError> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() && !found.is_dir() => Err(OpenError::Special(path.to_owned())),
        _ => open(path),
    }
}

/// Reads a file. Pipes are fine (`ftctl plan <(generate-job)`), endless devices are not.
pub fn open(path: &Path) -> Result<Document, OpenError> {
    let unreadable = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => OpenError::Missing(path.to_owned()),
        io::ErrorKind::IsADirectory => OpenError::Directory(path.to_owned()),
        _ => OpenError::Unreadable { path: path.to_owned(), source },
    };
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(OpenError::TooLarge(path.to_owned()));
    }
    Ok(Document::new(path.display().to_string(), bytes)?)
}
