"""Fifty steps of two processes of `ft-trainer` beside two of transformers' Trainer, both under torchrun over Gloo, on the same data.

Usage: python trainer_of_two.py PATH/TO/ft-trainer

GPT-2 in float32 with AdamW, a linear schedule, accumulation and clipping; one line with the largest relative error of the fifty losses; exit code 1
when it exceeds its bar.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from grads import Report, build
from train import ACCUMULATION, BETAS, BLOCK, CLIP, LARGER, MICRO_BATCH, PEAK, SEED, TOKENS, WARMUP, WEIGHT_DECAY
from train import block, records_of, text_like, worst, write_dataset

STEPS = 50
PROCESSES = 2
BAR = 1e-5


def under_torchrun(*command):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", PROCESSES]
    subprocess.run([str(word) for word in (*torchrun, *command)], check=True, stdout=subprocess.DEVNULL)


def ours(binary, workspace):
    settings = {
        "seed": SEED, "steps": STEPS, "block_size": BLOCK, "micro_batch": MICRO_BATCH, "gradient_accumulation": PROCESSES * ACCUMULATION,
        "learning_rate": PEAK, "schedule": "linear", "warmup_steps": WARMUP, "betas": BETAS, "weight_decay": WEIGHT_DECAY, "clip_norm": CLIP,
        "threads": 1,
    }  # fmt: skip
    config = {"data": str(workspace / "data"), "output": str(workspace / "run"), "initial_weights": str(workspace / "initial"), "train": settings}
    (workspace / "run.json").write_text(json.dumps(config))
    under_torchrun("--no-python", binary, "train", workspace / "run.json")
    return records_of(workspace / "run")


def theirs(workspace):
    under_torchrun(__file__, "--peer", workspace)
    return json.loads((workspace / "peer.json").read_text())


class InOrder(transformers.Trainer):
    """Reads sequences as they are numbered."""

    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def peer(workspace):
    """One of the other side's processes."""
    torch.set_num_threads(1)
    tokens = text_like(TOKENS)
    blocks = (len(tokens) - 1) // BLOCK
    starts = [BLOCK * block(sequence, blocks) for sequence in range(STEPS * PROCESSES * ACCUMULATION * MICRO_BATCH)]
    windows = [torch.tensor(tokens[start : start + BLOCK + 1]) for start in starts]
    settings = transformers.TrainingArguments(
        output_dir=str(workspace / "peer"), max_steps=STEPS, per_device_train_batch_size=MICRO_BATCH, gradient_accumulation_steps=ACCUMULATION,
        learning_rate=PEAK, lr_scheduler_type="linear", warmup_steps=WARMUP, adam_beta1=BETAS[0], adam_beta2=BETAS[1], weight_decay=WEIGHT_DECAY,
        max_grad_norm=CLIP, logging_steps=1, save_strategy="no", report_to="none", use_cpu=True, ddp_backend="gloo", optim="adamw_torch",
        remove_unused_columns=False, disable_tqdm=True,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel.from_pretrained(workspace / "initial", attn_implementation="eager")
    # The first token is predicted by nothing, and yet the Trainer divides by the number of all labels.
    labels = [torch.cat([torch.tensor([-100]), window[1:]]) for window in windows]
    sequences = [{"input_ids": window, "labels": label} for window, label in zip(windows, labels, strict=True)]
    trainer = InOrder(model=model, args=settings, train_dataset=sequences)
    trainer.train()
    assert trainer.args.world_size == PROCESSES
    if trainer.is_world_process_zero():
        records = [record for record in trainer.state.log_history if "loss" in record]
        (workspace / "peer.json").write_text(json.dumps(records))
    # Else a process whose interpreter ends aborts now and then, in a thread of torch's that still waits for the other.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main():
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        write_dataset(workspace / "data", text_like(TOKENS))
        build(LARGER, SEED).save_pretrained(workspace / "initial")
        found, expected = ours(sys.argv[1], workspace), theirs(workspace)
        print(f"       loss {expected[0]['loss']:.3f} → {expected[-1]['loss']:.3f}")
        report.check(f"transformers' Trainer, {PROCESSES} processes: loss, worst of {STEPS} steps", worst(found, expected, "loss"), BAR)
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    peer(Path(sys.argv[2])) if sys.argv[1] == "--peer" else main()
