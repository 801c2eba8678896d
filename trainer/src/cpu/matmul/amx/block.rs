//! The tile unit.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::marker::PhantomData;
use std::sync::LazyLock;

use super::packing::Split;
use super::tiles::{BLOCK, TILE};
use crate::cpu::simd::Bf16;
use crate::cpu::vectorise::has_avx512;

static AVAILABLE: LazyLock<bool> = LazyLock::new(|| {
    const REQUEST_PERMISSION: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    // SAFETY: `cpuid` exists on every x86-64 processor.
    let features = __cpuid_count(7, 0).edx;
    let has_tiles = features & 1 << 24 != 0 && features & 1 << 22 != 0;
    // SAFETY: asks Linux for this process's permission to use the registers; other numbers change nothing.
    let is_allowed = || unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) } == 0;
    has_tiles && has_avx512() && is_x86_feature_detected!("avx512bf16") && is_allowed()
});

/// With tiles come all parts of AVX-512 that this module uses.
pub fn is_available() -> bool {
    cfg!(target_os = "linux") && *AVAILABLE
}

/// The tile registers of a thread, which the operating system saves at each change of thread until they are released. Registers 0
/// to 3 hold sums, 4 and 5 rows of the left factor, 6 and 7 columns of the right one. The compiler uses none of them, so that they
/// keep what they hold from one piece of assembly to the next.
pub struct Tiles(PhantomData<*const ()>);

/// The tile configuration in the layout of `ldtilecfg`.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_per_row: [u16; 16],
    rows: [u8; 16],
}

/// Bytes from one row of a block's sums, and of a packed tile, to the next.
const SUMS_ROW: usize = BLOCK * size_of::<f32>();
const TILE_ROW: usize = 64;

#[expect(clippy::unused_self, reason = "it stands for the registers, which only whoever has it may use")]
impl Tiles {
    /// # Panics
    /// Where [`is_available`] says no.
    pub fn configure() -> Self {
        static ALL: Configuration = Configuration {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            bytes_per_row: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
            rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
        };
        assert!(is_available(), "this processor has no tiles");
        // SAFETY: the processor has tiles, the process has the permission, and the configuration is what the manual calls for.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const ALL, options(nostack, readonly)) };
        Self(PhantomData)
    }

    /// The product of `count` packed tiles of two panels with those of two, `[BLOCK, BLOCK]`, onto `sums` or over them. Calls
    /// `meanwhile` after every four products of tiles, each time with the number of those of this step.
    ///
    /// # Safety
    /// Each panel has so many tiles.
    #[inline]
    #[target_feature(enable = "avx512bf16,avx512vl")]
    pub unsafe fn multiply<S: Split>(
        &self,
        mut left: [*const Bf16; 2],
        mut right: [*const Bf16; 2],
        count: usize,
        sums: &mut [f32],
        onto: bool,
        meanwhile: &mut impl FnMut(usize),
    ) {
        self.load_sums(onto.then_some(&*sums));
        for _ in 0..count {
            // SAFETY: the caller's promise.
            unsafe { S::multiply(self, left, right, meanwhile) }
            let next = |panel: *const Bf16| panel.wrapping_add(S::PARTS * TILE);
            left = [next(left[0]), next(left[1])];
            right = [next(right[0]), next(right[1])];
        }
        self.store_sums(sums);
    }

    #[inline]
    fn load_sums(&self, sums: Option<&[f32]>) {
        let Some(sums) = sums else {
            // SAFETY: the tiles are configured.
            return unsafe { asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem)) };
        };
        assert!(sums.len() == BLOCK * BLOCK);
        // SAFETY: the sums are two by two tiles of rows `SUMS_ROW` bytes apart.
        unsafe {
            asm!(
                "tileloadd tmm0, [{sums} + {row}*1]",
                "tileloadd tmm1, [{sums} + {row}*1 + 64]",
                "tileloadd tmm2, [{sums} + {row}*1 + 16 * 128]",
                "tileloadd tmm3, [{sums} + {row}*1 + 16 * 128 + 64]",
                sums = in(reg) sums.as_ptr(),
                row = in(reg) SUMS_ROW,
                options(nostack, readonly)
            );
        }
    }

    #[inline]
    fn store_sums(&self, sums: &mut [f32]) {
        assert!(sums.len() == BLOCK * BLOCK);
        // SAFETY: as in `load_sums`.
        unsafe {
            asm!(
                "tilestored [{sums} + {row}*1], tmm0",
                "tilestored [{sums} + {row}*1 + 64], tmm1",
                "tilestored [{sums} + {row}*1 + 16 * 128], tmm2",
                "tilestored [{sums} + {row}*1 + 16 * 128 + 64], tmm3",
                sums = in(reg) sums.as_mut_ptr(),
                row = in(reg) SUMS_ROW,
                options(nostack)
            );
        }
    }

    /// # Safety
    /// Both panels have a tile there.
    #[inline]
    pub unsafe fn load_left(&self, panels: [*const Bf16; 2], part: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "tileloadd tmm4, [{first} + {row}*1]",
                "tileloadd tmm5, [{second} + {row}*1]",
                first = in(reg) panels[0].add(part * TILE),
                second = in(reg) panels[1].add(part * TILE),
                row = in(reg) TILE_ROW,
                options(nostack, readonly)
            );
        }
    }

    /// # Safety
    /// Both panels have a tile there.
    #[inline]
    pub unsafe fn load_right(&self, panels: [*const Bf16; 2], part: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "tileloadd tmm6, [{first} + {row}*1]",
                "tileloadd tmm7, [{second} + {row}*1]",
                first = in(reg) panels[0].add(part * TILE),
                second = in(reg) panels[1].add(part * TILE),
                row = in(reg) TILE_ROW,
                options(nostack, readonly)
            );
        }
    }

    #[inline]
    pub fn multiply_loaded(&self) {
        // SAFETY: the tiles are configured.
        unsafe {
            asm!(
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                options(nostack, nomem)
            );
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: no tile is in use.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
