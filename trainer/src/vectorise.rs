//! Loops compiled for the widest registers that the processor has.

/// Compiles a function three times, for any x86-64, for AVX2 and for AVX-512, and calls the widest that this processor has; on other
/// processors there is one. Rust never fuses a product with a sum, so all of them round alike: a loop over elements gives the same
/// bits on every machine.
macro_rules! vectorised {
    ($(#[$note:meta])* $visible:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$note])*
        $visible fn $name($($argument: $type),*) {
            #[inline(always)]
            fn everywhere($($argument: $type),*) $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            fn avx2($($argument: $type),*) {
                everywhere($($argument),*);
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512vl")]
            fn avx512($($argument: $type),*) {
                everywhere($($argument),*);
            }

            #[cfg(target_arch = "x86_64")]
            {
                if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl") {
                    // SAFETY: the processor has the features.
                    return unsafe { avx512($($argument),*) };
                }
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has the feature.
                    return unsafe { avx2($($argument),*) };
                }
            }
            everywhere($($argument),*);
        }
    };
}

pub(crate) use vectorised;
