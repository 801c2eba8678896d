//! The secret that clients and machines must know: it cannot be guessed, and the next start draws another one.

use std::io;

use sha2::{Digest, Sha256};

pub struct Key([u8; 32]);

impl Key {
    pub fn new() -> io::Result<Self> {
        let mut bytes = [0; 32];
        aws_lc_rs::rand::fill(&mut bytes).map_err(|_| io::Error::other("the system has no random numbers"))?;
        Ok(Self(bytes))
    }

    /// The token of the user who started this.
    pub fn of_clients(&self) -> String {
        self.derived("client", "", "")
    }

    /// The token that a machine gets from its metadata server.
    pub fn of_service_account(&self, (zone, name): &(String, String)) -> String {
        self.derived("service account", zone, name)
    }

    /// Comes before every path of a machine's metadata server. Google's can be reached from its machine alone; ours from this whole
    /// computer.
    pub fn of_metadata(&self, (zone, name): &(String, String)) -> String {
        self.derived("metadata", zone, name)
    }

    /// Proves that words are this cloud's own: no one else can make the signature of any.
    pub fn signature(&self, words: &str) -> String {
        self.derived("signature", words, "")
    }

    fn derived(&self, purpose: &str, zone: &str, name: &str) -> String {
        let words = format!("\0{purpose}\0{zone}\0{name}");
        // Half of the digest: a digest that is cut off cannot be continued to another purpose's.
        hex::encode(&Sha256::digest([&self.0, words.as_bytes()].concat())[..16])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_another() {
        let (key, other) = (Key::new().unwrap(), Key::new().unwrap());
        let places = [("a".to_owned(), "b".to_owned()), ("a".to_owned(), "c".to_owned())];
        let of = |key: &Key| {
            let machines = places.iter().flat_map(|place| [key.of_service_account(place), key.of_metadata(place)]);
            machines.chain([key.of_clients(), key.signature("a")]).collect::<Vec<_>>()
        };
        let mut all = [of(&key), of(&other)].concat();
        assert_eq!(of(&key), all[..6]);
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 12);
    }
}
