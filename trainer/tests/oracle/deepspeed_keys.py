"""DeepSpeed's configuration against what `ftctl init --from-command` makes of it: keys, defaults, and the rates of schedules.

Usage: [FT_TRAINER=PATH/TO/ft-trainer] python deepspeed_keys.py PATH/TO/ftctl

The keys are those that the installed DeepSpeed asks a configuration for, and the parameters of its optimizers and schedules. ftctl
may translate a key, note it, or refuse it for a reason, and does not say of one that it is not known. Where a key is absent, the
job has what DeepSpeed takes. With a trainer, the rates of translated schedules are DeepSpeed's. Exit code 1 when something differs.
"""

import inspect
import itertools
import json
import logging
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from types import SimpleNamespace

# It looks for devices, and says a line about each that it does not find.
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import numpy
import torch
from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.ops.lamb import FusedLamb
from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion
from deepspeed.runtime import config as configuration
from deepspeed.runtime import lr_schedules
from deepspeed.runtime.config_utils import DeepSpeedConfigModel
from deepspeed.runtime.engine import DeepSpeedEngine
from tokenizer import program

COMMAND = "run_clm.py --train_file a.txt --model_type gpt2 --output_dir out --do_train --deepspeed ds.json"
# None of them is a default of DeepSpeed.
FLAGS = "--learning_rate 3e-4 --adam_beta1 0.8 --adam_beta2 0.95 --adam_epsilon 1e-6 --weight_decay 0.1 --max_grad_norm 2"
OPTIMIZERS = [
    FusedAdam, DeepSpeedCPUAdam, FusedLamb, FusedLion, DeepSpeedCPULion, DeepSpeedCPUAdagrad,
    torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad,
]  # fmt: skip
# A key that stands in a table only to say where the table stands.
MARK = "its place"


class Asked(dict):
    """A table that writes down which keys it is asked for, and the values that are taken without them."""

    def __init__(self, place, seen):
        super().__init__()
        self.place, self.seen = place, seen

    def ask(self, key, default=None):
        if isinstance(key, str) and key != MARK:
            self.seen.setdefault((*self.place, key), default)

    def get(self, key, default=None):
        self.ask(key, default)
        return super().get(key, default)

    def __getitem__(self, key):
        self.ask(key)
        return super().__getitem__(key)

    def __contains__(self, key):
        self.ask(key)
        return super().__contains__(key)

    def keys(self):
        return self


def marked(initialise):
    """The constructor of all of DeepSpeed's models, which adds the fields of a marked one to the keys."""

    def construct(self, strict=False, **values):
        place, seen = values.pop(MARK, (None, None))
        for name, field in type(self).model_fields.items() if seen is not None else ():
            for spelling in {name, field.alias or name}:
                seen.setdefault((*place, spelling), None if field.is_required() else field.get_default(call_default_factory=True))
        initialise(self, strict=strict, **values)

    return construct


def keys_below(place, value=None):
    """What DeepSpeed asks for with one value, or a table, at this place and nothing else."""
    seen = {}
    table = config = Asked((), seen)
    for depth, name in enumerate(place, 1):
        within = Asked(place[:depth], seen)
        table[name] = value if value is not None and depth == len(place) else within
        table = within
    if value is None and place:
        table[MARK] = (place, seen)
    config.setdefault("train_batch_size", 1)
    try:
        configuration.DeepSpeedConfig(config)
    except Exception:  # Most keys are no table, which is found out here.
        pass
    return seen


def keys():
    """All keys, each with its default."""
    DeepSpeedConfigModel.__init__ = marked(DeepSpeedConfigModel.__init__)
    # Of one process that has joined no others.
    configuration.dist = SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda *_: 1)
    found = keys_below(())
    places = list(found)
    while places:
        place = places.pop()
        for below, default in itertools.chain(keys_below(place).items(), keys_below(place, True).items()):
            if below not in found:
                found[below] = default
                places.append(below)
    for scheduler in lr_schedules.VALID_LR_SCHEDULES:
        found |= {("scheduler", "params", name): value for name, value in parameters(getattr(lr_schedules, scheduler)).items()}
    # The engine takes these itself, and gives its own value to the one that is deleted.
    names = [configuration.TORCH_ADAM_PARAM, configuration.ADAM_W_MODE, configuration.MAX_GRAD_NORM, "muon_lr", "adam_lr"]
    names = dict.fromkeys([*names, *DeepSpeedEngine._MUON_HALF_KEYS, *DeepSpeedEngine._ADAM_HALF_KEYS])
    names |= {name: value for optimizer in OPTIMIZERS for name, value in parameters(optimizer).items()}
    del names["adamw_mode"]
    found |= {("optimizer", "params", name): value for name, value in names.items()}
    # What is there to be refused is a key no more.
    gone = {*configuration._REMOVED_TOP_LEVEL_CONFIG_KEYS, *configuration._REMOVED_ZERO_CONFIG_KEYS}
    return {place: default for place, default in found.items() if place[-1] not in gone}


