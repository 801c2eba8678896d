"""Low-rank adapters of `ft-trainer` against peft: gradients of A and B, a hundred steps, peft's directories both ways, and the merged weights.

Usage: python lora.py PATH/TO/ft-trainer

One line per check with the measured relative error; exit code 1 when one exceeds its bar.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import peft
import torch
import transformers
from grads import AUTOCAST, GRADIENT_BAR, LOGITS_BAR, SHAPES, Report, build, error, ours, worst_gradient
from safetensors.torch import load_file
from train import ACCUMULATION, BETAS, BLOCK, CLIP, LOSS_BAR, MICRO_BATCH, NORM_BAR, SEED, SHAPE, STEPS, WEIGHT_DECAY
from train import records_of, steps_of, text_like, worst, write_dataset

EVERY_MAP = ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"]
RANK, ALPHA, PEAK = 32, 64, 5e-3
TOKENS = 5_000


def adapted(model, maps):
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=maps, fan_in_fan_out=True, task_type="CAUSAL_LM")
    return peft.get_peft_model(model, config)


def named(model):
    """What is trained, under the names of peft's files."""
    return {name.replace(".default.", "."): weight for name, weight in model.named_parameters() if weight.requires_grad}


def reference(model, tokens):
    model.zero_grad()
    output = model(input_ids=tokens, labels=tokens)
    output.loss.backward()
    found = {"logits": output.logits.detach(), "loss": output.loss.detach()}
    found |= {f"grad.{name}": weight.grad.clone() for name, weight in named(model).items()}
    return {name: tensor.double() for name, tensor in found.items()}


def compare_gradients(binary, name, shape, maps, report):
    """Adapters that peft has written, with a B that is no longer zero."""
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        base = build(shape, seed=len(name))
        base.save_pretrained(workspace / "base")
        tokens = torch.randint(shape[4], (shape[5], shape[6]))
        model = adapted(base, maps)
        with torch.no_grad():
            for name_of, weight in named(model).items():
                if ".lora_B." in name_of:
                    weight.copy_(torch.randn_like(weight) * 0.01)
        model.save_pretrained(workspace / "adapter")
        with torch.autocast("cpu", torch.bfloat16):
            peer = reference(model.float(), tokens)
        expected = reference(model.double(), tokens)
        rounded = {"logits": AUTOCAST * error(peer["logits"], expected["logits"]), "gradient": AUTOCAST * worst_gradient(peer, expected)[0]}
        exact = {"logits": LOGITS_BAR, "gradient": GRADIENT_BAR}
        for how, bars in [([], exact), (["--engine", "libtorch"], exact), (["--bf16"], rounded)]:
            found = ours(binary, workspace / "base", tokens, workspace, "--adapter", str(workspace / "adapter"), *how)
            assert set(found) == set(expected), set(found) ^ set(expected)
            what = " ".join([f"{name}, {len(maps)} adapters a block", *how])
            report.check(f"{what}: logits against float64", error(found["logits"], expected["logits"]), bars["logits"])
            measured, which = worst_gradient(found, expected)
            report.check(f"{what}: worst gradient ({which}) against float64", measured, bars["gradient"])


def train(binary, workspace, name, **more):
    """The step log and the output directory of a run."""
    output = workspace / name
    settings = {
        "seed": SEED, "steps": STEPS, "block_size": BLOCK, "micro_batch": MICRO_BATCH, "gradient_accumulation": ACCUMULATION,
        "learning_rate": PEAK, "schedule": "constant", "betas": BETAS, "weight_decay": WEIGHT_DECAY, "clip_norm": CLIP, "threads": 1,
    }  # fmt: skip
    config = {"data": str(workspace / "data"), "output": str(output), "initial_weights": str(workspace / "base"), "train": settings | more}
    file = workspace / f"{name}.json"
    file.write_text(json.dumps(config))
    subprocess.run([binary, "train", str(file)], check=True, stdout=subprocess.DEVNULL)
    return records_of(output), output


