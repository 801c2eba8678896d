//! Files of named tensors as they lie on the disk: of safetensors, and of `torch.save` in its two forms. Only headers are read
//! until a tensor is asked for.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::{Advice, Mmap};
use rustc_hash::FxHashMap;
use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors};
use thiserror::Error;

use super::pickle::{Pickle, View};
use super::zip;
use crate::files::{self, is_lfs_pointer};

/// Bytes of the longest pickle of tensors; the tensors themselves lie beside it.
const LONGEST_PICKLE: usize = 16 << 20;
/// Bytes of the header of a safetensors file, which takes twenty times as much memory. Those of the largest models have a
/// million.
const LONGEST_HEADER: u64 = 16 << 20;
const ZIP: &[u8] = b"PK\x03\x04";
/// The pickle of a magic number with which files of torch before 1.6 begin.
const OLD: &[u8] = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.";

/// Bytes of a text that are shown.
const SHOWN: usize = 40;

/// Whether a file holds what a server says in the place of one: the length with which a file of tensors begins has bytes of zero.
fn is_text(content: &[u8]) -> bool {
    let is_written = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    content.first_chunk::<8>().is_some_and(|first| first.iter().all(is_written))
}

/// Why a file of tensors cannot be read or written.
#[derive(Debug, Error)]
pub enum FileError {
    #[error("cannot open {}: {source}", path.display())]
    Open { path: PathBuf, source: std::io::Error },
    #[error("{} is a pointer of git-lfs, not the file itself; `git lfs pull` in its repository fetches the file", .0.display())]
    Pointer(PathBuf),
    #[error("{} is empty: it may be truncated, fetch or write it again", .0.display())]
    Empty(PathBuf),
    #[error("{} is text, and no file of weights: it begins with {beginning:?}; fetch it again", path.display())]
    Text { path: PathBuf, beginning: String },
    #[error("{} is not a complete safetensors file ({source}); it may be truncated, fetch or write it again", path.display())]
    Format { path: PathBuf, source: SafeTensorError },
    #[error("{} is not a complete file of torch.save with nothing but tensors: {reason}", path.display())]
    Pickle { path: PathBuf, reason: String },
    #[error("{}: tensor {name} has dtype {dtype:?}; f16, bf16, f32, f64 and i64 can be read", path.display())]
    Dtype { path: PathBuf, name: String, dtype: Dtype },
    #[cfg(feature = "torch")]
    #[error("{}: tensor {name} cannot be read: {source}", path.display())]
    Tensor { path: PathBuf, name: String, source: tch::TchError },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: SafeTensorError },
}

/// Where a tensor lies in its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Elements from one to the next in each dimension, where they do not follow one another.
    pub strides: Option<Vec<usize>>,
    /// Bytes of the file.
    pub bytes: Range<usize>,
}

/// A file that is open for reading. Only tensors that were asked for are in memory.
#[derive(Debug)]
pub struct TensorFile {
    pub(super) path: PathBuf,
    pub(super) map: Mmap,
    entries: BTreeMap<String, Entry>,
}

impl TensorFile {
    /// Opens a file of either kind; its content tells which.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let file = files::open(path).map_err(|source| FileError::Open { path: path.to_owned(), source })?;
        // SAFETY: the map is read only; a file that another process truncates meanwhile ends this process with SIGBUS, which is
        // the price of not holding a second copy of the weights. Model directories are not modified in place.
        let map = unsafe { Mmap::map(&file) }.map_err(|source| FileError::Open { path: path.to_owned(), source })?;
        let of_torch = |read: Result<_, String>| read.map_err(|reason| FileError::Pickle { path: path.to_owned(), reason });
        let entries = match &map[..] {
            content if is_lfs_pointer(content) => return Err(FileError::Pointer(path.to_owned())),
            content if is_text(content) => {
                let beginning = String::from_utf8_lossy(&content[..content.len().min(SHOWN)]).into_owned();
                return Err(FileError::Text { path: path.to_owned(), beginning });
            }
            content if content.starts_with(ZIP) => of_torch(zipped(content))?,
            content if content.starts_with(OLD) => of_torch(old(content))?,
            [] => return Err(FileError::Empty(path.to_owned())),
            content => match safetensors(content) {
                // Some program may have written the one under the name of the other.
                Err(_) if path.extension().is_some_and(|extension| extension == "bin") => {
                    let is_pickle = content.starts_with(b"\x80");
                    of_torch(Err(if is_pickle { "it is some other pickle" } else { "it does not begin like one" }.to_owned()))?
                }
                read => read.map_err(|source| FileError::Format { path: path.to_owned(), source })?,
            },
        };
        Ok(Self { path: path.to_owned(), map, entries })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> Vec<String> {
        self.entries.keys().cloned().collect()
    }

    pub fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// Tells the system how the tensors will be read. Best effort: it changes the time alone.
    pub(super) fn advise(&self, advice: Advice) {
        let _ = self.map.advise(advice);
    }

    /// The bytes of a tensor, where it has some.
    pub fn bytes(&self, entry: &Entry) -> &[u8] {
        self.map.get(entry.bytes.clone()).unwrap_or_default()
    }
}

fn safetensors(content: &[u8]) -> Result<BTreeMap<String, Entry>, SafeTensorError> {
    let header = content.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    if header > LONGEST_HEADER {
        return Err(SafeTensorError::HeaderTooLarge);
    }
    let (header, metadata) = SafeTensors::read_metadata(content)?;
    let start = size_of::<u64>() + header;
    let entry = |(name, info): (String, &safetensors::tensor::TensorInfo)| {
        let bytes = start + info.data_offsets.0..start + info.data_offsets.1;
        (name, Entry { dtype: info.dtype, shape: info.shape.clone(), strides: None, bytes })
    };
    Ok(metadata.tensors().into_iter().map(entry).collect())
}

