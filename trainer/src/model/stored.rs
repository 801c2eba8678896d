//! A model as a checkpoint holds it: a Hugging Face directory's files.

use std::path::Path;

use serde_json::Value;
use tch::{Kind, Tensor};

use super::gpt2::Gpt2;
use super::gpt2::adapters::Adapters;
use super::hugging_face::CONFIG_FILE;
use super::weights::parameters::{ModelError, WEIGHTS_FILE};
use super::weights::tensor_file;
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
    /// Writes all of its files into `directory`.
    pub fn write(&self, directory: &Path) -> Result<(), ModelError> {
        files::write_json(&directory.join(CONFIG_FILE), &self.config)?;
        let path = directory.join(WEIGHTS_FILE);
        let weights = self.weights.iter().map(|(name, tensor)| (name.clone(), tensor));
        let Some(adapters) = &self.adapters else { return Ok(tensor_file::write(&path, weights)?) };
        adapters.parameters().write_entries(&directory.join(ADAPTER_FILE))?;
        Ok(tensor_file::write_changed(&path, weights, |name, weight| adapters.merged(name, weight))?)
    }
}