def parameters(function):
    """Of a constructor, each with its default; the first one is what it is made for."""
    return {name: value.default for name, value in list(inspect.signature(function).parameters.items())[1:]}


def given(default):
    """A value of the kind of the default. ftctl passes over what is off, absent or "auto"."""
    if isinstance(default, bool):
        return True
    if isinstance(default, (int, float)):
        return default or 1
    if isinstance(default, (list, tuple)):
        return list(default) or ["x"]
    if isinstance(default, str) and default not in ("", "auto"):
        return default
    return "x" if isinstance(default, str) else 1


def written(found):
    """One configuration with all keys."""
    config = {}
    for place, default in sorted(found.items(), key=lambda key: len(key[0])):
        table = config
        for name in place[:-1]:
            if not isinstance(table.get(name), dict):
                table[name] = {}
            table = table[name]
        table[place[-1]] = given(default)
    return config


def translate(config, folder, flags=FLAGS):
    (Path(folder) / "ds.json").write_text(json.dumps(config), encoding="utf-8")
    arguments = [str(Path(program()).resolve()), "init", "--force", "--out", str(Path(folder) / "job.toml")]
    return subprocess.run([*arguments, "--from-command", f"{COMMAND} {flags}"], cwd=folder, capture_output=True, text=True)


def job(config, folder, flags=FLAGS):
    translated = translate(config, folder, flags)
    assert translated.returncode == 0, f"{config}: {translated.stderr}"
    return tomllib.loads((Path(folder) / "job.toml").read_text(encoding="utf-8"))["train"]


def unknown_keys(found, folder):
    said = translate(written(found), folder).stderr
    assert "cannot be translated" in said, f"nothing was refused, so nothing was asked: {said}"
    return [line for line in said.splitlines() if "does not know this key" in line]


def defaults(folder):
    """By name, what DeepSpeed takes without a key, and the job's value."""
    bare = configuration.DeepSpeedConfig({"train_batch_size": 1})
    yield "gradient_clipping", bare.gradient_clipping, job({}, folder).get("clip_norm", 1.0)
    scaling = job({"fp16": {"enabled": True}}, folder).get("loss_scaling", {})
    fp16 = bare.float16_config
    yield "fp16.initial_scale_power", fp16.initial_dynamic_scale(), scaling.get("initial", 65536.0)
    yield "fp16.loss_scale_window", fp16.loss_scale_window, scaling.get("growth_interval", 1000)
    yield "fp16.hysteresis", fp16.hysteresis, scaling.get("hysteresis", 2)
    yield "fp16.min_loss_scale", fp16.min_loss_scale, scaling.get("minimum", 1.0)
    for kind, torchs, classes in [
        *itertools.product(["Adam", "AdamW"], [{}], [[FusedAdam, DeepSpeedCPUAdam]]),
        *itertools.product(["Adam", "AdamW"], [{"torch_adam": True}], [[torch.optim.AdamW]]),
    ]:
        train = job({"optimizer": {"type": kind, "params": torchs}}, folder)
        for theirs in map(parameters, classes):
            for name, ours in [
                ("lr", train.get("learning_rate")),
                ("betas", tuple(train.get("betas", (0.9, 0.999)))),
                ("eps", train.get("epsilon", 1e-8)),
                ("weight_decay", train.get("weight_decay", 0.01)),
            ]:
                yield f"optimizer.params.{name} of {kind} {torchs or ''}".strip(), theirs[name], ours


def types(folder):
    """By name, the type of the products there and in the job, under all names that DeepSpeed knows it by."""
    ours = {"bf16": torch.bfloat16, "fp16": torch.float16, None: torch.float32}
    for kind in configuration.DtypeEnum:
        for name in kind._all_values[1:] if kind.value in ours.values() else ():
            train = job({"torch_autocast": {"enabled": True, "dtype": name}}, folder)
            yield f"torch_autocast.dtype {name}", configuration.DtypeEnum(name).value, ours.get(train.get("precision"))