def compare_training(binary, workspace, tokens, maps, report):
    """A hundred steps against float64; the output directory and the reference's model."""
    lora = {"rank": RANK, "alpha": ALPHA, "target_modules": maps}
    # The gradient of A is zero while B is, so that without weight decay the first step leaves A as it began.
    _, first = train(binary, workspace, f"first-{len(maps)}", steps=1, weight_decay=0.0, lora=lora)
    initial = load_file(first / "adapter" / "adapter_model.safetensors")
    found, output = train(binary, workspace, f"run-{len(maps)}", lora=lora)
    base = transformers.GPT2LMHeadModel.from_pretrained(workspace / "base", attn_implementation="eager")
    model = adapted(base, maps).double()
    with torch.no_grad():
        for name, weight in named(model).items():
            weight.copy_(initial[name] if ".lora_A." in name else torch.zeros_like(weight))
    optimizer = torch.optim.AdamW(named(model).values(), lr=PEAK, betas=BETAS, eps=1e-8, weight_decay=WEIGHT_DECAY)
    expected = list(steps_of(model, tokens, [optimizer]))
    print(f"       adapters of {', '.join(maps)}: loss {expected[0]['loss']:.3f} → {expected[-1]['loss']:.3f}")
    assert expected[0]["loss"] - expected[-1]["loss"] > 0.15, "the comparison needs a run that learns"
    report.check(f"{len(maps)} adapters a block: loss, worst of {STEPS} steps", worst(found, expected, "loss"), LOSS_BAR)
    # Softmax cancels most of what a key's adapter does. The gradient of that is rounding error, and Adam makes full steps of it:
    # peft in float32 is as far from peft in float64.
    if "attn.c_attn" not in maps:
        report.check(f"{len(maps)} adapters a block: gradient norm", worst(found, expected, "gradient_norm"), NORM_BAR)
    return output, model


def compare_files(binary, workspace, output, model, tokens, report):
    """peft loads the adapter, transformers the checkpoint, and both are the model that was trained."""
    adapter, trained = load_file(output / "adapter" / "adapter_model.safetensors"), named(model)
    assert set(adapter) == set(trained), set(adapter) ^ set(trained)
    window = torch.tensor(tokens[: 3 * BLOCK]).view(3, BLOCK)
    base = transformers.GPT2LMHeadModel.from_pretrained(workspace / "base", attn_implementation="eager")
    loaded = peft.PeftModel.from_pretrained(base, output / "adapter").double().eval()
    expected = loaded(input_ids=window).logits.detach()
    checkpoint = output / "checkpoints" / json.loads((output / "summary.json").read_text())["checkpoint"]
    merged = transformers.GPT2LMHeadModel.from_pretrained(checkpoint, attn_implementation="eager").double()
    report.check("merged weights in transformers: logits", error(merged(input_ids=window).logits.detach(), expected), LOGITS_BAR)
    report.check("merged weights in the trainer: logits", error(ours(binary, checkpoint, window, workspace)["logits"], expected), LOGITS_BAR)
    theirs = loaded.merge_and_unload().state_dict()
    measured = max(error(tensor, theirs[name]) for name, tensor in merged.state_dict().items())
    report.check("merged weights against peft's", measured, torch.finfo(torch.float32).eps)
    still = load_file(workspace / "base" / "model.safetensors")
    moved = [name for name, tensor in load_file(checkpoint / "model.safetensors").items() if not torch.equal(tensor, still[name])]
    report.check("weights without an adapter that moved", float(sum(not name.endswith(tuple(f"{m}.weight" for m in EVERY_MAP)) for name in moved)), 0)


def main():
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    report = Report()
    for name, shape in SHAPES.items():
        for maps in ["attn.c_attn"], EVERY_MAP:
            compare_gradients(sys.argv[1], name, shape, maps, report)
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        tokens = text_like(TOKENS)
        write_dataset(workspace / "data", tokens)
        build(SHAPE, SEED).save_pretrained(workspace / "base")
        compare_training(sys.argv[1], workspace, tokens, EVERY_MAP[1:], report)
        output, model = compare_training(sys.argv[1], workspace, tokens, EVERY_MAP, report)
        compare_files(sys.argv[1], workspace, output, model, tokens, report)
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
