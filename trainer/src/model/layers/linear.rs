//! A linear map `y = x·w + b` with `w` in `[in, out]`, forward and backward, and the matrix products it is made of.
//!
//! On a CPU, `f32` products are this crate's own ([`crate::cpu::matmul`]): libtorch's default, MKL, runs at less than half their
//! rate on AMD processors, and all have the accuracy of `f32`. Its own are also `bf16` products where the processor has tiles
//! ([`crate::cpu::matmul::amx`]) or multiplies pairs of them (`crate::cpu::matmul::avx512_bf16`), and those of both dtypes of 16
//! bits where libtorch has none but plain loops. Other dtypes and devices take libtorch's, and so does the engine of that name.

use tch::{Device, Kind, Tensor};

use crate::cpu::engine;
use crate::cpu::matmul::skinny;
use crate::cpu::matmul::{Factor, Matrix, Write};
use crate::cpu::parallel;
use crate::cpu::simd::{Element, add, by_dtype};
use crate::cpu::slices::{elements, elements_mut, floats, floats_mut, holds, is_plain};
use crate::cpu::vectorise::vectorised;
use crate::model::weights::parameters::Affine;

/// Rows whose sum is taken before it meets the rest, so that its order does not depend on the number of threads.
const ROWS: usize = 32;
/// Rows of a gradient whose product exists at once in another dtype.
const PART: i64 = 8192;

/// How a tensor is read as a matrix.
#[derive(Clone, Copy, PartialEq)]
enum Turn {
    Plain,
    Transposed,
}

/// `x [N, in]` → `[N, out]`.
pub(crate) fn forward(x: &Tensor, map: &Affine) -> Tensor {
    let mut y = if is_matrix(x) {
        let mut y = map.bias.repeat([x.size()[0], 1]);
        add_product(&mut y, x, &map.weight);
        y
    } else {
        map.bias.addmm(x, &map.weight)
    };
    if let Some(adapter) = &map.adapter {
        adapter.add_forward(&mut y, x);
    }
    y
}

/// `stream [N, out]` and `x [N, in]` → the stream plus the mapped `x`, `[N, out]` in the dtype of the stream.
pub(crate) fn forward_onto(stream: &Tensor, x: &Tensor, map: &Affine) -> Tensor {
    if !is_matrix(x) {
        return stream + forward(x, map);
    }
    let mut y = stream + &map.bias;
    add_product(&mut y, x, &map.weight);
    if let Some(adapter) = &map.adapter {
        adapter.add_forward(&mut y, x);
    }
    y
}

/// Adds the gradients of weight and bias to `gradient`, unless those are frozen, and of the adapter; returns the gradient of the
/// input. The weight's replaces what is there if `write` says so. `x [N, in]`, `dy [N, out]` → `[N, in]`.
pub(crate) fn backward(x: &Tensor, map: &Affine, dy: &Tensor, gradient: &mut Affine, write: Write) -> Tensor {
    if !gradient.is_frozen() {
        add_column_sums(&mut gradient.bias, dy);
        write_outer_product(&mut gradient.weight, x, dy, write);
    }
    let mut dx = product_transposed(dy, &map.weight);
    if let Some((adapter, gradient)) = map.adapter.as_ref().zip(gradient.adapter.as_mut()) {
        adapter.add_backward(x, dy, &mut dx, gradient);
    }
    dx
}

/// `x [N, K]` · `w [K, M]` → `[N, M]`.
pub(crate) fn product(x: &Tensor, w: &Tensor) -> Tensor {
    if !is_matrix(x) {
        return x.matmul(w);
    }
    let mut y = Tensor::empty([x.size()[0], w.size()[1]], (x.kind(), x.device()));
    write((x, Turn::Plain), (w, Turn::Plain), &mut y, Write::Over);
    y
}

/// `x [N, M]` · `wᵀ` for `w [K, M]` → `[N, K]`.
pub(crate) fn product_transposed(x: &Tensor, w: &Tensor) -> Tensor {
    if !is_matrix(x) {
        return x.matmul(&w.tr());
    }
    let mut y = Tensor::empty([x.size()[0], w.size()[0]], (x.kind(), x.device()));
    let is_few = is_plain(x) && is_plain(w) && x.size()[0] <= skinny::MOST as i64;
    if is_few && skinny::product_transposed(floats(x), floats(w), floats_mut(&mut y), sizes(x, w.size()[0])) {
        return y;
    }
    write((x, Turn::Plain), (w, Turn::Transposed), &mut y, Write::Over);
    y
}

