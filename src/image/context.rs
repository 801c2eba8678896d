//! The build context that an engine gets: named contents, their digest, and their tar.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fs::File,
    io::{self, Read as _},
    path::PathBuf,
};

use bytes::{BufMut as _, Bytes, BytesMut};
use sha2::{Digest, Sha256};

use super::{Result, io_error};

/// How much of a file is in memory at once.
const PIECE: usize = 1 << 20;
const BLOCK: usize = 512;

/// Files by their names in the context. Times, owners and the order in which they were added leave no trace.
#[derive(Default)]
pub struct Context(BTreeMap<String, Content>);

enum Content {
    Bytes(Cow<'static, [u8]>),
    /// A file of this machine; anybody may run it.
    File(PathBuf),
}

impl Context {
    pub fn add(&mut self, name: impl Into<String>, bytes: impl Into<Cow<'static, [u8]>>) {
        self.0.insert(name.into(), Content::Bytes(bytes.into()));
    }

    /// A large file: read when the digest is made, and again when it is sent.
    pub fn add_file(&mut self, name: impl Into<String>, path: PathBuf) {
        self.0.insert(name.into(), Content::File(path));
    }

    /// Adds names, lengths and bytes of everything to `hash`.
    pub fn hash(&self, hash: &mut Sha256) -> Result<()> {
        for (name, content) in &self.0 {
            let (length, pieces) = content.open()?;
            hash.update(format!("{name}\0{length}\0"));
            for piece in pieces {
                hash.update(piece.map_err(|error| content.failed(error))?);
            }
        }
        Ok(())
    }

    /// The tar, piece by piece.
    pub fn tar(self) -> impl Iterator<Item = io::Result<Bytes>> + Send {
        let entries = self.0.into_iter().flat_map(|(name, content)| {
            let (length, pieces): (u64, Pieces) = match content.open() {
                Ok(opened) => opened,
                Err(error) => (0, Box::new(std::iter::once(Err(io::Error::other(error.to_string()))))),
            };
            let padding = length.next_multiple_of(BLOCK as u64) - length;
            let head = std::iter::once(header(&name, length, content.mode()));
            head.chain(pieces).chain(std::iter::once(Ok(Bytes::from(vec![0; padding as usize]))))
        });
        entries.chain(std::iter::once(Ok(Bytes::from_static(&[0; 2 * BLOCK]))))
    }
}

type Pieces = Box<dyn Iterator<Item = io::Result<Bytes>> + Send>;

impl Content {
    fn mode(&self) -> u32 {
        match self {
            Content::Bytes(_) => 0o644,
            Content::File(_) => 0o755,
        }
    }

    fn open(&self) -> Result<(u64, Pieces)> {
        match self {
            Content::Bytes(bytes) => {
                let bytes = match bytes {
                    Cow::Borrowed(bytes) => Bytes::from_static(bytes),
                    Cow::Owned(bytes) => Bytes::from(bytes.clone()),
                };
                Ok((bytes.len() as u64, Box::new(std::iter::once(Ok(bytes)))))
            }
            Content::File(path) => {
                let mut file = File::open(path).map_err(|error| self.failed(error))?;
                let length = file.metadata().map_err(|error| self.failed(error))?.len();
                let mut left = length;
                let pieces = std::iter::from_fn(move || {
                    let wanted = left.min(PIECE as u64) as usize;
                    let mut piece = BytesMut::zeroed(wanted);
                    left -= wanted as u64;
                    (wanted > 0).then(|| file.read_exact(&mut piece).map(|()| piece.freeze()))
                });
                Ok((length, Box::new(pieces)))
            }
        }
    }

    fn failed(&self, error: io::Error) -> super::ImageError {
        match self {
            Content::File(path) => io_error("read", path)(error),
            Content::Bytes(_) => super::ImageError::Unusable(error.to_string()),
        }
    }
}

/// A ustar header (POSIX.1-1988) of a regular file: no time, no owner.
fn header(name: &str, length: u64, mode: u32) -> io::Result<Bytes> {
    if name.len() > 100 {
        return Err(io::Error::other(format!("{name} is too long a name for a build context")));
    }
    let mut header = BytesMut::with_capacity(BLOCK);
    header.put_slice(name.as_bytes());
    header.put_bytes(0, 100 - name.len());
    header.put_slice(format!("{mode:07o}\0{:07o}\0{:07o}\0{length:011o}\0{:011o}\0", 0, 0, 0).as_bytes());
    header.put_slice(b"        0");
    header.put_bytes(0, 100);
    header.put_slice(b"ustar\x0000");
    header.put_bytes(0, BLOCK - header.len());
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(header.freeze())
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;

    fn digest(context: &Context) -> String {
        let mut hash = Sha256::new();
        context.hash(&mut hash).unwrap();
        hex::encode(hash.finalize())
    }

    #[test]
    fn tar_reads_what_was_written_and_the_digest_is_that_of_names_and_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let large = directory.path().join("large");
        fs::write(&large, vec![7; PIECE + 13]).unwrap();
        let make = |text: &'static str| {
            let mut context = Context::default();
            context.add("b/Dockerfile", text.as_bytes());
            context.add_file("a/program", large.clone());
            context.add("empty", &[][..]);
            context
        };
        assert_eq!(digest(&make("FROM x")), digest(&make("FROM x")));
        assert_ne!(digest(&make("FROM x")), digest(&make("FROM y")));
        let tar: Vec<u8> = make("FROM x").tar().flat_map(|piece| piece.unwrap().to_vec()).collect();
        let archive = directory.path().join("archive.tar");
        fs::write(&archive, tar).unwrap();
        let out = directory.path().join("out");
        fs::create_dir(&out).unwrap();
        assert!(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&out).status().unwrap().success());
        assert_eq!(fs::read_to_string(out.join("b/Dockerfile")).unwrap(), "FROM x");
        assert_eq!(fs::read(out.join("a/program")).unwrap(), fs::read(&large).unwrap());
        assert_eq!(fs::metadata(out.join("empty")).unwrap().len(), 0);
    }
}
