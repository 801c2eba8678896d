//! Output head and cross-entropy in chunks of rows, so that the logits of a whole batch never exist at once.

use tch::{Kind, Tensor};

use super::linear::{product, product_transposed, write_outer_product};
use crate::cpu::matmul::{Factor, Matrix, Write};
use crate::cpu::parallel;
use crate::cpu::simd::{Element, by_dtype, exp, largest, sum_of};
use crate::cpu::slices::{elements, elements_mut, floats_mut, holds};
use crate::cpu::vectorise::vectorised;
use crate::model::HEAD_CHUNK;

/// Label of a position that is not predicted (the convention of PyTorch and transformers).
pub const IGNORED: i64 = -100;

/// Logits whose exponentials are summed in `f32` before they meet the rest.
const BLOCK: usize = 1024;
/// Rows of logits begin at multiples of this many elements: products whose rows straddle cache lines are a fifth slower.
const ALIGNMENT: usize = 64;

/// Sum of the negative log-likelihoods in nats of the targets that are not [`IGNORED`].
/// `hidden [N, D]`, `embedding [V, D]`, `targets [N]`.
pub(crate) fn loss(hidden: &Tensor, embedding: &Tensor, targets: &Tensor) -> f64 {
    let chunks = hidden.split(HEAD_CHUNK as i64, 0).into_iter().zip(targets.split(HEAD_CHUNK as i64, 0));
    let sums: Vec<Tensor> =
        chunks.map(|(hidden, targets)| cross_entropy(product_transposed(&hidden, embedding), &targets, 0.0).0).collect();
    total(&sums)
}

/// Adds `d(scale · sum NLL)/d embedding` to `dembedding [V, D]` where that is wanted, or writes it there; returns the summed NLL
/// and the gradient of `hidden`, `[N, D]`.
pub(crate) fn loss_and_gradient(
    hidden: &Tensor,
    embedding: &Tensor,
    targets: &Tensor,
    scale: f64,
    dembedding: Option<&mut Tensor>,
    write: Write,
) -> (f64, Tensor) {
    by_dtype!(
        hidden.kind(),
        E if is_own::<E>(hidden) => loss_and_gradient_plain::<E>(hidden, embedding, targets, scale, dembedding, write),
        _ => loss_and_gradient_anywhere(hidden, embedding, targets, scale, dembedding, write)
    )
}

/// In libtorch's operations, or with this crate's products where it has those for the dtype.
fn loss_and_gradient_anywhere(
    hidden: &Tensor,
    embedding: &Tensor,
    targets: &Tensor,
    scale: f64,
    mut dembedding: Option<&mut Tensor>,
    mut write: Write,
) -> (f64, Tensor) {
    let (mut sums, mut gradients) = (Vec::new(), Vec::new());
    for (hidden, targets) in hidden.split(HEAD_CHUNK as i64, 0).iter().zip(targets.split(HEAD_CHUNK as i64, 0)) {
        let (part, dlogits) = cross_entropy(product_transposed(hidden, embedding), &targets, scale); // [C, V]
        sums.push(part);
        if let Some(dembedding) = dembedding.as_deref_mut() {
            write_outer_product(dembedding, &dlogits, hidden, write);
            write = Write::Onto;
        }
        gradients.push(product(&dlogits, embedding));
    }
    (total(&sums), Tensor::cat(&gradients, 0))
}

/// The sum over all chunks, in `f64`. They stay on the device until here: to ask for a number is to wait for it.
fn total(sums: &[Tensor]) -> f64 {
    Tensor::stack(sums, 0).sum(Kind::Double).double_value(&[])
}

fn is_own<E: Factor>(tensor: &Tensor) -> bool {
    holds::<E>(tensor) && E::is_multiplied()
}

