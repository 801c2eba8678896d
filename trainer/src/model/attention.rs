//! Causal multi-head attention between the two linear maps of a block, forward and backward, without the `[T, T]` scores
//! (Dao et al. 2022: the log-sum-exp of each row is kept instead).

use tch::Tensor;

use super::block::Layout;

/// What the backward pass needs.
pub(super) struct Attention {
    /// Queries, keys, values: views `[B, H, T, D / H]` of one `[N, 3D]`.
    qkv: [Tensor; 3],
    /// `[B, H, T, D / H]`.
    heads: Tensor,
    /// `[B, H, T]`.
    log_sum_exp: Tensor,
    /// The same values as `heads` in rows, `[N, D]`.
    output: Tensor,
}

impl Attention {
    /// `[N, D]`.
    pub fn output(&self) -> &Tensor {
        &self.output
    }
}

/// `qkv [N, 3D]` → attention over the earlier positions of the same sequence.
pub(super) fn forward(qkv: &Tensor, layout: Layout) -> Attention {
    let [q, k, v] = split_heads(qkv, layout);
    let (heads, log_sum_exp) =
        Tensor::internal_scaled_dot_product_flash_attention_for_cpu(&q, &k, &v, 0.0, true, None::<&Tensor>, None);
    let output = join_heads(&heads);
    Attention { qkv: [q, k, v], heads, log_sum_exp, output }
}

/// `doutput [N, D]` → `[N, 3D]`.
pub(super) fn backward(kept: &Attention, doutput: &Tensor) -> Tensor {
    let [q, k, v] = &kept.qkv;
    let [batch, heads, length, channels] = <[i64; 4]>::try_from(q.size()).expect("queries have four dimensions");
    let dheads = doutput.view([batch, length, heads, channels]).transpose(1, 2);
    let (dq, dk, dv) = Tensor::internal_scaled_dot_product_flash_attention_for_cpu_backward(
        &dheads,
        q,
        k,
        v,
        &kept.heads,
        &kept.log_sum_exp,
        0.0,
        true,
        None::<&Tensor>,
        None,
    );
    let rows = [dq, dk, dv].map(|gradient| gradient.transpose(1, 2)); // [B, T, H, D / H]
    Tensor::stack(&rows, 2).view([batch * length, 3 * heads * channels])
}

/// `[N, 3D]` → three views `[B, H, T, D / H]`.
pub(super) fn split_heads(qkv: &Tensor, layout: Layout) -> [Tensor; 3] {
    let parts = qkv.view([layout.batch, layout.length, 3, layout.heads, -1]).permute([2, 0, 3, 1, 4]);
    [0, 1, 2].map(|part| parts.get(part))
}

/// `[B, H, T, D / H]` → `[N, D]`.
pub(super) fn join_heads(heads: &Tensor) -> Tensor {
    let [batch, count, length, channels] = <[i64; 4]>::try_from(heads.size()).expect("attention has four dimensions");
    heads.transpose(1, 2).reshape([batch * length, count * channels])
}