/// A file of torch since 1.6: a zip archive with a pickle, and a member for each storage.
fn zipped(content: &[u8]) -> Result<BTreeMap<String, Entry>, String> {
    let members = zip::members(content)?;
    let pickle = members.iter().find(|(name, _)| name == "data.pkl" || name.ends_with("/data.pkl"));
    let (name, place) = pickle.ok_or("it has no data.pkl")?;
    let folder = name.strip_suffix("data.pkl").unwrap_or_default();
    let of = |member: &str| members.iter().find(|(name, _)| name.strip_prefix(folder) == Some(member)).map(|(_, bytes)| bytes);
    if of("byteorder").is_some_and(|bytes| content[bytes.clone()].trim_ascii() != b"little") {
        return Err("its numbers have their bytes in the other order".to_owned());
    }
    if place.len() > LONGEST_PICKLE {
        return Err(format!("its pickle has {} bytes", place.len()));
    }
    let data = format!("{folder}data/");
    let storages = members.iter().filter_map(|(name, bytes)| Some((name.strip_prefix(&data)?, bytes.clone()))).collect();
    entries(&Pickle::read(&content[place.clone()])?, &storages)
}

/// A file of torch before 1.6: magic number, version, the system, the tensors, the keys of the storages, and these.
fn old(content: &[u8]) -> Result<BTreeMap<String, Entry>, String> {
    let bounded = |rest: &[u8]| rest.len().min(LONGEST_PICKLE);
    let after = |rest: &[u8], pickle: &Pickle<'_>| content.len() - rest.len() + (bounded(rest) - pickle.rest.len());
    let mut at = OLD.len();
    for _ in 0..2 {
        let rest = &content[at..];
        at = after(rest, &Pickle::read(&rest[..bounded(rest)])?);
    }
    let rest = &content[at..];
    let tensors = Pickle::read(&rest[..bounded(rest)])?;
    at = after(rest, &tensors);
    let rest = &content[at..];
    let keys = Pickle::read(&rest[..bounded(rest)])?;
    at = after(rest, &keys);
    let sizes: FxHashMap<&str, usize> =
        tensors.storages().map(|storage| (storage.key.as_str(), storage.dtype.bitsize() / 8)).collect();
    let mut storages = FxHashMap::default();
    for key in keys.texts().ok_or("it has no list of storages")? {
        let head = content.get(at..).and_then(|rest| rest.first_chunk()).map(|bytes| u64::from_le_bytes(*bytes));
        let size = *sizes.get(key).ok_or("it has a storage that no tensor has")?;
        let length = head.and_then(|count| usize::try_from(count).ok()?.checked_mul(size));
        let end = length.and_then(|length| (at + 8).checked_add(length)).filter(|end| *end <= content.len());
        let end = end.ok_or("it ends too early")?;
        storages.insert(key, at + 8..end);
        at = end;
    }
    entries(&tensors, &storages)
}

/// The tensors of a pickle by their names, in the storages that it names.
fn entries(pickle: &Pickle<'_>, storages: &FxHashMap<&str, Range<usize>>) -> Result<BTreeMap<String, Entry>, String> {
    let entry = |(name, view): (String, View)| {
        let storage = storages.get(view.storage.key.as_str());
        let bytes = storage.ok_or("is not in it").and_then(|storage| within(&view, storage));
        let bytes = bytes.map_err(|why| format!("tensor {} {why}", name.escape_debug()))?;
        let strides = (!follow_one_another(&view)).then_some(view.strides);
        Ok((name, Entry { dtype: view.storage.dtype, shape: view.size, strides, bytes }))
    };
    pickle.tensors()?.into_iter().map(entry).collect()
}

/// The bytes of a view in its storage.
fn within(view: &View, storage: &Range<usize>) -> Result<Range<usize>, &'static str> {
    let (bytes, count) = spread(view, storage.start).filter(|(bytes, _)| bytes.end <= storage.end).ok_or("is not in it")?;
    let numbers = view.size.iter().try_fold(1_usize, |product, size| product.checked_mul(*size));
    // A number that stands for many is no tensor of a model.
    if numbers.is_none_or(|numbers| numbers > count) {
        return Err("has numbers that stand for several each, as `expand` makes them; save its `.contiguous()`");
    }
    Ok(bytes)
}

/// The bytes from the first element of a view to its last, and how many elements have room there.
fn spread(view: &View, start: usize) -> Option<(Range<usize>, usize)> {
    let size = view.storage.dtype.bitsize() / 8;
    let is_empty = view.size.contains(&0);
    let steps = view.size.iter().zip(&view.strides).map(|(size, stride)| size.saturating_sub(1).checked_mul(*stride));
    let last = steps.into_iter().try_fold(0_usize, |sum, step| sum.checked_add(step?))?;
    let count = if is_empty { 0 } else { last.checked_add(1)? };
    let start = start.checked_add(view.offset.checked_mul(size)?)?;
    Some((start..start.checked_add(count.checked_mul(size)?)?, count))
}

fn follow_one_another(view: &View) -> bool {
    let mut expected = 1;
    view.size.iter().zip(&view.strides).rev().all(|(size, stride)| {
        let fits = *size == 1 || *stride == expected;
        expected = usize::saturating_mul(expected, *size);
        fits
    })
}
