//! Tensors in files instead of main memory, so that a model trains that does not fit there; and in main memory instead of a GPU's.
//!
//! Each of the first lies in a nameless file of its own, mapped into memory: kernels read and write it like any other tensor, and
//! get the same bits. [`release`] after use takes its pages out of the process; the operating system keeps them cached while there
//! is memory to spare, and writes them to the disk when there is not. The files go with the process, however it ends.
//!
//! The others lie in pages that stay where they are, which a GPU copies from and to by itself. libtorch's own pinned memory rounds
//! every tensor up to a power of two; GPT-2 XL's weights and gradients would take half as much again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use memmap2::{MmapMut, UncheckedAdvice};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use tch::{Device, Kind, Tensor};

use crate::aten;
use crate::device;
use crate::error::Failure;
use crate::settings::Offload;

/// Every mapping by its address. None is ever undone: any number of tensors may share one.
static MAPPINGS: Mutex<BTreeMap<usize, Mapping>> = Mutex::new(BTreeMap::new());

struct Mapping {
    memory: MmapMut,
    is_file: bool,
}

/// Where tensors lie.
#[derive(Debug, Clone)]
pub enum Place {
    Memory,
    /// In main memory, whatever device the others of the model are on. Where this one is a GPU, it copies from and to there while
    /// the processor goes on.
    Locked(Device),
    /// In files of this directory.
    Files(PathBuf),
}

impl Place {
    /// Where a run with its files in `directory` keeps weights and gradients.
    pub fn of_model(offload: Offload, directory: &Path) -> Self {
        if offload == Offload::Model { Self::Files(directory.to_owned()) } else { Self::Memory }
    }

    /// Where it keeps activations that have left `device`.
    pub fn of_activations(device: Device, directory: &Path) -> Self {
        if device.is_cuda() { Self::Locked(device) } else { Self::Files(directory.to_owned()) }
    }

    /// Where it keeps what the optimizer remembers.
    pub fn of_optimizer(offload: Offload, directory: &Path) -> Self {
        if offload == Offload::None { Self::Memory } else { Self::Files(directory.to_owned()) }
    }

    /// Zeros. Not in [`Place::Memory`]: contiguous and in main memory's address space, whatever `device` the others of the model
    /// are on.
    pub fn zeros(&self, size: &[i64], kind: Kind, device: Device) -> Result<Tensor, Failure> {
        let bytes = size.iter().product::<i64>() as u64 * kind.elt_size_in_bytes() as u64;
        let mapping = match self {
            Self::Memory => return Ok(Tensor::zeros(size, (kind, device))),
            Self::Locked(device) => Mapping { memory: locked(bytes, *device)?, is_file: false },
            Self::Files(directory) => {
                let failed = |error: io::Error| Failure::io("make room for tensors in", directory, &error);
                Mapping { memory: in_file(directory, bytes).map_err(failed)?, is_file: true }
            }
        };
        Ok(tensor(mapping, size, kind))
    }

    pub fn zeros_like(&self, tensor: &Tensor) -> Result<Tensor, Failure> {
        self.zeros(&tensor.size(), tensor.kind(), tensor.device())
    }

    /// The tensor, or a copy of it where this is another place.
    pub fn hold(&self, tensor: Tensor) -> Result<Tensor, Failure> {
        if matches!(self, Self::Memory) || is_mapped(&tensor) {
            return Ok(tensor);
        }
        let mut held = self.zeros_like(&tensor)?;
        held.copy_(&tensor);
        release([&held]);
        Ok(held)
    }
}

/// Takes the pages of those tensors that lie in files out of the process; they come back when they are touched.
pub fn release<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) {
    let mappings = mappings();
    let all = tensors.into_iter().filter_map(|tensor| mappings.get(&(tensor.data_ptr() as usize)));
    for mapping in all.filter(|mapping| mapping.is_file) {
        // SAFETY: of a shared mapping of a file, unlike of other memory, nothing is lost: bytes written to a page are in the file's
        // cache. It is advice; refusing it changes no number.
        let _ = unsafe { mapping.memory.unchecked_advise(UncheckedAdvice::DontNeed) };
    }
}

/// Copies `tensor [n, D]` to the first rows of `place [N, D]`, on the host, while its device goes on; from there [`fetched`] brings
/// it back after [`aten::await_home`].
pub fn put_away(tensor: &Tensor, place: &Tensor) -> Tensor {
    // The one before has left by then, or the device would have all of them at once: the launcher of kernels is far ahead of it.
    aten::await_home(tensor.device());
    let away = place.narrow(0, 0, tensor.size()[0]);
    aten::send_home(&away, tensor);
    release([&away]);
    away
}