/// The same with one buffer for the logits of every chunk, and no other.
fn loss_and_gradient_plain<E: Factor>(
    hidden: &Tensor,
    embedding: &Tensor,
    targets: &Tensor,
    scale: f64,
    mut dembedding: Option<&mut Tensor>,
    mut write: Write,
) -> (f64, Tensor) {
    let [rows, width, vocabulary] = [hidden.size()[0], hidden.size()[1], embedding.size()[0]].map(|size| size as usize);
    let pitch = vocabulary.next_multiple_of(ALIGNMENT);
    let mut buffer = Tensor::empty([rows.min(HEAD_CHUNK) as i64, pitch as i64], (E::KIND, hidden.device()));
    let logits = elements_mut::<E>(&mut buffer);
    let table = Matrix::new(elements::<E>(embedding), [vocabulary, width], width);
    let (mut sum, mut dhidden) = (0.0, hidden.empty_like());
    let chunks =
        elements::<E>(hidden).chunks(HEAD_CHUNK * width).zip(elements_mut::<E>(&mut dhidden).chunks_mut(HEAD_CHUNK * width));
    for ((hidden, dhidden), targets) in chunks.zip(indices(targets).chunks(HEAD_CHUNK)) {
        let hidden = Matrix::new(hidden, [targets.len(), width], width);
        E::multiply(hidden, table.t(), logits, pitch, Write::Over);
        sum += cross_entropy_plain(&mut logits[..targets.len() * pitch], pitch, vocabulary, targets, scale);
        let dlogits = Matrix::new(logits, [targets.len(), vocabulary], pitch);
        E::multiply(dlogits, table, dhidden, width, Write::Over);
        if let Some(dembedding) = dembedding.as_deref_mut() {
            E::multiply_to_f32(dlogits.t(), hidden, floats_mut(dembedding), width, write);
            write = Write::Onto;
        }
    }
    (sum, dhidden)
}

/// `logits [C, V]` and `targets [C]` → the summed NLL, one `f64`, and `d(scale · sum NLL)/d logits`, in the memory of the logits
/// where that goes.
fn cross_entropy(mut logits: Tensor, targets: &Tensor, scale: f64) -> (Tensor, Tensor) {
    let vocabulary = logits.size()[1] as usize;
    let sum = by_dtype!(
        logits.kind(),
        E if holds::<E>(&logits) => {
            cross_entropy_plain::<E>(elements_mut(&mut logits), vocabulary, vocabulary, &indices(targets), scale)
        },
        _ => return cross_entropy_anywhere(&logits, targets, scale)
    );
    (Tensor::from(sum), logits)
}

/// In libtorch's operations, for any device and dtype, half precision in `f32`; the sum in `f64`: a batch of 10⁵ tokens would lose
/// three digits in `f32`.
fn cross_entropy_anywhere(logits: &Tensor, targets: &Tensor, scale: f64) -> (Tensor, Tensor) {
    let kind = if logits.kind() == Kind::Double { Kind::Double } else { Kind::Float };
    let counted = targets.ne(IGNORED).unsqueeze(1); // [C, 1]
    let index = targets.unsqueeze(1).masked_fill(&counted.logical_not(), 0);
    let counted = counted.to_kind(kind);
    let mut log_probabilities = logits.log_softmax(-1, kind); // [C, V]
    let picked = log_probabilities.gather(1, &index, false); // [C, 1]
    let at_targets = picked.exp() - &counted;
    let mut dlogits = log_probabilities.exp_();
    let _ = dlogits.scatter_(1, &index, &at_targets).g_mul_(&(&counted * scale));
    (-(picked * counted).sum(Kind::Double), dlogits.to_kind(logits.kind()))
}

/// [`cross_entropy`] in place; rows are `pitch` elements apart.
fn cross_entropy_plain<E: Element>(logits: &mut [E], pitch: usize, vocabulary: usize, targets: &[i64], scale: f64) -> f64 {
    let mut losses = vec![0.0; targets.len()];
    let work = logits.chunks_mut(pitch).zip(targets).zip(&mut losses);
    parallel::run(work.collect(), |((row, target), loss): ((&mut [E], &i64), &mut f64)| match usize::try_from(*target) {
        Ok(target) => *loss = cross_entropy_row(&mut row[..vocabulary], target, scale as f32),
        Err(_) => row.fill(E::default()),
    });
    losses.iter().sum()
}

vectorised! {
    fn cross_entropy_row<E: Element>(logits: &mut [E], target: usize, scale: f32) -> f64 {
        let peak = largest(logits);
        // A loop: what an iterator's own methods call is not compiled for these registers.
        let mut sum = 0.0;
        for block in logits.chunks(BLOCK) {
            sum += f64::from(sum_of(block, |logit| exp(logit - peak)));
        }
        let at_target = logits[target].get() - peak;
        let share = (f64::from(scale) / sum) as f32;
        for logit in logits.iter_mut() {
            *logit = E::put(exp(logit.get() - peak) * share);
        }
        logits[target] = E::put(((f64::from(exp(at_target)) / sum - 1.0) * f64::from(scale)) as f32);
        sum.ln() - f64::from(at_target)
    }
}

fn indices(targets: &Tensor) -> Vec<i64> {
    Vec::try_from(targets.to_device(tch::Device::Cpu)).expect("targets are one row of i64")
}
