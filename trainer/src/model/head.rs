//! Output head and cross-entropy in chunks of rows, so that the logits of a whole batch never exist at once.

use tch::{Kind, Tensor};

use super::HEAD_CHUNK;
use super::linear::{add_outer_product, product, product_transposed};

/// Label of a position that is not predicted (the convention of PyTorch and transformers).
pub const IGNORED: i64 = -100;

/// Sum of the negative log-likelihoods in nats, and the number of targets that are not [`IGNORED`].
/// `hidden [N, D]`, `embedding [V, D]`, `targets [N]`.
pub(super) fn loss(hidden: &Tensor, embedding: &Tensor, targets: &Tensor) -> (f64, i64) {
    let mut sum = 0.0;
    for (hidden, targets) in hidden.split(HEAD_CHUNK as i64, 0).iter().zip(targets.split(HEAD_CHUNK as i64, 0)) {
        let chunk = Targets::new(&targets, hidden.kind());
        let log_probabilities = product_transposed(hidden, embedding).log_softmax(-1, None); // [C, V]
        sum += chunk.negative_log_likelihood(&log_probabilities);
    }
    (sum, targets.ne(IGNORED).sum(Kind::Int64).int64_value(&[]))
}

/// Adds `d(scale · sum NLL)/d embedding` to `dembedding [V, D]`; returns the summed NLL and the gradient of `hidden`, `[N, D]`.
pub(super) fn loss_and_gradient(
    hidden: &Tensor,
    embedding: &Tensor,
    targets: &Tensor,
    scale: f64,
    dembedding: &mut Tensor,
) -> (f64, Tensor) {
    let mut sum = 0.0;
    let mut gradients = Vec::new();
    for (hidden, targets) in hidden.split(HEAD_CHUNK as i64, 0).iter().zip(targets.split(HEAD_CHUNK as i64, 0)) {
        let chunk = Targets::new(&targets, hidden.kind());
        let mut log_probabilities = product_transposed(hidden, embedding).log_softmax(-1, None); // [C, V]
        sum += chunk.negative_log_likelihood(&log_probabilities);
        let mut dlogits = log_probabilities.exp_(); // softmax − one-hot, not yet scaled: the scale goes to the narrow factor
        let _ = dlogits.scatter_add_(1, &chunk.index, &chunk.counted.neg());
        let weight = &chunk.counted * scale; // [C, 1]
        add_outer_product(dembedding, &dlogits, &(hidden * &weight));
        gradients.push(product(&dlogits, embedding) * weight);
    }
    (sum, Tensor::cat(&gradients, 0))
}

/// The targets of one chunk of rows.
struct Targets {
    /// `[C, 1]`, ignored targets replaced by 0 so that they can be looked up.
    index: Tensor,
    /// `[C, 1]`: 1 where the target counts, 0 where it is ignored.
    counted: Tensor,
}

impl Targets {
    fn new(targets: &Tensor, kind: Kind) -> Self {
        let counted = targets.ne(IGNORED).unsqueeze(1);
        let index = targets.unsqueeze(1).masked_fill(&counted.logical_not(), 0);
        Self { index, counted: counted.to_kind(kind) }
    }

    /// Summed in `f64`: a batch of 10⁵ tokens would lose three digits in `f32`.
    fn negative_log_likelihood(&self, log_probabilities: &Tensor) -> f64 {
        let picked = log_probabilities.gather(1, &self.index, false) * &self.counted;
        -picked.sum(Kind::Double).double_value(&[])
    }
}
