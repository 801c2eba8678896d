//! Which block of the training stream each sequence of a run reads: a pure function of seed and position, so that a resumed run
//! reads on exactly where it was, and nothing about the order is ever stored.
//!
//! A step of S sequences reads those with the numbers `step · S` to `step · S + S − 1`. How it is divided into micro-batches, by
//! how many threads and on what device it is computed is no part of that: a run may go on with other ones and reads the same
//! tokens. One process trains; several that shared a step would each read their part of the same numbers.

use crate::random::bits;
use crate::settings::TrainSettings;

/// The rounds of the Feistel network. Four make a strong pseudorandom permutation (Luby and Rackoff 1988); two more cost nothing.
const ROUNDS: u64 = 6;

/// The order of a run's sequences over the blocks of a stream.
///
/// A block is a window of `block_size + 1` tokens; block `n` starts at token `n * block_size`, so that neighbours share one token
/// and every token but the first is a target exactly once an epoch. A last partial block is never read in training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampler {
    seed: u64,
    blocks: u64,
}

impl Sampler {
    /// `None` when the stream of `tokens` tokens holds no full block.
    pub fn new(seed: u64, tokens: u64, block_size: u64) -> Option<Self> {
        let blocks = tokens.saturating_sub(1).checked_div(block_size)?;
        (blocks > 0).then_some(Self { seed, blocks })
    }

    /// Full blocks in the stream: the sequences of one epoch.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The block that the run's `sequence`-th sequence reads (counted over the whole run from 0). Each epoch visits every block
    /// once.
    pub fn block(&self, sequence: u64) -> u64 {
        permute(self.seed, sequence / self.blocks, sequence % self.blocks, self.blocks)
    }
}

/// Number in the run of the first sequence of a step's `part`-th micro-batch, both counted from 0.
pub fn first_sequence(settings: &TrainSettings, step: u64, part: u64) -> u64 {
    step * settings.sequences_per_step() + part * settings.micro_batch.sequences() as u64
}

/// The image of `index` under the permutation of `0..size` that belongs to `(seed, epoch)`.
///
/// A Feistel network permutes the smallest power of four that holds `size`; an image outside is sent through again until it falls
/// inside ("cycle walking", Black and Rogaway 2002), which takes fewer than four rounds on average.
fn permute(seed: u64, epoch: u64, index: u64, size: u64) -> u64 {
    let half = (64 - (size - 1).leading_zeros()).div_ceil(2).max(1);
    let mut image = feistel(seed, epoch, index, half);
    while image >= size {
        image = feistel(seed, epoch, image, half);
    }
    image
}

/// One pass over `2 * half` bits.
fn feistel(seed: u64, epoch: u64, word: u64, half: u32) -> u64 {
    let mask = (1_u64 << half) - 1;
    let (left, right) = (0..ROUNDS)
        .fold((word >> half, word & mask), |(left, right), round| (right, left ^ (bits(&[seed, epoch, round, right]) & mask)));
    left << half | right
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::micro_batch::MicroBatch;

    fn epoch(sampler: &Sampler, epoch: u64) -> Vec<u64> {
        let blocks = sampler.blocks();
        (epoch * blocks..(epoch + 1) * blocks).map(|sequence| sampler.block(sequence)).collect()
    }

    #[test]
    fn every_epoch_visits_every_block_once() {
        for blocks in (1..70).chain([255, 256, 257, 1000, 65_537]) {
            let sampler = Sampler::new(42, blocks * 8 + 1, 8).unwrap();
            for number in 0..3 {
                let mut visited = epoch(&sampler, number);
                visited.sort_unstable();
                assert!(visited.iter().copied().eq(0..blocks), "{blocks} blocks, epoch {number}");
            }
        }
    }

    #[test]
    fn seeds_and_epochs_give_different_orders() {
        let of = |seed| Sampler::new(seed, 1001, 1).unwrap();
        assert_ne!(epoch(&of(1), 0), epoch(&of(2), 0));
        assert_ne!(epoch(&of(1), 0), epoch(&of(1), 1));
        assert_eq!(epoch(&of(1), 5), epoch(&of(1), 5));
    }

    /// A shuffled order has no memory: the correlation of position and block is about `1 / sqrt(n)`, and one step in `n` goes to
    /// the next block.
    #[test]
    fn the_order_is_mixed() {
        let size = 10_000_u64;
        let order = epoch(&Sampler::new(3, size + 1, 1).unwrap(), 0);
        let mean = (size - 1) as f64 / 2.0;
        let covariance: f64 = order.iter().enumerate().map(|(n, &block)| (n as f64 - mean) * (block as f64 - mean)).sum();
        let variance: f64 = (0..size).map(|n| (n as f64 - mean).powi(2)).sum();
        assert!((covariance / variance).abs() < 0.04, "{}", covariance / variance);
        let runs = order.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!(runs < 10, "{runs}");
    }

    /// Steps of twelve sequences over 101 blocks, so that some lie in two epochs; in no order, as there is nothing to remember.
    #[test]
    fn a_step_reads_the_same_blocks_however_it_is_divided() {
        let sampler = Sampler::new(42, 101 * 8 + 1, 8).unwrap();
        for step in [1000, 8, 0, 9] {
            let expected: Vec<u64> = (step * 12..(step + 1) * 12).map(|sequence| sampler.block(sequence)).collect();
            for parts in [1, 2, 3, 4, 6, 12] {
                let each = 12 / parts;
                let micro_batch = MicroBatch::Sequences(each as usize);
                let settings = TrainSettings { micro_batch, gradient_accumulation: parts as usize, ..TrainSettings::default() };
                let firsts = (0..parts).map(|part| first_sequence(&settings, step, part));
                let read: Vec<u64> = firsts.flat_map(|first| first..first + each).map(|sequence| sampler.block(sequence)).collect();
                assert_eq!(read, expected, "step {step} in {parts} parts");
            }
        }
    }

    #[test]
    fn a_stream_without_a_full_block_is_no_stream() {
        assert_eq!(Sampler::new(0, 8, 8), None);
        assert_eq!(Sampler::new(0, 0, 8), None);
        assert_eq!(Sampler::new(0, 9, 8).unwrap().blocks(), 1);
        assert_eq!(Sampler::new(0, 24, 8).unwrap().blocks(), 2);
    }
}
