//! The `config.json` of a Hugging Face GPT-2 directory.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use thiserror::Error;

use super::shape::{LAYER_NORM_EPSILON, PUBLISHED_VOCABULARY, Shape, ShapeError};
use super::xglm;
use crate::files::{is_lfs_pointer, read_text};
use crate::settings::Variant;

/// Name of the file inside a model directory.
pub const CONFIG_FILE: &str = "config.json";
/// Bytes that it has at most.
const LONGEST: u64 = 1 << 20;

/// Why a `config.json` cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} is a pointer of git-lfs, not the file itself; `git lfs pull` in its repository fetches the file", .0.display())]
    Pointer(PathBuf),
    #[error("{} is not JSON: {source}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("{}: {reason}", path.display())]
    Unsupported { path: PathBuf, reason: String },
    #[error("{}: {source}", path.display())]
    Shape { path: PathBuf, source: ShapeError },
}

/// Options that change the mathematics of the model, with the only value this trainer computes.
const FIXED: [(&str, Value, &str); 6] = [
    ("scale_attn_weights", Value::Bool(true), "attention scores are always divided by the square root of the head width"),
    ("scale_attn_by_inverse_layer_idx", Value::Bool(false), "scores are not divided by the layer number"),
    ("reorder_and_upcast_attn", Value::Bool(false), "attention has one order of operations"),
    ("add_cross_attention", Value::Bool(false), "there is no encoder to attend to"),
    ("tie_word_embeddings", Value::Bool(true), "the output head is the token embedding"),
    ("quantization_config", Value::Null, "weights are read in f16, bf16 or f32"),
];

/// Names of the tanh form of GELU in transformers, which computes it in a different way for each.
const TANH_GELU: [&str; 5] = ["gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"];

/// Other names that transformers takes for the same numbers, before their own.
const ALIASES: [(&str, &str); 7] = [
    ("n_embd", "hidden_size"),
    ("n_layer", "num_hidden_layers"),
    ("n_head", "num_attention_heads"),
    ("n_positions", "max_position_embeddings"),
    ("d_model", "hidden_size"),
    ("num_layers", "num_hidden_layers"),
    ("attention_heads", "num_attention_heads"),
];

impl Shape {
    /// Reads `config.json` of a Hugging Face directory and refuses a model that is not the GPT-2 computed here.
    pub fn read(directory: &Path) -> Result<Self, ConfigError> {
        let path = directory.join(CONFIG_FILE);
        let text = read_text(&path, LONGEST).map_err(|source| ConfigError::Read { path: path.clone(), source })?;
        if is_lfs_pointer(&text) {
            return Err(ConfigError::Pointer(path));
        }
        let value: Value = serde_json::from_slice(&text).map_err(|source| ConfigError::Json { path: path.clone(), source })?;
        let shape = Self::of_config(&value).map_err(|reason| ConfigError::Unsupported { path: path.clone(), reason })?;
        shape.check().map_err(|source| ConfigError::Shape { path, source })?;
        Ok(shape)
    }

    /// The numbers of a `config.json`, or why its model is not the GPT-2 computed here. Whether a model can have them is not
    /// checked.
    pub fn of_config(config: &Value) -> Result<Self, String> {
        let config = config.as_object().ok_or("the file must hold one JSON object")?;
        if xglm::is_one(config) { xglm::from_config(config) } else { from_config(config) }
    }

    /// The `config.json` that makes `transformers` load the weights as `GPT2LMHeadModel`, or as `XGLMForCausalLM`. The file says
    /// that there is no dropout: its reader need not train with the dropout of this run. `end_of_text` is the token that separates
    /// documents, when the tokenizer has one.
    pub fn config_json(&self, end_of_text: Option<u32>) -> Value {
        if self.variant == Variant::Fairseq {
            return xglm::config_json(self, end_of_text);
        }
        json!({
            "activation_function": "gelu_new",
            "architectures": ["GPT2LMHeadModel"],
            "attn_pdrop": 0.0,
            "bos_token_id": end_of_text,
            "dtype": "float32",
            "embd_pdrop": 0.0,
            "eos_token_id": end_of_text,
            "initializer_range": 0.02,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "model_type": "gpt2",
            "n_ctx": self.context,
            "n_embd": self.width,
            "n_head": self.heads,
            "n_inner": null,
            "n_layer": self.layers,
            "n_positions": self.context,
            "resid_pdrop": 0.0,
            "tie_word_embeddings": true,
            "torch_dtype": "float32",
            "use_cache": true,
            "vocab_size": self.vocabulary,
        })
    }
}

