//! The parts that tensors play in a model. They decide which tensors are rounded, decay and move, and their first values.

use crate::settings::lora::LinearMap;

/// The part that a tensor plays in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It is also the output head.
    TokenEmbedding,
    PositionEmbedding,
    /// A layer norm of a block.
    Norm(Part),
    /// A linear map of a block.
    Map(LinearMap, Part),
    /// The layer norm after the last block.
    FinalNorm(Part),
    /// One of the two matrices beside a linear map of a block.
    Adapter,
}

/// Which of the two tensors of a layer norm or a linear map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Weight,
    Bias,
}

/// A tensor of a model: its Hugging Face name and its dimensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    pub name: String,
    pub role: Role,
    /// The block of the model that it is in, counted from 0.
    pub block: Option<usize>,
    pub dimensions: Vec<usize>,
}

impl Part {
    pub const BOTH: [Self; 2] = [Self::Weight, Self::Bias];
}

impl Role {
    pub fn is_in_block(self) -> bool {
        matches!(self, Self::Norm(_) | Self::Map(..) | Self::Adapter)
    }

    /// Whether it is a matrix between two layers, not one between tokens or positions and the stream.
    pub fn is_matrix(self) -> bool {
        matches!(self, Self::Map(_, Part::Weight) | Self::Adapter)
    }

    pub fn is_bias(self) -> bool {
        matches!(self, Self::Norm(Part::Bias) | Self::Map(_, Part::Bias) | Self::FinalNorm(Part::Bias))
    }

    /// Whether matrix products are made with it; the others are layer norms and what is looked up or added.
    pub fn is_multiplied(self) -> bool {
        !matches!(self, Self::Norm(_) | Self::FinalNorm(_) | Self::PositionEmbedding)
    }
}

impl TensorSpec {
    /// How many numbers it has.
    pub fn numbers(&self) -> u64 {
        self.dimensions.iter().product::<usize>() as u64
    }
}
