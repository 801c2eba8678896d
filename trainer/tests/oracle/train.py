"""Fifty training steps of `ft-trainer train` against transformers, clipping, each schedule and each optimizer, in float64.

Usage: [FT_WHOLE=1] python train.py PATH/TO/ft-trainer

With `FT_WHOLE=1` there are one hundred steps.

The order of the data is computed here a second time, from its description. One line per check with the measured relative
error; exit code 1 when one exceeds its bar.
"""

import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy
import torch
import transformers
from grads import Report, build, error, products_in_bf16
from safetensors.torch import load_file
from updates import BETAS, WEIGHT_DECAY, adafactor, adamw, muon

LOSS_BAR = 1e-5
NORM_BAR = 1e-5
RATE_BAR = 1e-12
WEIGHTS_BAR = 1e-5
LOGITS_BAR = 1e-6
# Of one step: the loss before it and the weights after it, and the norm of the gradients.
STEP_BAR = 1e-6
STEP_NORM_BAR = 2e-6

STEPS = 100 if os.environ.get("FT_WHOLE") else 50
WARMUP = 10
BLOCK = 48
MICRO_BATCH = 3
ACCUMULATION = 2
TOKENS = 5_000
SEED = 7
# layers, heads, width, context, vocabulary
SHAPE = (2, 2, 64, 64, 512, None, None)
LARGER = (4, 4, 128, 64, 512, None, None)

PEAK = 2e-3
FLOOR = 2e-4
POWER = 2.0
DECAY = 30
CLIP = 1.0

SCHEDULES = {
    "constant": lambda o: transformers.get_constant_schedule_with_warmup(o, WARMUP),
    "linear": lambda o: transformers.get_linear_schedule_with_warmup(o, WARMUP, STEPS),
    "cosine": lambda o: transformers.get_cosine_with_min_lr_schedule_with_warmup(o, WARMUP, STEPS, min_lr=FLOOR),
    "polynomial": lambda o: transformers.get_polynomial_decay_schedule_with_warmup(o, WARMUP, STEPS, lr_end=FLOOR, power=POWER),
    "wsd": lambda o: transformers.get_wsd_schedule(
        o, num_warmup_steps=WARMUP, num_decay_steps=DECAY, num_training_steps=STEPS, decay_type="linear", min_lr_ratio=FLOOR / PEAK
    ),
}
# Schedules of transformers that always end at zero or never fall.
WITHOUT_FLOOR = {"linear", "constant"}


class Curve(NamedTuple):
    """A run of both sides; `rounded` are the weights that an update makes rounding errors of the gradient large in, which may be `peer` times as far
    away from float64 as transformers in float32 is, on the average of all steps."""

    schedule: str
    settings: dict = {}
    initial: str = "initial"
    optimizers: Callable = adamw
    rounded: str = ""
    peer: float = 0.0


# Adafactor clips the biases of queries, keys and values by one root mean square, in which those of the keys count: rounding errors
# made as large as the others. (The second moments that both sides go by are those of our rounding errors.) Muon rounds to bf16 at
# every product, where gradients that differ in their last digits come to differ in the first. So rounding errors grow from step to
# step, in transformers as here, and each step is compared by itself.
ONE_AT_A_TIME = {"micro_batch": 1, "gradient_accumulation": MICRO_BATCH * ACCUMULATION}
CURVES = {name: Curve(name) for name in SCHEDULES} | {
    "4x128": Curve("cosine", ONE_AT_A_TIME, "larger"),
    "4x128, Adafactor": Curve("cosine", ONE_AT_A_TIME | {"optimizer": "adafactor"}, "larger", adafactor, r"attn\.c_attn\.bias", 2.5),
    "4x128, Muon": Curve("cosine", ONE_AT_A_TIME | {"optimizer": "muon"}, "larger", muon, r"c_\w+\.weight", 1.25),
}

MASK = (1 << 64) - 1


def mix(word):
    """SplitMix64."""
    word = (word + 0x9E3779B97F4A7C15) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def bits(*place):
    state = 0
    for coordinate in place:
        state = mix(state ^ mix(coordinate))
    return state


