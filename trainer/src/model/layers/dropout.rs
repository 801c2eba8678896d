//! Dropout (Srivastava et al. 2014) whose masks are a function of where they fall: seed, sequence of the run, layer, site, row and
//! column. Nothing is stored between forward and backward pass, a resumed run draws what an undisturbed one draws, and how
//! sequences are cut into micro-batches changes no mask. A GPU's attention draws its own: [`Masks::seed`].

use tch::{Device, Kind, Tensor};

use crate::cpu::parallel;
use crate::cpu::simd::{Element, by_dtype};
use crate::cpu::slices::{elements, elements_mut, holds};
use crate::cpu::vectorise::vectorised;
use crate::random::{bits, mix};

/// Rows one thread works on at a time.
const ROWS: usize = 32;
/// The increment of SplitMix64's counter.
const INCREMENT: u64 = 0x9E37_79B9_7F4A_7C15;

/// How much is dropped. The rest is multiplied by `1 / (1 − rate)`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Dropout {
    pub seed: u64,
    /// Dropout of the embeddings and of the output that each half of a block adds to the stream.
    pub residual: f64,
    /// Dropout of the attention weights.
    pub attention: f64,
    /// Dropout of the adapters' input.
    pub adapter: f64,
}

impl Dropout {
    /// Whether anything is dropped from the model itself.
    pub(crate) fn reaches_stream(self) -> bool {
        self.residual > 0.0 || self.attention > 0.0
    }
}

/// The tensor that elements are dropped from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Site {
    Embedding,
    AttentionWeights,
    AttentionOutput,
    Network,
    AdapterOfAttention,
    AdapterOfAttentionOutput,
    AdapterOfNetwork,
    AdapterOfNetworkOutput,
}

/// The masks of one layer in one micro-batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Masks {
    pub dropout: Dropout,
    /// Number in the run of the micro-batch's first sequence.
    pub first_sequence: u64,
    pub layer: u64,
}

/// The mask of one row: column `c` is dropped where the upper half of its 64 random bits is below the threshold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowMask {
    key: u64,
    threshold: u32,
    scale: f32,
}

impl Masks {
    /// `x [N, D]` with some numbers dropped and the others scaled up; also the gradient of that, from the gradient. `length` is
    /// that of a sequence.
    pub fn apply(self, site: Site, x: &Tensor, length: i64) -> Tensor {
        by_dtype!(x.kind(), E if holds::<E>(x) => self.apply_plain::<E>(site, x, length), _ => {
            let ones = Tensor::ones(x.size(), (Kind::Float, Device::Cpu));
            x * self.apply_plain::<f32>(site, &ones, length).to_kind(x.kind()).to_device(x.device())
        })
    }

    fn apply_plain<E: Element>(self, site: Site, x: &Tensor, length: i64) -> Tensor {
        let mut y = x.empty_like();
        let [width, length] = [x.size()[1], length].map(|size| size as usize);
        let work = elements::<E>(x).chunks(ROWS * width).zip(elements_mut::<E>(&mut y).chunks_mut(ROWS * width)).enumerate();
        parallel::run(work.collect(), |(chunk, (x, y))| {
            for (row, (x, y)) in x.chunks(width).zip(y.chunks_mut(width)).enumerate() {
                let row = chunk * ROWS + row;
                drop_row(self.row(site, row / length, 0, row % length), x, y);
            }
        });
        y
    }

    /// `[B, H, T, T]` in `f32`: 0 or `1 / (1 − rate)` for every attention weight, for dtypes and devices without kernels of their
    /// own.
    pub fn attention(self, [batch, heads, length]: [i64; 3]) -> Tensor {
        let ones = vec![1.0; length as usize];
        let mut mask = vec![0.0; (batch * heads * length * length) as usize];
        for (row, mask) in mask.chunks_mut(length as usize).enumerate() {
            let [sequence, head, query] =
                [row / (heads * length) as usize, row / length as usize % heads as usize, row % length as usize];
            drop_row(self.row(Site::AttentionWeights, sequence, head, query), &ones, mask);
        }
        Tensor::from_slice(&mask).view([batch, heads, length, length])
    }

    /// The seed of libtorch's generator before its own attention kernels drop from the weights of this layer in the `part`-th part
    /// of this micro-batch: the same place has the same seed, when it is computed again and when a run resumes.
    pub fn seed(self, part: usize) -> u64 {
        bits(&[self.dropout.seed, self.first_sequence, self.layer, Site::AttentionWeights as u64, part as u64])
    }

