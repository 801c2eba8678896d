//! The files of a commit, as the hub lists them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Class, HubError, Result};
use crate::job::{digest::Digest, hub::Commit, printable};

/// Files of a repository; the largest datasets have some fifty thousand.
const MOST: usize = 200_000;
/// Bytes of a file's whole name.
const LONGEST: usize = 1_024;
/// Bytes of a folder's or a file's own name: what file systems take.
const LONGEST_PART: usize = 255;

/// The proof of a file's bytes. Its digest is the file's name in the cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// SHA-256 of a large file.
    Sha256(Digest),
    /// git's SHA-1 of a small one.
    Git(Commit),
    /// There is no digest: another program put the file into the cache.
    Cached,
}

impl Proof {
    pub(super) fn as_str(&self) -> &str {
        match self {
            Proof::Sha256(digest) => digest.as_str(),
            Proof::Git(digest) => digest.as_str(),
            Proof::Cached => "",
        }
    }
}

/// A file of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Its folders and its name, with `/` between them.
    pub path: String,
    pub bytes: u64,
    pub(super) proof: Proof,
}

/// All files of a commit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing(Vec<Listed>);

#[derive(Deserialize)]
struct Answer {
    sha: Commit,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<Commit>,
    lfs: Option<Value>,
}

impl Listing {
    /// The commit and its files that an answer of the hub tells of.
    pub(super) fn of_answer(bytes: &[u8]) -> std::result::Result<(Commit, Self), String> {
        let answer: Answer = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let files = answer.siblings.into_iter().map(listed).collect::<std::result::Result<Vec<_>, _>>()?;
        Ok((answer.sha, Self::new(files)?))
    }

    /// Files whose names are checked.
    pub(super) fn new(files: Vec<Listed>) -> std::result::Result<Self, String> {
        if files.len() > MOST {
            return Err(format!("it has {} files, and {MOST} are the most that are taken", files.len()));
        }
        if let Some(wrong) = files.iter().find(|file| !is_path(&file.path)) {
            return Err(format!("it has a file with the name `{}`, which is not taken", wrong.path.escape_debug()));
        }
        match files.iter().try_fold(0_u64, |sum, file| sum.checked_add(file.bytes)) {
            Some(_) => Ok(Self(files)),
            None => Err("its files have more bytes than there are".to_owned()),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Listed> {
        self.0.iter()
    }

    pub fn find(&self, path: &str) -> Option<&Listed> {
        self.0.iter().find(|file| file.path == path)
    }

    /// Whether a dataset of this name is made by a program of its repository.
    pub(super) fn has_program(&self, name: &str) -> bool {
        self.find(&format!("{name}.py")).is_some()
    }
}

/// A name below a folder, in which nothing is hidden, refers to something else, or is an order to a terminal.
fn is_path(path: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && part.len() <= LONGEST_PART && part != "." && part != "..";
    path.len() <= LONGEST && path.split('/').all(is_part) && !path.contains('\\') && printable::line(path) == path
}

fn listed(sibling: Sibling) -> std::result::Result<Listed, String> {
    let Sibling { rfilename: path, size, blob_id, lfs } = sibling;
    let untold = || format!("its list has neither size nor digest of {}", path.escape_debug());
    let large = lfs.as_ref().filter(|lfs| lfs.is_object());
    let of_large = |lfs: &Value| Digest::parse(lfs["sha256"].as_str().or_else(|| lfs["oid"].as_str())?).map(Proof::Sha256);
    let proof = match large {
        Some(lfs) => of_large(lfs),
        None => blob_id.map(Proof::Git),
    };
    let bytes = large.and_then(|lfs| lfs["size"].as_u64()).or(size).ok_or_else(untold)?;
    let proof = proof.ok_or_else(untold)?;
    Ok(Listed { path, bytes, proof })
}

/// The answer of a hub that is not understood.
pub(super) fn not_understood(what: &str, why: &str) -> HubError {
    HubError::new(Class::Integrity, format!("the hub's list of {what} cannot be used: {why}"))
}

/// The listing that a file of ours has; `None` where there is none, or an older one.
pub(super) fn kept(bytes: &[u8]) -> Option<Listing> {
    let Listing(files) = serde_json::from_slice(bytes).ok()?;
    Listing::new(files).ok()
}

pub(super) fn to_bytes(listing: &Listing) -> Result<Vec<u8>> {
    serde_json::to_vec(listing).map_err(|error| HubError::new(Class::Disk, error.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SHA: &str = "0123456789012345678901234567890123456789";

    fn read(siblings: &Value) -> std::result::Result<(Commit, Listing), String> {
        Listing::of_answer(json!({ "sha": SHA, "siblings": siblings, "id": "a/b" }).to_string().as_bytes())
    }

    #[test]
    fn files_have_sizes_and_digests() {
        let sha256 = "ab".repeat(32);
        let lfs = json!({ "sha256": sha256, "size": 1u64 << 40, "pointerSize": 134 });
        let (commit, listing) = read(&json!([
            { "rfilename": "a/b.safetensors", "size": 1u64 << 40, "blobId": SHA, "lfs": lfs },
            { "rfilename": "README.md", "size": 5, "blobId": SHA },
        ]))
        .unwrap();
        assert_eq!(commit.as_str(), SHA);
        let proof = |path: &str| listing.find(path).map(|file| (file.bytes, file.proof.clone()));
        assert_eq!(proof("a/b.safetensors"), Some((1 << 40, Proof::Sha256(Digest::parse(&sha256).unwrap()))));
        assert_eq!(proof("README.md"), Some((5, Proof::Git(Commit::parse(SHA).unwrap()))));
        assert_eq!(kept(&to_bytes(&listing).unwrap()), Some(listing));
    }

    #[test]
    fn what_is_no_list_of_files_is_refused() {
        let file = |name: &str| json!([{ "rfilename": name, "size": 1, "blobId": SHA }]);
        for name in
            ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/.", "a\\..\\b", "a\nb", "a\u{202e}b", &"x".repeat(256)]
        {
            let why = read(&file(name)).unwrap_err();
            assert!(why.contains("which is not taken"), "{name:?} gave {why}");
        }
        for (siblings, part) in [
            (json!([{ "rfilename": "a", "size": 1 }]), "neither size nor digest of a"),
            (json!([{ "rfilename": "a", "blobId": SHA }]), "neither size nor digest of a"),
            (json!([{ "rfilename": "a", "size": 1, "lfs": { "sha256": "../x" } }]), "neither size nor digest"),
            (json!([{ "rfilename": "a", "size": -1, "blobId": SHA }]), "invalid value"),
            (json!([{ "rfilename": "a", "size": 1, "blobId": "../../x" }]), "is not a commit"),
            (
                json!([{ "rfilename": "a", "size": u64::MAX, "blobId": SHA }, { "rfilename": "b", "size": 1, "blobId": SHA }]),
                "more bytes",
            ),
            (json!({}), "invalid type"),
        ] {
            let why = read(&siblings).unwrap_err();
            assert!(why.contains(part), "{siblings} gave {why}");
        }
        assert!(Listing::of_answer(br#"{"sha": "main", "siblings": []}"#).is_err());
    }
}
