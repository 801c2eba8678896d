//! The names of one model's tensors, as programs that wrap it write them.

use crate::settings::Variant;

/// The output head, which is the token embedding.
pub const HEAD: &str = "lm_head.weight";
/// Wrappers put their own name before that of what they wrap, anywhere: `torch.compile`, DDP and DataParallel, FSDP,
/// checkpointing of activations, DeepSpeed.
const WRAPPERS: [&str; 5] = ["_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"];
/// Names of the model itself inside another, at the beginning.
const OWNERS: [&str; 5] = ["model", "transformer", "base_model", "gpt2", "net"];
/// Heads of other tasks on the same model: classification, answers in a text, multiple choice, and trl's value of a text.
/// transformers passes over them when it loads a language model.
const OTHER_HEADS: [&str; 5] = ["score", "classifier", "qa_outputs", "multiple_choice_head", "v_head"];
/// Layer norms before 2019.
const OLD_NORMS: [(&str, &str); 2] = [(".gamma", ".weight"), (".beta", ".bias")];

/// The name that transformers gives to a tensor.
pub fn canonical(name: &str, variant: Variant) -> String {
    let mut parts: Vec<&str> = name.split('.').filter(|part| !WRAPPERS.contains(part)).collect();
    let owners = parts.iter().take_while(|part| OWNERS.contains(part)).count();
    parts.drain(..owners);
    let mut bare = parts.join(".");
    for (old, new) in OLD_NORMS {
        if let Some(start) = bare.strip_suffix(old) {
            bare = format!("{start}{new}");
        }
    }
    let owner = if variant == Variant::Fairseq { "model" } else { "transformer" };
    if bare == HEAD { bare } else { format!("{owner}.{bare}") }
}

/// Whether a language model does without the tensor of this canonical name: a buffer that is made of nothing but the configuration
/// (masks of old versions of transformers, tables of sines), or the head of another task.
pub fn is_left_out(name: &str) -> bool {
    [".attn.bias", ".attn.masked_bias", ".embed_positions.weights"].iter().any(|end| name.ends_with(end))
        || name.split('.').nth(1).is_some_and(|part| OTHER_HEADS.contains(&part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrappers_and_owners_are_taken_off() {
        let inner = "h.3.mlp.c_fc.weight";
        for before in [
            "",
            "transformer.",
            "module.transformer.",
            "_orig_mod.transformer.",
            "model.transformer.",
            "_orig_mod.module.",
            "model.",
            "gpt2.",
        ] {
            assert_eq!(canonical(&format!("{before}{inner}"), Variant::Gpt2), format!("transformer.{inner}"), "{before}");
        }
        assert_eq!(canonical("transformer.h.3._orig_mod.mlp.module.c_fc.weight", Variant::Gpt2), format!("transformer.{inner}"));
        assert_eq!(canonical("module.lm_head.weight", Variant::Gpt2), HEAD);
        assert_eq!(canonical("h.0.ln_1.gamma", Variant::Gpt2), "transformer.h.0.ln_1.weight");
        assert_eq!(canonical("h.0.ln_1.beta", Variant::Gpt2), "transformer.h.0.ln_1.bias");
        for name in ["layers.0.fc1.bias", "model.layers.0.fc1.bias", "module.model.layers.0.fc1.bias"] {
            assert_eq!(canonical(name, Variant::Fairseq), "model.layers.0.fc1.bias");
        }
    }
}
