//! How a batch is computed: the sizes of its rows, its mask, its dropout and its dtype.

use tch::{Kind, Tensor};

use super::dropout::{Masks, Site};
use super::fused::Fused;
use super::gelu::Gelu;
use super::linear;
use super::mask::Mask;
use crate::model::weights::parameters::Affine;

/// Sizes that the rows of a batch are made of, and how they are computed.
#[derive(Clone, Copy)]
pub(crate) struct Layout<'a> {
    pub batch: i64,
    pub length: i64,
    pub heads: i64,
    pub epsilon: f64,
    pub gelu: Gelu,
    /// The tokens that attention leaves out.
    pub mask: Mask<'a>,
    /// In training, when something is dropped.
    pub dropout: Option<Masks>,
    /// The dtype of the matrix products. The stream from block to block has that of the layer norms.
    pub kind: Kind,
    /// Where libtorch's attention is taken.
    pub fused: Fused,
}

impl Layout<'_> {
    /// The layout of one layer of the model.
    pub fn of_layer(self, layer: usize) -> Self {
        Self { dropout: self.dropout.map(|masks| Masks { layer: layer as u64, ..masks }), ..self }
    }

    /// The dropout masks of the attention weights, when anything is dropped.
    pub fn attention_dropout(self) -> Option<Masks> {
        self.dropout.filter(|masks| masks.dropout.attention > 0.0)
    }

    /// `stream [N, D]` and one half of a block, `x` through its last map: with some of it dropped in training.
    pub fn onto(self, stream: &Tensor, x: &Tensor, map: &Affine, site: Site) -> Tensor {
        match self.dropout {
            None => linear::forward_onto(stream, x, map),
            Some(masks) => stream + masks.apply(site, &linear::forward(x, map), self.length),
        }
    }

    /// The gradient that reaches a half of a block from the stream, `[N, D]` in the dtype of the products.
    pub fn reaching(self, dstream: &Tensor, site: Site) -> Tensor {
        let dy = dstream.to_kind(self.kind);
        self.dropout.map_or_else(|| dy.shallow_clone(), |masks| masks.apply(site, &dy, self.length))
    }
}
