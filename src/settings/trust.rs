//! Which values of a project's files count: those that the user has trusted for their directory.
//!
//! A file that came with a cloned repository may say what a job trains. Where jobs run, which store holds them and how images are
//! built sends a sign-in somewhere, or runs another's code, so it needs the user's consent.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, DirBuilder},
    io::{self, Write as _},
    os::unix::{ffi::OsStrExt as _, fs::DirBuilderExt as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::job::digest::Digest;

const SCHEMA: &str = "ftctl.trusted/1";

/// `backend`, `store`, the keys of `[image]`, those of `[compute]` that decide whose code runs, and `tracking.mlflow`, with the
/// value of each.
pub type Places = BTreeMap<String, String>;

/// The [`Places`] of a project's file that would not hold without it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claims {
    pub file: PathBuf,
    pub places: Places,
}

impl Claims {
    /// The places that `file` adds to those that hold anyway.
    pub(super) fn beyond(file: PathBuf, mut said: Places, without: &Places) -> Self {
        said.retain(|key, value| without.get(key) != Some(value));
        Self { file, places: said }
    }

    /// Where the file lies, without links: the same directory is the same, whatever it is called.
    pub fn directory(&self) -> PathBuf {
        directory_of(&self.file)
    }
}

/// See [`Claims::directory`].
pub fn directory_of(file: &Path) -> PathBuf {
    let directory = file.parent().unwrap_or(file);
    fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned())
}

/// The settings that the user trusts the files of one directory with, as the state directory remembers them.
#[derive(Debug)]
pub struct Trusted {
    path: PathBuf,
    kept: Kept,
}

#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    schema: String,
    directory: String,
    /// Several job files may say several things.
    values: BTreeMap<String, BTreeSet<String>>,
}

impl Trusted {
    /// Reads what is remembered of `directory`. A file that cannot be read gives no trust.
    pub fn of(state: &Path, directory: &Path) -> Self {
        let name = Digest::of(directory.as_os_str().as_bytes());
        let path = state.join("trusted").join(format!("{name}.json"));
        let directory = directory.to_string_lossy().into_owned();
        let read = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Kept>(&bytes).ok());
        let kept = read.filter(|kept| kept.schema == SCHEMA && kept.directory == directory);
        let nothing = || Kept { schema: SCHEMA.to_owned(), directory, values: BTreeMap::new() };
        Self { path, kept: kept.unwrap_or_else(nothing) }
    }

    pub fn covers(&self, places: &Places) -> bool {
        places.iter().all(|(key, value)| self.kept.values.get(key).is_some_and(|values| values.contains(value)))
    }

    pub fn add(&mut self, places: &Places) {
        for (key, value) in places {
            self.kept.values.entry(key.clone()).or_default().insert(value.clone());
        }
    }

    /// Nothing is trusted from here on.
    pub fn clear(&mut self) {
        self.kept.values.clear();
    }

    /// Remembers it, for the user's eyes alone; nothing is remembered of a directory that is not trusted.
    pub fn save(&self) -> io::Result<()> {
        if self.kept.values.is_empty() {
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        let folder = self.path.parent().unwrap_or(&self.path);
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(format!("{:#}\n", serde_json::json!(self.kept)).as_bytes())?;
        file.persist(&self.path)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn places(pairs: &[(&str, &str)]) -> Places {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_directory_is_trusted_for_what_it_said() {
        let state = tempfile::tempdir().unwrap();
        let of = |directory: &str| Trusted::of(state.path(), Path::new(directory));
        let said = places(&[("store", "azure://a/b"), ("backend", "gce")]);
        let mut trusted = of("/project");
        assert!(trusted.covers(&Places::new()) && !trusted.covers(&said));
        trusted.add(&said);
        trusted.add(&places(&[("backend", "docker")]));
        trusted.save().unwrap();
        assert!(of("/project").covers(&said) && of("/project").covers(&places(&[("backend", "docker")])));
        assert!(!of("/other").covers(&said), "another directory");
        assert!(!of("/project").covers(&places(&[("store", "azure://a/c")])), "another value");
        assert!(!of("/project").covers(&places(&[("image.pip_index", "gce")])), "another key");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&trusted.path), mode(trusted.path.parent().unwrap())), (0o600, 0o700));
        fs::write(&trusted.path, fs::read_to_string(&trusted.path).unwrap().replace("trusted/1", "trusted/2")).unwrap();
        assert!(!of("/project").covers(&said), "of another version");
        trusted.clear();
        trusted.save().unwrap();
        trusted.save().unwrap();
        assert!(!of("/project").covers(&said) && !trusted.path.exists());
    }

    #[test]
    fn a_directory_is_the_same_whatever_it_is_called() {
        let root = tempfile::tempdir().unwrap();
        let real = root.path().canonicalize().unwrap().join("real");
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, root.path().join("link")).unwrap();
        for file in ["real/job.toml", "link/job.toml", "real/../link/job.toml"] {
            assert_eq!(directory_of(&root.path().join(file)), real, "{file}");
        }
    }
}
