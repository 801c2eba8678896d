//! The shape of a GPT-2: everything that follows from five numbers and the vocabulary, before any tensor exists.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::role::{Part, Role, TensorSpec};
use crate::settings::lora::{LinearMap, Lora};
use crate::settings::{ModelConfig, Preset, Recompute, TrainSettings, Variant};

/// GPT-2's layer-norm epsilon in every published size.
pub(super) const LAYER_NORM_EPSILON: f64 = 1e-5;
/// Positions of every published GPT-2.
pub(crate) const PUBLISHED_CONTEXT: usize = 1024;
/// Tokens of every published GPT-2.
pub const PUBLISHED_VOCABULARY: usize = 50_257;

/// More than any model has, so that sizes can be multiplied: of layers, of tokens, and of everything else.
pub(crate) const MOST_LAYERS: usize = 10_000;
pub(crate) const MOST_TOKENS: usize = 1 << 24;
pub(crate) const MOST: usize = 1 << 20;

/// Rows of an embedding beyond the tokens: some that were added, up to a multiple of what is fast. With more, it is another
/// vocabulary.
const MOST_PADDING: usize = 1024;

/// Sines and cosines need two frequencies each.
pub(crate) fn least_width(variant: Variant) -> usize {
    match variant {
        Variant::Gpt2 => 1,
        Variant::Fairseq => 4,
    }
}

/// The numbers that fix every tensor of a GPT-2 (Radford et al. 2019).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Shape {
    /// Transformer blocks (`n_layer`).
    pub layers: usize,
    /// Attention heads per block (`n_head`).
    pub heads: usize,
    /// Width of the residual stream (`n_embd`).
    pub width: usize,
    /// Positions the model knows (`n_positions`).
    pub context: usize,
    /// Tokens the model knows (`vocab_size`).
    pub vocabulary: usize,
    pub layer_norm_epsilon: f64,
    pub variant: Variant,
}

/// The fix for data that was made with another tokenizer than the weights'.
pub(crate) const OWN_TOKENIZER: &str =
    "prepare the data with the weights' own tokenizer: [data.tokenizer] kind = \"files\" and directory = their directory";

/// The answer to a tokenizer with another number of tokens than the weights have rows. Their own has more where somebody added
/// tokens without rows.
fn other_tokens(dataset: usize, weights: usize) -> String {
    if dataset <= weights {
        return OWN_TOKENIZER.to_owned();
    }
    format!(
        "{OWN_TOKENIZER}; where that is the one that was used, give the weights more rows: `resize_token_embeddings({dataset})` of \
         transformers, then `save_pretrained`"
    )
}

/// A shape that no model can have, or that contradicts the data or the weights at hand.
#[derive(Debug, Error, PartialEq)]
pub enum ShapeError {
    #[error("model.{0} is 0; it must be at least 1")]
    Zero(&'static str),
    #[error("model.{field} = {found} is too large; it is at most {most}")]
    TooLarge { field: &'static str, found: usize, most: usize },
    #[error("model.heads = {heads} does not divide model.width = {width}; every head gets width / heads channels")]
    HeadsDivideWidth { heads: usize, width: usize },
    #[error("model.width = {width} is too narrow; sinusoidal positions need {least}")]
    TooNarrow { width: usize, least: usize },
    #[error(
        "train.block_size = {block_size} is longer than the model's context of {context} positions; lower train.block_size, or raise model.context if no initial weights set it"
    )]
    BlockTooLong { block_size: usize, context: usize },
    #[error("train.block_size = {0} is too short; a block needs at least 2 tokens, one to read and one to predict")]
    BlockTooShort(usize),
    #[error("model.{field} = {asked}, but the initial weights have {found}; remove model.{field} or start from other weights")]
    Contradiction { field: &'static str, asked: usize, found: usize },
    #[error("model.variant = {asked:?}, but the initial weights are {found:?}'s; remove model.variant or start from other weights")]
    Variant { asked: Variant, found: Variant },
    #[error("the dataset's tokenizer has {dataset} tokens, but the weights know {weights}; {}", other_tokens(*dataset, *weights))]
    Vocabulary { dataset: usize, weights: usize },
}

impl Preset {
    /// `(layers, heads, width)` of a published size; all of them have [`PUBLISHED_CONTEXT`] positions.
    pub(crate) fn dimensions(self) -> (usize, usize, usize) {
        match self {
            Self::Gpt2 => (12, 12, 768),
            Self::Gpt2Medium => (24, 16, 1024),
            Self::Gpt2Large => (36, 20, 1280),
            Self::Gpt2Xl => (48, 25, 1600),
        }
    }
}

impl Shape {
    /// The shape a configuration asks for: the preset's numbers (GPT-2's smallest when none is named), then the single numbers.
    pub fn resolve(model: &ModelConfig, vocabulary: usize, block_size: usize) -> Result<Self, ShapeError> {
        let (layers, heads, width) = model.preset.unwrap_or(Preset::Gpt2).dimensions();
        let shape = Self {
            layers: model.layers.unwrap_or(layers),
            heads: model.heads.unwrap_or(heads),
            width: model.width.unwrap_or(width),
            context: model.context.unwrap_or(PUBLISHED_CONTEXT),
            vocabulary,
            layer_norm_epsilon: LAYER_NORM_EPSILON,
            variant: model.variant.unwrap_or_default(),
        };
        shape.check()?;
        shape.holds_block(block_size)?;
        Ok(shape)
    }

