//! Files of named tensors: safetensors, written one tensor at a time, and what [`TensorFile`] opens, read through a memory map
//! one at a time.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::UncheckedAdvice;
use safetensors::tensor::{Dtype, Metadata, SafeTensorError, TensorInfo};
use tch::{Device, Kind, Tensor};

pub use super::file::{FileError, TensorFile};
use crate::files::direct::NewFile;
use crate::offload::release;

/// The numbers of a file begin at a multiple of this many bytes.
const ALIGNMENT: usize = 8;

/// Writes named tensors, sorted by dtype and name as `transformers` does, without a copy of those that lie in main memory as they
/// are stored.
pub fn write<'a>(path: &Path, tensors: impl IntoIterator<Item = (String, &'a Tensor)>) -> Result<(), FileError> {
    write_changed(path, tensors, |_, tensor| tensor.shallow_clone())
}

/// [`write`] that stores each tensor as `change` makes it of its name and itself, with the same dimensions.
pub fn write_changed<'a>(
    path: &Path,
    tensors: impl IntoIterator<Item = (String, &'a Tensor)>,
    change: impl Fn(&str, &Tensor) -> Tensor,
) -> Result<(), FileError> {
    write_part(path, tensors, |bytes| 0..bytes, 1, change).map(drop)
}

/// [`write_changed`], but of one range: `part` gives it, from the file's size in bytes. There are `writers` processes for all
/// ranges. The file may not be on the disk yet; absent where the range is empty.
pub fn write_part<'a>(
    path: &Path,
    tensors: impl IntoIterator<Item = (String, &'a Tensor)>,
    part: impl FnOnce(u64) -> Range<u64>,
    writers: u32,
    change: impl Fn(&str, &Tensor) -> Tensor,
) -> Result<Option<File>, FileError> {
    let stored = tensors.into_iter().map(|(name, tensor)| (name, tensor.kind(), tensor.size(), tensor));
    let layout = Layout::of(path, stored.collect())?;
    let part = part(layout.bytes);
    let mut file = layout.open(path, &part, writers)?;
    for (placed, numbers) in layout.pieces(&part, usize::MAX) {
        let changed = change(&placed.name, placed.tensor);
        let is_whole = numbers.len() == changed.numel();
        let some = || changed.reshape([-1]).narrow(0, numbers.start as i64, numbers.len() as i64);
        file.write(&if is_whole { changed.shallow_clone() } else { some() }, placed.kind)?;
        release([placed.tensor]);
    }
    file.finish()
}

/// The place of each tensor in a file.
pub struct Layout<T> {
    header: Vec<u8>,
    tensors: Vec<Placed<T>>,
    /// Size of the whole file.
    pub bytes: u64,
}

/// A tensor and its place.
pub struct Placed<T> {
    name: String,
    pub tensor: T,
    pub kind: Kind,
    /// The byte of the file at which its numbers begin.
    first: u64,
    numbers: usize,
}

impl<T> Layout<T> {
    /// Sorts the tensors of these names, kinds and dimensions by dtype and name.
    pub fn of(path: &Path, mut tensors: Vec<(String, Kind, Vec<i64>, T)>) -> Result<Self, FileError> {
        tensors.sort_by(|left, right| dtype(right.1).cmp(&dtype(left.1)).then_with(|| left.0.cmp(&right.0)));
        let header = header(&tensors).map_err(|source| FileError::Write { path: path.to_owned(), source })?;
        let mut bytes = header.len() as u64;
        let place = |(name, kind, size, tensor): (String, Kind, Vec<i64>, T)| {
            let (kind, first, numbers) = (stored_as(dtype(kind)), bytes, size.iter().product::<i64>() as usize);
            bytes += (numbers * kind.elt_size_in_bytes()) as u64;
            Placed { name, tensor, kind, first, numbers }
        };
        let tensors = tensors.into_iter().map(place).collect();
        Ok(Self { header, tensors, bytes })
    }

    /// Begins to write a part of the file, and writes as much of the header as is in it. A part without bytes leaves no file.
    pub fn open(&self, path: &Path, part: &Range<u64>, writers: u32) -> Result<PartOfFile, FileError> {
        let header = within(0, self.header.len(), 1, part);
        let file = (!part.is_empty()).then(|| NewFile::part(path, part.start, self.bytes, writers)).transpose();
        let mut file = file.map_err(|error| unwritten(path, error))?;
        let written = file.as_mut().map_or(Ok(()), |file| file.write_all(&self.header[header]));
        written.map_err(|error| unwritten(path, error))?;
        Ok(PartOfFile { path: path.to_owned(), file })
    }

    /// The numbers that a part of the file has of each tensor, at most so many at a time, in their order there.
    pub fn pieces(&self, part: &Range<u64>, most: usize) -> impl Iterator<Item = (&Placed<T>, Range<usize>)> {
        self.tensors.iter().flat_map(move |placed| {
            let Range { start, end } = within(placed.first, placed.numbers, placed.kind.elt_size_in_bytes(), part);
            (start..end).step_by(most).map(move |first| (placed, first..end.min(first.saturating_add(most))))
        })
    }
}

