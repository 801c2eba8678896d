"""Logits, loss and every gradient of `ft-trainer grads` against `transformers` in float64 and float32.

Usage: [FT_DEVICE=cuda] [FT_WHOLE=1] python grads.py PATH/TO/ft-trainer

With `FT_WHOLE=1` all published sizes are computed, for minutes. With `FT_DEVICE=cuda` the GPU computes, and what is the same there or for the CPU alone is left out: documents, forms of files. One line per check with the measured relative L2 error; exit code 1 when one exceeds its bar.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel, XGLMConfig, XGLMForCausalLM

LOGITS_BAR = 1e-6
GRADIENT_BAR = 2e-6
# Of transformers under autocast.
AUTOCAST = 1.1
# Of the loss in fp16.
SCALE = 65536.0

# Where `ft-trainer` computes.
DEVICE = os.environ.get("FT_DEVICE", "cpu")

# layers, heads, width, context, vocabulary, rows, tokens per row
SHAPES = {
    "2x64": (2, 2, 64, 128, 512, 4, 128),
    "3x96, odd vocabulary": (3, 3, 96, 100, 1013, 3, 77),
}
# The published sizes, the larger with few of their layers. The vocabulary is GPT-2's for the first alone: the others' embeddings
# would be most of what is computed.
PUBLISHED = {"gpt2, 12x768": (12, 12, 768, 1024, 50257, 1, 128), "gpt2-xl, 2x1600": (2, 25, 1600, 1024, 1013, 1, 256)}
WHOLE = bool(os.environ.get("FT_WHOLE"))
if WHOLE or DEVICE != "cpu":
    medium = 24 if WHOLE else 4
    PUBLISHED |= {f"gpt2-medium, {medium}x1024": (medium, 16, 1024, 1024, 1013, 1, 128), "gpt2-large, 3x1280": (3, 20, 1280, 1024, 1013, 1, 256)}
# fairseq's transformer_lm_gpt, which transformers knows as XGLM.
FAIRSEQ = {
    "fairseq 2x64": (2, 2, 64, 128, 512, 4, 128),
    "fairseq 3x96, odd vocabulary": (3, 3, 96, 100, 1013, 3, 77),
    "fairseq 2x768": (2, 12, 768, 256, 8000, 2, 256),
}


def build(shape, seed):
    """A model whose biases and gains are away from their initial values too."""
    layers, heads, width, context, vocabulary, _, _ = shape
    torch.manual_seed(seed)
    config = GPT2Config(
        n_layer=layers, n_head=heads, n_embd=width, n_positions=context, vocab_size=vocabulary,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    return moved(GPT2LMHeadModel(config))


def build_fairseq(shape, seed):
    layers, heads, width, context, vocabulary, _, _ = shape
    torch.manual_seed(seed)
    config = XGLMConfig(
        num_layers=layers, attention_heads=heads, d_model=width, ffn_dim=4 * width, max_position_embeddings=context, vocab_size=vocabulary,
        dropout=0.0, attention_dropout=0.0, pad_token_id=None, bos_token_id=0, eos_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    return moved(XGLMForCausalLM(config))


def moved(model):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return model


def reference(model, tokens, dtype, scale=1.0, device="cpu", **more):
    """`logits`, `loss` and `grad.*` of transformers, as float64."""
    model, tokens = model.to(device, dtype), tokens.to(device)
    model.zero_grad()
    output = model(input_ids=tokens, labels=tokens, **more)
    (output.loss * scale).backward()
    found = {"logits": output.logits.detach(), "loss": output.loss.detach()}
    found |= {f"grad.{name}": parameter.grad for name, parameter in model.named_parameters()}
    return {name: tensor.cpu().double() / (scale if name.startswith("grad.") else 1.0) for name, tensor in found.items()}


class ProductsThroughFloat32(TorchDispatchMode):
    """torch's products of bf16 numbers, summed in float32 and rounded once, as its kernels do it on processors that have them."""

    PRODUCTS = {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm}

    def __torch_dispatch__(self, operation, _types, arguments=(), keywords=None):
        keywords = keywords or {}
        if operation.overloadpacket not in self.PRODUCTS or arguments[0].dtype != torch.bfloat16:
            return operation(*arguments, **keywords)
        return operation(*(factor.float() for factor in arguments), **keywords).to(torch.bfloat16)


def has_bf16():
    """Whether torch's products in bf16 are more than a plain loop here, which takes minutes for a model of the published sizes."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def products_in_bf16():
    return nullcontext() if has_bf16() else ProductsThroughFloat32()


def autocast(model, tokens, precision):
    """As [`reference`] in float32, with products in bf16 or fp16 as torch's autocast makes them; in fp16 with a scaled loss."""
    with products_in_bf16(), torch.autocast("cpu", {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]):
        return reference(model, tokens, torch.float32, scale=SCALE if precision == "fp16" else 1.0)


