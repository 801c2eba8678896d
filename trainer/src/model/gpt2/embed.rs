//! Token and position embeddings, forward and backward.

use tch::Tensor;

use super::Gpt2;
use crate::model::layers::documents::Documents;
use crate::offload::release;
use crate::settings::Variant;

impl Gpt2 {
    /// Token and position embedding: `[B, T]` → `[N, D]`.
    pub(crate) fn embed(&self, inputs: &Tensor, documents: Option<&Documents>) -> Tensor {
        let tokens = self.embed_tokens(&inputs.reshape([-1])); // [N, D]
        if let Some(documents) = documents {
            return tokens + self.positions().index_select(0, &documents.positions().to_device(self.device()));
        }
        let positions = self.positions().narrow(0, 0, inputs.size()[1]); // [T, D]
        (tokens.view([inputs.size()[0], inputs.size()[1], -1]) + positions).view_as(&tokens)
    }

    /// `tokens [N]` → `[N, D]`, in fairseq's variant times √D.
    pub(crate) fn embed_tokens(&self, tokens: &Tensor) -> Tensor {
        // Where the weights are, which is where all their digits are.
        let table = self.parameters().token_embedding();
        let rows = table.index_select(0, &tokens.to_device(table.device())).to_device(self.device());
        release([&table]);
        match self.shape().variant {
            Variant::Gpt2 => rows,
            Variant::Fairseq => rows * (self.shape().width as f64).sqrt(),
        }
    }

    /// `dx [N, D]`; `dtokens [V, D]` is the embedding's gradient as the head has left it. On the CPU `index_add_` adds row after
    /// row, so equal tokens are summed in the order of the batch.
    pub(crate) fn embed_backward(&self, inputs: &Tensor, documents: Option<&Documents>, dx: &Tensor, mut dtokens: Tensor) {
        let gradients = self.gradients();
        let [batch, length] = [inputs.size()[0], inputs.size()[1]];
        let tokens = inputs.reshape([-1]);
        if self.shape().learns_positions() {
            let _ = dtokens.index_add_(0, &tokens, dx);
            let home = gradients.position_embedding();
            let mut dpositions = self.borrowed(&home);
            if let Some(documents) = documents {
                let _ = dpositions.index_add_(0, &documents.positions().to_device(self.device()), dx);
            } else {
                let sum = dx.view([batch, length, -1]).sum_dim_intlist(0_i64, false, None); // [T, D]
                let mut used = dpositions.narrow(0, 0, length);
                used += sum;
            }
            self.give_back([&dpositions], [&home]);
        } else {
            let _ = dtokens.index_add_(0, &tokens, &(dx * (self.shape().width as f64).sqrt()));
        }
        let home = gradients.token_embedding();
        self.give_back([&dtokens], [&home]);
        release([&home]);
    }
}