/// The numbers that lie in a range of a file, out of a tensor's `numbers`, which begin at byte `first` and take `width` bytes each.
fn within(first: u64, numbers: usize, width: usize, part: &Range<u64>) -> Range<usize> {
    let border = |at: u64| (at.saturating_sub(first).div_ceil(width as u64) as usize).min(numbers);
    border(part.start)..border(part.end)
}

/// A part of a file, on its way there.
pub struct PartOfFile {
    path: PathBuf,
    file: Option<NewFile>,
}

impl PartOfFile {
    /// The next numbers, as they are stored.
    pub fn write(&mut self, tensor: &Tensor, kind: Kind) -> Result<(), FileError> {
        let written = self.file.as_mut().map_or(Ok(()), |file| write_tensor(file, tensor, kind));
        written.map_err(|error| unwritten(&self.path, error))
    }

    /// The file may not be on the disk yet.
    pub fn finish(self) -> Result<Option<File>, FileError> {
        self.file.map(NewFile::finish).transpose().map_err(|error| unwritten(&self.path, error))
    }
}

fn unwritten(path: &Path, error: std::io::Error) -> FileError {
    FileError::Write { path: path.to_owned(), source: error.into() }
}

/// The header, after its own length in 8 bytes.
fn header<T>(tensors: &[(String, Kind, Vec<i64>, T)]) -> Result<Vec<u8>, SafeTensorError> {
    let mut end = 0;
    let info = |(name, kind, size, _): &(String, Kind, Vec<i64>, T)| {
        let (first, dtype) = (end, dtype(*kind));
        end += size.iter().product::<i64>() as usize * dtype.bitsize() / 8;
        let shape = size.iter().map(|size| *size as usize).collect();
        (name.clone(), TensorInfo { dtype, shape, data_offsets: (first, end) })
    };
    let infos = tensors.iter().map(info).collect();
    let metadata = Metadata::new(Some(HashMap::from([("format".to_owned(), "pt".to_owned())])), infos)?;
    let mut text = serde_json::to_vec(&metadata)?;
    text.resize(text.len().next_multiple_of(ALIGNMENT), b' ');
    Ok([&(text.len() as u64).to_le_bytes(), &text[..]].concat())
}

fn write_tensor(file: &mut NewFile, tensor: &Tensor, kind: Kind) -> std::io::Result<()> {
    let plain = tensor.to_device(Device::Cpu).to_kind(kind).contiguous();
    let bytes = plain.numel() * kind.elt_size_in_bytes();
    if bytes == 0 {
        return Ok(());
    }
    // SAFETY: the tensor is contiguous, in main memory, and lives until the end of the function; the code that saves it does not
    // change it meanwhile.
    file.write_all(unsafe { std::slice::from_raw_parts(plain.data_ptr().cast_const().cast(), bytes) })
}

/// The type of a tensor in a file; half precision is stored as `f32`.
fn dtype(kind: Kind) -> Dtype {
    match kind {
        Kind::Double => Dtype::F64,
        Kind::Int64 => Dtype::I64,
        _ => Dtype::F32,
    }
}

/// The kind of a tensor whose bytes are those of the file.
fn stored_as(dtype: Dtype) -> Kind {
    match dtype {
        Dtype::F64 => Kind::Double,
        Dtype::I64 => Kind::Int64,
        _ => Kind::Float,
    }
}

/// Reads every tensor of a file in its stored dtype, sorted by name.
pub fn read(path: &Path) -> Result<Vec<(String, Tensor)>, FileError> {
    let file = TensorFile::open(path)?;
    file.names().into_iter().map(|name| Ok((name.clone(), file.tensor(&name)?))).collect()
}

impl TensorFile {
    /// A copy of one tensor in its stored dtype.
    ///
    /// # Panics
    /// When the file has no tensor of that name.
    pub fn tensor(&self, name: &str) -> Result<Tensor, FileError> {
        let entry = self.entry(name).expect("a tensor of the file");
        let kind = match entry.dtype {
            Dtype::F16 => Kind::Half,
            Dtype::BF16 => Kind::BFloat16,
            Dtype::F32 => Kind::Float,
            Dtype::F64 => Kind::Double,
            Dtype::I64 => Kind::Int64,
            Dtype::U8 => Kind::Uint8,
            Dtype::BOOL => Kind::Bool,
            dtype => return Err(FileError::Dtype { path: self.path.clone(), name: name.to_owned(), dtype }),
        };
        let signed = |sizes: &[usize]| sizes.iter().map(|size| *size as i64).collect::<Vec<_>>();
        let (dimensions, bytes) = (signed(&entry.shape), self.bytes(entry));
        let tensor = match &entry.strides {
            None => Tensor::f_from_data_size(bytes, &dimensions, kind),
            Some(strides) => {
                let elements = [(bytes.len() / kind.elt_size_in_bytes()) as i64];
                let all = Tensor::f_from_data_size(bytes, &elements, kind);
                all.and_then(|all| all.f_as_strided(dimensions, signed(strides), 0)?.f_contiguous())
            }
        };
        // SAFETY: pages of a file that is mapped to be read come back when they are touched. Without this, the file would count as
        // memory of the process while it is open.
        let _ = unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, entry.bytes.start, entry.bytes.len()) };
        tensor.map_err(|source| FileError::Tensor { path: self.path.clone(), name: name.to_owned(), source })
    }
}
