//! The ways between processes that compute on GPUs: tensors go from GPU to GPU by NCCL, everything else as without.

use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use tch::{Device, Tensor};

use super::processes::{BEAT, LONGEST, PATIENCE};
use super::{Aside, Link, World};
use crate::aten::nccl::{Meeting, Nccl};
use crate::error::Failure;

/// The way of gradients and weights. No other has a communicator: NVIDIA advises against two at once, which may wait for each
/// other.
const TENSORS: usize = Aside::Tensors as usize;
/// Why a process ends that NCCL does not come back to.
const UNANSWERED: &str = "NCCL has waited for the GPU of another process for over an hour; NCCL_DEBUG=INFO shows what it tries, \
                          train.device = \"cpu\" does without";

/// One way to the others, and to their GPUs.
#[derive(Debug)]
struct Gpus {
    line: Arc<dyn Link>,
    nccl: Nccl,
    guard: Guard,
}

/// Minds how long this process is in one call of NCCL. Exchanges end by themselves, but before that NCCL connects, and waits for
/// others without an end.
#[derive(Debug)]
struct Guard(Arc<Mutex<Option<Instant>>>);

impl Guard {
    /// `end` is called when a call takes longer than `most`.
    fn new(most: Duration, look_every: Duration, end: impl FnOnce() + Send + 'static) -> Self {
        let begun = Arc::new(Mutex::new(None));
        let seen = Arc::downgrade(&begun);
        thread::spawn(move || {
            while let Some(begun) = seen.upgrade() {
                let is_late = lock(&begun).is_some_and(|begun: Instant| begun.elapsed() > most);
                if is_late {
                    return end();
                }
                drop(begun);
                sleep(look_every);
            }
        });
        Self(begun)
    }

    fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        *lock(&self.0) = Some(Instant::now());
        let done = work();
        *lock(&self.0) = None;
        done
    }
}

fn lock(begun: &Mutex<Option<Instant>>) -> MutexGuard<'_, Option<Instant>> {
    begun.lock().unwrap_or_else(PoisonError::into_inner)
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
        let told = Arc::clone(&line);
        let guard = Guard::new(LONGEST + PATIENCE, BEAT, move || told.end(UNANSWERED));
        let nccl = guard.during(|| Nccl::open(gpu, (self.rank, self.size), &meeting, LONGEST)).map_err(unconnected)?;
        self.aside[TENSORS] = Some(Arc::new(Gpus { line, nccl, guard }));
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
            self.guard.during(|| self.nccl.exchange(sent, arrived)).map_err(|error| self.lost(&error))
        } else {
            self.line.exchange_tensors(sent, arrived)
        }
    }

    fn sum_tensor(&self, numbers: &Tensor) -> Result<(), Failure> {
        if numbers.device().is_cuda() {
            self.guard.during(|| self.nccl.sum(numbers)).map_err(|error| self.lost(&error))
        } else {
            self.line.sum_tensor(numbers)
        }
    }

    fn lost(&self, error: &str) -> Failure {
        self.line.lost(&format!("an exchange between GPUs has failed: {error}"))
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

    #[test]
    fn a_call_that_does_not_return_is_ended() {
        let (told, ended) = std::sync::mpsc::channel();
        let guard = Guard::new(Duration::from_millis(500), Duration::from_millis(1), move || told.send(()).unwrap());
        (0..3).for_each(|_| guard.during(|| sleep(Duration::from_millis(1))));
        assert!(ended.recv_timeout(Duration::from_millis(700)).is_err(), "between calls it does not matter how long");
        // As NCCL's: it returns when the process is ended.
        guard.during(|| ended.recv_timeout(Duration::from_mins(1)).expect("an end"));
    }
}
