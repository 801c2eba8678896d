//! Loss and perplexity of a model on a token stream.

use serde::Serialize;

use crate::data::blocks::{Batch, covering};
use crate::data::error::DataError;
use crate::data::shard::TokenStream;
use crate::model::Gpt2;

/// What a model makes of a stream. Every token counts the same, however the stream is cut into batches.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Evaluation {
    /// Mean cross-entropy in nats.
    pub loss: f64,
    /// `exp(loss)`.
    pub perplexity: f64,
    /// Predicted tokens.
    pub tokens: u64,
    /// Blocks read, the last one possibly in part.
    pub sequences: u64,
}

/// How a stream is read.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    /// Tokens of context a prediction sees at most, and the stride: each token is predicted once.
    pub block_size: usize,
    /// Sequences per forward pass.
    pub batch: usize,
    /// Read only this many blocks from the start.
    pub limit: Option<usize>,
}

/// Blocks that an evaluation reads. 0: the stream has nothing to predict.
pub fn sequences(stream: &TokenStream, reading: Reading) -> u64 {
    let all = covering(stream.len(), reading.block_size);
    reading.limit.map_or(all, |limit| all.min(limit as u64))
}

/// Evaluates; `None` when the stream has nothing to predict or `go_on` (called with sequences done and in all) says no.
///
/// # Errors
/// As for [`TokenStream::read`].
pub fn evaluate(
    model: &Gpt2,
    stream: &TokenStream,
    reading: Reading,
    mut go_on: impl FnMut(u64, u64) -> bool,
) -> Result<Option<Evaluation>, DataError> {
    let sequences = sequences(stream, reading);
    let (mut sum, mut tokens) = (0.0, 0);
    for first in (0..sequences).step_by(reading.batch) {
        if !go_on(first, sequences) {
            return Ok(None);
        }
        let batch = Batch::read(stream, first..sequences.min(first + reading.batch as u64), reading.block_size)?;
        let (loss, counted) = model.loss(&batch.inputs, &batch.targets);
        sum += loss;
        tokens += counted as u64;
    }
    let loss = sum / tokens as f64;
    Ok((tokens > 0).then(|| Evaluation { loss, perplexity: loss.exp(), tokens, sequences }))
}
