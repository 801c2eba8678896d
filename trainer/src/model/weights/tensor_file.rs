//! Safetensors files: named tensors, written one at a time, read through a memory map one at a time.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use memmap2::{Mmap, UncheckedAdvice};
use safetensors::tensor::{Dtype, Metadata, SafeTensorError, SafeTensors, TensorInfo};
use tch::{Device, Kind, Tensor};
use thiserror::Error;

use crate::files::direct::NewFile;
use crate::offload::release;

/// The numbers of a file begin at a multiple of this many bytes.
const ALIGNMENT: usize = 8;

/// Why a safetensors file cannot be read or written.
#[derive(Debug, Error)]
pub enum FileError {
    #[error("cannot open {}: {source}", path.display())]
    Open { path: PathBuf, source: std::io::Error },
    #[error("{} is not a complete safetensors file ({source}); it may be truncated, fetch or write it again", path.display())]
    Format { path: PathBuf, source: SafeTensorError },
    #[error("{}: tensor {name} has dtype {dtype:?}; f16, bf16, f32, f64 and i64 can be read", path.display())]
    Dtype { path: PathBuf, name: String, dtype: Dtype },
    #[error("{}: tensor {name} cannot be read: {source}", path.display())]
    Tensor { path: PathBuf, name: String, source: tch::TchError },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: SafeTensorError },
}

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
    let mut stored: Vec<_> = tensors.into_iter().map(|(name, tensor)| (name, dtype(tensor), tensor)).collect();
    stored.sort_by(|(left_name, left, _), (right_name, right, _)| right.cmp(left).then_with(|| left_name.cmp(right_name)));
    write_sorted(path, &stored, change).map_err(|source| FileError::Write { path: path.to_owned(), source })
}

fn write_sorted(
    path: &Path,
    tensors: &[(String, Dtype, &Tensor)],
    change: impl Fn(&str, &Tensor) -> Tensor,
) -> Result<(), SafeTensorError> {
    let mut end = 0;
    let info = |(name, dtype, tensor): &(String, Dtype, &Tensor)| {
        let first = end;
        end += tensor.numel() * dtype.bitsize() / 8;
        let shape = tensor.size().into_iter().map(|size| size as usize).collect();
        (name.clone(), TensorInfo { dtype: *dtype, shape, data_offsets: (first, end) })
    };
    let infos = tensors.iter().map(info).collect();
    let metadata = Metadata::new(Some(HashMap::from([("format".to_owned(), "pt".to_owned())])), infos)?;
    let mut header = serde_json::to_vec(&metadata)?;
    header.resize(header.len().next_multiple_of(ALIGNMENT), b' ');
    let mut file = NewFile::create(path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    for (name, dtype, tensor) in tensors {
        write_tensor(&mut file, &change(name, tensor), kind(*dtype))?;
        release([*tensor]);
    }
    Ok(file.finish()?)
}

fn write_tensor(file: &mut NewFile, tensor: &Tensor, kind: Kind) -> std::io::Result<()> {
    let plain = tensor.to_device(Device::Cpu).to_kind(kind).contiguous();
    let bytes = plain.numel() * kind.elt_size_in_bytes();
    // SAFETY: the tensor is contiguous, in main memory, and lives until the end of the function; the code that saves it does not
    // change it meanwhile.
    file.write_all(unsafe { std::slice::from_raw_parts(plain.data_ptr().cast_const().cast(), bytes) })
}

/// The type of a tensor in a file; half precision is stored as `f32`.
fn dtype(tensor: &Tensor) -> Dtype {
    match tensor.kind() {
        Kind::Double => Dtype::F64,
        Kind::Int64 => Dtype::I64,
        _ => Dtype::F32,
    }
}

fn kind(dtype: Dtype) -> Kind {
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

/// A file that is open for reading. Only tensors that were asked for are in memory.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    map: Mmap,
    metadata: Metadata,
    /// Where the numbers begin.
    start: usize,
}

impl TensorFile {
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let file = File::open(path).map_err(|source| FileError::Open { path: path.to_owned(), source })?;
        // SAFETY: the map is read only; a file that another process truncates meanwhile ends this process with SIGBUS, which is
        // the price of not holding a second copy of the weights. Model directories are not modified in place.
        let map = unsafe { Mmap::map(&file) }.map_err(|source| FileError::Open { path: path.to_owned(), source })?;
        let read = SafeTensors::read_metadata(&map);
        let (header, metadata) = read.map_err(|source| FileError::Format { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), map, metadata, start: size_of::<u64>() + header })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names = self.metadata.offset_keys();
        names.sort_unstable();
        names
    }

    pub fn has(&self, name: &str) -> bool {
        self.metadata.info(name).is_some()
    }

    /// A copy of one tensor in its stored dtype.
    ///
    /// # Panics
    /// When the file has no tensor of that name.
    pub fn tensor(&self, name: &str) -> Result<Tensor, FileError> {
        let info = self.metadata.info(name).expect("a tensor of the file");
        let kind = match info.dtype {
            Dtype::F16 => Kind::Half,
            Dtype::BF16 => Kind::BFloat16,
            Dtype::F32 => Kind::Float,
            Dtype::F64 => Kind::Double,
            Dtype::I64 => Kind::Int64,
            Dtype::U8 => Kind::Uint8,
            Dtype::BOOL => Kind::Bool,
            dtype => return Err(FileError::Dtype { path: self.path.clone(), name: name.to_owned(), dtype }),
        };
        let dimensions: Vec<i64> = info.shape.iter().map(|size| *size as i64).collect();
        let (first, end) = (self.start + info.data_offsets.0, self.start + info.data_offsets.1);
        let tensor = Tensor::f_from_data_size(&self.map[first..end], &dimensions, kind);
        // SAFETY: pages of a file that is mapped to be read come back when they are touched. Without this, the file would count as
        // memory of the process while it is open.
        let _ = unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, first, end - first) };
        tensor.map_err(|source| FileError::Tensor { path: self.path.clone(), name: name.to_owned(), source })
    }
}
