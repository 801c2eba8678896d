//! Main memory for libtorch's large tensors.
//!
//! Every step makes the same buffers in the same order. A general allocator's layout of them differs by several percent from run to
//! run: glibc's gaps depend on where the kernel happens to begin its heap. Here the same requests lie at the same distances from
//! each other in every process, so that the peak of a run is known before it begins. Memory once had is kept, because mapping,
//! faulting and zeroing a buffer each time costs more than some of the arithmetic on it; and it is asked for in large pages: a step
//! reads and writes gigabytes in rows that are kilobytes apart, and with pages of 4 KiB a fifth of its processor time goes to
//! finding them.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

/// Bytes from which on a buffer is large. Those below are left to the C library: there are many, and they are nothing beside the
/// others, but would leave gaps between them that the next step's order does not fit. One width of 256 rows of the smallest GPT-2
/// is large.
const LARGE: usize = 512 << 10;
/// The alignment that vector kernels like, and a cache line, in bytes.
const ALIGNMENT: usize = 64;
/// Bytes of a large page, by which the arena grows.
const PAGE: usize = 2 << 20;
/// How far from the mappings of others the arena begins, so that it can grow: more than a machine's memory, and a part of the
/// addresses that there are.
const AWAY: usize = 4 << 40;

static ARENA: Mutex<Arena> = Mutex::new(Arena { top: 0, mapped: 0, free: BTreeMap::new(), taken: BTreeMap::new() });

struct Arena {
    /// Where it ends, and grows.
    top: usize,
    /// How far there is memory behind the top.
    mapped: usize,
    /// Bytes of each gap by its address; no two touch.
    free: BTreeMap<usize, usize>,
    /// Bytes of each buffer by its address.
    taken: BTreeMap<usize, usize>,
}

impl Arena {
    /// The smallest gap that is large enough, the lowest of several. The one at the end comes last: it is what grows, and in the
    /// first step it was not there yet, so that later steps find the same places.
    fn take(&mut self, bytes: usize) -> Option<usize> {
        // Up to two lines more than asked for: buffers of a power of two would otherwise all begin at the same place of every
        // cache.
        let bytes = (bytes / ALIGNMENT + 2) * ALIGNMENT;
        let fits =
            |(address, length): (&usize, &usize)| (*length >= bytes).then_some((*address + *length == self.top, *length, *address));
        let gap = self.free.iter().filter_map(fits).min().map(|(_, length, address)| (length, address));
        let (length, address) = gap.or_else(|| self.grow(bytes))?;
        self.free.remove(&address);
        if length > bytes {
            self.free.insert(address + bytes, length - bytes);
        }
        self.taken.insert(address, bytes);
        Some(address)
    }

    /// Whether the buffer was one of these.
    fn give_back(&mut self, address: usize) -> bool {
        let Some(length) = self.taken.remove(&address) else { return false };
        self.free_up(address, length);
        true
    }

    /// Length and address of the gap that this has become part of.
    fn free_up(&mut self, mut address: usize, mut length: usize) -> (usize, usize) {
        if let Some(behind) = self.free.remove(&(address + length)) {
            length += behind;
        }
        if let Some((&before, &gap)) = self.free.range(..address).next_back()
            && before + gap == address
        {
            (address, length) = (before, gap + length);
        }
        self.free.insert(address, length);
        (length, address)
    }

    /// Length and address of a gap of `bytes` bytes at the end.
    fn grow(&mut self, bytes: usize) -> Option<(usize, usize)> {
        let last = self.free.range(..self.top).next_back();
        let gap = last.filter(|(address, length)| *address + *length == self.top).map_or(0, |(_, length)| *length);
        let beyond = (self.top + bytes - gap).saturating_sub(self.mapped).next_multiple_of(PAGE);
        if self.top != 0 && map(self.mapped, beyond) {
            self.mapped += beyond;
            self.top += bytes - gap;
            return Some(self.free_up(self.top - (bytes - gap), bytes - gap));
        }
        // The first time, and where another's mapping is in the way.
        let length = bytes.next_multiple_of(PAGE);
        let start = places()?.find(|start| map(*start, length))?;
        (self.top, self.mapped) = (start + bytes, start + length);
        Some(self.free_up(start, bytes))
    }
}

/// Places with much room behind each.
fn places() -> Option<impl Iterator<Item = usize>> {
    // SAFETY: a new mapping that is known only here, and its end.
    let mapped = unsafe {
        let probe = libc::mmap(null_mut(), PAGE, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        (probe != libc::MAP_FAILED && libc::munmap(probe, PAGE) == 0).then_some(probe as usize)
    };
    mapped.map(|mapped| (1..).map_while(move |times| Some(mapped.checked_sub(times * AWAY)?.next_multiple_of(PAGE))))
}

/// Whether there is memory there now, in large pages where the system has them. False where something else is, or none is left.
fn map(address: usize, bytes: usize) -> bool {
    if bytes == 0 {
        return true;
    }
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE);
    // SAFETY: nothing is replaced; a mapping elsewhere, which kernels before 4.17 may make of it, is undone.
    unsafe {
        let found = libc::mmap(address as *mut c_void, bytes, protection, flags, -1, 0);
        if found == libc::MAP_FAILED {
            return false;
        }
        if found as usize != address {
            libc::munmap(found, bytes);
            return false;
        }
        libc::madvise(found, bytes, libc::MADV_HUGEPAGE);
    }
    true
}

