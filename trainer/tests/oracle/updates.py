"""The optimizers and schedules of `ft-trainer` against torch, transformers and DeepSpeed's formulas, on the same gradients.

Usage: python updates.py PATH/TO/ft-trainer

Every optimizer gets the same random gradients, among them one that is all zeros and one that holds an infinity, at which the update is
skipped as torch's GradScaler does, and the schedule with it. One line per check with the measured error; exit code 1 when one exceeds its bar.

DeepSpeed itself joins where it can be imported (benches/adamw.py says how): its CPUAdam, which it compiles, and its WarmupLR. Without it
WarmupLR is its formula in Python.
"""

import json
import math
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import torch
import transformers
from grads import Report, build, error, products_in_bf16
from safetensors.torch import load_file, save_file
from transformers.optimization import Adafactor

try:
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    from deepspeed.runtime.lr_schedules import WarmupLR
except ImportError:
    DeepSpeedCPUAdam = WarmupLR = None

BAR = 1e-6
STEPS = 8
ZERO, INFINITE = 2, 4
PEAK, WEIGHT_DECAY, BETAS, EPSILON = 3e-3, 0.1, (0.9, 0.95), 1e-8
# layers, heads, width, context, vocabulary
SHAPE = (2, 2, 64, 48, 301, None, None)


def gradients(model):
    """By step and name. Some are as small as epsilon, where it matters what epsilon is added to."""
    generator = torch.Generator().manual_seed(5)
    for step in range(STEPS):
        scale = 0.0 if step == ZERO else 10.0 ** (-2 - step)
        drawn = {name: torch.randn(weight.shape, generator=generator) * scale for name, weight in model.named_parameters()}
        if step == INFINITE:
            drawn["transformer.h.1.mlp.c_fc.bias"][3] = math.inf
        yield drawn


def groups(model, decays):
    parts = {True: [], False: []}
    for name, weight in model.named_parameters():
        parts[decays(name, weight)].append(weight)
    return [{"params": parts[True], "weight_decay": WEIGHT_DECAY}, {"params": parts[False], "weight_decay": 0.0}]


def is_matrix(_, weight):
    return weight.dim() >= 2


def adamw(model, decays=is_matrix, peak=PEAK):
    return [torch.optim.AdamW(groups(model, decays), lr=peak, betas=BETAS, eps=EPSILON)]


def adafactor(model, peak=PEAK):
    return [Adafactor(groups(model, is_matrix), lr=peak, scale_parameter=False, relative_step=False)]