/// A copy on `device` of a tensor that was [`put_away`].
pub fn fetched(away: &Tensor, device: Device) -> Tensor {
    let tensor = away.to_device_(device, away.kind(), true, true);
    release([away]);
    tensor
}

fn is_mapped(tensor: &Tensor) -> bool {
    mappings().contains_key(&(tensor.data_ptr() as usize))
}

fn mappings() -> std::sync::MutexGuard<'static, BTreeMap<usize, Mapping>> {
    MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn locked(bytes: u64, device: Device) -> Result<MmapMut, Failure> {
    let failed = |error: io::Error| Failure::other(format!("cannot make room for tensors in main memory: {error}"));
    let mut memory = MmapMut::map_anon(bytes as usize).map_err(failed)?;
    // In large pages, as the arena. It is advice too.
    #[cfg(target_os = "linux")]
    let _ = memory.advise(memmap2::Advice::HugePage);
    if device.is_cuda() {
        device::lock(&mut memory)?;
    }
    Ok(memory)
}

fn in_file(directory: &Path, bytes: u64) -> io::Result<MmapMut> {
    let file = tempfile::tempfile_in(directory)?;
    reserve(&file, bytes)?;
    // SAFETY: no other process can open a file without a name.
    unsafe { MmapMut::map_mut(&file) }
}

fn tensor(mut mapping: Mapping, size: &[i64], kind: Kind) -> Tensor {
    let address = mapping.memory.as_mut_ptr();
    mappings().insert(address as usize, mapping);
    let mut strides = vec![1; size.len()];
    for dimension in (1..size.len()).rev() {
        strides[dimension - 1] = strides[dimension] * size[dimension];
    }
    // SAFETY: the mapping has room for all elements, at an address that is a multiple of a page's size, and is never undone.
    unsafe { Tensor::from_blob(address, size, &strides, kind, Device::Cpu) }
}

/// Takes the disk's space now: a disk that is full when a page is written would end the process without a message.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.set_len(bytes),
        result => Ok(result?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_released_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::Files(directory.path().to_owned());
        let tensor = Tensor::arange(100_000, (Kind::Float, Device::Cpu)).view([100, 1000]);
        let held = place.hold(tensor.shallow_clone()).unwrap();
        assert!(is_mapped(&held) && !is_mapped(&tensor) && held.data_ptr() != tensor.data_ptr());
        for _ in 0..3 {
            release([&held, &tensor]);
            assert!(held.equal(&tensor));
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "the files have no names");
        assert_eq!(place.hold(held.shallow_clone()).unwrap().data_ptr(), held.data_ptr());
        let zeros = place.zeros_like(&held).unwrap();
        assert!(zeros.size() == [100, 1000] && zeros.is_contiguous() && zeros.abs().max().double_value(&[]) == 0.0);
    }

    /// A tensor without a file would come back as zeros.
    #[test]
    fn what_is_locked_is_not_released() {
        let tensor = Tensor::arange(100_000, (Kind::Float, Device::Cpu)).view([100, 1000]);
        let held = Place::Locked(Device::Cpu).hold(tensor.shallow_clone()).unwrap();
        assert!(is_mapped(&held) && held.data_ptr() != tensor.data_ptr());
        release([&held]);
        assert!(held.equal(&tensor));
    }

    #[test]
    fn what_is_put_away_is_fetched_again() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::of_activations(Device::Cpu, directory.path()).zeros(&[100, 1000], Kind::Float, Device::Cpu).unwrap();
        for rows in [100, 7] {
            let tensor = Tensor::arange(rows * 1000, (Kind::Float, Device::Cpu)).view([rows, 1000]) + rows;
            let away = put_away(&tensor, &place);
            assert!(is_mapped(&away) && away.size() == [rows, 1000]);
            let back = fetched(&away, Device::Cpu);
            assert!(back.equal(&tensor) && !is_mapped(&back));
        }
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_named() {
        let refused = Place::Files("/nonexistent/directory".into()).zeros(&[1], Kind::Float, Device::Cpu).unwrap_err();
        assert!(refused.to_string().starts_with("cannot make room for tensors in /nonexistent/directory"), "{refused}");
    }
}