/// Adds `x [N, M]` · `wᵀ` for `w [K, M]` to `sum [N, K]`.
pub(crate) fn add_product_transposed(sum: &mut Tensor, x: &Tensor, w: &Tensor) {
    if is_matrix(x) {
        write((x, Turn::Plain), (w, Turn::Transposed), sum, Write::Onto);
    } else {
        *sum += x.matmul(&w.tr());
    }
}

/// Adds `xᵀ · y` to `sum [K, M]` for `x [N, K]`, `y [N, M]`.
pub(crate) fn add_outer_product(sum: &mut Tensor, x: &Tensor, y: &Tensor) {
    write_outer_product(sum, x, y, Write::Onto);
}

/// [`add_outer_product`], or over the present values.
pub(crate) fn write_outer_product(sum: &mut Tensor, x: &Tensor, y: &Tensor, how: Write) {
    if is_matrix(x) {
        return write((x, Turn::Transposed), (y, Turn::Plain), sum, how);
    }
    if sum.kind() == x.kind() {
        let _ = if how == Write::Over { x.tr().mm_out(sum, y) } else { sum.addmm_(&x.tr(), y) };
        return;
    }
    // A part at a time: a product in a narrower dtype is a buffer of its own, and the embedding's is large.
    for (mut sum, x) in sum.split(PART, 0).into_iter().zip(x.split(PART, 1)) {
        let product = x.tr().matmul(y);
        if how == Write::Over {
            sum.copy_(&product);
        } else {
            sum += product;
        }
    }
}

/// Adds `x [N, K]` · `w [K, M]` to `sum [N, M]`.
pub(crate) fn add_product(sum: &mut Tensor, x: &Tensor, w: &Tensor) {
    if !is_matrix(x) {
        *sum += x.matmul(w);
        return;
    }
    if is_plain(w) && skinny::add_product(floats(x), floats(w), floats_mut(sum), sizes(x, w.size()[1])) {
        return;
    }
    write((x, Turn::Plain), (w, Turn::Plain), sum, Write::Onto);
}

/// `[M, K, N]` of a product of `x [M, K]` with `columns` columns.
fn sizes(x: &Tensor, columns: i64) -> [usize; 3] {
    [x.size()[0], x.size()[1], columns].map(|size| size as usize)
}

/// `left` times `right`, each as it is or transposed.
fn write(left: (&Tensor, Turn), right: (&Tensor, Turn), result: &mut Tensor, how: Write) {
    let pitch = result.size()[1] as usize;
    by_dtype!(
        left.0.kind(),
        E if E::is_multiplied() => {
            let (left, right) = (matrix(left), matrix(right));
            if result.kind() == Kind::Float {
                E::multiply_to_f32(left, right, elements_mut(result), pitch, how);
            } else {
                E::multiply(left, right, elements_mut(result), pitch, how);
            }
        },
        _ => unreachable!("a matrix is of a kind that is multiplied")
    );
}

/// Whether a tensor can be seen as a [`Matrix`] that this crate multiplies: in main memory, one row after the other.
fn is_matrix(tensor: &Tensor) -> bool {
    is_multiplied(tensor.kind())
        && engine::is_own()
        && tensor.device() == Device::Cpu
        && tensor.dim() == 2
        && tensor.is_contiguous()
}

/// Whether this crate multiplies numbers of this kind on this processor.
pub(crate) fn is_multiplied(kind: Kind) -> bool {
    by_dtype!(kind, E if E::is_multiplied() => true, _ => false)
}

fn matrix<E: Element>((tensor, turn): (&Tensor, Turn)) -> Matrix<'_, E> {
    let matrix =
        Matrix::new(elements(tensor), [tensor.size()[0], tensor.size()[1]].map(|size| size as usize), tensor.stride()[0] as usize);
    if turn == Turn::Transposed { matrix.t() } else { matrix }
}

/// Adds the sum over the rows of `x [N, M]` to `sum [M]`.
fn add_column_sums(sum: &mut Tensor, x: &Tensor) {
    by_dtype!(
        x.kind(),
        E if holds::<E>(x) => add_column_sums_plain::<E>(sum, x),
        _ => *sum += x.sum_dim_intlist(0_i64, false, sum.kind())
    );
}

fn add_column_sums_plain<E: Element>(sum: &mut Tensor, x: &Tensor) {
    let width = x.size()[1] as usize;
    let mut sums = vec![0.0; width * x.size()[0] as usize / ROWS + width];
    let work = elements::<E>(x).chunks(ROWS * width).zip(sums.chunks_mut(width));
    parallel::run(work.collect(), |(rows, sums)| sum_rows(rows, sums));
    sums.chunks(width).for_each(|sums| add(floats_mut(sum), sums));
}

vectorised! {
    fn sum_rows<E: Element>(rows: &[E], sums: &mut [f32]) {
        for row in rows.chunks(sums.len()) {
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += value.get();
            }
        }
    }
}
