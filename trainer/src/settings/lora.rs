//! Low-rank adapters (Hu et al. 2021, "LoRA"), as configuration and as names and sizes: which maps get one, and what peft calls
//! them.
//!
//! A map `y = x·W + b` becomes `y = x·W + b + α/r · drop(x)·Aᵀ·Bᵀ`, where only `A [r, in]` and `B [out, r]` are trained.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::files::read_text;
use crate::model::Shape;
use crate::model::role::{Role, TensorSpec};
use crate::model::shape::MOST;

/// Name of the adapters inside peft's directory, and in a checkpoint.
pub const ADAPTER_FILE: &str = "adapter_model.safetensors";
/// The file that makes a directory peft's. A checkpoint has none: transformers would look for the model that the adapters belong
/// to.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";
/// Bytes that it has at most.
const LONGEST: u64 = 1 << 20;

/// Trains low-rank adapters beside the linear maps of every block instead of the weights, which stay as they are and get neither
/// gradients nor moments. The defaults are peft's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Lora {
    /// Rows of A and columns of B: peft's `r`.
    pub rank: usize,
    /// The output of the adapters is multiplied by `alpha / rank`.
    pub alpha: f64,
    /// Dropout rate on an adapter's input.
    pub dropout: f64,
    /// Linear layers that get an adapter.
    pub target_modules: Vec<LinearMap>,
}

/// A linear map of a block, by GPT-2's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LinearMap {
    /// To queries, keys and values.
    #[serde(rename = "attn.c_attn")]
    Attention,
    /// From the heads back to the stream.
    #[serde(rename = "attn.c_proj")]
    AttentionOutput,
    /// To the hidden layer.
    #[serde(rename = "mlp.c_fc")]
    Network,
    /// From the hidden layer back to the stream.
    #[serde(rename = "mlp.c_proj")]
    NetworkOutput,
}

impl Default for Lora {
    fn default() -> Self {
        Self { rank: 8, alpha: 8.0, dropout: 0.0, target_modules: vec![LinearMap::Attention] }
    }
}

impl LinearMap {
    /// In the order of the forward pass.
    pub const ALL: [Self; 4] = [Self::Attention, Self::AttentionOutput, Self::Network, Self::NetworkOutput];

    pub fn name(self) -> &'static str {
        match self {
            Self::Attention => "attn.c_attn",
            Self::AttentionOutput => "attn.c_proj",
            Self::Network => "mlp.c_fc",
            Self::NetworkOutput => "mlp.c_proj",
        }
    }

    /// `[in, out]`.
    pub fn size(self, width: usize) -> [usize; 2] {
        match self {
            Self::Attention => [width, 3 * width],
            Self::AttentionOutput => [width, width],
            Self::Network => [width, 4 * width],
            Self::NetworkOutput => [4 * width, width],
        }
    }
}

impl Lora {
    /// The maps in the order of the forward pass.
    pub fn maps(&self) -> impl Iterator<Item = LinearMap> {
        LinearMap::ALL.into_iter().filter(|map| self.target_modules.contains(map))
    }

    /// The factor of an adapter's product.
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }

    /// A and B of each map in turn, layer by layer, with peft's names and dimensions.
    pub fn tensors(&self, shape: &Shape) -> Vec<TensorSpec> {
        let pair = |layer: usize, map: LinearMap| {
            let (module, [inputs, outputs]) = (module(&format!("transformer.h.{layer}.{}", map.name())), map.size(shape.width));
            [("lora_A", vec![self.rank, inputs]), ("lora_B", vec![outputs, self.rank])].map(|(name, dimensions)| TensorSpec {
                name: format!("{module}.{name}.weight"),
                role: Role::Adapter,
                block: Some(layer),
                dimensions,
            })
        };
        (0..shape.layers).flat_map(|layer| self.maps().flat_map(move |map| pair(layer, map))).collect()
    }

    /// Numbers that are trained.
    pub fn parameters(&self, shape: &Shape) -> u64 {
        self.tensors(shape).iter().map(TensorSpec::numbers).sum()
    }

    /// Reads peft's configuration in `directory`. The error names the file and its fault.
    pub fn read(directory: &Path) -> Result<Self, String> {
        let path = directory.join(ADAPTER_CONFIG);
        let refuse = |reason: String| format!("{}: {reason}", path.display());
        let text = read_text(&path, LONGEST).map_err(|error| refuse(error.to_string()))?;
        let config: PeftConfig = serde_json::from_slice(&text).map_err(|error| refuse(error.to_string()))?;
        if config.peft_type != "LORA" || config.use_dora || config.use_rslora {
            return Err(refuse("only LoRA as published is computed here, without DoRA and rank-stabilised scales".to_owned()));
        }
        if !(1..=MOST).contains(&config.r) {
            return Err(refuse(format!("r must be 1 to {MOST}, but is {}", config.r)));
        }
        let is_named = |map: LinearMap, name: &String| map.name() == name || map.name().ends_with(&format!(".{name}"));
        let named = |map: &LinearMap| config.target_modules.iter().any(|name| is_named(*map, name));
        let target_modules: Vec<LinearMap> = LinearMap::ALL.into_iter().filter(named).collect();
        Ok(Self { rank: config.r, alpha: config.lora_alpha, dropout: 0.0, target_modules })
    }

    /// The configuration that peft needs besides the tensors (`LoraConfig`); absent keys have peft's defaults.
    pub fn adapter_config(&self) -> Value {
        json!({
            "base_model_name_or_path": null,
            "bias": "none",
            "fan_in_fan_out": true,
            "inference_mode": true,
            "lora_alpha": self.alpha,
            "lora_dropout": self.dropout,
            "peft_type": "LORA",
            "r": self.rank,
            "target_modules": self.maps().map(LinearMap::name).collect::<Vec<_>>(),
            "task_type": "CAUSAL_LM",
        })
    }
}

/// The keys of peft's `adapter_config.json` that this trainer reads.
#[derive(Deserialize)]
struct PeftConfig {
    peft_type: String,
    r: usize,
    lora_alpha: f64,
    target_modules: Vec<String>,
    #[serde(default)]
    use_dora: bool,
    #[serde(default)]
    use_rslora: bool,
}

/// Peft's name for a module of the model.
pub fn module(name: &str) -> String {
    format!("base_model.model.{name}")
}
