//! NCCL, and the streams of threads that use it: `nccl.cpp`, with Rust's types for pointers. Errors are the libraries' words.

use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::time::Duration;

use tch::{Device, Kind, Tensor};

use super::c10d::{RawPart, milliseconds};
use super::{Error, done, failed};

/// Where the processes of a group meet: `ncclUniqueId`.
pub(crate) type Meeting = [u8; 128];

#[repr(C)]
struct RawNccl([u8; 0]);
#[repr(C)]
struct RawMoment([u8; 0]);

unsafe extern "C" {
    fn ft_nccl_meeting(meeting: *mut Meeting) -> Error;
    fn ft_nccl_open(
        nccl: *mut *mut RawNccl,
        device: c_int,
        rank: c_int,
        size: c_int,
        meeting: *const Meeting,
        milliseconds: i64,
    ) -> Error;
    fn ft_nccl_exchange(
        nccl: *const RawNccl,
        sent: *const RawPart,
        sent_count: usize,
        arrived: *const RawPart,
        arrived_count: usize,
    ) -> Error;
    fn ft_nccl_sum(nccl: *const RawNccl, numbers: *mut f32, count: i64) -> Error;
    fn ft_stream_enter(device: c_int) -> Error;
    fn ft_stream_settle(device: c_int) -> Error;
    fn ft_moment_now(moment: *mut *mut RawMoment, device: c_int) -> Error;
    fn ft_moment_follow(moment: *const RawMoment, device: c_int) -> Error;
    fn ft_moment_free(moment: *mut RawMoment);
}

/// Exchanges between the GPUs of several processes. It lives until the process ends.
#[derive(Debug)]
pub(crate) struct Nccl(NonNull<RawNccl>);

// SAFETY: a communicator may be used by any thread, by one at a time: the exchanges of its way to the others have one order.
unsafe impl Send for Nccl {}
// SAFETY: as above.
unsafe impl Sync for Nccl {}

impl Nccl {
    /// A place for a new group, which one of its processes makes for all.
    pub fn meeting() -> Result<Meeting, String> {
        let mut meeting = [0; 128];
        // SAFETY: the place is written, and nothing else.
        failed(unsafe { ft_nccl_meeting(&raw mut meeting) }).map(|()| meeting)
    }

    /// Connects this process's GPU with those of all others; waits until all have come. An exchange waits for them as long as
    /// `patience`.
    pub fn open(gpu: usize, (rank, size): (usize, usize), meeting: &Meeting, patience: Duration) -> Result<Self, String> {
        let (mut nccl, [gpu, rank, size]) = (null_mut(), [gpu, rank, size].map(|number| number as c_int));
        // SAFETY: the meeting's place is only read; the group that is made is this one's.
        failed(unsafe { ft_nccl_open(&raw mut nccl, gpu, rank, size, meeting, milliseconds(patience)) })?;
        NonNull::new(nccl).map(Self).ok_or_else(|| "no communicator".to_owned())
    }

    /// Gives other ranks tensors of this GPU, and fills others with what they give: the n-th for a rank is the n-th that arrives
    /// there from this one, and as long. What this thread has asked of the GPU before comes first, and all is done at the end.
    pub fn exchange(&self, sent: &[(usize, Tensor)], arrived: &[(usize, Tensor)]) -> Result<(), String> {
        let [sent, arrived] = [sent, arrived].map(|parts| parts.iter().map(part).collect::<Vec<_>>());
        // SAFETY: the group is open; the tensors live until the call returns, which waits for all.
        failed(unsafe { ft_nccl_exchange(self.0.as_ptr(), sent.as_ptr(), sent.len(), arrived.as_ptr(), arrived.len()) })
    }

    /// Turns the numbers of each into the sum of those of all, in an order of NCCL's own.
    pub fn sum(&self, numbers: &Tensor) -> Result<(), String> {
        let memory = part(&(0, numbers.shallow_clone())).memory;
        // SAFETY: as in `exchange`.
        failed(unsafe { ft_nccl_sum(self.0.as_ptr(), memory.cast(), numbers.numel() as i64) })
    }
}

