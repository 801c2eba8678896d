//! SHA-256 digests, which name contents, datasets and programs.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::Digest as _;

/// The SHA-256 of some bytes: 64 hexadecimal digits in lower case. Objects and files are named after it, so text from a store is
/// parsed while it is deserialised.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self::from(<[u8; 32]>::from(sha2::Sha256::digest(bytes)))
    }

    /// Takes a digest as typed or read; `None` when it cannot be one.
    pub fn parse(text: &str) -> Option<Self> {
        let valid = text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        valid.then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<[u8; 32]> for Digest {
    fn from(bytes: [u8; 32]) -> Self {
        Self(hex::encode(bytes))
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("`{}` is not a digest: a digest has 64 hexadecimal digits", text.escape_debug()))
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_a_digest_becomes_one() {
        let right = "0123456789abcdef".repeat(4);
        assert_eq!(Digest::parse(&right).map(String::from), Some(right.clone()));
        let path = format!("/../../{}", &right[7..]);
        for wrong in ["", &right[1..], &right.to_uppercase(), &path, &format!("{right}0")] {
            assert_eq!(Digest::parse(wrong), None, "{wrong}");
            assert!(serde_json::from_value::<Digest>(wrong.into()).is_err(), "{wrong}");
        }
    }
}
