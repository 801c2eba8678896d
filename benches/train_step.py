"""Training steps of `ft-trainer` beside transformers (eager attention, float32, torch's AdamW), on this machine.

Usage: python benches/train_step.py PATH/TO/ft-trainer [--shape small|gpt2] [--rounds N] [--steps N] [--threads N]

The two alternate; each round gives one step's wall and processor time on each side after the warm-up steps, and the result is the
median of the rounds' ratios. On a busy machine only the processor time with one thread means anything. A step is forward, backward, clipping and AdamW on random tokens.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy
import torch
from transformers import GPT2Config, GPT2LMHeadModel

sys.path.append(str(Path(__file__).parent.parent / "trainer" / "tests" / "oracle"))
from train import write_dataset  # noqa: E402

WARM_UP = 2
# layers, heads, width, vocabulary, tokens per sequence, sequences
SHAPES = {"small": (4, 4, 256, 4096, 256, 8), "gpt2": (12, 12, 768, 50257, 256, 2)}


def run(binary, data, shape, steps, threads):
    """Seconds of the median step after the warm-up, and processor seconds of the whole process."""
    layers, heads, width, _, block, batch = shape
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run"
        config = {
            "data": str(data),
            "output": str(output),
            "model": {"layers": layers, "heads": heads, "width": width, "context": block},
            "train": {"steps": steps, "block_size": block, "micro_batch": batch, "log_every": 1, "threads": threads},
        }
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(config))
        before = children_processor_time()
        subprocess.run([binary, "train", str(file)], check=True, stdout=subprocess.DEVNULL)
        spent = children_processor_time() - before
        lines = [json.loads(line) for line in (output / "progress.jsonl").read_text().splitlines()]
    rates = [line["tokens_per_second"] for line in lines if line["event"] == "step"]
    return statistics.median(block * batch / rate for rate in rates[WARM_UP:]), spent


def children_processor_time():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def ours(binary, data, shape, steps, threads):
    """Wall and processor seconds of one step; what a process spends outside its steps is in both runs and falls out."""
    wall, long = run(binary, data, shape, WARM_UP + steps, threads)
    _, short = run(binary, data, shape, WARM_UP + 1, threads)
    return wall, (long - short) / (steps - 1)


class Peer:
    def __init__(self, shape, threads):
        layers, heads, width, vocabulary, block, batch = shape
        torch.set_num_threads(threads)
        config = GPT2Config(
            n_layer=layers, n_head=heads, n_embd=width, vocab_size=vocabulary, n_positions=block, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, attn_implementation="eager",
        )  # fmt: skip
        self.model = GPT2LMHeadModel(config)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-5)
        self.tokens = torch.randint(vocabulary, (batch, block))

    def step(self):
        wall, processor = time.perf_counter(), time.process_time()
        self.optimizer.zero_grad()
        self.model(input_ids=self.tokens, labels=self.tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return time.perf_counter() - wall, time.process_time() - processor

    def median(self, steps):
        wall, processor = zip(*[self.step() for _ in range(WARM_UP + steps)][WARM_UP:], strict=True)
        return statistics.median(wall), statistics.median(processor)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    peer, ratios = Peer(shape, arguments.threads), []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        write_dataset(data, numpy.random.default_rng(1).integers(shape[3], size=100_000), vocabulary=shape[3])
        for number in range(arguments.rounds):
            mine = ours(arguments.binary, data, shape, arguments.steps, arguments.threads)
            theirs = peer.median(arguments.steps)
            ratios.append([peer / own for peer, own in zip(theirs, mine, strict=True)])
            print(
                f"round {number + 1}: wall {mine[0] * 1e3:.0f} against {theirs[0] * 1e3:.0f} ms, ratio {ratios[-1][0]:.2f}; "
                f"processor {mine[1] * 1e3:.0f} against {theirs[1] * 1e3:.0f} ms, ratio {ratios[-1][1]:.2f}",
                flush=True,
            )
    for what, measured in zip(("wall", "processor"), zip(*ratios, strict=True), strict=True):
        print(
            f"{arguments.shape}, {arguments.threads} threads, {what} time: median ratio {statistics.median(measured):.2f} "
            f"({min(measured):.2f} to {max(measured):.2f})"
        )


if __name__ == "__main__":
    main()
