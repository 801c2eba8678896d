//! Numbers to compare with other implementations: `ft-trainer grads`, logits, loss and every gradient of one batch; `ft-trainer
//! updates`, the weights after optimizer steps on given gradients.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use tch::{Device, Kind, Tensor};
use thiserror::Error;

use crate::error::Failure;
use crate::model::weights::parameters::ModelError;
use crate::model::weights::tensor_file::{self, FileError};
use crate::model::{Adapters, Batch, Gpt2, Parameters, Setup};
use crate::optimizer::{Optimizer, clip_factor, norm};
use crate::schedule::learning_rate;
use crate::settings::lora::Lora;
use crate::settings::{Engine, LossScaling, Precision, TrainSettings};
use crate::world::Shards;

/// Why the batch cannot be computed.
#[derive(Debug, Error)]
pub enum OracleError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} has no tensor {name} of the model's dimensions", path.display())]
    Gradient { path: PathBuf, name: String },
    #[error("{} must hold one JSON array of arrays of token ids: {reason}", path.display())]
    Tokens { path: PathBuf, reason: String },
    #[error("{0}")]
    Adapter(String),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Run(#[from] Failure),
}

/// Computes one batch with the weights in `model` (a Hugging Face directory) and writes a safetensors file: `logits`
/// `[batch, seq, vocabulary]`, `loss` (mean over the predicted tokens), and `grad.<parameter>` for every parameter.
/// `tokens` is JSON `[[id, …], …]`, sequences of one length; each token but the first is predicted from those before it, as
/// transformers does when `labels = input_ids`. `kind` is the dtype of weights and gradients; attention stays inside documents that
/// `begins_document` begins; computed on `device`, on the CPU with the kernels of `engine`. With `adapter`, peft's directory,
/// gradients are of that.
pub fn grads(
    (model, adapter): (&Path, Option<&Path>),
    tokens: &Path,
    out: &Path,
    (kind, precision): (Kind, Precision),
    begins_document: Option<u32>,
    (device, engine): (Device, Engine),
) -> Result<(), OracleError> {
    let (shape, weights) = Parameters::load(model)?;
    let tokens = read_tokens(tokens, shape.vocabulary, shape.context)?;
    let adapters = adapter.map(|directory| {
        let lora = Lora::read(directory).map_err(OracleError::Adapter)?;
        Ok::<_, OracleError>(Adapters::load(&lora, &shape, directory)?)
    });
    let adapters = adapters.transpose()?;
    let setup = Setup { engine, precision, adapters: adapters.as_ref(), begins_document, ..Setup::default() };
    let mut model = Gpt2::for_training(shape, &weights.to(device, kind), device, &setup)?;
    let length = tokens.size()[1] - 1;
    let batch = Batch::new(tokens.narrow(1, 0, length), tokens.narrow(1, 1, length));
    let scale = if precision == Precision::Fp16 { LossScaling::default().initial } else { 1.0 };
    let loss = model.accumulate(&batch, scale / batch.weight()).mean();
    let (logits, loss) = (model.logits(&tokens), Tensor::from(loss));
    let mut tensors = vec![("logits".to_owned(), &logits), ("loss".to_owned(), &loss)];
    let unscaled = |(name, tensor)| (format!("grad.{name}"), tensor / scale);
    let gradients: Vec<(String, Tensor)> = model.gradients().stored().into_iter().map(unscaled).collect();
    tensors.extend(gradients.iter().map(|(name, tensor)| (name.clone(), tensor)));
    Ok(tensor_file::write(out, tensors)?)
}

/// Makes one optimizer step for each of `gradients/0.safetensors`, `1.safetensors` and so on, from the weights in `model` (a
/// Hugging Face directory), as a run with these settings does; a step whose gradient is not finite changes nothing. Writes the
/// weights.
pub fn updates(model: &Path, gradients: &Path, settings: &TrainSettings, out: &Path) -> Result<(), OracleError> {
    let (_, mut weights) = Parameters::load(model)?;
    let mut optimizer = Optimizer::new(&weights, settings);
    let mut gradient = weights.zeros_like();
    let files = (0..).map(|number| gradients.join(format!("{number}.safetensors"))).take_while(|path| path.exists());
    let files: Vec<PathBuf> = files.collect();
    for path in &files {
        read_gradient(path, &mut gradient)?;
        let norm = norm(&gradient);
        if norm.is_finite() {
            let rate = learning_rate(settings, optimizer.updates(), files.len() as u64);
            optimizer.step(&mut weights, &Shards::of(&gradient), [rate, clip_factor(norm, settings.clip_norm)], &mut |_, _| ());
        }
    }
    Ok(weights.write_safetensors(out)?)
}

fn read_gradient(path: &Path, gradient: &mut Parameters) -> Result<(), OracleError> {
    let mut tensors: HashMap<String, Tensor> = tensor_file::read(path)?.into_iter().collect();
    for entry in gradient {
        let found = tensors.remove(&entry.name).filter(|tensor| tensor.size() == entry.tensor.size());
        let absent = || OracleError::Gradient { path: path.to_owned(), name: entry.name.clone() };
        entry.tensor.copy_(&found.ok_or_else(absent)?);
    }
    Ok(())
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