def error(found, expected):
    relative = ((found.double() - expected).norm() / expected.norm()).item()
    return relative if math.isfinite(relative) else math.inf  # NaN is not the largest of anything.


def worst_gradient(found, expected):
    names = [name for name in expected if name.startswith("grad.")]
    return max((error(found[name], expected[name]), name) for name in names)


def ours(binary, directory, tokens, workspace, *options):
    (workspace / "tokens.json").write_text(json.dumps(tokens.tolist()))
    out = workspace / "grads.safetensors"
    command = [binary, "grads", "--model", str(directory), "--tokens", str(workspace / "tokens.json"), "--out", str(out), "--device", DEVICE, *options]
    subprocess.run(command, check=True)
    return load_file(out)


def layouts(model, workspace):
    """The same weights in every form that must load: as transformers saves them, sharded, and as OpenAI published them. Large ones once."""
    single, sharded, bare = workspace / "single", workspace / "sharded", workspace / "bare"
    model.save_pretrained(single)
    if model.config.n_embd * model.config.n_layer > 2000:
        return {"single file": single}
    model.save_pretrained(sharded, max_shard_size="200KB")
    assert (sharded / "model.safetensors.index.json").exists()
    bare.mkdir()
    (bare / "config.json").write_text((single / "config.json").read_text())
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in load_file(single / "model.safetensors").items()}
    tensors |= {f"h.{layer}.attn.bias": torch.ones(1, 1, 8, 8).tril() for layer in range(model.config.n_layer)}
    save_file(tensors, bare / "model.safetensors")
    return {"single file": single, "shards": sharded, "no prefix, mask buffers": bare}


class Report:
    def __init__(self):
        self.failed = False

    def check(self, what, measured, bar):
        verdict = "ok" if measured <= bar else "FAILED"
        self.failed |= verdict != "ok"
        print(f"{verdict:6} {what} on {DEVICE}: {measured:.2e} (bar {bar:.1e})", flush=True)


def compare(binary, name, shape, report):
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        model = build(shape, seed=len(name))
        tokens = torch.randint(shape[4], (shape[5], shape[6]))
        directories = layouts(model, workspace)
        expected = reference(model, tokens, torch.float64)
        del model
        found = ours(binary, directories["single file"], tokens, workspace)
        assert set(found) == set(expected), set(found) ^ set(expected)
        single = GPT2LMHeadModel.from_pretrained(directories["single file"], attn_implementation="eager")
        single = reference(single, tokens, torch.float32, device=DEVICE)
        report.check(f"{name}: logits against float64", error(found["logits"], expected["logits"]), LOGITS_BAR)
        report.check(f"{name}: loss against float64", error(found["loss"], expected["loss"]), LOGITS_BAR)
        measured, which = worst_gradient(found, expected)
        report.check(f"{name}: worst gradient ({which}) against float64", measured, GRADIENT_BAR)
        if DEVICE == "cpu":
            compare_engine(binary, name, directories["single file"], tokens, expected, workspace, report)
        print(f"       transformers in float32 for comparison: logits {error(single['logits'], expected['logits']):.2e}, "
              f"worst gradient {worst_gradient(single, expected)[0]:.2e}; "
              f"ours against it: logits {error(found['logits'], single['logits']):.2e}, gradient {worst_gradient(found, single)[0]:.2e}")
        del single
        for precision in ["bf16", "fp16"] if name in SHAPES else ["bf16"]:
            compare_rounded(precision, binary, name, directories["single file"], tokens, expected, workspace, report)
        for layout in set(directories) - {"single file"} if DEVICE == "cpu" else []:
            again = ours(binary, directories[layout], tokens, workspace)
            worst = max((again[tensor] - found[tensor]).abs().max().item() for tensor in found)
            report.check(f"{name}: the same weights as {layout}", worst, 0.0)


def block_diagonal(tokens, begins, dtype):
    """What tells transformers to stay inside documents: an additive mask [B, 1, T, T] and positions [B, T]."""
    documents = (tokens == begins).cumsum(1)
    places = torch.arange(tokens.shape[1])
    seen = (documents[:, :, None] == documents[:, None, :]) & (places[:, None] >= places[None, :])
    first = (documents[:, :, None] == documents[:, None, :]).to(torch.int64).argmax(2)
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
    return {"attention_mask": mask[:, None], "position_ids": places - first}