fn from_config(config: &Map<String, Value>) -> Result<Shape, String> {
    expect_one_of(config, "model_type", &["gpt2"], "GPT-2 and fairseq's variant of it (xglm) are trained here")?;
    expect_one_of(config, "activation_function", &TANH_GELU, "GPT-2's MLP uses the tanh form of GELU")?;
    for (key, only, why) in &FIXED {
        if let Some(found) = config.get(*key).filter(|found| !found.is_null() && *found != only) {
            return Err(format!("{key} = {found} is not supported: {why}"));
        }
    }
    expect_dtype(config)?;
    let width = number(config, "n_embd", Some(768))?;
    if let Some(inner) = optional_number(config, "n_inner")?.filter(|inner| *inner != 4 * width) {
        return Err(format!("n_inner = {inner} is not supported: GPT-2's MLP is 4 × n_embd = {} wide", 4 * width));
    }
    let context = number(config, "n_positions", optional_number(config, "n_ctx")?.or(Some(1024)))?;
    Ok(Shape {
        layers: number(config, "n_layer", Some(12))?,
        heads: number(config, "n_head", Some(12))?,
        width,
        context,
        vocabulary: number(config, "vocab_size", Some(PUBLISHED_VOCABULARY))?,
        layer_norm_epsilon: epsilon(config)?,
        variant: Variant::Gpt2,
    })
}

pub(super) fn expect_one_of(config: &Map<String, Value>, key: &str, known: &[&str], why: &str) -> Result<(), String> {
    match config.get(key) {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(found)) if known.contains(&found.as_str()) => Ok(()),
        Some(found) => Err(format!("{key} = {found} is not supported, only \"{}\": {why}", known[0])),
    }
}

pub(super) fn expect_dtype(config: &Map<String, Value>) -> Result<(), String> {
    let known = ["float32", "float16", "bfloat16", "float64"];
    let refused = ["dtype", "torch_dtype"].into_iter().find_map(|key| match config.get(key)? {
        Value::Null => None,
        Value::String(found) if known.contains(&found.strip_prefix("torch.").unwrap_or(found)) => None,
        found => Some(format!("{key} = {found} is not supported; weights may be {}", known.join(", "))),
    });
    refused.map_or(Ok(()), Err)
}

pub(super) fn number(config: &Map<String, Value>, key: &str, default: Option<usize>) -> Result<usize, String> {
    let alias = ALIASES.iter().find(|(known, _)| *known == key).map(|(_, alias)| optional_number(config, alias)).transpose()?;
    let own = optional_number(config, key)?;
    alias.flatten().or(own).or(default).ok_or_else(|| format!("{key} is missing"))
}

fn epsilon(config: &Map<String, Value>) -> Result<f64, String> {
    let key = "layer_norm_epsilon";
    match config.get(key) {
        None | Some(Value::Null) => Ok(LAYER_NORM_EPSILON),
        Some(found) => {
            let number = found.as_f64().filter(|number| *number >= 0.0);
            number
                .ok_or_else(|| format!("{key} = {found} is not a number of zero or more, which a layer norm adds to the variance"))
        }
    }
}