def modes(folder):
    """By name, whether the weights decay apart from the gradient, there and in the job, which does nothing else."""
    for kind, mode in itertools.product(["Adam", "AdamW"], [{}, {"adam_w_mode": True}, {"adam_w_mode": False}]):
        params = {"torch_adam": True, "weight_decay": 0.1, **mode}
        engine = SimpleNamespace(optimizer_params=lambda params=params: params, optimizer_name=lambda kind=kind: kind.lower())
        engine.get_optimizer_configuration = DeepSpeedEngine.get_optimizer_configuration.__get__(engine)
        optimizer = DeepSpeedEngine._configure_basic_optimizer(engine, [torch.nn.Parameter(torch.zeros(1))])
        for params in [params, params | {"torch_adam": False}]:
            refused = translate({"optimizer": {"type": kind, "params": params}}, folder).returncode != 0
            yield f"{kind} {params}", isinstance(optimizer, torch.optim.AdamW), not refused


STEPS = 1300
OWN = {"type": "AdamW", "params": {"lr": 2e-3}}
LINEAR = {"warmup_type": "linear"}
# Parameters of schedules, and whether DeepSpeed's rates come one step later than those of the job, which is noted.
SCHEDULES = [
    ("WarmupLR", {}, 0),
    ("WarmupLR", {"warmup_num_steps": 1}, 0),
    ("WarmupLR", {"warmup_max_lr": 1e-4, "warmup_min_lr": 1e-6, "warmup_num_steps": 70}, 0),
    ("WarmupLR", LINEAR | {"warmup_num_steps": 300}, 0),
    ("WarmupLR", LINEAR | {"warmup_min_lr": 1e-4, "warmup_num_steps": 70}, 0),
    ("WarmupDecayLR", LINEAR | {"total_num_steps": STEPS}, 1),
    ("WarmupDecayLR", LINEAR | {"total_num_steps": STEPS, "warmup_num_steps": 1}, 1),
    ("WarmupDecayLR", LINEAR | {"total_num_steps": STEPS, "warmup_max_lr": 1e-4, "warmup_min_lr": 1e-5, "warmup_num_steps": 70}, 1),
]


def rates_of_deepspeed(kind, params):
    """In the order of its engine: the schedule moves after the optimizer."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=OWN["params"]["lr"])
    engine = SimpleNamespace(scheduler_name=lambda: kind, scheduler_params=lambda: params)
    schedule = DeepSpeedEngine._scheduler_from_config(engine, optimizer)
    for _ in range(STEPS):
        yield optimizer.param_groups[0]["lr"]
        optimizer.step()
        schedule.step()


def rates_of_trainer(trainer, kind, params, folder):
    train = job({"optimizer": OWN, "scheduler": {"type": kind, "params": params}}, folder, f"--max_steps {STEPS}")
    file = Path(folder) / "config.json"
    file.write_text(json.dumps({"data": "unused", "output": "unused", "train": train}), encoding="utf-8")
    lines = subprocess.run([trainer, "schedule", file], check=True, capture_output=True, text=True).stdout.splitlines()
    return [json.loads(line)["learning_rate"] for line in lines]


def rates(trainer, folder):
    """By name, how many rates differ in a bit of float32, out of none."""
    for kind, params, later in SCHEDULES:
        theirs = list(rates_of_deepspeed(kind, params))
        ours = rates_of_trainer(trainer, kind, params, folder)
        # What comes later begins twice.
        pairs = zip(ours[:1] * later + ours[: STEPS - later], theirs, strict=True)
        yield f"rates of {kind} {params}", 0, sum(numpy.float32(a) != numpy.float32(b) for a, b in pairs)


def main():
    deepspeed.utils.logger.setLevel(logging.ERROR)
    found = keys()
    with tempfile.TemporaryDirectory() as folder:
        unknown = unknown_keys(found, folder)
        compared = [*defaults(folder), *types(folder), *modes(folder)]
        trainer = os.environ.get("FT_TRAINER")
        compared += rates(trainer, folder) if trainer else []
    differ = [f"{name}: {theirs} there, {ours} here" for name, theirs, ours in compared if theirs != ours]
    for line in unknown + differ:
        print(line)
    verdict = "FAIL" if unknown or differ else "ok"
    asked = "" if trainer else "; without FT_TRAINER no rates"
    print(f"{verdict}: {len(found)} keys and {len(compared)} values of DeepSpeed {deepspeed.__version__}{asked}")
    return 1 if unknown or differ else 0


if __name__ == "__main__":
    sys.exit(main())
