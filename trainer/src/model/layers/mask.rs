//! Which tokens of its sequence a query sees.

use std::ops::Range;

use tch::{Device, Kind, Tensor};

use super::documents::Documents;

/// What attention leaves out.
#[derive(Clone, Copy)]
pub(crate) enum Mask<'a> {
    /// The tokens after the query's own.
    Causal,
    /// Those, and the other documents of the sequence.
    Documents(&'a Documents),
}

impl Mask<'_> {
    /// The rows of each part of a sequence of `length` tokens that attention stays inside.
    pub fn parts(self, sequence: usize, length: usize) -> Vec<Range<usize>> {
        match self {
            Self::Causal => std::iter::once(0..length).collect(),
            Self::Documents(documents) => documents.of(sequence).collect(),
        }
    }

    /// `bool` on `device`, true where a query does not see a key: `[T, T]`, or `[B, 1, T, T]` where sequences differ.
    pub fn hidden(self, length: i64, device: Device) -> Tensor {
        let future = Tensor::ones([length, length], (Kind::Bool, device)).triu(1);
        match self {
            Self::Causal => future,
            Self::Documents(documents) => future.logical_or(&documents.apart().to_device(device)),
        }
    }
}
