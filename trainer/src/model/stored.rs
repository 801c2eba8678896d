//! A model as a checkpoint holds it: a Hugging Face directory's files.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use serde_json::Value;
use tch::{Kind, Tensor};

use super::gpt2::Gpt2;
use super::gpt2::adapters::Adapters;
use super::hugging_face::CONFIG_FILE;
use super::weights::parameters::{ModelError, WEIGHTS_FILE};
use super::weights::tensor_file::{self, FileError};
use crate::files;
use crate::settings::lora::ADAPTER_FILE;

/// Tensors and description of a model. The tensors share memory with the model's own.
pub struct Stored {
    /// `config.json`.
    config: Value,
    weights: Vec<(String, Tensor)>,
    /// To be merged into the weights, and kept beside them.
    adapters: Option<Adapters>,
}

impl Gpt2 {
    pub(super) fn stored(&self, end_of_text: u32) -> Stored {
        Stored {
            config: self.shape().config_json(Some(end_of_text)),
            weights: self.parameters().stored(),
            adapters: self.adapters().map(|adapters| adapters.to(self.device(), Kind::Float)),
        }
    }
}

impl Stored {
    /// Writes one range of the weights' file into `directory`: see [`tensor_file::write_part`].
    pub fn write_weights(
        &self,
        directory: &Path,
        part: impl FnOnce(u64) -> Range<u64>,
        writers: u32,
    ) -> Result<Option<File>, FileError> {
        let weights = self.weights.iter().map(|(name, tensor)| (name.clone(), tensor));
        let stored = |name: &str, weight: &Tensor| match &self.adapters {
            Some(adapters) => adapters.merged(name, weight),
            None => weight.shallow_clone(),
        };
        tensor_file::write_part(&directory.join(WEIGHTS_FILE), weights, part, writers, stored)
    }

    /// Writes its other files, adapters among them.
    pub fn write_description(&self, directory: &Path) -> Result<(), ModelError> {
        files::write_json(&directory.join(CONFIG_FILE), &self.config)?;
        let adapters = |adapters: &Adapters| adapters.parameters().write_entries(&directory.join(ADAPTER_FILE));
        Ok(self.adapters.as_ref().map_or(Ok(()), adapters)?)
    }
}
