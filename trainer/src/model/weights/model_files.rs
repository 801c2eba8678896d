//! The files of a Hugging Face directory that hold a model, and whether they fit its configuration. Only headers are read: a
//! model of any size takes milliseconds.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use memmap2::Advice;
use safetensors::tensor::Dtype;
use thiserror::Error;

use super::file::{Entry, FileError, TensorFile};
use super::names::{HEAD, canonical, is_left_out};
use crate::data::tokenizer::Tokenizer;
use crate::error::Failure;
use crate::files::{self, is_lfs_pointer, read_text};
use crate::model::hugging_face::{CONFIG_FILE, ConfigError};
use crate::model::role::TensorSpec;
use crate::model::shape::Shape;
use crate::model::xglm;
use crate::settings::Variant;

/// Name of the weights inside a model directory.
pub const WEIGHTS_FILE: &str = "model.safetensors";
/// Files that hold the weights, or the names of those that do, in the order in which they are looked for.
const WEIGHTS: [(&str, bool); 4] = [
    (WEIGHTS_FILE, false),
    ("model.safetensors.index.json", true),
    ("pytorch_model.bin", false),
    ("pytorch_model.bin.index.json", true),
];
/// Bytes; a tensor takes about a hundred.
const LONGEST_INDEX: u64 = 16 << 20;
/// Bytes of head and embedding that are compared where only headers are to be read, at either end.
const GLANCE: usize = 1 << 16;
/// Bytes of each tensor that are looked at then, at either end: a page.
const PAGE: usize = 1 << 12;
/// Numbers that are looked at instead where each may lie on a page of its own.
const APART: usize = 4;

/// The file that peft writes beside the weights of adapters.
pub const ADAPTERS: &str = "adapter_config.json";
/// Bytes of it.
const LONGEST_ADAPTERS: u64 = 1 << 20;

/// Parts of the names of what lies in a directory that has no model for this program, and what to do then.
const INSTEAD: [(&str, &str); 14] = [
    (ADAPTERS, "it has adapters of peft, of which `merge_and_unload` and `save_pretrained` make a model"),
    ("tf_model.h5", "it has weights for TensorFlow, which transformers 4 turns into its own: from_pretrained(…, from_tf=True)"),
    (".ckpt.index", "it has weights for TensorFlow, which transformers 4 turns into its own: from_pretrained(…, from_tf=True)"),
    ("flax_model.msgpack", "it has weights for Flax, which transformers 4 turns into its own: from_pretrained(…, from_flax=True)"),
    (".gguf", "it has weights for llama.cpp; take those that they were made of"),
    (".onnx", "it has a program of ONNX; take the weights that it was made of"),
    ("ckpt.pt", "it has a checkpoint of nanoGPT, and not the files that `save_pretrained` of transformers writes"),
    ("zero_to_fp32.py", "it has a checkpoint of DeepSpeed, of which `python zero_to_fp32.py . weights` makes weights"),
    ("mp_rank_", "it has a checkpoint of DeepSpeed, of which zero_to_fp32.py, in the folder above, makes weights"),
    (".fp16.", "it has the weights of a variant; copy them under the name model.safetensors, or pytorch_model.bin"),
    (".bf16.", "it has the weights of a variant; copy them under the name model.safetensors, or pytorch_model.bin"),
    ("consolidated", "it has weights in their maker's own format; take those that are for transformers"),
    ("snapshots", "it is a folder of the hub's cache: name the folder in its snapshots/, or write hf:OWNER/NAME"),
    ("checkpoint-", "it has checkpoints: name the folder of one of them"),
];

/// A hint at the files that a directory has in the place of a model.
fn instead(directory: &Path) -> String {
    let leads_nowhere = |name: &&str| directory.join(name).is_symlink() && !directory.join(name).exists();
    if let Some(name) = WEIGHTS.iter().map(|(name, _)| *name).chain([CONFIG_FILE]).find(leads_nowhere) {
        return format!("; its {name} is a link, and no file is where it leads");
    }
    let names = files::names(directory).unwrap_or_default();
    let found = INSTEAD.iter().find(|(part, _)| names.iter().any(|name| name.contains(part)));
    let base = found.filter(|(part, _)| *part == ADAPTERS).and_then(|_| base_of_adapters(&directory.join(ADAPTERS)));
    let base = base.map(|base| format!("; what they adapt is {base}")).unwrap_or_default();
    found.map_or_else(String::new, |(_, what)| format!("; {what}{base}"))
}

