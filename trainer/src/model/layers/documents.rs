//! Which tokens of a batch belong to the same document: attention stays inside it, and positions are counted from where it begins.
//!
//! The end-of-text token begins the document after it, as its position 0: the last token of a document predicts it, and from it
//! alone the first token of the next is predicted, as in generation from an empty prompt. A document that a block cuts in two
//! counts from the start of the block.

use std::ops::Range;

use tch::{Kind, Tensor};

/// The documents of a batch of sequences of one length.
pub(crate) struct Documents {
    /// By sequence, the first row of each document; row 0 always is one.
    starts: Vec<Vec<usize>>,
    length: usize,
}

impl Documents {
    /// `inputs [B, T]` `i64`.
    pub fn new(inputs: &Tensor, end_of_text: i64) -> Self {
        let length = inputs.size()[1] as usize;
        let flat: Vec<i64> = Vec::try_from(inputs.to_device(tch::Device::Cpu).reshape([-1])).expect("tokens are i64");
        let begins = |(row, token): (usize, &i64)| (row == 0 || *token == end_of_text).then_some(row);
        Self { starts: flat.chunks(length).map(|tokens| tokens.iter().enumerate().filter_map(begins).collect()).collect(), length }
    }

    /// The rows of each document of one sequence, in order.
    pub fn of(&self, sequence: usize) -> impl Iterator<Item = Range<usize>> {
        let starts = &self.starts[sequence];
        let ends = starts[1..].iter().copied().chain([self.length]);
        starts.iter().copied().zip(ends).map(|(start, end)| start..end)
    }

    /// `[B · T]` `i64`: the place of each token in its document.
    pub fn positions(&self) -> Tensor {
        let positions = (0..self.starts.len()).flat_map(|sequence| self.of(sequence)).flat_map(|rows| 0..rows.len() as i64);
        Tensor::from_slice(&positions.collect::<Vec<_>>())
    }

    /// `[B, 1, T, T]` `bool`: true where a query (third dimension) and a key are not of one document.
    pub fn apart(&self) -> Tensor {
        let numbered = |sequence| self.of(sequence).enumerate().flat_map(|(number, rows)| rows.map(move |_| number as i64));
        let numbers: Vec<i64> = (0..self.starts.len()).flat_map(numbered).collect();
        let numbers = Tensor::from_slice(&numbers).view([-1, 1, 1, self.length as i64]);
        numbers.ne_tensor(&numbers.transpose(2, 3)).to_kind(Kind::Bool)
    }
}