def block(sequence, blocks):
    """Six Feistel rounds on the smallest power of four that holds the number of blocks, again until inside."""
    epoch, image = divmod(sequence, blocks)
    half = max(1, -(-(blocks - 1).bit_length() // 2))
    mask = (1 << half) - 1
    while True:
        left, right = image >> half, image & mask
        for number in range(6):
            left, right = right, left ^ (bits(SEED, epoch, number, right) & mask)
        image = left << half | right
        if image < blocks:
            return image


def write_dataset(directory, tokens, vocabulary=SHAPE[4]):
    """A dataset in the trainer's stored form; training reads no tokenizer."""
    header = b"FTTOKENS" + (1).to_bytes(4, "little") + (2).to_bytes(4, "little") + len(tokens).to_bytes(8, "little")
    directory.mkdir()
    (directory / "train-0000.tokens").write_bytes(header.ljust(64, b"\0") + tokens.astype("<u2").tobytes())
    shard = {"file": "train-0000.tokens", "tokens": len(tokens), "sha256": ""}
    empty = {"tokens": 0, "documents": 0, "bytes": 0, "shards": []}
    description = {
        "schema": "ft.dataset/1",
        "tokenizer": {"kind": "train", "files": []},
        "vocabulary": vocabulary,
        "end_of_text": 0,
        "dtype": "u16",
        "train": {"tokens": len(tokens), "documents": 1, "bytes": 0, "shards": [shard]},
        "validation": empty,
    }
    (directory / "dataset.json").write_text(json.dumps(description))


def text_like(count):
    """Tokens that can be learnt: each follows from the one before it more often than not."""
    generator = numpy.random.default_rng(SEED)
    follows = generator.permutation(SHAPE[4])
    tokens = numpy.zeros(count, dtype=numpy.int64)
    for place in range(1, count):
        tokens[place] = follows[tokens[place - 1]] if generator.random() < 0.7 else generator.integers(SHAPE[4])
    return tokens


def ours(binary, workspace, name, curve):
    floor = 0.0 if curve.schedule in WITHOUT_FLOOR else FLOOR
    output = workspace / f"run-{name}"
    settings = {
        "seed": SEED, "steps": STEPS, "block_size": BLOCK, "micro_batch": MICRO_BATCH, "gradient_accumulation": ACCUMULATION,
        "learning_rate": PEAK, "min_learning_rate": floor, "schedule": curve.schedule, "power": POWER,
        "warmup_steps": WARMUP, "betas": BETAS, "weight_decay": WEIGHT_DECAY, "clip_norm": CLIP, "threads": 1, **curve.settings,
    }  # fmt: skip
    if curve.schedule == "wsd":
        settings["decay_steps"] = DECAY
    if curve.rounded:
        settings |= {"checkpoint_every": 1, "keep_checkpoints": STEPS}
    config = {"data": str(workspace / "data"), "output": str(output), "initial_weights": str(workspace / curve.initial), "train": settings}
    file = workspace / f"{name}.json"
    file.write_text(json.dumps(config))
    subprocess.run([binary, "train", str(file)], check=True, stdout=subprocess.DEVNULL)
    summary = json.loads((output / "summary.json").read_text())
    return records_of(output), output / "checkpoints" / summary["checkpoint"]


def records_of(output):
    """The steps of a run's log."""
    records = [json.loads(line) for line in (output / "steps.jsonl").read_text().splitlines()]
    return [record for record in records if "loss" in record]


def beginning(workspace, curve, dtype=torch.float64):
    """The model, its optimizers and their schedules before the first step."""
    model = transformers.GPT2LMHeadModel.from_pretrained(workspace / curve.initial, attn_implementation="eager").to(dtype)
    optimizers = curve.optimizers(model, peak=PEAK)
    return model, optimizers, [SCHEDULES[curve.schedule](optimizer) for optimizer in optimizers]


def steps_of(model, tokens, optimizers, schedulers=()):
    """What the log of the same run would say, step by step."""
    return [one_step(model, tokens, optimizers, schedulers, step) for step in range(STEPS)]


def one_step(model, tokens, optimizers, schedulers, step):
    """What the log says of it."""
    blocks = (len(tokens) - 1) // BLOCK
    batch = MICRO_BATCH * ACCUMULATION
    starts = [BLOCK * block(step * batch + row, blocks) for row in range(batch)]
    window = torch.tensor(numpy.stack([tokens[start : start + BLOCK + 1] for start in starts]))
    logits = model(input_ids=window[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
    model.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    rate = optimizers[0].param_groups[0]["lr"]
    # Muon's are the only ones.
    with products_in_bf16():
        for optimizer in optimizers:
            optimizer.step()
    for scheduler in schedulers:
        scheduler.step()
    return {"loss": loss.item(), "gradient_norm": norm.item(), "learning_rate": rate}


def settled(tensor, name):
    """Without the biases of the keys: softmax cancels them, their gradient is rounding error, and Adam makes full steps of it."""
    return torch.cat(tensor.chunk(3)[::2]) if name.endswith("attn.c_attn.bias") else tensor


def worst(found, expected, key):
    errors = [abs(f[key] - e[key]) / max(abs(e[key]), 1e-30) for f, e in zip(found, expected, strict=True)]
    return max(errors) if all(map(math.isfinite, errors)) else math.inf


def compare(binary, workspace, tokens, name, report):
    found, checkpoint = ours(binary, workspace, name, CURVES[name])
    check = step_by_step if CURVES[name].rounded else all_steps
    expected = check(workspace, tokens, name, found, checkpoint, report)
    fell = expected[0]["loss"] - expected[-1]["loss"]
    clipped = sum(record["gradient_norm"] > CLIP for record in expected)
    print(f"       {name}: loss {expected[0]['loss']:.3f} → {expected[-1]['loss']:.3f}, {clipped} of {STEPS} steps clipped")
    assert fell > 0.5 and 0 < clipped, "the comparison needs a run that learns and is clipped"
    report.check(f"{name}: learning rate", worst(found, expected, "learning_rate"), RATE_BAR)
    return checkpoint


def all_steps(workspace, tokens, name, found, checkpoint, report):
    """One run beside the other; what the log of the reference says."""
    model, optimizers, schedulers = beginning(workspace, CURVES[name])
    expected = steps_of(model, tokens, optimizers, schedulers)
    report.check(f"{name}: loss, worst of {STEPS} steps", worst(found, expected, "loss"), LOSS_BAR)
    report.check(f"{name}: gradient norm, worst of {STEPS} steps", worst(found, expected, "gradient_norm"), NORM_BAR)
    measured, which = max((error, which) for which, error in distances(load_file(checkpoint / "model.safetensors"), model).items())
    report.check(f"{name}: weights after the last step ({which})", measured, WEIGHTS_BAR)
    return expected


def step_by_step(workspace, tokens, name, found, checkpoint, report):
    """Each step from where ours stood before it; what the logs of such steps say."""
    curve, expected, exactly, roughly = CURVES[name], [], [], []
    sides = exact, peer = [beginning(workspace, curve, dtype) for dtype in (torch.float64, torch.float32)]
    for step in range(STEPS):
        for model, optimizers, _ in sides if step else ():
            stand_at(before, model, optimizers, step)
        said, _ = (one_step(model, tokens, optimizers, schedulers, step) for model, optimizers, schedulers in sides)
        expected.append(said)
        before = checkpoint.parent / f"step-{step + 1:010}"
        errors, peers = distances(load_file(before / "model.safetensors"), exact[0]), distances(dict(peer[0].named_parameters()), exact[0])
        exactly += [(error, which) for which, error in errors.items() if not re.search(curve.rounded, which)]
        roughly += [(errors[which], peers[which]) for which in errors if re.search(curve.rounded, which)]
    alone = f"each of {STEPS} steps by itself"
    report.check(f"{name}: loss, {alone}", worst(found, expected, "loss"), STEP_BAR)
    report.check(f"{name}: gradient norm, {alone}", worst(found, expected, "gradient_norm"), STEP_NORM_BAR)
    report.check(f"{name}: weights, {alone} ({max(exactly)[1]})", max(exactly)[0], STEP_BAR)
    ours, peers = (sum(side) / len(roughly) for side in zip(*roughly, strict=True))
    report.check(f"{name}: weights that rounding errors are made large in, {alone}", ours, curve.peer * peers)
    return expected


def stand_at(checkpoint, model, optimizers, step):
    """Takes over weights and what the optimizers remember."""
    weights, remembered = load_file(checkpoint / "model.safetensors"), load_file(checkpoint / "optimizer.safetensors")
    names = {weight: name for name, weight in model.named_parameters()}
    for name, weight in model.named_parameters():
        weight.data.copy_(weights[name])
    for optimizer in optimizers:
        for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
            ours = {key.removesuffix(f".{names[weight]}"): tensor for key, tensor in remembered.items() if key.endswith(f".{names[weight]}")}
            state = {"momentum_buffer" if what == "momentum" else what: tensor.to(weight.dtype) for what, tensor in ours.items()}
            optimizer.state[weight] = {"step": torch.tensor(float(step)), **state}


def distances(weights, model):
    """The error of each tensor."""
    named = dict(model.named_parameters())
    assert set(weights) == set(named), set(weights) ^ set(named)
    return {key: error(settled(weights[key].detach(), key), settled(named[key].data, key)) for key in named}


def drawn_by_tensorboard(output, report):
    """TensorBoard's own reader finds the numbers of the step log, each step once."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # the benchmarks do without

    accumulator = EventAccumulator(str(output / "tensorboard"))
    accumulator.Reload()
    records = [json.loads(line) for line in (output / "steps.jsonl").read_text().splitlines()]
    for key in ("loss", "learning_rate", "gradient_norm"):
        found = [(event.step, numpy.float32(event.value)) for event in accumulator.Scalars(f"train/{key}")]
        expected = [(record["step"], numpy.float32(record[key])) for record in records if key in record]
        report.check(f"TensorBoard: points of {key} that differ", float(sum(f != e for f, e in zip(found, expected, strict=True))), 0.0)


def loads_in_transformers(binary, checkpoint, workspace, report):
    """The checkpoint is a model directory as it is: nothing missing, nothing left over, the same bits, the same logits."""
    model, info = transformers.GPT2LMHeadModel.from_pretrained(checkpoint, output_loading_info=True, attn_implementation="eager")
    leftovers = sum(len(info[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    report.check("checkpoint in transformers: keys missing or left over", leftovers, 0)
    stored = load_file(checkpoint / "model.safetensors")
    different = sum(not torch.equal(tensor, model.state_dict()[key]) for key, tensor in stored.items())
    report.check("checkpoint in transformers: tensors that differ in any bit", different, 0)
    window = torch.randint(SHAPE[4], (3, BLOCK))
    (workspace / "tokens.json").write_text(json.dumps(window.tolist()))
    out = workspace / "grads.safetensors"
    command = [binary, "grads", "--model", checkpoint, "--tokens", workspace / "tokens.json", "--out", out]
    subprocess.run([str(word) for word in command], check=True)
    expected = model.double()(input_ids=window).logits.detach()
    report.check("checkpoint in transformers: logits", error(load_file(out)["logits"], expected), LOGITS_BAR)


def main():
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        tokens = text_like(TOKENS)
        write_dataset(workspace / "data", tokens)
        build(SHAPE, SEED).save_pretrained(workspace / "initial")
        build(LARGER, SEED).save_pretrained(workspace / "larger")
        for name in CURVES:
            checkpoint = compare(sys.argv[1], workspace, tokens, name, report)
        drawn_by_tensorboard(checkpoint.parent.parent, report)
        loads_in_transformers(sys.argv[1], checkpoint, workspace, report)
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