/// The model that adapters are for, as peft names it.
fn base_of_adapters(path: &Path) -> Option<String> {
    let config: serde_json::Value = serde_json::from_slice(&read_text(path, LONGEST_ADAPTERS).ok()?).ok()?;
    let base = config["base_model_name_or_path"].as_str().filter(|base| !base.is_empty())?;
    Some(base.escape_debug().to_string())
}

/// Why weights cannot be read or written, or do not fit.
#[derive(Debug, Error)]
pub enum ModelError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{} has none of {}{}", .0.display(), WEIGHTS.map(|(name, _)| name).join(", "), instead(.0))]
    NoWeights(PathBuf),
    #[error("{} has no {CONFIG_FILE}{}", .0.display(), instead(.0))]
    NoConfiguration(PathBuf),
    #[error("{}: {reason}", path.display())]
    Index { path: PathBuf, reason: String },
    #[error("{}: tensor {name} is missing, though config.json calls for it; the download may be incomplete", path.display())]
    Missing { path: PathBuf, name: String },
    #[error("{}: tensor {name} does not belong to the GPT-2 that config.json describes", path.display())]
    Unexpected { path: PathBuf, name: String },
    #[error(
        "tensor {name} is there twice, as {} in {} and as {} in {}; take one out",
        first.1, first.0.display(), second.1, second.0.display()
    )]
    Twice { name: String, first: (PathBuf, String), second: (PathBuf, String) },
    #[error("{}: tensor {name} has dimensions {found:?}, config.json calls for {expected:?}", path.display())]
    Dimensions { path: PathBuf, name: String, expected: Vec<i64>, found: Vec<i64> },
    #[error("{}: tensor {name} holds NaN or infinity; the weights are damaged or the run that wrote them diverged", path.display())]
    NotFinite { path: PathBuf, name: String },
    #[error("{}: lm_head.weight differs from the token embedding; GPT-2 with an untied output head is not supported", path.display())]
    UntiedHead { path: PathBuf },
    #[error("{asked} positions are asked of a model that knows {context}; shorten the prompt or generate fewer tokens")]
    Context { asked: usize, context: usize },
    #[error(transparent)]
    Place(#[from] Failure),
}

/// A tensor of a file, under the name that it has there.
#[derive(Debug)]
pub struct Stored {
    file: usize,
    pub name: String,
}

/// A model's tensors where they lie. Their names, dimensions and dtypes are those that its configuration calls for.
#[derive(Debug)]
pub struct ModelFiles {
    pub shape: Shape,
    files: Vec<TensorFile>,
    /// By the name that transformers gives it.
    found: HashMap<String, Stored>,
    /// The output head, where it is stored besides the embedding.
    pub head: Option<Stored>,
}

impl ModelFiles {
    /// Reads `config.json` and the headers of the weights, and refuses what is not the GPT-2 computed here. Names may have the
    /// prefixes of wrappers or none, as in OpenAI's published files; the embedding may be stored as the output head, or both;
    /// buffers are passed over.
    pub fn open(directory: &Path) -> Result<Self, ModelError> {
        if !directory.join(CONFIG_FILE).exists() {
            return Err(ModelError::NoConfiguration(directory.to_owned()));
        }
        let shape = Shape::read(directory)?;
        let files = weight_files(directory)?.0.iter().map(|path| TensorFile::open(path)).collect::<Result<Vec<_>, _>>()?;
        let mut found = HashMap::new();
        for (index, file) in files.iter().enumerate() {
            for name in file.names() {
                let known = canonical(&name, shape.variant);
                let second = (file.path().to_owned(), name.clone());
                if let Some(first) = found.insert(known.clone(), Stored { file: index, name }) {
                    let first = (files[first.file].path().to_owned(), first.name);
                    return Err(ModelError::Twice { name: known, first, second });
                }
            }
        }
        let mut model = Self { shape, files, head: found.remove(HEAD), found };
        model.tie();
        // Else each page would bring its neighbours from the disk: of a model of 6 GB that takes seconds.
        model.files.iter().for_each(|file| file.advise(Advice::Random));
        model.check(directory)?;
        model.files.iter().for_each(|file| file.advise(Advice::Normal));
        Ok(model)
    }