    /// The mask of row `position` of the micro-batch's `sequence`-th sequence, in a head where the site has heads.
    pub fn row(self, site: Site, sequence: usize, head: usize, position: usize) -> RowMask {
        let rate = match site {
            Site::AttentionWeights => self.dropout.attention,
            Site::Embedding | Site::AttentionOutput | Site::Network => self.dropout.residual,
            _ => self.dropout.adapter,
        };
        let sequence = self.first_sequence + sequence as u64;
        let key = bits(&[self.dropout.seed, sequence, self.layer, site as u64, head as u64, position as u64]);
        RowMask { key, threshold: (rate * 2.0_f64.powi(32)) as u32, scale: (1.0 / (1.0 - rate)) as f32 }
    }
}

impl RowMask {
    /// The factor of column `column`.
    #[expect(clippy::inline_always, reason = "vectorised with its callers")]
    #[inline(always)]
    pub fn factor(self, column: usize) -> f32 {
        let bits = mix(self.key.wrapping_add((column as u64).wrapping_mul(INCREMENT)));
        if (bits >> 32) as u32 >= self.threshold { self.scale } else { 0.0 }
    }
}

vectorised! {
    fn drop_row<E: Element>(mask: RowMask, x: &[E], y: &mut [E]) {
        for (column, (x, y)) in x.iter().zip(y).enumerate() {
            *y = E::put(x.get() * mask.factor(column));
        }
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "a factor is one of two exact numbers")]
mod tests {
    use super::*;

    #[test]
    fn the_seed_of_a_place_is_its_own() {
        let seed = masks(0.0, 6, 1).seed(0);
        assert_eq!(masks(0.5, 6, 1).seed(0), seed);
        let mut other_run = masks(0.0, 6, 1);
        other_run.dropout.seed += 1;
        let others = [masks(0.0, 7, 1), masks(0.0, 6, 2), masks(0.0, 1, 6), other_run].map(|masks| masks.seed(0));
        assert!(!others.contains(&seed) && masks(0.0, 6, 1).seed(1) != seed, "{others:?}");
    }

    fn masks(rate: f64, first_sequence: u64, layer: u64) -> Masks {
        Masks { dropout: Dropout { seed: 5, residual: rate, attention: 0.5, adapter: 0.0 }, first_sequence, layer }
    }

    fn of(masks: Masks, site: Site, rows: i64, length: i64) -> Tensor {
        masks.apply(site, &Tensor::ones([rows, 256], (Kind::Float, Device::Cpu)), length)
    }

    /// Counts over 2²² draws: the share that is dropped, of rows and of columns, and how often neighbours fall together.
    #[test]
    fn the_share_that_is_dropped_is_the_rate_everywhere() {
        for rate in [0.1, 0.5] {
            let dropped = of(masks(rate, 0, 0), Site::Network, 16_384, 128).eq(0.0).to_kind(Kind::Double);
            let share = |tensor: &Tensor| tensor.mean(Kind::Double).double_value(&[]);
            assert!((share(&dropped) - rate).abs() < 1e-3, "{}", share(&dropped));
            for dimension in [0_i64, 1] {
                let shares = dropped.mean_dim(dimension, false, Kind::Double);
                let count = dropped.size()[dimension as usize] as f64;
                let spread = shares.var(true).double_value(&[]) / (rate * (1.0 - rate) / count);
                assert!((0.75..1.3).contains(&spread), "variance along {dimension}: {spread} of a binomial's");
                let neighbours = dropped.narrow(dimension, 1, dropped.size()[dimension as usize] - 1)
                    * dropped.narrow(dimension, 0, dropped.size()[dimension as usize] - 1);
                assert!((share(&neighbours) - rate * rate).abs() < 1e-3, "{}", share(&neighbours));
            }
        }
    }

    #[test]
    fn what_stays_is_scaled_up_and_nothing_is_dropped_at_rate_zero() {
        let mask = of(masks(0.2, 0, 0), Site::Network, 64, 8);
        assert_eq!(mask.max().double_value(&[]), f64::from(1.25_f32));
        assert!(of(masks(0.0, 0, 0), Site::Network, 64, 8).eq(1.0).all().int64_value(&[]) == 1);
    }

    #[test]
    fn a_mask_depends_on_its_place_in_the_run_and_not_on_the_micro_batch() {
        let pair = of(masks(0.5, 6, 1), Site::Network, 16, 8);
        assert!(of(masks(0.5, 7, 1), Site::Network, 8, 8).equal(&pair.narrow(0, 8, 8)), "the second sequence alone");
        for other in [of(masks(0.5, 6, 2), Site::Network, 16, 8), of(masks(0.5, 6, 1), Site::AttentionOutput, 16, 8)] {
            let same = pair.eq_tensor(&other).to_kind(Kind::Double).mean(Kind::Double).double_value(&[]);
            assert!((same - 0.5).abs() < 0.05, "{same} of the mask is alike elsewhere");
        }
    }
}