    /// Whether the shape of existing weights fits what a configuration and a dataset ask for. An embedding may have a few
    /// rows more than the dataset has tokens: they are kept as they are.
    pub fn agrees_with(&self, model: &ModelConfig, vocabulary: usize, block_size: usize) -> Result<(), ShapeError> {
        let preset = model.preset.map(Preset::dimensions);
        let asked = [
            ("layers", model.layers.or(preset.map(|numbers| numbers.0)), self.layers),
            ("heads", model.heads.or(preset.map(|numbers| numbers.1)), self.heads),
            ("width", model.width.or(preset.map(|numbers| numbers.2)), self.width),
            ("context", model.context, self.context),
        ];
        for (field, asked, found) in asked {
            if let Some(asked) = asked.filter(|asked| *asked != found) {
                return Err(ShapeError::Contradiction { field, asked, found });
            }
        }
        if let Some(asked) = model.variant.filter(|asked| *asked != self.variant) {
            return Err(ShapeError::Variant { asked, found: self.variant });
        }
        if vocabulary > self.vocabulary || self.vocabulary - vocabulary > MOST_PADDING {
            return Err(ShapeError::Vocabulary { dataset: vocabulary, weights: self.vocabulary });
        }
        self.holds_block(block_size)
    }

    /// The rules every shape obeys, wherever its numbers came from.
    pub(super) fn check(&self) -> Result<(), ShapeError> {
        let numbers = [
            ("layers", self.layers, MOST_LAYERS),
            ("heads", self.heads, MOST),
            ("width", self.width, MOST),
            ("context", self.context, MOST),
            ("vocabulary", self.vocabulary, MOST_TOKENS),
        ];
        for (field, found, most) in numbers {
            if found == 0 {
                return Err(ShapeError::Zero(field));
            }
            if found > most {
                return Err(ShapeError::TooLarge { field, found, most });
            }
        }
        let least = least_width(self.variant);
        if self.width < least {
            return Err(ShapeError::TooNarrow { width: self.width, least });
        }
        if !self.width.is_multiple_of(self.heads) {
            return Err(ShapeError::HeadsDivideWidth { heads: self.heads, width: self.width });
        }
        Ok(())
    }

    fn holds_block(&self, block_size: usize) -> Result<(), ShapeError> {
        if block_size < 2 {
            return Err(ShapeError::BlockTooShort(block_size));
        }
        if block_size > self.context {
            return Err(ShapeError::BlockTooLong { block_size, context: self.context });
        }
        Ok(())
    }

    /// Channels per attention head.
    pub fn head_width(&self) -> usize {
        self.width / self.heads
    }

    /// Every stored tensor in the order of the forward pass. Linear weights are stored as GPT-2's Conv1D does, `[in, out]`; the
    /// output head is the token embedding and is not stored again.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let spec = |name: &str, role, dimensions| TensorSpec { name: format!("transformer.{name}"), role, block: None, dimensions };
        let mut tensors = vec![spec("wte.weight", Role::TokenEmbedding, vec![self.vocabulary, self.width])];
        if self.learns_positions() {
            tensors.push(spec("wpe.weight", Role::PositionEmbedding, vec![self.context, self.width]));
        }
        for block in 0..self.layers {
            let inside = self.block_tensors().into_iter().flatten();
            tensors.extend(inside.map(|(name, role, dimensions)| TensorSpec {
                block: Some(block),
                ..spec(&format!("h.{block}.{name}"), role, dimensions)
            }));
        }
        tensors.push(spec("ln_f.weight", Role::FinalNorm(Part::Weight), vec![self.width]));
        tensors.push(spec("ln_f.bias", Role::FinalNorm(Part::Bias), vec![self.width]));
        tensors
    }

