//! Folders and files beneath one open directory. The files may be another user's work: no symbolic link is followed, neither at
//! the end of a path nor in its middle, and only plain files are opened, because a pipe would keep its reader waiting.

use std::{
    fs::File,
    io::{self, ErrorKind},
    path::Path,
};

use cap_fs_ext::{DirExt as _, FollowSymlinks, OpenOptionsFollowExt as _, OpenOptionsSyncExt as _};
use cap_std::{
    ambient_authority,
    fs::{Dir, DirBuilder, DirBuilderExt as _, OpenOptions},
};
use rustix::fs::{AtFlags, FileType, Stat, fstat, statat};
#[cfg(target_os = "linux")]
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

/// A deletion in another process may take an emptied folder away between two steps of a write. That the same happens so often in a
/// row is out of the question.
const TRIES: usize = 1_000;

/// Opens a directory that the user named. Links on the way to it are the user's own.
pub(super) fn named(path: &Path) -> io::Result<Dir> {
    Dir::open_ambient_dir(path, ambient_authority())
}

/// The folder and the name of a path.
pub(super) fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// The names of the folders on a path; none for the empty one.
pub(super) fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

/// Opens a folder.
pub(super) fn folder(root: &Dir, path: &str) -> io::Result<Dir> {
    // A thousand records are read for one table: at once each costs a third of the time. What the kernel refuses, or does not know,
    // is explained by the way that goes step by step.
    at_once(root, path).map_or_else(|| parts(path).try_fold(root.try_clone()?, |above, name| enter(&above, name)), Ok)
}

#[cfg(target_os = "linux")]
fn at_once(root: &Dir, path: &str) -> Option<Dir> {
    if path.is_empty() || parts(path).any(|part| part == "..") {
        return None;
    }
    let (flags, resolve) = (OFlags::DIRECTORY | OFlags::CLOEXEC, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS);
    let opened = openat2(root, path, flags, Mode::empty(), resolve).ok()?;
    Some(Dir::from_std_file(opened.into()))
}

/// Only Linux opens a whole path without following a link on it.
#[cfg(not(target_os = "linux"))]
fn at_once(_: &Dir, _: &str) -> Option<Dir> {
    None
}

/// Opens one folder of `above`.
pub(super) fn enter(above: &Dir, name: &str) -> io::Result<Dir> {
    above.open_dir_nofollow(name).map_err(|error| explained(above, name, error))
}

/// [`folder`] that makes missing folders, with `mode` as far as the `umask` allows. `grown` sees each folder that has a new one.
/// [`ErrorKind::NotFound`]: a deletion took one away meanwhile; see [`again`].
pub(super) fn make(root: &Dir, path: &str, mode: u32, grown: impl Fn(&Dir) -> io::Result<()>) -> io::Result<Dir> {
    parts(path).try_fold(root.try_clone()?, |above, name| match enter(&above, name) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            match above.create_dir_with(name, DirBuilder::new().mode(mode)) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                created => created.and_then(|()| grown(&above))?,
            }
            enter(&above, name)
        }
        entered => entered,
    })
}

/// Does something in a folder until no deletion has taken that away in between.
pub(super) fn again<T>(act: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let is_gone = |done: &io::Result<T>| done.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    (1..TRIES).map(|_| act()).find(|done| !is_gone(done)).unwrap_or_else(&act)
}

/// Opens a plain file.
pub(super) fn open(folder: &Dir, name: &str, options: &OpenOptions) -> io::Result<File> {
    let mut options = options.clone();
    options.follow(FollowSymlinks::No).nonblock(true);
    let file = folder.open_with(name, &options).map_err(|error| explained(folder, name, error))?.into_std();
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(file),
        FileType::Directory => Err(ErrorKind::NotFound.into()),
        _ => Err(refused(name, "not a plain file")),
    }
}

/// Opens a new file.
pub(super) fn create(folder: &Dir, name: &str, options: &OpenOptions) -> io::Result<File> {
    open(folder, name, options.clone().read(true).write(true).create_new(true))
}

/// The entry with this name, a link included; `None`: nothing.
pub(super) fn stat(folder: &Dir, name: &str) -> io::Result<Option<Stat>> {
    match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(rustix::io::Errno::NOENT) => Ok(None),
        found => Ok(Some(found?)),
    }
}

pub(super) fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// Whether `name` still is the name of the open file.
pub(super) fn is_at(file: &File, folder: &Dir, name: &str) -> io::Result<bool> {
    let open = fstat(file)?;
    Ok(stat(folder, name)?.is_some_and(|named| (named.st_dev, named.st_ino) == (open.st_dev, open.st_ino)))
}

/// The folder as an open file, to be synchronised or locked: a handle alone cannot be.
pub(super) fn as_file(folder: &Dir) -> io::Result<File> {
    Ok(folder.open(".")?.into_std())
}

/// Makes the names in a folder survive a power failure.
pub(super) fn sync(folder: &Dir) -> io::Result<()> {
    as_file(folder)?.sync_all()
}

/// There is no such file. An existing entry that is refused is another error: a folder that was replaced by a link must not look
/// empty.
pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// The kernel's word for a link that is not followed ("not a directory", "too many levels") says nothing to a person.
fn explained(folder: &Dir, name: &str, error: io::Error) -> io::Error {
    match stat(folder, name) {
        Ok(Some(found)) if FileType::from_raw_mode(found.st_mode) == FileType::Symlink => refused(name, "a symbolic link"),
        _ => error,
    }
}

fn refused(name: &str, what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, format!("`{}` is {what}, which ftctl does not open", name.escape_debug()))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn reading() -> OpenOptions {
        OpenOptions::new().read(true).clone()
    }

    #[test]
    fn no_link_is_followed_and_no_pipe_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir_all(at("outside/in")).unwrap();
        fs::create_dir(at("root")).unwrap();
        fs::write(at("outside/file"), "secret").unwrap();
        fs::write(at("root/plain"), "plain").unwrap();
        for (target, link) in [("../outside", "root/out"), ("../outside/file", "root/file"), ("plain", "root/alias")] {
            symlink(target, at(link)).unwrap();
        }
        rustix::fs::mknodat(rustix::fs::CWD, at("root/pipe"), FileType::Fifo, 0o600.into(), 0).unwrap();
        let root = named(&at("root")).unwrap();
        for path in ["out", "out/in", "..", "../outside", "/"] {
            assert!(folder(&root, path).is_err() || parts(path).next().is_none(), "{path}");
        }
        for name in ["file", "alias", "pipe", "out", "../outside/file", "out/file"] {
            let error = open(&root, name, &reading()).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::PermissionDenied), "{name}: {error}");
        }
        let error = open(&root, "file", reading().write(true).create(true)).unwrap_err();
        assert_eq!(error.to_string(), "`file` is a symbolic link, which ftctl does not open");
        assert!(make(&root, "out/new", 0o777, sync).unwrap_err().to_string().contains("`out` is a symbolic link"));
        assert!(!at("outside/new").exists());
        open(&root, "plain", &reading()).unwrap();
    }
}