def muon(model, peak=PEAK):
    hidden = [weight for name, weight in model.named_parameters() if weight.dim() == 2 and ".h." in name]
    rest = [weight for weight in model.parameters() if all(weight is not other for other in hidden)]
    decayed = [{"params": part, "weight_decay": decay} for part, decay in
               (([w for w in rest if w.dim() == 2], WEIGHT_DECAY), ([w for w in rest if w.dim() < 2], 0.0))]  # fmt: skip
    return [
        torch.optim.Muon(hidden, lr=peak, weight_decay=WEIGHT_DECAY, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(decayed, lr=peak, betas=BETAS, eps=EPSILON),
    ]


def adamw_under_a_schedule(model):
    """What Trainer of transformers steps together, and not where the scaler skipped the optimizer."""
    optimizers = adamw(model)
    return [*optimizers, transformers.get_cosine_schedule_with_warmup(optimizers[0], 3, STEPS)]


def cpu_adam(model):
    return [DeepSpeedCPUAdam(groups(model, is_matrix), lr=PEAK, betas=BETAS, eps=EPSILON, adamw_mode=True)]


class UncorrectedEpsilon(torch.optim.Optimizer):
    """The formula of transformers' AdamW of 2020 and of fairseq's Adam: epsilon beside the uncorrected root."""

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                step = state["step"] = state.get("step", 0) + 1
                first = state.setdefault("first", torch.zeros_like(weight)).mul_(BETAS[0]).add_(weight.grad, alpha=1 - BETAS[0])
                second = state.setdefault("second", torch.zeros_like(weight)).mul_(BETAS[1])
                second.addcmul_(weight.grad, weight.grad, value=1 - BETAS[1])
                size = PEAK * math.sqrt(1 - BETAS[1] ** step) / (1 - BETAS[0] ** step)
                weight.mul_(1 - PEAK * group["weight_decay"]).addcdiv_(first, second.sqrt().add_(EPSILON), value=-size)


def uncorrected(model, decays=is_matrix):
    return [UncorrectedEpsilon(groups(model, decays))]


CASES = {
    "adamw against torch": ({}, adamw),
    "adamw under a schedule": ({"schedule": "cosine", "warmup_steps": 3}, adamw_under_a_schedule),
    "adamw, everything decays": ({"weight_decay_on": "all"}, lambda model: adamw(model, lambda *_: True)),
    "adamw as transformers in 2020": (
        {"compat": "transformers-2020"},
        lambda model: uncorrected(model, lambda name, _: not any(part in name for part in ["bias", "LayerNorm.weight"])),
    ),
    "adamw as fairseq": ({"compat": "fairseq", "weight_decay_on": "all"}, lambda model: uncorrected(model, lambda *_: True)),
    "adafactor against transformers": ({"optimizer": "adafactor"}, adafactor),
    "muon against torch": ({"optimizer": "muon"}, muon),
}
if DeepSpeedCPUAdam:
    CASES["adamw against DeepSpeed's CPUAdam"] = ({}, cpu_adam)


def configuration(workspace, train):
    file = workspace / "config.json"
    file.write_text(json.dumps({"data": "unused", "output": "unused", "train": train}))
    return str(file)


def ours(binary, workspace, settings):
    train = {
        "steps": STEPS, "schedule": "constant", "learning_rate": PEAK, "betas": BETAS, "epsilon": EPSILON,
        "weight_decay": WEIGHT_DECAY, "clip_norm": 0.0, **settings,
    }  # fmt: skip
    out = workspace / "after.safetensors"
    command = [binary, "updates", "--model", workspace / "initial", "--gradients", workspace / "gradients",
               "--config", configuration(workspace, train), "--out", out]  # fmt: skip
    subprocess.run([str(word) for word in command], check=True)
    return load_file(out)


def expected(workspace, optimizers):
    model = transformers.GPT2LMHeadModel.from_pretrained(workspace / "initial")
    optimizers = optimizers(model)
    for drawn in gradients(model):
        if not all(torch.isfinite(gradient).all() for gradient in drawn.values()):
            continue
        for name, weight in model.named_parameters():
            weight.grad = drawn[name].clone()
        # Muon's are the only ones.
        with products_in_bf16():
            for optimizer in optimizers:
                optimizer.step()
    return {name: weight.detach() for name, weight in model.named_parameters()}


def optimizers(binary, workspace, report):
    model = build(SHAPE, 3)
    model.save_pretrained(workspace / "initial")
    (workspace / "gradients").mkdir()
    for step, drawn in enumerate(gradients(model)):
        save_file(drawn, workspace / "gradients" / f"{step}.safetensors")
    for name, (settings, reference) in CASES.items():
        found, wanted = ours(binary, workspace, settings), expected(workspace, reference)
        measured, which = max((error(found[key], wanted[key].double()), key) for key in wanted)
        moved = min(error(dict(model.named_parameters())[key].detach(), wanted[key].double()) for key in wanted)
        assert moved > 1e-4, f"{name}: the weights must move"
        report.check(f"{name}: weights after {STEPS} steps ({which})", measured, BAR)


def warmup_lr(start, peak, warmup, steps, kind):
    """Where it starts before the first `step()` of the schedule, which follows the optimizer's."""
    if WarmupLR:
        return rates_of(
            lambda o: WarmupLR(o, warmup_min_lr=start, warmup_max_lr=peak, warmup_num_steps=warmup, warmup_type=kind), peak, steps
        )
    return warmup_lr_formula(start, peak, warmup, steps, kind)


def warmup_lr_formula(start, peak, warmup, steps, kind):
    """`WarmupLR` of DeepSpeed 0.19.8, `runtime/lr_schedules.py`."""
    warmup = max(2, warmup)
    for iteration in range(-1, steps - 1):
        gamma = 1.0
        if 0 <= iteration < warmup:
            gamma = iteration / warmup if kind == "linear" else (1.0 / math.log(warmup)) * math.log(iteration + 1)
        yield start if iteration < 0 else start + (peak - start) * gamma


def fairseq_cosine(peak, start, warmup, steps):
    """fairseq's `CosineLRSchedule` with one period from the end of the warm-up to the last update."""
    rise = (peak - start) / warmup
    for done in range(steps):
        if done < warmup:
            yield start + done * rise
        else:
            yield 0.0 + 0.5 * (peak - 0.0) * (1 + math.cos(math.pi * (done - warmup) / (steps - warmup)))


def rates_of(make, peak, steps):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=peak)
    schedule = make(optimizer)
    for _ in range(steps):
        yield schedule.get_last_lr()[0]
        optimizer.step()
        schedule.step()


