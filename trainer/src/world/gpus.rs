//! The ways between processes that compute on GPUs: tensors go from GPU to GPU by NCCL, everything else as without.

use std::fmt::Display;
use std::sync::Arc;

use tch::{Device, Tensor};

use super::processes::LONGEST;
use super::{Aside, Link, World};
use crate::aten::nccl::{Meeting, Nccl};
use crate::error::Failure;

/// The way of gradients and weights. No other has a communicator: NVIDIA advises against two at once, which may wait for each
/// other.
const TENSORS: usize = Aside::Tensors as usize;

/// One way to the others, and to their GPUs.
#[derive(Debug)]
struct Gpus {
    line: Arc<dyn Link>,
    nccl: Nccl,
}

impl World {
    /// The same processes, each of which computes on `device`: all on GPUs, or none. Gradients and weights go from GPU to GPU where
    /// each has one of its own.
    pub fn on(mut self, device: Device) -> Result<Self, Failure> {
        let Device::Cuda(gpu) = device else { return Ok(self) };
        // NCCL refuses two processes on one.
        let locals = self.gather(&[self.local as u64], |_| 1)?;
        let is_shared = self.any(!locals.chunks(self.beside).all(differ))?;
        let Some(line) = self.aside[TENSORS].take_if(|_| !is_shared) else { return Ok(self) };
        let meeting: Vec<u8> = self.told(|| Ok(Nccl::meeting().map_err(unconnected)?.to_vec()))?;
        let meeting = Meeting::try_from(meeting).map_err(|_| unconnected("no place to meet"))?;
        let nccl = Nccl::open(gpu, (self.rank, self.size), &meeting, LONGEST).map_err(unconnected)?;
        self.aside[TENSORS] = Some(Arc::new(Gpus { line, nccl }));
        Ok(self)
    }
}

fn differ(numbers: &[u64]) -> bool {
    numbers.iter().enumerate().all(|(place, number)| !numbers[..place].contains(number))
}

fn unconnected(error: impl Display) -> Failure {
    Failure::other(format!(
        "the GPUs of the processes cannot be connected: {error}; NCCL_DEBUG=INFO shows what NCCL tries, train.device = \"cpu\" does without"
    ))
}

fn lost(error: impl Display) -> Failure {
    Failure::Lost(format!("an exchange between GPUs has failed: {error}"))
}

fn all_on_gpu(sent: &[(usize, Tensor)], arrived: &[(usize, Tensor)]) -> bool {
    sent.iter().chain(arrived).all(|(_, tensor)| tensor.device().is_cuda())
}

impl Link for Gpus {
    fn exchange(&self, sent: &[(usize, &[u8])], arrived: &mut [(usize, &mut [u8])]) -> Result<(), Failure> {
        self.line.exchange(sent, arrived)
    }

    fn sum(&self, numbers: &mut [f32]) -> Result<(), Failure> {
        self.line.sum(numbers)
    }

    /// Tensors that are kept in main memory go from there.
    fn exchange_tensors(&self, sent: &[(usize, Tensor)], arrived: &[(usize, Tensor)]) -> Result<(), Failure> {
        if all_on_gpu(sent, arrived) {
            self.nccl.exchange(sent, arrived).map_err(lost)
        } else {
            self.line.exchange_tensors(sent, arrived)
        }
    }

    fn sum_tensor(&self, numbers: &Tensor) -> Result<(), Failure> {
        if numbers.device().is_cuda() { self.nccl.sum(numbers).map_err(lost) } else { self.line.sum_tensor(numbers) }
    }

    fn failed(&self, failure: Failure) -> Failure {
        self.line.failed(failure)
    }

    fn through(&self) {
        self.line.through();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_differ_where_none_comes_twice() {
        assert!(differ(&[]) && differ(&[0]) && differ(&[0, 2, 1]));
        assert!(!differ(&[0, 1, 0]));
    }
}
