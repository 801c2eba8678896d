//! `ft-trainer grads`: logits, loss and every gradient of one batch, for comparison with other implementations.

use std::path::{Path, PathBuf};

use tch::{Device, Kind, Tensor};
use thiserror::Error;

use crate::model::parameters::ModelError;
use crate::model::tensor_file::{self, FileError};
use crate::model::{Gpt2, Parameters};

/// Why the batch cannot be computed.
#[derive(Debug, Error)]
pub enum OracleError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} must hold one JSON array of arrays of token ids: {reason}", path.display())]
    Tokens { path: PathBuf, reason: String },
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    File(#[from] FileError),
}

/// Computes one batch with the weights in `model` (a Hugging Face directory) and writes a safetensors file: `logits`
/// `[batch, seq, vocabulary]`, `loss` (mean over the predicted tokens), and `grad.<parameter>` for every parameter.
/// `tokens` is JSON `[[id, …], …]`, sequences of one length; each token but the first is predicted from those before it, as
/// transformers does when `labels = input_ids`. `kind` is the dtype of the computation.
pub fn grads(model: &Path, tokens: &Path, out: &Path, kind: Kind) -> Result<(), OracleError> {
    let (shape, weights) = Parameters::load(model)?;
    let batch = read_tokens(tokens, shape.vocabulary, shape.context)?;
    let mut model = Gpt2::new(shape, &weights.to(Device::Cpu, kind), Device::Cpu);
    let [rows, length] = [batch.size()[0], batch.size()[1]];
    let inputs = batch.narrow(1, 0, length - 1);
    let targets = batch.narrow(1, 1, length - 1);
    let counted = (rows * (length - 1)) as f64;
    let loss = model.accumulate(&inputs, &targets, 1.0 / counted) / counted;
    let (logits, loss) = (model.logits(&batch), Tensor::from(loss));
    let mut tensors = vec![("logits".to_owned(), &logits), ("loss".to_owned(), &loss)];
    tensors.extend(model.gradients().iter().map(|entry| (format!("grad.{}", entry.name), &entry.tensor)));
    Ok(tensor_file::write(out, tensors)?)
}

fn read_tokens(path: &Path, vocabulary: usize, context: usize) -> Result<Tensor, OracleError> {
    let refuse = |reason: String| OracleError::Tokens { path: path.to_owned(), reason };
    let text = std::fs::read(path).map_err(|source| OracleError::Read { path: path.to_owned(), source })?;
    let rows: Vec<Vec<i64>> = serde_json::from_slice(&text).map_err(|error| refuse(error.to_string()))?;
    let length = rows.first().map_or(0, Vec::len);
    if rows.iter().any(|row| row.len() != length) {
        return Err(refuse("all sequences must have the same length".to_owned()));
    }
    if !(2..=context).contains(&length) {
        return Err(refuse(format!("sequences of {length} tokens; the model takes 2 to {context}")));
    }
    if let Some(token) = rows.iter().flatten().find(|token| !(0..vocabulary as i64).contains(*token)) {
        return Err(refuse(format!("token {token} is outside the vocabulary of {vocabulary}")));
    }
    Ok(Tensor::from_slice(&rows.concat()).view([rows.len() as i64, length as i64]))
}