def schedules(binary, workspace, report):
    draw = random.Random(4)
    different = {}
    for _ in range(6):
        steps, peak = draw.randrange(150, 900), 10 ** draw.uniform(-5, -1)
        warmup, floor, power, decay = draw.randrange(2, 90), peak * draw.uniform(0.01, 0.5), draw.uniform(0.5, 3.0), draw.randrange(5, 50)
        named = {
            "constant": ({}, rates_of(lambda o: transformers.get_constant_schedule_with_warmup(o, warmup), peak, steps)),
            "linear": ({}, rates_of(lambda o: transformers.get_linear_schedule_with_warmup(o, warmup, steps), peak, steps)),
            "cosine": (
                {"min_learning_rate": floor},
                rates_of(lambda o: transformers.get_cosine_with_min_lr_schedule_with_warmup(o, warmup, steps, min_lr=floor), peak, steps),
            ),
            "polynomial": (
                {"min_learning_rate": floor, "power": power},
                rates_of(
                    lambda o: transformers.get_polynomial_decay_schedule_with_warmup(o, warmup, steps, lr_end=floor, power=power), peak, steps
                ),
            ),
            "wsd": (
                {"min_learning_rate": floor, "decay_steps": decay},
                rates_of(
                    lambda o: transformers.get_wsd_schedule(
                        o, warmup, decay, num_training_steps=steps, decay_type="linear", min_lr_ratio=floor / peak
                    ), peak, steps,
                ),
            ),
            "warmup-lr": ({}, warmup_lr(0.0, peak, warmup, steps, "log")),
            "warmup-lr above zero": (
                {"schedule": "warmup-lr", "warmup_learning_rate": floor}, warmup_lr(floor, peak, warmup, steps, "log")
            ),
            "warmup-lr-linear": ({"warmup_learning_rate": floor}, warmup_lr(floor, peak, warmup, steps, "linear")),
            "cosine of fairseq": ({"schedule": "cosine", "warmup_learning_rate": 1e-7}, fairseq_cosine(peak, 1e-7, warmup, steps)),
        }  # fmt: skip
        for name, (settings, wanted) in named.items():
            train = {"schedule": name, "steps": steps, "learning_rate": peak, "warmup_steps": warmup, **settings}
            command = [binary, "schedule", configuration(workspace, train)]
            lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
            found = [json.loads(line)["learning_rate"] for line in lines]
            pairs = zip(found, wanted, strict=True)
            different[name] = different.get(name, 0) + sum(numpy.float32(a) != numpy.float32(b) for a, b in pairs)
    for name, count in different.items():
        report.check(f"schedule {name}: learning rates that differ in a bit of float32", float(count), 0.0)


def main():
    transformers.utils.logging.set_verbosity_error()
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        optimizers(sys.argv[1], Path(folder), report)
        schedules(sys.argv[1], Path(folder), report)
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
