//! Blocks of a token stream as tensors.

use tch::Tensor;

use super::error::DataError;
use super::shard::TokenStream;
use crate::model::IGNORED;

/// Sequences for the model: `inputs` and `targets` are `[batch, block_size]` `i64`, the targets one token ahead of the inputs.
#[derive(Debug)]
pub struct Batch {
    pub inputs: Tensor,
    pub targets: Tensor,
}

impl Batch {
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
        Ok(Self { inputs: tensor(&inputs), targets: tensor(&targets) })
    }
}

/// Blocks that cover every token of a stream but the first as a target, the last one possibly in part.
pub fn covering(tokens: u64, block_size: usize) -> u64 {
    tokens.saturating_sub(1).div_ceil(block_size as u64)
}