    /// The embedding under the name of the head is as good.
    fn tie(&mut self) {
        for name in parts(&self.shape.tensors()[0], self.shape.variant).0 {
            if !self.found.contains_key(&name)
                && let Some(head) = self.head.take()
            {
                self.found.insert(name, head);
            }
        }
    }

    fn check(&self, directory: &Path) -> Result<(), ModelError> {
        let mut wanted = BTreeSet::new();
        for spec in self.shape.tensors() {
            let (names, expected) = parts(&spec, self.shape.variant);
            for name in names {
                let Some(stored) = self.found.get(&name) else {
                    return Err(ModelError::Missing { path: directory.to_owned(), name });
                };
                self.check_stored(stored, &name, &expected)?;
                wanted.insert(name);
            }
        }
        let leftover =
            self.found.iter().filter(|(name, _)| !wanted.contains(*name) && !is_left_out(name)).min_by_key(|(name, _)| *name);
        if let Some((_, stored)) = leftover {
            return Err(ModelError::Unexpected { path: self.file(stored).path().to_owned(), name: stored.name.clone() });
        }
        self.glance_at_head()
    }

    fn check_stored(&self, stored: &Stored, name: &str, expected: &[usize]) -> Result<(), ModelError> {
        let (entry, path) = (self.entry(stored), self.file(stored).path().to_owned());
        let signed = |sizes: &[usize]| sizes.iter().map(|size| *size as i64).collect();
        if entry.shape != expected {
            let name = name.to_owned();
            return Err(ModelError::Dimensions { path, name, expected: signed(expected), found: signed(&entry.shape) });
        }
        self.check_numbers(stored, name)
    }

    /// Refuses a dtype that is not read here, and a tensor that begins or ends with NaN or infinity, as those of a run that
    /// diverged do. What lies between is seen when it is read.
    fn check_numbers(&self, stored: &Stored, name: &str) -> Result<(), ModelError> {
        let (entry, path) = (self.entry(stored), self.file(stored).path().to_owned());
        match entry.dtype {
            Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::F64 | Dtype::I64 => {}
            dtype => return Err(FileError::Dtype { path, name: name.to_owned(), dtype }.into()),
        }
        if self.ends(stored, PAGE).iter().flatten().all(|number| number.is_finite()) {
            return Ok(());
        }
        Err(ModelError::NotFinite { path, name: name.to_owned() })
    }

    /// Refuses a head that differs from the embedding where both can be seen at a glance; the whole is compared when it is read.
    fn glance_at_head(&self) -> Result<(), ModelError> {
        let Some(head) = &self.head else { return Ok(()) };
        self.check_numbers(head, HEAD)?;
        let name = &parts(&self.shape.tensors()[0], self.shape.variant).0[0];
        let embedding = &self.found[name];
        let [first, last] = self.ends(head, GLANCE);
        let [own_first, own_last] = self.ends(embedding, GLANCE);
        let is_same = |(left, right): (&f32, &f32)| left.partial_cmp(right).is_some_and(Ordering::is_eq);
        let is_tied = first.iter().zip(&own_first).all(is_same) && last.iter().rev().zip(own_last.iter().rev()).all(is_same);
        if self.entry(head).shape == self.entry(embedding).shape && is_tied {
            return Ok(());
        }
        Err(ModelError::UntiedHead { path: self.file(head).path().to_owned() })
    }

    /// The first numbers of a tensor and the last, of so many bytes at most.
    fn ends(&self, stored: &Stored, most: usize) -> [Vec<f32>; 2] {
        let entry = self.entry(stored);
        let bytes = self.file(stored).bytes(entry);
        let Some(strides) = &entry.strides else {
            let most = most.min(bytes.len());
            return [&bytes[..most], &bytes[bytes.len() - most..]].map(|bytes| numbers(bytes, entry.dtype));
        };
        let (size, count) = (entry.dtype.bitsize() / 8, entry.shape.iter().product::<usize>());
        let number = |mut place: usize| {
            let at = entry.shape.iter().zip(strides).rev().map(|(size, stride)| {
                let index = place % size;
                place /= size;
                index * stride
            });
            let at = at.sum::<usize>() * size;
            numbers(bytes.get(at..at + size).unwrap_or_default(), entry.dtype)
        };
        [0..count.min(APART), count.saturating_sub(APART)..count].map(|places| places.flat_map(number).collect())
    }

