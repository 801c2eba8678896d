//! Weights from a Hugging Face directory.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use tch::{Kind, Tensor};

use super::parameters::{ModelError, Parameter, Parameters, WEIGHTS_FILE};
use super::tensor_file::{FileError, TensorFile};
use crate::files::read_at_most;
use crate::model::role::TensorSpec;
use crate::model::shape::Shape;
use crate::model::xglm;
use crate::offload::{Place, release};
use crate::settings::Variant;

const INDEX_FILE: &str = "model.safetensors.index.json";
const PICKLE_FILES: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];
const HEAD: &str = "lm_head.weight";
/// Bytes; a tensor takes about a hundred.
const LONGEST_INDEX: u64 = 16 << 20;

impl Parameters {
    /// Reads `config.json` and `model.safetensors` (or its shards) as `f32` in main memory. Names may lack the prefix
    /// `transformer.`, as in OpenAI's published files; attention-mask buffers and an output head equal to the token embedding
    /// are passed over.
    pub fn load(directory: &Path) -> Result<(Shape, Self), ModelError> {
        Self::load_in(&Place::Memory, directory)
    }

    /// [`Parameters::load`], one tensor after another to `place`.
    pub fn load_in(place: &Place, directory: &Path) -> Result<(Shape, Self), ModelError> {
        let shape = Shape::read(directory)?;
        let files = weight_files(directory)?.iter().map(|path| TensorFile::open(path)).collect::<Result<Vec<_>, _>>()?;
        let mut found = Found::new();
        for file in &files {
            found.extend(file.names().into_iter().map(|name| (canonical(&name, shape.variant), Stored { file, name })));
        }
        let head = found.remove(HEAD);
        let mut entries = Vec::new();
        for spec in shape.tensors() {
            let tensor = place.hold(take(&mut found, directory, &spec, shape.variant)?)?;
            entries.push(Parameter { name: spec.name, role: spec.role, tensor });
        }
        refuse_leftovers(&found)?;
        refuse_untied(head, &entries[0].tensor)?;
        Ok((shape, Self::from_entries(entries)))
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

fn weight_files(directory: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let single = directory.join(WEIGHTS_FILE);
    if single.is_file() {
        return Ok(vec![single]);
    }
    let index = directory.join(INDEX_FILE);
    if index.is_file() {
        return shards(&index);
    }
    if PICKLE_FILES.iter().any(|name| directory.join(name).is_file()) {
        return Err(ModelError::Pickle(directory.to_owned()));
    }
    Err(ModelError::NoWeights(directory.to_owned()))
}

#[derive(serde::Deserialize)]
struct Index {
    /// Tensor name → file name beside the index.
    weight_map: HashMap<String, String>,
}

fn shards(index: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let text = read_at_most(index, LONGEST_INDEX).map_err(|source| FileError::Open { path: index.to_owned(), source })?;
    let refuse = |reason: String| ModelError::Index { path: index.to_owned(), reason };
    let parsed: Index = serde_json::from_slice(&text).map_err(|error| refuse(format!("not a safetensors index: {error}")))?;
    let names: BTreeSet<String> = parsed.weight_map.into_values().collect();
    match names.iter().find(|name| Path::new(name).file_name().is_none_or(|file| file != name.as_str())) {
        Some(outside) => Err(refuse(format!("shard {outside:?} is not a file beside the index"))),
        None => Ok(names.iter().map(|name| index.with_file_name(name)).collect()),
    }
}

fn canonical(name: &str, variant: Variant) -> String {
    if name == HEAD || name.starts_with("transformer.") || variant == Variant::Fairseq {
        name.to_owned()
    } else {
        format!("transformer.{name}")
    }
}

/// A tensor of a file that is not read yet.
struct Stored<'a> {
    file: &'a TensorFile,
    /// Its name there.
    name: String,
}

/// By the name that it has here.
type Found<'a> = HashMap<String, Stored<'a>>;

/// Takes one tensor out of those found, put together from its parts where the file has several.
fn take(found: &mut Found<'_>, directory: &Path, spec: &TensorSpec, variant: Variant) -> Result<Tensor, ModelError> {
    let size: Vec<i64> = spec.dimensions.iter().map(|size| *size as i64).collect();
    if variant == Variant::Gpt2 {
        return take_stored(found, directory, spec.name.clone(), size);
    }
    let (names, is_map) = (xglm::stored_names(&spec.name), spec.role.is_matrix());
    let mut part = size;
    if is_map {
        part.reverse();
    }
    part[0] /= names.len() as i64;
    let parts = names.into_iter().map(|name| take_stored(found, directory, name, part.clone()));
    let whole = Tensor::cat(&parts.collect::<Result<Vec<_>, _>>()?, 0);
    Ok(if is_map { whole.tr().contiguous() } else { whole })
}

/// Takes one tensor of a file and checks it against the shape.
fn take_stored(found: &mut Found<'_>, directory: &Path, name: String, expected: Vec<i64>) -> Result<Tensor, ModelError> {
    let Some(stored) = found.remove(&name) else {
        return Err(ModelError::Missing { path: directory.to_owned(), name });
    };
    let (path, tensor) = (stored.file.path().to_owned(), stored.file.tensor(&stored.name)?);
    if tensor.size() != expected {
        return Err(ModelError::Dimensions { path, name, expected, found: tensor.size() });
    }
    let tensor = tensor.to_kind(Kind::Float);
    if tensor.isfinite().all().int64_value(&[]) == 0 {
        return Err(ModelError::NotFinite { path, name });
    }
    Ok(tensor)
}

/// Buffers of the causal mask are stored by old versions of transformers; any other extra tensor means another model.
fn refuse_leftovers(found: &Found<'_>) -> Result<(), ModelError> {
    let is_mask = |name: &str| name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
    match found.iter().filter(|(name, _)| !is_mask(name)).min_by(|left, right| left.0.cmp(right.0)) {
        Some((name, stored)) => Err(ModelError::Unexpected { path: stored.file.path().to_owned(), name: name.clone() }),
        None => Ok(()),
    }
}

fn refuse_untied(head: Option<Stored<'_>>, embedding: &Tensor) -> Result<(), ModelError> {
    let Some(stored) = head else { return Ok(()) };
    let head = stored.file.tensor(&stored.name)?;
    if head.size() == embedding.size() && head.to_kind(Kind::Float).equal(embedding) {
        return Ok(());
    }
    Err(ModelError::UntiedHead { path: stored.file.path().to_owned() })
}