    /// Weight and bias of each layer norm and linear map of a block: name inside it, role and dimensions.
    fn block_tensors(&self) -> [[(String, Role, Vec<usize>); 2]; BLOCK_TENSORS / 2] {
        let pair = |name: &str, roles: [Role; 2], weight: Vec<usize>, bias: usize| {
            [("weight", roles[0], weight), ("bias", roles[1], vec![bias])]
                .map(|(part, role, dimensions)| (format!("{name}.{part}"), role, dimensions))
        };
        let norm = |name| pair(name, Part::BOTH.map(Role::Norm), vec![self.width], self.width);
        let map = |map: LinearMap| {
            let size = map.size(self.width);
            pair(map.name(), Part::BOTH.map(|part| Role::Map(map, part)), size.to_vec(), size[1])
        };
        let [attention, attention_output, network, network_output] = LinearMap::ALL.map(map);
        [norm("ln_1"), attention, attention_output, norm("ln_2"), network, network_output]
    }

    /// Whether the position embedding is trained, and not a table of sines.
    pub(super) fn learns_positions(&self) -> bool {
        self.variant == Variant::Gpt2
    }

    /// Number of trained parameters, the tied output head counted once: `Vd + Td + L(12d² + 13d) + 2d`, without `Td` where
    /// positions are not learnt.
    pub fn parameters(&self) -> u64 {
        let [layers, width, context, vocabulary] =
            [self.layers, self.width, self.context, self.vocabulary].map(|number| number as u64);
        let positions = if self.learns_positions() { context * width } else { 0 };
        vocabulary * width + positions + layers * (12 * width * width + 13 * width) + 2 * width
    }

    /// Floating-point operations per trained token, forward and backward, at sequences of `block` tokens:
    /// `F = 6(12Ld² + Vd) + 6LTd`, causal attention counted once (a token attends to half the block on average). With adapters
    /// weights have no gradients, and a 4 is in the place of the first 6; the adapters' own products are not counted.
    pub fn flops_per_token(&self, block: usize, lora: Option<&Lora>) -> f64 {
        let [layers, width, vocabulary, block] = [self.layers, self.width, self.vocabulary, block].map(|number| number as f64);
        let passes = if lora.is_some() { 4.0 } else { 6.0 };
        passes * (12.0 * layers * width * width + vocabulary * width) + 6.0 * layers * block * width
    }

    /// Numbers of dropout masks that the processor draws per trained token, forward and backward, where a GPU computes: all but
    /// those of attention weights, `2(2L + 1)d`, and for an adapter three times its input.
    pub fn drawn_per_token(&self, train: &TrainSettings) -> f64 {
        // A block that is computed again draws once more, but not for its output.
        let again = usize::from(train.recompute == Recompute::Full);
        let drops = train.dropout > 0.0 || train.attention_dropout > 0.0;
        let of_stream = if drops { (2 * (2 * self.layers + 1) + again * self.layers) * self.width } else { 0 };
        let dropped = train.lora.iter().filter(|lora| lora.dropout > 0.0).flat_map(|lora| lora.maps());
        let of_adapters: usize = dropped.map(|map| (3 + again) * self.layers * map.size(self.width)[0]).sum();
        (of_stream + of_adapters) as f64
    }

    /// The tensors that an optimizer changes: all of them, or the adapters.
    pub fn trained(&self, lora: Option<&Lora>) -> Vec<TensorSpec> {
        lora.map_or_else(|| self.tensors(), |lora| lora.tensors(self))
    }
}

