//! Loops compiled for the widest registers that the processor has.

/// Compiles a function three times, for any x86-64, for AVX2 and for AVX-512, and calls the widest that this processor has; on
/// other processors there is one. Rust never fuses a product with a sum, so all of them round alike: a loop over elements gives the
/// same bits on every machine. Functions that it calls must be inlined into it, or it is compiled only once.
macro_rules! vectorised {
    ($(#[$note:meta])* $visible:vis fn $name:ident $(<$element:ident: $bound:path>)? ($($argument:ident: $type:ty),* $(,)?)
     $(-> $result:ty)? $body:block) => {
        $(#[$note])*
        $visible fn $name $(<$element: $bound>)? ($($argument: $type),*) $(-> $result)? {
            #[allow(clippy::inline_always)]
            #[inline(always)]
            fn everywhere $(<$element: $bound>)? ($($argument: $type),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            fn avx2 $(<$element: $bound>)? ($($argument: $type),*) $(-> $result)? {
                everywhere($($argument),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512 $(<$element: $bound>)? ($($argument: $type),*) $(-> $result)? {
                everywhere($($argument),*)
            }

            #[cfg(target_arch = "x86_64")]
            {
                if $crate::cpu::vectorise::has_avx512() {
                    // SAFETY: the processor has the features.
                    return unsafe { avx512($($argument),*) };
                }
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has the feature.
                    return unsafe { avx2($($argument),*) };
                }
            }
            everywhere($($argument),*)
        }
    };
}

pub(crate) use vectorised;

/// The parts of AVX-512 that every processor with it has had since 2017.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}