fn arena() -> std::sync::MutexGuard<'static, Arena> {
    ARENA.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory for a tensor, aligned to a cache line; null where none is left.
#[unsafe(no_mangle)]
extern "C" fn ft_allocate(bytes: usize) -> *mut c_void {
    if bytes >= LARGE
        && let Some(address) = arena().take(bytes)
    {
        return address as *mut c_void;
    }
    // Small requests, and those for which the arena has no place, though somewhere else may have one.
    let mut memory = null_mut();
    // SAFETY: the alignment is a power of two and a multiple of a pointer's size.
    if unsafe { libc::posix_memalign(&raw mut memory, ALIGNMENT, bytes) } == 0 { memory } else { null_mut() }
}

/// Takes back what [`ft_allocate`] gave, or what libtorch's own allocator did before it.
#[unsafe(no_mangle)]
extern "C" fn ft_free(memory: *mut c_void) {
    if !arena().give_back(memory as usize) {
        // SAFETY: not of the arena, so of `posix_memalign`.
        unsafe { libc::free(memory) };
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::*;
    use crate::aten;

    const MIB: usize = 1 << 20;

    /// One that grows where none of another test does.
    fn at(place: usize) -> Arena {
        let start = places().unwrap().nth(place).unwrap();
        Arena { top: start, mapped: start, free: BTreeMap::new(), taken: BTreeMap::new() }
    }

    #[test]
    fn a_buffer_lies_in_the_smallest_gap_that_holds_it() {
        let mut arena = at(2);
        let places: Vec<usize> = [3, 1, 2, 1, 4].map(|size| arena.take(size * MIB).unwrap()).into();
        assert!(places.is_sorted() && places.iter().all(|place| place % ALIGNMENT == 0));
        let top = arena.top;
        assert!(arena.give_back(places[0]) && arena.give_back(places[2]));
        assert_eq!(arena.take(2 * MIB), Some(places[2]));
        assert_eq!(arena.take(MIB), Some(places[0]));
        assert!(arena.take(4 * MIB).unwrap() > places[4]);
        assert!(arena.top > top && arena.top <= arena.mapped);
        assert!(!arena.give_back(places[0] + ALIGNMENT), "nothing begins there");
    }

    #[test]
    fn the_gap_at_the_end_is_kept_for_what_fits_nowhere_else() {
        let mut arena = at(5);
        let [large, _, end] = [5, 1, 2].map(|size| arena.take(size * MIB).unwrap());
        assert!(arena.give_back(large) && arena.give_back(end));
        assert_eq!(arena.take(MIB), Some(large));
        assert_eq!(arena.take(6 * MIB), Some(end));
    }

    #[test]
    fn gaps_that_touch_are_one_and_memory_once_had_is_enough() {
        let mut arena = at(3);
        let mut step = || {
            let places = [5, 2, 7, 3].map(|size| arena.take(size * MIB).unwrap());
            for place in places {
                // SAFETY: as many bytes are there at least.
                unsafe { std::slice::from_raw_parts_mut(place as *mut u8, 2 * MIB).fill(1) };
            }
            assert!([1, 3, 0, 2].iter().all(|which| arena.give_back(places[*which])));
            assert!(arena.free.len() == 1 && arena.taken.is_empty());
            (places, arena.top)
        };
        let first = step();
        assert_eq!(step(), first);
        let whole = arena.take(17 * MIB).unwrap();
        assert_eq!((whole, arena.top), (first.0[0], first.1));
    }

    #[test]
    fn what_lies_in_the_way_stays() {
        let mut arena = at(4);
        let first = arena.take(MIB).unwrap();
        assert!(map(arena.mapped, PAGE), "the place behind is free");
        let other = arena.mapped as *mut u64;
        // SAFETY: just mapped.
        unsafe { other.write(7) };
        let second = arena.take(8 * MIB).unwrap();
        assert!(second.abs_diff(first) > 8 * MIB);
        unsafe { std::slice::from_raw_parts_mut(second as *mut u8, 8 * MIB).fill(1) };
        assert_eq!(unsafe { other.read() }, 7);
    }

    #[test]
    fn large_tensors_lie_there() {
        aten::use_arena();
        let is_taken = |place: usize| arena().taken.contains_key(&place);
        let [large, small] = [MIB, 16].map(|numbers| Tensor::ones([numbers as i64], (Kind::Float, Device::Cpu)));
        let places = [&large, &small].map(|tensor| tensor.data_ptr() as usize);
        assert_eq!(places.map(is_taken), [true, false]);
        assert_eq!(large.sum(Kind::Int64).int64_value(&[]), MIB as i64);
        drop((large, small));
        assert!(!is_taken(places[0]));
    }
}
