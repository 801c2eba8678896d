//! The folder of Hugging Face's own tools: the bytes of a file in `blobs/` under their digest, a link to them in
//! `snapshots/COMMIT/` under the file's name, and in `refs/` the commits that revisions stood for. Beside it, ftctl's own memory
//! of what a commit has.

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use super::{
    HubError, Result,
    listing::{self, Listed, Listing, Proof},
};
use crate::job::hub::{Commit, Repository, Revision};

/// Bytes of a kept list: a file takes about 150.
const LONGEST_LIST: u64 = 64 << 20;

/// The part of the folder that is a repository's.
#[derive(Clone)]
pub(super) struct Cache {
    root: PathBuf,
    locks: PathBuf,
}

fn folder(repository: &Repository) -> String {
    format!("{}--{}--{}", repository.kind.as_str(), repository.owner, repository.name)
}

impl Cache {
    pub fn of(hub: &Path, repository: &Repository) -> Self {
        let folder = folder(repository);
        Self { root: hub.join(&folder), locks: hub.join(".locks").join(folder) }
    }

    pub fn snapshot(&self, commit: &Commit) -> PathBuf {
        self.root.join("snapshots").join(commit.as_str())
    }

    pub fn blob(&self, file: &Listed) -> PathBuf {
        self.root.join("blobs").join(file.proof.as_str())
    }

    /// Whether a file is there, whole. Its bytes were verified when they came.
    pub fn has(&self, commit: &Commit, file: &Listed) -> bool {
        is_whole(&self.snapshot(commit).join(&file.path), file)
    }

    pub fn has_blob(&self, file: &Listed) -> bool {
        is_whole(&self.blob(file), file)
    }

    /// Refuses more bytes than the disk has room for. A part of them may be there already: it is left out of account.
    pub fn check_room(&self, bytes: u64) -> Result<()> {
        let cannot = |error: io::Error| HubError::disk("make", &self.root, &error);
        fs::create_dir_all(&self.root).map_err(cannot)?;
        let disk = rustix::fs::statvfs(&self.root).map_err(|error| cannot(error.into()))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if bytes <= free {
            return Ok(());
        }
        let full = io::Error::other(format!("{bytes} bytes are to come, and the disk has room for {free}"));
        Err(HubError::disk("fill", &self.root, &full))
    }

    /// Puts a file whose bytes are there into a commit.
    pub fn link(&self, commit: &Commit, file: &Listed) -> Result<()> {
        let link = self.snapshot(commit).join(&file.path);
        let up = "../".repeat(2 + file.path.matches('/').count());
        let target = format!("{up}blobs/{}", file.proof.as_str());
        let linked = make_folder_of(&link).and_then(|()| match symlink(&target, &link) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && !is_whole(&link, file) => {
                fs::remove_file(&link)?;
                symlink(&target, &link)
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        });
        linked.map_err(|error| HubError::disk("make", &link, &error))
    }

    /// The lock under which Hugging Face's tools, too, make a file.
    pub fn lock(&self, file: &Listed) -> Result<File> {
        let path = self.locks.join(format!("{}.lock", file.proof.as_str()));
        let locked = make_folder_of(&path).and_then(|()| {
            let lock = File::options().create(true).truncate(false).write(true).open(&path)?;
            lock.lock().map(|()| lock)
        });
        locked.map_err(|error| HubError::disk("lock", &path, &error))
    }

    /// The commit that a revision stood for when its files were fetched.
    pub fn commit(&self, revision: &Revision) -> Option<Commit> {
        read_commit(&self.root.join("refs").join(revision.as_str()))
    }

    pub fn keep_commit(&self, revision: &Revision, commit: &Commit) -> Result<()> {
        // A commit stands for itself.
        if revision.commit().is_some() {
            Ok(())
        } else {
            write(&self.root.join("refs").join(revision.as_str()), commit.as_str().as_bytes())
        }
    }

    /// The files of a commit that other programs fetched, without those in folders; `None` where there are none.
    pub fn listing(&self, commit: &Commit) -> Option<Listing> {
        let entries = fs::read_dir(self.snapshot(commit)).ok()?.flatten();
        let listed = |entry: fs::DirEntry| {
            let bytes = fs::metadata(entry.path()).ok().filter(fs::Metadata::is_file)?.len();
            Some(Listed { path: entry.file_name().into_string().ok()?, bytes, proof: Proof::Cached })
        };
        Listing::new(entries.filter_map(listed).collect()).ok().filter(|listing| listing.iter().next().is_some())
    }
}

/// The lists of a repository's files, and the commits that its revisions last stood for. A list never changes.
pub(super) struct Memory(PathBuf);

impl Memory {
    pub fn of(root: &Path, repository: &Repository) -> Self {
        Self(root.join(folder(repository)))
    }

    fn list(&self, commit: &Commit) -> PathBuf {
        self.0.join("lists").join(format!("{}.json", commit.as_str()))
    }

    pub fn listing(&self, commit: &Commit) -> Option<Listing> {
        let path = self.list(commit);
        fs::metadata(&path).ok().filter(|found| found.len() <= LONGEST_LIST)?;
        listing::kept(&fs::read(&path).ok()?)
    }

    pub fn keep_listing(&self, commit: &Commit, listing: &Listing) -> Result<()> {
        write(&self.list(commit), &listing::to_bytes(listing)?)
    }

    pub fn pin(&self, revision: &Revision) -> Option<Commit> {
        read_commit(&self.0.join("pins").join(revision.as_str()))
    }

    pub fn keep_pin(&self, revision: &Revision, commit: &Commit) -> Result<()> {
        write(&self.0.join("pins").join(revision.as_str()), commit.as_str().as_bytes())
    }
}

fn is_whole(path: &Path, file: &Listed) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() == file.bytes)
}

fn read_commit(path: &Path) -> Option<Commit> {
    fs::metadata(path).ok().filter(|found| found.is_file() && found.len() <= 100)?;
    Commit::parse(fs::read_to_string(path).ok()?.trim())
}

pub(super) fn make_folder_of(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

/// Writes a small file, whole or not at all.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = make_folder_of(path).and_then(|()| {
        // Users who share the folder may read what is in it.
        let of_all = fs::Permissions::from_mode(0o666);
        let mut file = tempfile::Builder::new().permissions(of_all).tempfile_in(path.parent().unwrap_or(path))?;
        io::Write::write_all(&mut file, bytes)?;
        file.persist(path).map(drop).map_err(|error| error.error)
    });
    written.map_err(|error| HubError::disk("write", path, &error))
}
