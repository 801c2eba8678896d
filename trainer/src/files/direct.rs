//! Large files that pass the page cache, from this process's memory to the disk and back, while the disk keeps up.
//!
//! A page of the cache costs a copy, and in a virtual machine often a page that the host has yet to find: there, 0.4 GB/s and a
//! processor's whole time for a disk of 3 GB/s. A slow disk is left to the page cache, which takes at once what the operating
//! system brings to it later.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use memmap2::MmapMut;
use sha2::{Digest, Sha256};

/// Bytes moved at a time. Less would wait for the disk, and for its turn beside the kernels, more often than it moves.
const BLOCK: usize = 4 << 20;
/// The time that a block may take on average: a checkpoint's two files, written at once, leave at half a gigabyte per second at
/// least.
const ALLOWED: Duration = Duration::from_millis(16);
/// How much longer one block may take, or several together, before the page cache takes the rest of the file.
const PATIENCE: Duration = Duration::from_millis(128);

/// A part of a new file, or all of it, written once from beginning to end. Other processes may write the other parts.
pub struct NewFile {
    blocks: Blocks,
    /// Bytes of the block that are still to be written.
    filled: usize,
    written: u64,
}

impl NewFile {
    /// The part that begins at `start`, which is a multiple of a page. The whole file will have `bytes` bytes.
    /// `writers` processes share the disk's speed.
    pub fn part(path: &Path, start: u64, bytes: u64, writers: u32) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        file.set_len(bytes)?;
        Ok(Self { blocks: Blocks::of(file, writers)?, filled: 0, written: start })
    }

    /// Writes what is left. The file may not be on the disk yet.
    pub fn finish(mut self) -> io::Result<File> {
        // Only whole blocks go past the page cache.
        self.blocks.leave_to_page_cache()?;
        self.blocks.file.write_all_at(&self.blocks.memory[..self.filled], self.written)?;
        Ok(self.blocks.file)
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(BLOCK - self.filled);
        self.blocks.memory[self.filled..][..taken].copy_from_slice(&bytes[..taken]);
        self.filled += taken;
        if self.filled == BLOCK {
            self.blocks.transfer(|file, block| file.write_all_at(block, self.written))?;
            self.written += BLOCK as u64;
            self.filled = 0;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Feeds a file that will not soon be read again to a hash; returns its size in bytes.
pub fn hash(path: &Path, hasher: &mut Sha256) -> io::Result<u64> {
    let file = File::open(path)?;
    let bytes = file.metadata()?.len();
    let mut blocks = Blocks::of(file, 1)?;
    let mut done = 0;
    while done < bytes {
        match blocks.transfer(|file, block| file.read_at(block, done)) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                hasher.update(&blocks.memory[..read]);
                done += read as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

/// A file and room for one block of it.
struct Blocks {
    file: File,
    /// Page-aligned.
    memory: MmapMut,
    direct: bool,
    /// Those who share the disk.
    users: u32,
    patience: Duration,
}

impl Blocks {
    fn of(file: File, users: u32) -> io::Result<Self> {
        let direct = set_direct(&file, true).is_ok();
        Ok(Self { file, memory: MmapMut::map_anon(BLOCK)?, direct, users, patience: PATIENCE * users })
    }

    fn leave_to_page_cache(&mut self) -> io::Result<()> {
        self.direct = false;
        set_direct(&self.file, false)
    }

    fn transfer<T>(&mut self, transfer: impl Fn(&File, &mut [u8]) -> io::Result<T>) -> io::Result<T> {
        let started = Instant::now();
        let moved = transfer(&self.file, &mut self.memory);
        if !self.direct {
            return moved;
        }
        let left = (self.patience + ALLOWED * self.users).saturating_sub(started.elapsed());
        self.patience = left.min(PATIENCE * self.users);
        if self.patience.is_zero() || moved.is_err() {
            self.leave_to_page_cache()?;
        }
        // Some file systems refuse only now. Any other failure comes again, at the latest when the file is brought to the disk.
        moved.or_else(|_| transfer(&self.file, &mut self.memory))
    }
}

#[cfg(target_os = "linux")]
fn set_direct(file: &File, direct: bool) -> io::Result<()> {
    use rustix::fs::{OFlags, fcntl_setfl};
    Ok(fcntl_setfl(file, if direct { OFlags::DIRECT } else { OFlags::empty() })?)
}

#[cfg(not(target_os = "linux"))]
fn set_direct(_: &File, direct: bool) -> io::Result<()> {
    if direct { Err(ErrorKind::Unsupported.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::files;

    /// The bytes that are read back after `bytes` were written in pieces of `piece` bytes, of which the page cache takes all but
    /// the first `direct`.
    fn written(bytes: &[u8], piece: usize, direct: usize) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut file = NewFile::part(&path, 0, bytes.len() as u64, 1).unwrap();
        for (number, piece) in bytes.chunks(piece).enumerate() {
            // As often as the machine is slow.
            file.blocks.patience = Duration::from_secs(60);
            if number == direct {
                file.blocks.leave_to_page_cache().unwrap();
            }
            file.write_all(piece).unwrap();
        }
        file.finish().unwrap();
        let (mut direct, mut cached) = (Sha256::new(), Sha256::new());
        assert_eq!(hash(&path, &mut direct).unwrap(), bytes.len() as u64);
        files::hash(&path, &mut cached).unwrap();
        assert_eq!(direct.finalize(), cached.finalize());
        std::fs::read(path).unwrap()
    }

    #[test]
    fn a_file_has_the_bytes_that_were_written_whichever_way_they_went() {
        let bytes: Vec<u8> = (0..3 * BLOCK as u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for length in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK] {
            for piece in [1_000_003, BLOCK, 2 * BLOCK + 5] {
                for direct in [0, 1, 5, usize::MAX] {
                    assert!(
                        written(&bytes[..length], piece, direct) == bytes[..length],
                        "{length} in pieces of {piece}, {direct} of them directly"
                    );
                }
            }
        }
    }

    /// Where the file system can, as the ones of disks do.
    #[cfg(target_os = "linux")]
    #[test]
    fn blocks_pass_the_page_cache_until_they_are_left_to_it() {
        use rustix::fs::{Mode, OFlags, fcntl_getfl, open};

        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut file = NewFile::part(&path, 0, 0, 1).unwrap();
        let is_direct = |blocks: &Blocks| fcntl_getfl(&blocks.file).unwrap().contains(OFlags::DIRECT);
        let can = open(&path, OFlags::RDONLY | OFlags::DIRECT, Mode::empty()).is_ok();
        assert_eq!((file.blocks.direct, is_direct(&file.blocks)), (can, can));
        file.blocks.leave_to_page_cache().unwrap();
        assert_eq!((file.blocks.direct, is_direct(&file.blocks)), (false, false));
    }

    #[test]
    fn a_slow_disk_is_left_to_the_page_cache_and_what_it_refuses_is_written_there() {
        let directory = tempfile::tempdir().unwrap();
        let mut blocks = Blocks::of(File::create(directory.path().join("file")).unwrap(), 2).unwrap();
        blocks.direct = true;
        for (time, direct) in [(Duration::ZERO, true), (PATIENCE + 2 * ALLOWED, true), (2 * (PATIENCE + 2 * ALLOWED), false)] {
            let slow = |_: &File, _: &mut [u8]| {
                thread::sleep(time);
                Ok(())
            };
            blocks.transfer(slow).unwrap();
            assert_eq!(blocks.direct, direct);
        }
        blocks.direct = true;
        let tries = std::cell::Cell::new(0);
        let refused_once = |_: &File, _: &mut [u8]| match tries.replace(tries.get() + 1) {
            0 => Err(ErrorKind::InvalidInput.into()),
            _ => Ok(()),
        };
        blocks.transfer(refused_once).unwrap();
        assert!(!blocks.direct && tries.get() == 2);
    }
}
