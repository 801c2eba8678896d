//! Which tokens of its sequence a query sees.

use std::ops::Range;

use tch::{Device, Kind, Tensor};

use super::documents::Documents;

/// The tokens that attention leaves out.
#[derive(Clone, Copy)]
pub(crate) enum Mask<'a> {
    /// The tokens after the query's own.
    Causal,
    /// Those, and the other documents of the sequence.
    Documents(&'a Documents),
    /// Nothing.
    #[cfg_attr(not(test), expect(dead_code, reason = "for models that read in both directions"))]
    Full,
    /// The padding behind the tokens of a sequence, of which each has so many. Rows of padding see nothing: what attention makes of
    /// them is 0, and so is their gradient.
    #[cfg_attr(not(test), expect(dead_code, reason = "for models that read in both directions"))]
    Padding(&'a [usize]),
}

impl Mask<'_> {
    /// Whether a query sees no token after its own.
    pub fn is_causal(self) -> bool {
        matches!(self, Self::Causal | Self::Documents(_))
    }

    /// Whether some rows of a batch are in none of the parts.
    pub fn leaves_rows_out(self) -> bool {
        matches!(self, Self::Padding(_))
    }

    /// The rows of each part of a sequence of `length` tokens that attention stays inside.
    pub fn parts(self, sequence: usize, length: usize) -> Vec<Range<usize>> {
        let whole = |length| std::iter::once(0..length).collect();
        match self {
            Self::Causal | Self::Full => whole(length),
            Self::Documents(documents) => documents.of(sequence).collect(),
            Self::Padding(tokens) => whole(tokens[sequence]),
        }
    }

    /// `bool` on `device`, true where a query does not see a key: `[T, T]`, or `[B, 1, T, T]` where sequences differ.
    pub fn hidden(self, length: i64, device: Device) -> Tensor {
        let options = (Kind::Bool, device);
        let future = || Tensor::ones([length, length], options).triu(1);
        match self {
            Self::Causal => future(),
            Self::Documents(documents) => future().logical_or(&documents.apart().to_device(device)),
            Self::Full => Tensor::zeros([length, length], options),
            Self::Padding(tokens) => {
                let tokens: Vec<i64> = tokens.iter().map(|tokens| *tokens as i64).collect();
                let is_padding =
                    Tensor::arange(length, (Kind::Int64, Device::Cpu)).ge_tensor(&Tensor::from_slice(&tokens).unsqueeze(1));
                let [keys, queries] = [[1, 1, length], [1, length, 1]].map(|size| is_padding.view([-1, size[0], size[1], size[2]]));
                keys.logical_or(&queries).to_device(device)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::engine;
    use crate::model::layers::attention::{self, join_heads, split_heads};
    use crate::model::layers::dropout::{Dropout, Masks};
    use crate::model::layers::fused::Fused;
    use crate::model::layers::gelu::Gelu;
    use crate::model::layers::layout::Layout;
    use crate::settings::Engine;

    /// More queries than a kernel takes at once, the last of them not as many.
    const LENGTH: usize = 150;
    const BATCH: i64 = 3;
    const HEADS: i64 = 2;
    const CHANNELS: i64 = 8;

    /// The parts of each sequence, and whether attention is causal there, as the comments of [`Mask`] say.
    type Parts = (bool, [Vec<Range<usize>>; BATCH as usize]);

    fn layout(mask: Mask<'_>, kind: Kind, dropout: Option<Masks>) -> Layout<'_> {
        let (batch, length, heads) = (BATCH, LENGTH as i64, HEADS);
        Layout { batch, length, heads, epsilon: 1e-5, gelu: Gelu::Tanh, mask, dropout, kind, fused: Fused::Cpu }
    }

    /// Output and gradient of `qkv` by autograd over libtorch's attention of one part after the other, in `f64`; the rest is 0.
    /// libtorch draws masks of its own, so that with dropout the weights are written out.
    fn expected(qkv: &Tensor, doutput: &Tensor, (is_causal, parts): &Parts, dropout: Option<Masks>) -> [Tensor; 2] {
        let qkv = qkv.to_kind(Kind::Double).set_requires_grad(true);
        let heads = split_heads(&qkv, layout(Mask::Causal, Kind::Double, None));
        let factors = dropout.map(|masks| masks.attention([BATCH, HEADS, LENGTH as i64]).to_kind(Kind::Double));
        let mut output = Tensor::zeros_like(&heads[0]);
        for (sequence, rows) in
            parts.iter().enumerate().flat_map(|(sequence, parts)| parts.iter().map(move |rows| (sequence, rows)))
        {
            let (start, count) = (rows.start as i64, rows.len() as i64);
            let [q, k, v] = heads.each_ref().map(|tensor| tensor.narrow(0, sequence as i64, 1).narrow(2, start, count));
            let part = match &factors {
                None => Tensor::scaled_dot_product_attention(&q, &k, &v, None::<Tensor>, 0.0, *is_causal, None, false),
                Some(factors) => {
                    let factors = factors.narrow(0, sequence as i64, 1).narrow(2, start, count).narrow(3, start, count);
                    let future =
                        Tensor::ones([count, count], (Kind::Bool, Device::Cpu)).triu(1).logical_and(&Tensor::from(*is_causal));
                    let scores = q.matmul(&k.transpose(2, 3)) / (CHANNELS as f64).sqrt();
                    (scores.masked_fill(&future, f64::NEG_INFINITY).softmax(-1, None) * factors).matmul(&v)
                }
            };
            let (before, after) = (sequence as i64, BATCH - 1 - sequence as i64);
            output += part.constant_pad_nd([0, 0, start, (LENGTH - rows.end) as i64, 0, 0, before, after]);
        }
        let output = join_heads(&output);
        (&output * doutput).sum(Kind::Double).backward();
        [output.detach(), qkv.grad()]
    }

    fn found(engine: Engine, kind: Kind, [qkv, doutput]: [&Tensor; 2], mask: Mask<'_>, dropout: Option<Masks>) -> [Tensor; 2] {
        engine::with(engine, || {
            let layout = layout(mask, kind, dropout);
            let kept = attention::forward(qkv.to_kind(kind), layout);
            let gradient = attention::backward(&kept, &doutput.to_kind(kind), layout);
            [kept.output.shallow_clone(), gradient]
        })
    }

    /// Every kernel of the CPU, whose choice is that of engine, dtype and dropout.
    fn equals_libtorchs(mask: Mask<'_>, parts: &Parts) {
        tch::manual_seed(4);
        let random = |columns| Tensor::randn([BATCH * LENGTH as i64, columns * HEADS * CHANNELS], (Kind::Float, Device::Cpu));
        let (qkv, doutput) = (random(3), random(1));
        let dropout = Dropout { seed: 3, attention: 0.2, ..Dropout::default() };
        for dropout in [None, Some(Masks { dropout, first_sequence: 5, layer: 1 })] {
            for (engine, kind, bar) in [
                (Engine::Own, Kind::Float, 2e-6),
                (Engine::Libtorch, Kind::Float, 2e-6),
                (Engine::Own, Kind::Double, 1e-12),
                (Engine::Own, Kind::BFloat16, 2e-2),
            ] {
                let given = [&qkv, &doutput].map(|tensor| tensor.to_kind(kind));
                let expected = expected(&given[0], &given[1], parts, dropout);
                for (found, expected) in found(engine, kind, given.each_ref(), mask, dropout).iter().zip(&expected) {
                    let found = found.to_kind(Kind::Double);
                    let error = ((&found - expected).norm() / expected.norm()).double_value(&[]);
                    assert!(error < bar, "{engine:?}, {kind:?}, {dropout:?}: relative error {error:.1e}");
                    let beside = found.abs().masked_fill(&expected.ne(0.0), 0.0).max().double_value(&[]);
                    assert!(beside < bar, "{engine:?}, {kind:?}: {beside} where nothing is seen");
                }
            }
        }
    }

    fn whole() -> [Vec<Range<usize>>; 3] {
        std::array::from_fn(|_| std::iter::once(0..LENGTH).collect())
    }

    #[test]
    fn causal_attention_is_libtorchs() {
        equals_libtorchs(Mask::Causal, &(true, whole()));
    }

    #[test]
    fn attention_in_both_directions_is_libtorchs() {
        equals_libtorchs(Mask::Full, &(false, whole()));
    }

    #[test]
    fn attention_to_all_but_padding_is_libtorchs_over_what_is_no_padding() {
        let parts = [LENGTH, 70, 1].map(|tokens| std::iter::once(0..tokens).collect());
        equals_libtorchs(Mask::Padding(&[LENGTH, 70, 1]), &(false, parts));
    }

    #[test]
    fn attention_inside_documents_is_libtorchs_over_each() {
        let inputs = Tensor::zeros([BATCH, LENGTH as i64], (Kind::Int64, Device::Cpu));
        for (sequence, row) in [(0, 70), (0, 71), (2, 149)] {
            let _ = inputs.narrow(0, sequence, 1).narrow(1, row, 1).fill_(9);
        }
        let parts = [vec![0..70, 70..71, 71..150], std::iter::once(0..150).collect(), vec![0..149, 149..150]];
        equals_libtorchs(Mask::Documents(&Documents::new(&inputs, 9)), &(true, parts));
    }
}
