"""Every flag of `transformers.TrainingArguments` against what `ftctl init --from-command` knows, and its defaults against the job's.

Usage: python flags.py [PATH/TO/ftctl]

One command of run_clm.py has every field of the installed class as a flag. ftctl may translate a flag, note it, or refuse it for a
reason, and does not say of one that it is not known. The job of a command without flags has the defaults of the class.
Exit code 1 when a flag is not known or a default differs.
"""

import dataclasses
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from tokenizer import program
from transformers import TrainingArguments
from transformers import __version__ as version

BARE = "run_clm.py --train_file a.txt --model_type gpt2 --output_dir out"

# The key of a job for a field; a job that does not name a key has what stands beside it.
DEFAULTS = {
    "num_train_epochs": ("epochs", None),
    "per_device_train_batch_size": ("micro_batch", 1),
    "gradient_accumulation_steps": ("gradient_accumulation", 1),
    "learning_rate": ("learning_rate", 5e-5),
    "lr_scheduler_type": ("schedule", "cosine"),
    "warmup_steps": ("warmup_steps", 0),
    "weight_decay": ("weight_decay", 0.01),
    "adam_beta1": (("betas", 0), 0.9),
    "adam_beta2": (("betas", 1), 0.999),
    "adam_epsilon": ("epsilon", 1e-8),
    "max_grad_norm": ("clip_norm", 1.0),
    "seed": ("seed", 42),
    "logging_steps": ("log_every", 10),
    "save_steps": ("checkpoint_every", 0),
}


def translate(command, folder):
    # Its path may begin where this script was started.
    arguments = [str(Path(program()).resolve()), "init", "--force", "--out", str(Path(folder) / "job.toml"), "--from-command", command]
    return subprocess.run(arguments, cwd=folder, capture_output=True, text=True)


def word(field):
    """A flag of the command line with a value of its type."""
    if field.type is bool or field.default in (True, False):
        return f"--{field.name}"
    given = field.default if isinstance(field.default, (int, float)) else "x"
    return f"--{field.name} {given}"


def job(folder):
    translated = translate(BARE, folder)
    assert translated.returncode == 0, translated.stderr
    return tomllib.loads((Path(folder) / "job.toml").read_text(encoding="utf-8"))["train"]


def default(train, key, usual):
    name, place = key if isinstance(key, tuple) else (key, None)
    value = train.get(name)
    if value is None:
        return usual
    return value if place is None else value[place]


def main():
    fields = [field for field in dataclasses.fields(TrainingArguments) if field.init]
    with tempfile.TemporaryDirectory() as folder:
        said = translate(" ".join([BARE, *map(word, fields)]), folder).stderr
        train = job(folder)
    unknown = [line for line in said.splitlines() if "not known here" in line and line.lstrip("error: ").startswith("--")]
    if "cannot be translated" not in said:
        unknown.append(f"nothing was refused, so nothing was asked: {said}")
    by_name = {field.name: field.default for field in fields}
    differ = []
    for name, (key, usual) in DEFAULTS.items():
        ours, theirs = default(train, key, usual), by_name[name]
        theirs = getattr(theirs, "value", theirs)
        if ours != theirs:
            differ.append(f"{name}: {theirs} there, {ours} in the job")
    for line in unknown + differ:
        print(line)
    verdict = "FAIL" if unknown or differ else "ok"
    print(f"{verdict}: {len(fields)} flags and {len(DEFAULTS)} defaults of transformers {version}")
    return 1 if unknown or differ else 0


if __name__ == "__main__":
    sys.exit(main())