    /// Where the tensor of this name is.
    ///
    /// # Panics
    /// When the configuration does not call for it.
    pub fn stored(&self, name: &str) -> &Stored {
        &self.found[name]
    }

    pub fn file(&self, stored: &Stored) -> &TensorFile {
        &self.files[stored.file]
    }

    fn entry(&self, stored: &Stored) -> &Entry {
        self.file(stored).entry(&stored.name).unwrap_or_else(|| unreachable!("{} is of this file", stored.name))
    }
}

/// The numbers of a file as a run reads them.
fn numbers(bytes: &[u8], dtype: Dtype) -> Vec<f32> {
    fn each<const SIZE: usize>(bytes: &[u8], number: impl Fn([u8; SIZE]) -> f32) -> Vec<f32> {
        bytes.as_chunks().0.iter().map(|bytes| number(*bytes)).collect()
    }
    match dtype {
        Dtype::F16 => each(bytes, |bytes| f16::from_le_bytes(bytes).to_f32()),
        Dtype::BF16 => each(bytes, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        Dtype::F32 => each(bytes, f32::from_le_bytes),
        Dtype::F64 => each(bytes, |bytes| f64::from_le_bytes(bytes) as f32),
        _ => each(bytes, |bytes| i64::from_le_bytes(bytes) as f32),
    }
}

/// The tensors of a file that a model's tensor is made of, below each other, and the dimensions of each.
pub fn parts(spec: &TensorSpec, variant: Variant) -> (Vec<String>, Vec<usize>) {
    if variant == Variant::Gpt2 {
        return (vec![spec.name.clone()], spec.dimensions.clone());
    }
    let (names, mut size) = (xglm::stored_names(&spec.name), spec.dimensions.clone());
    if spec.role.is_matrix() {
        size.reverse();
    }
    size[0] /= names.len();
    (names, size)
}

/// The files of a directory that a run reads: configuration, weights, and the tokenizer where it has one. Others may lie there:
/// weights for other programs, a repository.
pub fn needed(directory: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let (files, index) = weight_files(directory)?;
    let tokenizer = if Tokenizer::lies_in(directory) { Tokenizer::files(directory) } else { Vec::new() };
    let configuration = directory.join(CONFIG_FILE);
    // A tokenizer is read with it, too.
    let tokenizer = tokenizer.into_iter().filter(|path| *path != configuration).collect::<Vec<_>>();
    Ok([configuration].into_iter().chain(index).chain(files).chain(tokenizer).collect())
}

/// The files with the weights, and the index that names them.
fn weight_files(directory: &Path) -> Result<(Vec<PathBuf>, Option<PathBuf>), ModelError> {
    let found = WEIGHTS.iter().map(|(name, is_index)| (directory.join(name), *is_index)).find(|(path, _)| path.is_file());
    match found {
        Some((index, true)) => Ok((shards(&index)?, Some(index))),
        Some((single, false)) => Ok((vec![single], None)),
        None => Err(ModelError::NoWeights(directory.to_owned())),
    }
}

#[derive(serde::Deserialize)]
struct Index {
    /// Tensor name → file name beside the index.
    weight_map: HashMap<String, String>,
}

fn shards(index: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let text = read_text(index, LONGEST_INDEX).map_err(|source| FileError::Open { path: index.to_owned(), source })?;
    if is_lfs_pointer(&text) {
        return Err(FileError::Pointer(index.to_owned()).into());
    }
    let refuse = |reason: String| ModelError::Index { path: index.to_owned(), reason };
    let parsed: Index = serde_json::from_slice(&text).map_err(|error| refuse(format!("not an index of weights: {error}")))?;
    let names: BTreeSet<String> = parsed.weight_map.into_values().collect();
    match names.iter().find(|name| Path::new(name).file_name().is_none_or(|file| file != name.as_str())) {
        Some(outside) => Err(refuse(format!("shard {outside:?} is not a file beside the index"))),
        None => Ok(names.iter().map(|name| index.with_file_name(name)).collect()),
    }
}
