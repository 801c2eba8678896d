"""What checkpoints cost a training run of `ft-trainer`: the time that training waits for them, and the memory that they take.

Usage: python benches/checkpoint.py PATH/TO/ft-trainer [--shape gpt2|small] [--block 512] [--micro-batch 1] [--steps 101] [--every 50] [--threads N]
                                    [--precision fp32|bf16] [--record]

Trains twice on random tokens, with a checkpoint every so many steps and with the last one only. The waiting is what the trainer says of
itself (`checkpoint_seconds` in summary.json: of this process's time, what training waited), without that for the last checkpoint, whose bytes
nobody computes beside. Needs numpy.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "trainer" / "tests" / "oracle"))

RESULTS = Path(__file__).parent / "RESULTS.md"
# layers, heads, width, vocabulary
SHAPES = {"small": (4, 4, 256, 4096), "gpt2": (12, 12, 768, 50257)}


def train(arguments, data, folder, every):
    layers, heads, width, _ = SHAPES[arguments.shape]
    output = folder / f"every-{every}"
    settings = {
        "steps": arguments.steps, "block_size": arguments.block, "micro_batch": arguments.micro_batch, "checkpoint_every": every,
        "keep_checkpoints": 1, "log_every": 1, "threads": arguments.threads, "precision": arguments.precision,
    }  # fmt: skip
    model = {"layers": layers, "heads": heads, "width": width, "context": 1024}
    config = folder / "config.json"
    config.write_text(json.dumps({"data": str(data), "output": str(output), "model": model, "train": settings}))
    subprocess.run([arguments.binary, "train", config], check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (output / "progress.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["event"] == "step"]
    return json.loads((output / "summary.json").read_text()), steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--shape", choices=SHAPES, default="gpt2")
    parser.add_argument("--block", type=int, default=512)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=101)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()

    import numpy
    from train import write_dataset

    with tempfile.TemporaryDirectory() as name:
        folder, vocabulary = Path(name), SHAPES[arguments.shape][3]
        write_dataset(folder / "data", numpy.random.default_rng(1).integers(vocabulary, size=200_000), vocabulary=vocabulary)
        last_only, plain_steps = train(arguments, folder / "data", folder, 0)
        often, steps = train(arguments, folder / "data", folder, arguments.every)
    waited = often["checkpoint_seconds"] - last_only["checkpoint_seconds"]
    tokens = arguments.block * arguments.micro_batch
    busy = sum(tokens / step["tokens_per_second"] for step in steps)
    alone = sum(tokens / step["tokens_per_second"] for step in plain_steps)
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    count = (arguments.steps - 1) // arguments.every
    text = "\n".join([
        "",
        f"## {datetime.date.today()}: what checkpoints cost",
        "",
        f"{os.cpu_count()} cores, Linux {platform.machine()}, load average {load}; `python3 benches/checkpoint.py FT_TRAINER {' '.join(sys.argv[2:])}`",
        "",
        "| what | measured | bar |",
        "|---|---:|---:|",
        f"| {arguments.steps} steps of {tokens} tokens, {arguments.precision}, with the last checkpoint only | {alone:.1f} s | |",
        f"| the same with {count} more checkpoints on the way | {busy:.1f} s | |",
        f"| what training waited for those | {waited:.2f} s, {100 * waited / busy:.2f} % | 1 % |",
        f"| peak memory with and without them | {often['peak_memory_bytes'] / 2**20:,.0f} and {last_only['peak_memory_bytes'] / 2**20:,.0f} MiB | one tensor |",
        "",
    ])  # fmt: skip
    print(text)
    if arguments.record:
        with RESULTS.open("a") as results:
            results.write(text)


if __name__ == "__main__":
    main()