def compare_documents(binary, name, shape, report):
    """Documents of every length, from one token on, packed into each row."""
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        model, begins = build(shape, seed=7), 3
        tokens = torch.randint(4, shape[4], (shape[5], shape[6]))
        tokens[torch.rand(tokens.shape) < 0.05] = begins
        tokens[0, 5:9] = begins
        model.save_pretrained(workspace / "model")
        expected = reference(model, tokens, torch.float64, **block_diagonal(tokens, begins, torch.float64))
        plain = reference(model, tokens, torch.float64)
        found = ours(binary, workspace / "model", tokens, workspace, "--document-mask", str(begins))
        assert error(plain["logits"], expected["logits"]) > 0.01, "the mask changes what is computed"
        for what in ["logits", "loss"]:
            report.check(f"{name}, documents: {what} against float64", error(found[what], expected[what]), LOGITS_BAR)
        measured, which = worst_gradient(found, expected)
        report.check(f"{name}, documents: worst gradient ({which}) against float64", measured, GRADIENT_BAR)
        single = GPT2LMHeadModel.from_pretrained(workspace / "model", attn_implementation="eager")
        single = reference(single, tokens, torch.float32, **block_diagonal(tokens, begins, torch.float32))
        print(f"       transformers in float32 for comparison: worst gradient {worst_gradient(single, expected)[0]:.2e}")


def compare_fairseq(binary, name, shape, report):
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        model = build_fairseq(shape, seed=len(name))
        tokens = torch.randint(shape[4], (shape[5], shape[6]))
        model.save_pretrained(workspace / "model")
        torch.set_default_dtype(torch.float64)  # XGLM's attention makes numbers of the default dtype
        expected = reference(model, tokens, torch.float64)
        torch.set_default_dtype(torch.float32)
        single = reference(XGLMForCausalLM.from_pretrained(workspace / "model", attn_implementation="eager"), tokens, torch.float32)
        found = ours(binary, workspace / "model", tokens, workspace)
        assert set(found) == set(expected), set(found) ^ set(expected)
        report.check(f"{name}: logits against float64", error(found["logits"], expected["logits"]), LOGITS_BAR)
        report.check(f"{name}: loss against float64", error(found["loss"], expected["loss"]), LOGITS_BAR)
        # A bias that is added to every key alike moves no attention weight: its gradient is zero but for rounding.
        scale = max(tensor.norm().item() for name, tensor in expected.items() if name.startswith("grad."))
        keys = [name for name in expected if name.endswith("k_proj.bias")]
        report.check(f"{name}: gradient of the keys' biases, which is zero", max(found.pop(key).norm().item() for key in keys) / scale, GRADIENT_BAR)
        for key in keys:
            expected.pop(key)
        measured, which = worst_gradient(found, expected)
        # The final bias adds up what nearly cancels, which transformers in float32 feels too.
        peer = worst_gradient(single, expected)[0]
        report.check(f"{name}: worst gradient ({which}) against float64", measured, max(GRADIENT_BAR, 2 * peer))
        print(f"       transformers in float32 for comparison: logits {error(single['logits'], expected['logits']):.2e}, worst gradient {peer:.2e}")


def compare_engine(binary, name, directory, tokens, expected, workspace, report):
    """libtorch's kernels on the CPU, through the code that a GPU runs."""
    found = ours(binary, directory, tokens, workspace, "--engine", "libtorch")
    what = f"{name}, libtorch's kernels"
    report.check(f"{what}: logits against float64", error(found["logits"], expected["logits"]), LOGITS_BAR)
    measured, which = worst_gradient(found, expected)
    report.check(f"{what}: worst gradient ({which}) against float64", measured, GRADIENT_BAR)


def compare_rounded(precision, binary, name, directory, tokens, expected, workspace, report):
    """Products in bf16 or fp16 may be as far from float64 as transformers under autocast is, and a tenth more."""
    peer = autocast(GPT2LMHeadModel.from_pretrained(directory, attn_implementation="eager"), tokens, precision)
    engines = {"": [], ", libtorch's kernels": ["--engine", "libtorch"]}
    if DEVICE != "cpu":
        engines.pop(", libtorch's kernels")  # It has no others.
    elif name in PUBLISHED and not has_bf16():
        engines.pop(", libtorch's kernels")
        print(f"       {name}: not compared with libtorch's kernels in {precision}, which it does not have for this processor")
    for engine, options in engines.items():
        found = ours(binary, directory, tokens, workspace, f"--{precision}", *options)
        bar = AUTOCAST * error(peer["logits"], expected["logits"])
        report.check(f"{name}{engine}: {precision} logits against float64", error(found["logits"], expected["logits"]), bar)
        bar = AUTOCAST * worst_gradient(peer, expected)[0]
        measured, which = worst_gradient(found, expected)
        report.check(f"{name}{engine}: {precision} worst gradient ({which}) against float64", measured, bar)


def main():
    report = Report()
    for name, shape in (SHAPES | PUBLISHED).items():
        compare(sys.argv[1], name, shape, report)
        # Documents are no other with another width.
        if DEVICE == "cpu" and (name in SHAPES or WHOLE):
            compare_documents(sys.argv[1], name, shape, report)
    for name, shape in FAIRSEQ.items():
        compare_fairseq(sys.argv[1], name, shape, report)
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
