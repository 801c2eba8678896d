//! The batch that a GPT-2 reads at once: blocks of a token stream as tensors.

use tch::{Kind, Tensor};

use crate::data::error::DataError;
use crate::data::shard::TokenStream;
use crate::model::layers::head::IGNORED;

/// Sequences of one length, with the token that each of theirs predicts.
#[derive(Debug)]
pub struct Batch {
    /// `[batch, length]` `i64`.
    pub(crate) inputs: Tensor,
    /// `[batch, length]` `i64`, one token ahead of the inputs; [`IGNORED`] is not counted.
    pub(crate) targets: Tensor,
    /// Number in the run of the first sequence: dropout is a function of it.
    pub(crate) first_sequence: u64,
    weight: f64,
}

impl Batch {
    /// `inputs` and `targets` are `[batch, length]` `i64` on any device; a target of [`IGNORED`] is not counted.
    pub fn new(inputs: Tensor, targets: Tensor) -> Self {
        let weight = targets.ne(IGNORED).sum(Kind::Int64).int64_value(&[]) as f64;
        Self { inputs, targets, first_sequence: 0, weight }
    }

    /// Says which sequences of a run these are, by the number of the first.
    #[must_use]
    pub fn at(self, first_sequence: u64) -> Self {
        Self { first_sequence, ..self }
    }

    /// Reads the given blocks: windows of `block_size + 1` tokens at multiples of `block_size`. Where a window reaches past the
    /// end of the stream the targets are [`IGNORED`].
    ///
    /// # Errors
    /// Those of [`TokenStream::read`].
    pub fn read(stream: &TokenStream, blocks: impl IntoIterator<Item = u64>, block_size: usize) -> Result<Self, DataError> {
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        let mut window = vec![0; block_size + 1];
        for block in blocks {
            let start = block * block_size as u64;
            let found = (stream.len() - start).min(window.len() as u64) as usize;
            stream.read(start, &mut window[..found])?;
            inputs.extend_from_slice(&window[..found.min(block_size)]);
            targets.extend_from_slice(&window[1..found]);
            inputs.resize(inputs.len().next_multiple_of(block_size), 0);
            targets.resize(targets.len().next_multiple_of(block_size), IGNORED);
        }
        let tensor = |tokens: &[i64]| Tensor::from_slice(tokens).view([-1, block_size as i64]);
        Ok(Self::new(tensor(&inputs), tensor(&targets)))
    }

    /// Targets that are counted.
    pub fn weight(&self) -> f64 {
        self.weight
    }
}

/// Blocks that cover every token of a stream but the first as a target, the last one possibly in part.
pub fn covering(tokens: u64, block_size: usize) -> u64 {
    tokens.saturating_sub(1).div_ceil(block_size as u64)
}

/// The weight of the batch that [`Batch::read`] makes of these blocks of a stream.
pub fn weight(tokens: u64, blocks: impl IntoIterator<Item = u64>, block_size: usize) -> f64 {
    let targets = |block: u64| (tokens - block * block_size as u64 - 1).min(block_size as u64);
    blocks.into_iter().map(targets).sum::<u64>() as f64
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "whole numbers")]
mod tests {
    use super::*;

    #[test]
    fn every_token_but_the_first_is_a_target_once() {
        for (tokens, block_size) in [(2, 4), (5, 4), (6, 4), (10, 4), (1001, 7)] {
            let blocks = 0..covering(tokens, block_size);
            assert_eq!(weight(tokens, blocks, block_size), (tokens - 1) as f64, "{tokens} tokens");
        }
        assert_eq!(weight(10, [2, 0], 4), 5.0);
    }
}