pub(super) fn optional_number(config: &Map<String, Value>, key: &str) -> Result<Option<usize>, String> {
    match config.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value
            .as_u64()
            // Above every bound of a shape, and small enough to be multiplied before it is held against one.
            .and_then(|number| u32::try_from(number).ok())
            .map(|number| Some(number as usize))
            .ok_or_else(|| format!("{key} = {value} is not a whole number of 32 bits")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OpenAI's published `config.json` of the smallest model, shortened to the keys that matter.
    const PUBLISHED: &str = r#"{"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
        "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
        "n_positions": 1024, "summary_type": "cls_index", "vocab_size": 50257}"#;

    fn parse(text: &str) -> Result<Shape, String> {
        from_config(serde_json::from_str::<Value>(text).expect("test JSON").as_object().expect("an object"))
    }

    fn changed(key: &str, value: Value) -> Result<Shape, String> {
        let mut config: Map<String, Value> = serde_json::from_str(PUBLISHED).expect("test JSON");
        config.insert(key.to_owned(), value);
        from_config(&config)
    }

    #[test]
    fn the_published_file_is_read() {
        assert_eq!(parse(PUBLISHED).expect("supported").parameters(), 124_439_808);
    }

    #[test]
    fn what_is_written_is_read_back() {
        let shape = Shape {
            layers: 2,
            heads: 3,
            width: 48,
            context: 77,
            vocabulary: 1013,
            layer_norm_epsilon: 1e-6,
            variant: Variant::Gpt2,
        };
        assert_eq!(parse(&shape.config_json(Some(7)).to_string()), Ok(shape));
    }

    #[test]
    fn both_names_of_the_dtype_are_accepted() {
        for key in ["dtype", "torch_dtype"] {
            for dtype in ["float32", "float16", "bfloat16"] {
                assert!(changed(key, dtype.into()).is_ok());
            }
            assert!(changed(key, "int8".into()).is_err());
        }
    }

    #[test]
    fn another_model_is_refused_with_the_reason() {
        let cases = [
            ("activation_function", json!("relu"), "GELU"),
            ("model_type", json!("llama"), "GPT-2 and fairseq"),
            ("scale_attn_by_inverse_layer_idx", json!(true), "layer number"),
            ("scale_attn_weights", json!(false), "square root"),
            ("reorder_and_upcast_attn", json!(true), "order of operations"),
            ("add_cross_attention", json!(true), "encoder"),
            ("tie_word_embeddings", json!(false), "token embedding"),
            ("n_inner", json!(1024), "3072"),
            ("n_layer", json!(-2), "whole number"),
            ("n_embd", json!(1_u64 << 62), "32 bits"),
            ("n_layer", json!(1_u64 << 62), "32 bits"),
            ("layer_norm_epsilon", json!("1e-3"), "not a number of zero or more"),
            ("layer_norm_epsilon", json!(-1.0), "not a number of zero or more"),
            ("layer_norm_epsilon", json!(true), "not a number of zero or more"),
            ("layer_norm_epsilon", json!([1e-5]), "not a number of zero or more"),
        ];
        for (key, value, expected) in cases {
            let reason = changed(key, value).expect_err("must be refused");
            assert!(reason.contains(expected) && reason.contains(key), "{reason}");
        }
        assert!(changed("n_inner", json!(3072)).is_ok());
    }

    #[test]
    fn numbers_are_those_that_transformers_takes() {
        let taken = |key, value| changed(key, value).expect("supported");
        for (value, expected) in [(json!(1e-3), 1e-3_f64), (json!(0), 0.0), (json!(1), 1.0), (Value::Null, 1e-5)] {
            assert_eq!(taken("layer_norm_epsilon", value).layer_norm_epsilon.to_bits(), expected.to_bits());
        }
        assert_eq!(taken("num_hidden_layers", json!(2)).layers, 2);
        assert_eq!(taken("num_attention_heads", json!(6)).heads, 6);
        assert_eq!(taken("hidden_size", json!(96)).width, 96);
        assert_eq!(taken("max_position_embeddings", json!(7)).context, 7);
        assert_eq!(taken("hidden_size", Value::Null).width, 768);
        let xglm = json!({"model_type": "xglm", "d_model": 8, "ffn_dim": 64, "hidden_size": 16, "num_hidden_layers": 2,
            "num_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 32});
        let shape = Shape::of_config(&xglm).expect("supported");
        assert_eq!((shape.width, shape.layers, shape.heads, shape.context), (16, 2, 4, 32));
    }

    #[test]
    fn a_file_is_held_against_the_bounds_of_a_job_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(CONFIG_FILE);
        let read = |change: &dyn Fn(&mut Map<String, Value>)| {
            let mut config: Map<String, Value> = serde_json::from_str(PUBLISHED).expect("test JSON");
            change(&mut config);
            std::fs::write(&path, Value::Object(config).to_string()).expect("written");
            Shape::read(directory.path()).map_err(|error| error.to_string())
        };
        assert!(read(&|_| ()).is_ok());
        for (key, name, most) in
            [("n_layer", "layers", 10_000), ("n_positions", "context", 1 << 20), ("vocab_size", "vocabulary", 1 << 24)]
        {
            assert!(read(&|config| drop(config.insert(key.to_owned(), json!(most)))).is_ok(), "{key}");
            let refused = read(&|config| drop(config.insert(key.to_owned(), json!(most + 1)))).expect_err(key);
            assert!(refused.ends_with(&format!("model.{name} = {} is too large; it is at most {most}", most + 1)), "{refused}");
        }
        for (bytes, expected) in [
            (format!("\u{feff}{PUBLISHED}").into_bytes(), None),
            (PUBLISHED.encode_utf16().flat_map(u16::to_le_bytes).collect(), Some("it is UTF-16LE text; `iconv -f UTF-16LE")),
        ] {
            std::fs::write(&path, bytes).expect("written");
            let refused = Shape::read(directory.path()).err().map(|error| error.to_string());
            assert_eq!(refused.is_some(), expected.is_some(), "{refused:?}");
            assert!(refused.unwrap_or_default().contains(expected.unwrap_or_default()));
        }
        let refused = read(&|config| drop(config.insert("x".to_owned(), "y".repeat(1 << 20).into()))).expect_err("too long");
        assert!(refused.contains("more than 1048576 bytes"), "{refused}");
    }
}