/// Tensors of one block, in the order of [`Shape::tensors`].
pub const BLOCK_TENSORS: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    fn preset(preset: Preset) -> Shape {
        Shape::resolve(&ModelConfig { preset: Some(preset), ..ModelConfig::default() }, 50_257, 1024)
            .expect("published sizes are valid")
    }

    /// Parameter counts of the released models; FLOPs computed independently of this code.
    #[test]
    fn published_sizes() {
        let expected = [
            (Preset::Gpt2, 124_439_808, 0.798e9),
            (Preset::Gpt2Medium, 354_823_168, 2.272e9),
            (Preset::Gpt2Large, 774_030_080, 4.916e9),
            (Preset::Gpt2Xl, 1_557_611_200, 9.802e9),
        ];
        for (size, parameters, flops) in expected {
            let shape = preset(size);
            assert_eq!(shape.parameters(), parameters);
            let counted = shape.flops_per_token(1024, None);
            assert!((counted / flops - 1.0).abs() < 1e-3, "{size:?}: {counted}");
            let listed: u64 = shape.tensors().iter().map(TensorSpec::numbers).sum();
            assert_eq!(listed, parameters);
        }
    }

    #[test]
    fn single_numbers_override_the_preset() {
        let model =
            ModelConfig { preset: Some(Preset::Gpt2Medium), layers: Some(3), context: Some(2048), ..ModelConfig::default() };
        let shape = Shape::resolve(&model, 1000, 2048).expect("a valid shape");
        assert_eq!((shape.layers, shape.heads, shape.width, shape.context, shape.vocabulary), (3, 16, 1024, 2048, 1000));
    }

    #[test]
    fn impossible_shapes_are_refused() {
        let refuse = |model: ModelConfig, block| Shape::resolve(&model, 100, block).expect_err("must be refused");
        let uneven = ModelConfig { heads: Some(5), width: Some(64), ..ModelConfig::default() };
        assert_eq!(refuse(uneven, 16), ShapeError::HeadsDivideWidth { heads: 5, width: 64 });
        assert_eq!(refuse(ModelConfig { layers: Some(0), ..ModelConfig::default() }, 16), ShapeError::Zero("layers"));
        assert_eq!(refuse(ModelConfig { heads: Some(0), ..ModelConfig::default() }, 16), ShapeError::Zero("heads"));
        assert_eq!(refuse(ModelConfig::default(), 1025), ShapeError::BlockTooLong { block_size: 1025, context: 1024 });
        assert_eq!(refuse(ModelConfig::default(), 1), ShapeError::BlockTooShort(1));
        let deep = ModelConfig { layers: Some(1 << 62), ..ModelConfig::default() };
        assert_eq!(refuse(deep, 16), ShapeError::TooLarge { field: "layers", found: 1 << 62, most: MOST_LAYERS });
    }

    #[test]
    fn the_largest_shape_can_be_counted() {
        let largest =
            Shape { layers: MOST_LAYERS, heads: MOST, width: MOST, context: MOST, vocabulary: MOST_TOKENS, ..preset(Preset::Gpt2) };
        assert_eq!(largest.check(), Ok(()));
        // Weights, their gradients and an optimizer's two numbers of each, in 4 bytes.
        assert!(largest.parameters().checked_mul(16).is_some());
    }

    #[test]
    fn existing_weights_must_agree() {
        let shape = preset(Preset::Gpt2);
        assert_eq!(shape.agrees_with(&ModelConfig::default(), 50_257, 1024), Ok(()));
        assert_eq!(shape.agrees_with(&ModelConfig { preset: Some(Preset::Gpt2), ..ModelConfig::default() }, 50_257, 64), Ok(()));
        let other = ModelConfig { preset: Some(Preset::Gpt2Medium), ..ModelConfig::default() };
        let refused = shape.agrees_with(&other, 50_257, 64);
        assert_eq!(refused, Err(ShapeError::Contradiction { field: "layers", asked: 24, found: 12 }));
        for more in [50_258, 50_304, 51_200] {
            let padded = Shape { vocabulary: more, ..shape };
            assert_eq!(padded.agrees_with(&ModelConfig::default(), 50_257, 64), Ok(()));
        }
        let error = shape.agrees_with(&ModelConfig::default(), 50_258, 64).expect_err("a token without a row");
        assert!(error.to_string().contains("resize_token_embeddings(50258)"), "their own tokenizer may be the one: {error}");
        assert_eq!(
            shape.agrees_with(&ModelConfig::default(), 8192, 64),
            Err(ShapeError::Vocabulary { dataset: 8192, weights: 50_257 })
        );
    }
}