fn part((rank, tensor): &(usize, Tensor)) -> RawPart {
    assert!(tensor.is_contiguous() && tensor.kind() == Kind::Float, "{tensor:?} is not one slice of f32");
    RawPart { rank: *rank as i64, memory: tensor.data_ptr().cast(), bytes: (tensor.numel() * size_of::<f32>()) as i64 }
}

/// The order of work on a GPU of the thread that exchanges, beside that of the thread that computes: one thread at a time has it.
/// On a CPU all work is done when it is asked for.
#[derive(Debug)]
pub(crate) struct Stream(Option<c_int>);

impl Stream {
    /// All that this thread asks of the device goes there from here on.
    pub fn enter(device: Device) -> Self {
        let Device::Cuda(index) = device else { return Self(None) };
        // SAFETY: takes no pointer.
        done(unsafe { ft_stream_enter(index as c_int) });
        Self(Some(index as c_int))
    }

    /// Waits until all is done that this thread has asked: others may use its results then, and its memory.
    pub fn settle(&self) {
        // SAFETY: takes no pointer.
        self.0.into_iter().for_each(|index| done(unsafe { ft_stream_settle(index) }));
    }
}

/// The end of all that a thread had asked of a GPU until then.
#[derive(Debug)]
pub(crate) struct Moment(Option<(NonNull<RawMoment>, c_int)>);

// SAFETY: CUDA's events may be used by any thread.
unsafe impl Send for Moment {}

impl Moment {
    /// That of this thread, as of now.
    pub fn now(device: Device) -> Self {
        let Device::Cuda(index) = device else { return Self(None) };
        let mut moment = null_mut();
        // SAFETY: the event that it makes is this one's.
        done(unsafe { ft_moment_now(&raw mut moment, index as c_int) });
        Self(NonNull::new(moment).map(|moment| (moment, index as c_int)))
    }

    /// Lets what this thread asks of the GPU from here on wait for it.
    pub fn follow(&self) {
        // SAFETY: the event lives until it is dropped.
        self.0.iter().for_each(|(moment, index)| done(unsafe { ft_moment_follow(moment.as_ptr(), *index) }));
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        // SAFETY: it is this one's, and no other has it.
        self.0.iter().for_each(|(moment, _)| unsafe { ft_moment_free(moment.as_ptr()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::settings::DeviceChoice;

    #[test]
    fn a_machine_without_nccl_is_told_what_is_missing() {
        // Where it is installed there is a place to meet, with or without a GPU.
        match Nccl::meeting() {
            Ok(meeting) => assert_ne!(meeting, [0; 128]),
            Err(why) => assert!(why.contains("libnccl.so.2"), "{why}"),
        }
    }

    /// The library's real calls on a real GPU: a rank of a group of one sends to itself, and sums alone. Several ranks need as many
    /// GPUs, see `benches/gpu.py`.
    #[test]
    #[ignore = "needs a GPU, and NCCL beside libtorch"]
    fn gpu_of_one_rank_exchanges_and_sums_by_nccl() {
        let device = device::choose(DeviceChoice::Cuda).expect("a GPU").device;
        let nccl = Nccl::open(0, (0, 1), &Nccl::meeting().expect("NCCL"), Duration::from_mins(1)).expect("a group of one");
        let computed = Tensor::arange(1 << 20, (Kind::Float, device));
        let when = Moment::now(device);
        let received = std::thread::scope(|threads| {
            let exchanging = threads.spawn(move || {
                let stream = Stream::enter(device);
                when.follow();
                let doubled = &computed * 2.0;
                let received = [doubled.zeros_like(), computed.zeros_like()];
                let [first, second] = received.each_ref().map(|tensor| (0, tensor.shallow_clone()));
                nccl.exchange(&[(0, doubled), (0, computed.shallow_clone())], &[first, second]).expect("an exchange");
                nccl.sum(&received[0]).expect("a sum");
                stream.settle();
                received
            });
            exchanging.join().expect("the thread that exchanges")
        });
        let expected = [2.0, 1.0].map(|factor| Tensor::arange(1 << 20, (Kind::Float, Device::Cpu)) * factor);
        assert!(received.iter().zip(expected).all(|(received, expected)| received.to_device(Device::Cpu) == expected));
    }
}
