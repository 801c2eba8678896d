//! The files of fairseq's variant: those of transformers' XGLM (Lin et al. 2021), which fairseq trained and which is this very
//! model.
//!
//! Tensor names are fairseq's with `model.` for `decoder.`. A linear map lies there as `[out, in]`, and queries, keys and values
//! have three of their own; in memory they are one map of `[in, out]` under GPT-2's name, as optimizer states and gradients are,
//! too.

use serde_json::{Map, Value, json};

use super::hugging_face::{expect_dtype, expect_one_of, number};
use super::shape::{LAYER_NORM_EPSILON, Shape};
use crate::settings::Variant;

const MODEL_TYPE: &str = "xglm";

/// Whether a `config.json` is that of an XGLM.
pub(super) fn is_one(config: &Map<String, Value>) -> bool {
    config.get("model_type").is_some_and(|found| found == MODEL_TYPE)
}

pub(super) fn from_config(config: &Map<String, Value>) -> Result<Shape, String> {
    expect_one_of(config, "activation_function", &["gelu", "gelu_python"], "fairseq's variant uses GELU by the error function")?;
    let fixed = [("scale_embedding", true), ("tie_word_embeddings", true), ("add_cross_attention", false)];
    for (key, only) in fixed {
        if config.get(key).is_some_and(|found| !found.is_null() && *found != only) {
            return Err(format!("{key} = {} is not supported, only {only}", config[key]));
        }
    }
    expect_dtype(config)?;
    let width = number(config, "d_model", Some(1024))?;
    let inner = number(config, "ffn_dim", Some(4096))?;
    if inner != 4 * width {
        return Err(format!("ffn_dim = {inner} is not supported: the blocks' network is 4 × d_model = {} wide", 4 * width));
    }
    Ok(Shape {
        layers: number(config, "num_layers", Some(24))?,
        heads: number(config, "attention_heads", Some(16))?,
        width,
        context: number(config, "max_position_embeddings", Some(2048))?,
        vocabulary: number(config, "vocab_size", Some(256_008))?,
        layer_norm_epsilon: LAYER_NORM_EPSILON,
        variant: Variant::Fairseq,
    })
}

/// The `config.json` that makes `transformers` load the weights as `XGLMForCausalLM`. No token is padding: sequences are never
/// padded in training, and a padding token's embedding would be left out of it.
pub(super) fn config_json(shape: &Shape, end_of_text: Option<u32>) -> Value {
    json!({
        "activation_dropout": 0.0,
        "activation_function": "gelu",
        "architectures": ["XGLMForCausalLM"],
        "attention_dropout": 0.0,
        "attention_heads": shape.heads,
        "bos_token_id": end_of_text,
        "d_model": shape.width,
        "decoder_start_token_id": end_of_text,
        "dropout": 0.0,
        "dtype": "float32",
        "eos_token_id": end_of_text,
        "ffn_dim": 4 * shape.width,
        "layerdrop": 0.0,
        "max_position_embeddings": shape.context,
        "model_type": MODEL_TYPE,
        "num_layers": shape.layers,
        "pad_token_id": null,
        "scale_embedding": true,
        "tie_word_embeddings": true,
        "torch_dtype": "float32",
        "use_cache": true,
        "vocab_size": shape.vocabulary,
    })
}

/// Names inside a block, here and there.
const BLOCK: [(&str, &[&str]); 6] = [
    ("ln_1", &["self_attn_layer_norm"]),
    ("attn.c_attn", &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    ("attn.c_proj", &["self_attn.out_proj"]),
    ("ln_2", &["final_layer_norm"]),
    ("mlp.c_fc", &["fc1"]),
    ("mlp.c_proj", &["fc2"]),
];

/// The tensors of a file that the tensor `name` is made of, below each other; a linear map's are turned round.
pub(super) fn stored_names(name: &str) -> Vec<String> {
    let name = name.strip_prefix("transformer.").unwrap_or(name);
    let Some((layer, rest)) = name.strip_prefix("h.").and_then(|rest| rest.split_once('.')) else {
        return vec![format!("model.{}", name.replace("wte", "embed_tokens").replace("ln_f", "layer_norm"))];
    };
    let found = BLOCK.iter().find_map(|(here, there)| Some((rest.strip_prefix(here)?.strip_prefix('.')?, *there)));
    let (part, there) = found.unwrap_or((rest, &[]));
    there.iter().map(|there| format!("model.layers.{layer}.{there}.{part}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let shape = Shape {
            layers: 2,
            heads: 3,
            width: 48,
            context: 77,
            vocabulary: 1013,
            layer_norm_epsilon: LAYER_NORM_EPSILON,
            variant: Variant::Fairseq,
        };
        let mut written = shape.config_json(Some(7));
        let object = written.as_object_mut().expect("an object");
        assert!(is_one(object));
        assert_eq!(from_config(object), Ok(shape));
        object.insert("scale_embedding".to_owned(), false.into());
        assert!(from_config(object).expect_err("must be refused").contains("scale_embedding"));
        object.insert("scale_embedding".to_owned(), true.into());
        object.insert("ffn_dim".to_owned(), 100.into());
        assert!(from_config(object).expect_err("must be refused").contains("192"));
    }

    #[test]
    fn every_tensor_has_names_in_the_file() {
        assert_eq!(stored_names("transformer.wte.weight"), ["model.embed_tokens.weight"]);
        assert_eq!(stored_names("transformer.ln_f.bias"), ["model.layer_norm.bias"]);
        assert_eq!(stored_names("transformer.h.11.mlp.c_proj.bias"), ["model.layers.11.fc2.bias"]);
        let queries = stored_names("transformer.h.0.attn.c_attn.weight");
        assert_eq!((queries.len(), queries[1].as_str()), (3, "model.layers.0.self_attn.k_proj.weight"));
    }
}
