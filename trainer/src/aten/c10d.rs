//! libtorch's c10d: `c10d.cpp`, with Rust's types for pointers. Errors are libtorch's words.

use std::ffi::{CString, c_char, c_int};
use std::net::TcpListener;
use std::os::fd::IntoRawFd;
use std::ptr::{NonNull, null_mut};
use std::time::Duration;

use super::{Error, failed, text};

/// libtorch's, behind a pointer.
#[repr(C)]
struct RawStore([u8; 0]);
#[repr(C)]
struct RawGloo([u8; 0]);

/// Memory that a rank is given, or gives.
#[repr(C)]
pub(super) struct RawPart {
    pub rank: i64,
    pub memory: *mut u8,
    pub bytes: i64,
}

unsafe extern "C" {
    fn ft_store_open(
        store: *mut *mut RawStore,
        host: *const c_char,
        port: u16,
        listener: c_int,
        prefix: *const c_char,
        milliseconds: i64,
    ) -> Error;
    fn ft_store_claim(store: *const RawStore, key: *const c_char, text: *const c_char, value: *mut *mut c_char) -> Error;
    fn ft_store_get(store: *const RawStore, key: *const c_char, value: *mut *mut c_char) -> Error;
    fn ft_store_has(store: *const RawStore, key: *const c_char, has: *mut bool) -> Error;
    fn ft_store_add(store: *const RawStore, key: *const c_char, number: i64, sum: *mut i64) -> Error;
    fn ft_gloo_open(
        gloo: *mut *mut RawGloo,
        store: *const RawStore,
        address: *const c_char,
        rank: c_int,
        size: c_int,
        milliseconds: i64,
        patience: i64,
    ) -> Error;
    fn ft_gloo_exchange(
        gloo: *const RawGloo,
        sent: *const RawPart,
        sent_count: usize,
        arrived: *const RawPart,
        arrived_count: usize,
    ) -> Error;
    fn ft_gloo_sum(gloo: *const RawGloo, numbers: *mut f32, count: i64) -> Error;
}

/// A store of small values that several processes have in common, at one of them. It lives until the process ends: libtorch's
/// threads use it.
#[derive(Debug)]
pub(crate) struct Store(NonNull<RawStore>);

// SAFETY: a store's client has a lock of its own.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

impl Store {
    /// Serves the store at `listener`, if there is one, and connects to it at `host`. Waiting for it, and for a value, fails after
    /// `patience`.
    pub fn open(
        (host, port): (&str, u16),
        listener: Option<TcpListener>,
        prefix: &str,
        patience: Duration,
    ) -> Result<Self, String> {
        let (mut store, host, prefix) = (null_mut(), to_c(host)?, to_c(prefix)?);
        let listener = listener.map_or(-1, IntoRawFd::into_raw_fd);
        // SAFETY: the texts live until the call returns; the store that it makes is this one's.
        failed(unsafe { ft_store_open(&raw mut store, host.as_ptr(), port, listener, prefix.as_ptr(), milliseconds(patience)) })?;
        NonNull::new(store).map(Self).ok_or_else(|| "no store".to_owned())
    }

    /// Gives the key this value, if it has none; its value.
    pub fn claim(&self, key: &str, value: &str) -> Result<String, String> {
        let (key, value, mut current) = (to_c(key)?, to_c(value)?, null_mut());
        // SAFETY: the store is open; the texts live until the call returns, and the one that it makes is taken over.
        failed(unsafe { ft_store_claim(self.0.as_ptr(), key.as_ptr(), value.as_ptr(), &raw mut current) })?;
        Ok(unsafe { text(current) })
    }

    /// The key's value, as soon as it has one.
    pub fn get(&self, key: &str) -> Result<String, String> {
        let (key, mut value) = (to_c(key)?, null_mut());
        // SAFETY: as in `claim`.
        failed(unsafe { ft_store_get(self.0.as_ptr(), key.as_ptr(), &raw mut value) })?;
        Ok(unsafe { text(value) })
    }

    /// Whether the key has a value.
    pub fn has(&self, key: &str) -> Result<bool, String> {
        let (key, mut has) = (to_c(key)?, false);
        // SAFETY: as in `claim`; one truth value is written.
        failed(unsafe { ft_store_has(self.0.as_ptr(), key.as_ptr(), &raw mut has) }).map(|()| has)
    }

    /// Adds to the number of a key, which begins with 0; the sum.
    pub fn add(&self, key: &str, number: i64) -> Result<i64, String> {
        let (key, mut sum) = (to_c(key)?, 0);
        // SAFETY: as in `claim`; one number is written.
        failed(unsafe { ft_store_add(self.0.as_ptr(), key.as_ptr(), number, &raw mut sum) }).map(|()| sum)
    }
}

/// Exchanges between processes by TCP. It lives until the process ends, as [`Store`].
#[derive(Debug)]
pub(crate) struct Gloo(NonNull<RawGloo>);

// SAFETY: libtorch's process groups may be used by any thread.
unsafe impl Send for Gloo {}
// SAFETY: as above.
unsafe impl Sync for Gloo {}

impl Gloo {
    /// Connects this process, which the others reach at `address`, with all others: within `[first]` of the times. Each exchange
    /// waits for the others as long as the second one.
    pub fn open(
        store: &Store,
        address: &str,
        (rank, size): (usize, usize),
        [meeting, patience]: [Duration; 2],
    ) -> Result<Self, String> {
        let (mut gloo, address) = (null_mut(), to_c(address)?);
        let [meeting, patience] = [meeting, patience].map(milliseconds);
        let (place, store) = ((rank as c_int, size as c_int), store.0.as_ptr());
        // SAFETY: the store is open, the text lives until the call returns, and the group that it makes is this one's.
        failed(unsafe { ft_gloo_open(&raw mut gloo, store, address.as_ptr(), place.0, place.1, meeting, patience) })?;
        NonNull::new(gloo).map(Self).ok_or_else(|| "no process group".to_owned())
    }

    /// Gives other ranks parts of memory, and fills parts with what they give: the n-th for a rank is the n-th that arrives there
    /// from this one, and as long.
    pub fn exchange(&self, sent: &[(usize, &[u8])], arrived: &mut [(usize, &mut [u8])]) -> Result<(), String> {
        let part = |rank: usize, memory: *mut u8, bytes: usize| RawPart { rank: rank as i64, memory, bytes: bytes as i64 };
        let sent: Vec<_> = sent.iter().map(|(rank, bytes)| part(*rank, bytes.as_ptr().cast_mut(), bytes.len())).collect();
        let arrived: Vec<_> = arrived.iter_mut().map(|(rank, bytes)| part(*rank, bytes.as_mut_ptr(), bytes.len())).collect();
        // SAFETY: the group is open; what is sent is only read, and both are borrowed until the call returns, which waits for all.
        failed(unsafe { ft_gloo_exchange(self.0.as_ptr(), sent.as_ptr(), sent.len(), arrived.as_ptr(), arrived.len()) })
    }

    /// Turns the numbers of each into the sum of those of all, in an order of Gloo's own.
    pub fn sum(&self, numbers: &mut [f32]) -> Result<(), String> {
        // SAFETY: the group is open; the numbers are borrowed until the call returns, which waits for the sum.
        failed(unsafe { ft_gloo_sum(self.0.as_ptr(), numbers.as_mut_ptr(), numbers.len() as i64) })
    }
}

fn to_c(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| format!("{text:?} has a zero in it"))
}

pub(super) fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
