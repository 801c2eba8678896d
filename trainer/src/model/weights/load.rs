//! Weights from a Hugging Face directory.

use std::path::Path;

use tch::{Kind, Tensor};

use super::model_files::{ModelError, ModelFiles, Stored, parts};
use super::parameters::{Parameter, Parameters};
use super::tensor_file::TensorFile;
use crate::model::role::TensorSpec;
use crate::model::shape::Shape;
use crate::offload::{Place, release};
use crate::settings::Variant;

impl Parameters {
    /// Reads the model of a directory as `f32` in main memory: see [`ModelFiles::open`] for what it may look like.
    pub fn load(directory: &Path) -> Result<(Shape, Self), ModelError> {
        Self::load_in(&Place::Memory, directory)
    }

    /// [`Parameters::load`], one tensor after another to `place`.
    pub fn load_in(place: &Place, directory: &Path) -> Result<(Shape, Self), ModelError> {
        let model = ModelFiles::open(directory)?;
        let mut entries = Vec::new();
        for spec in model.shape.tensors() {
            let tensor = place.hold(tensor(&model, &spec)?)?;
            entries.push(Parameter::new(spec, tensor));
        }
        refuse_untied(&model, &entries[0].tensor)?;
        Ok((model.shape, Self::from_entries(entries)))
    }

    /// Writes what a safetensors file has under the same names over these, one tensor at a time in memory.
    pub fn restore(&mut self, path: &Path) -> Result<(), ModelError> {
        let file = TensorFile::open(path)?;
        for entry in self.iter_mut() {
            let (path, name) = (path.to_owned(), entry.name.clone());
            if !file.has(&name) {
                return Err(ModelError::Missing { path, name });
            }
            let (found, expected) = (file.tensor(&name)?, entry.tensor.size());
            if found.size() != expected {
                return Err(ModelError::Dimensions { path, name, expected, found: found.size() });
            }
            tch::no_grad(|| entry.tensor.copy_(&found));
            release([&entry.tensor]);
        }
        Ok(())
    }
}

/// One tensor, put together from its parts where the file has several.
fn tensor(model: &ModelFiles, spec: &TensorSpec) -> Result<Tensor, ModelError> {
    let (names, _) = parts(spec, model.shape.variant);
    let parts = names.iter().map(|name| finite(model, model.stored(name), name)).collect::<Result<Vec<_>, _>>()?;
    if model.shape.variant == Variant::Gpt2 {
        return Ok(parts.into_iter().next().unwrap_or_else(|| unreachable!("{} has one part", spec.name)));
    }
    let whole = Tensor::cat(&parts, 0);
    Ok(if spec.role.is_matrix() { whole.tr().contiguous() } else { whole })
}

/// One tensor of a file, if it holds nothing but numbers.
fn finite(model: &ModelFiles, stored: &Stored, name: &str) -> Result<Tensor, ModelError> {
    let file = model.file(stored);
    let tensor = file.tensor(&stored.name)?.to_kind(Kind::Float);
    if tensor.isfinite().all().int64_value(&[]) == 0 {
        return Err(ModelError::NotFinite { path: file.path().to_owned(), name: name.to_owned() });
    }
    Ok(tensor)
}

fn refuse_untied(model: &ModelFiles, embedding: &Tensor) -> Result<(), ModelError> {
    let Some(stored) = &model.head else { return Ok(()) };
    let file = model.file(stored);
    let head = file.tensor(&stored.name)?;
    if head.size() == embedding.size() && head.to_kind(Kind::Float).equal(embedding) {
        return Ok(());
    }
    Err(ModelError::UntiedHead { path: file.path().to_owned() })
}
