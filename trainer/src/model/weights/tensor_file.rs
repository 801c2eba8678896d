//! Files of named tensors: safetensors, written one tensor at a time, and what [`TensorFile`] opens, read through a memory map
//! one at a time.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

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
    let stored = tensors.into_iter().map(|(name, tensor)| (name, tensor.kind(), tensor.size(), tensor));
    write_pieces(path, stored.collect(), |name, tensor, write| {
        write(&change(name, tensor))?;
        release([*tensor]);
        Ok(())
    })
}

/// [`write`] of tensors of whose numbers `pieces` has some at a time, in their order.
pub fn write_pieces<T, E: From<FileError>>(
    path: &Path,
    mut tensors: Vec<(String, Kind, Vec<i64>, T)>,
    mut pieces: impl FnMut(&str, &T, &mut dyn FnMut(&Tensor) -> Result<(), FileError>) -> Result<(), E>,
) -> Result<(), E> {
    let failed = |source| FileError::Write { path: path.to_owned(), source };
    tensors.sort_by(|left, right| dtype(right.1).cmp(&dtype(left.1)).then_with(|| left.0.cmp(&right.0)));
    let mut file = begin(path, &tensors).map_err(failed)?;
    for (name, stored, _, tensor) in &tensors {
        let write =
            &mut |piece: &Tensor| write_tensor(&mut file, piece, kind(dtype(*stored))).map_err(|error| failed(error.into()));
        pieces(name, tensor, write)?;
    }
    Ok(file.finish().map_err(|error| failed(error.into()))?)
}

/// The file with all but the numbers.
fn begin<T>(path: &Path, tensors: &[(String, Kind, Vec<i64>, T)]) -> Result<NewFile, SafeTensorError> {
    let mut end = 0;
    let info = |(name, kind, size, _): &(String, Kind, Vec<i64>, T)| {
        let (first, dtype) = (end, dtype(*kind));
        end += size.iter().product::<i64>() as usize * dtype.bitsize() / 8;
        let shape = size.iter().map(|size| *size as usize).collect();
        (name.clone(), TensorInfo { dtype, shape, data_offsets: (first, end) })
    };
    let infos = tensors.iter().map(info).collect();
    let metadata = Metadata::new(Some(HashMap::from([("format".to_owned(), "pt".to_owned())])), infos)?;
    let mut header = serde_json::to_vec(&metadata)?;
    header.resize(header.len().next_multiple_of(ALIGNMENT), b' ');
    let mut file = NewFile::create(path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    Ok(file)
}

fn write_tensor(file: &mut NewFile, tensor: &Tensor, kind: Kind) -> std::io::Result<()> {
    let plain = tensor.to_device(Device::Cpu).to_kind(kind).contiguous();
    let bytes = plain.numel() * kind.elt_size_in_bytes();
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
