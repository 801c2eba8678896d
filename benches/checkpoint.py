"""What checkpoints cost a training run of `ft-trainer`: the time that training waits for them, and the memory that they take.

Usage: python benches/checkpoint.py PATH/TO/ft-trainer [--shape gpt2|small] [--block 512] [--micro-batch 1] [--steps 55] [--every 50] [--rounds 3]
                                    [--threads N] [--precision fp32|bf16] [--record]

Each round trains twice on random tokens, with a checkpoint every so many steps and with the last one only. The waiting is measured and no
difference of two runs: `trace.json` says of every instant that training stood still for a checkpoint (`checkpoint wait`) and which steps were
computed while one was written. The last checkpoint is left out: nothing is computed beside it. Results are medians, with the least and the
most of all rounds. Needs numpy.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).parent.parent / "trainer" / "tests" / "oracle"))

RESULTS = Path(__file__).parent / "RESULTS.md"
# layers, heads, width, vocabulary
SHAPES = {"small": (4, 4, 256, 4096), "gpt2": (12, 12, 768, 50257)}


def train(arguments, folder, every):
    """The spans of a run by name, each from and to in seconds, and its peak memory in bytes."""
    layers, heads, width, _ = SHAPES[arguments.shape]
    output = folder / f"every-{every}"
    settings = {
        "steps": arguments.steps, "block_size": arguments.block, "micro_batch": arguments.micro_batch, "checkpoint_every": every,
        "keep_checkpoints": 1, "threads": arguments.threads, "precision": arguments.precision, "profile": True,
    }  # fmt: skip
    model = {"layers": layers, "heads": heads, "width": width, "context": 1024}
    config = folder / "config.json"
    config.write_text(json.dumps({"data": str(folder / "data"), "output": str(output), "model": model, "train": settings}))
    subprocess.run([arguments.binary, "train", config], check=True, stdout=subprocess.DEVNULL)
    spans = {}
    for event in json.loads((output / "trace.json").read_text()):
        spans.setdefault(event["name"], []).append((event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6))
    peak = json.loads((output / "summary.json").read_text())["peak_memory_bytes"]
    shutil.rmtree(output)
    return spans, peak


def seconds(spans):
    return sum(end - start for start, end in spans)


def overlapping(spans, others):
    return [(start, end) for start, end in spans if any(start < until and since < end for since, until in others)]


def costs(spans, every):
    """Of each checkpoint on the way, in seconds: what training waited, its share of so many steps, and what steps beside it took longer."""
    steps = spans["step"]
    written = [span for span in spans["checkpoint"] if span[0] < steps[-1][0]]
    waited = seconds(span for span in spans["checkpoint wait"] if span[0] < steps[-1][1]) / len(written)
    beside = overlapping(steps, written)
    alone = median(end - start for start, end in steps if (start, end) not in beside)
    longer = (seconds(beside) - alone * len(beside)) / len(written)
    return {"waited": waited, "share": 100 * waited / (every * alone), "longer": longer, "longer_share": 100 * longer / (every * alone)}


def measure(arguments, folder):
    rounds = []
    for _ in range(arguments.rounds):
        plain, plain_peak = train(arguments, folder, 0)
        often, often_peak = train(arguments, folder, arguments.every)
        totals = {"plain": seconds(plain["step"]), "often": seconds(often["step"])}
        rounds.append(costs(often, arguments.every) | totals | {"plain_peak": plain_peak / 2**20, "often_peak": often_peak / 2**20})
        print(json.dumps(rounds[-1]), flush=True)
    return {key: [each[key] for each in rounds] for key in rounds[0]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--shape", choices=SHAPES, default="gpt2")
    parser.add_argument("--block", type=int, default=512)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=55)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    if arguments.steps <= arguments.every:
        parser.error("--steps must leave steps after a checkpoint")

    import numpy
    from train import write_dataset

    with tempfile.TemporaryDirectory() as name:
        folder, vocabulary = Path(name), SHAPES[arguments.shape][3]
        write_dataset(folder / "data", numpy.random.default_rng(1).integers(vocabulary, size=200_000), vocabulary=vocabulary)
        measured = measure(arguments, folder)

    def told(key, digits):
        middle, least, most = (f"{number:,.{digits}f}" for number in (median(measured[key]), min(measured[key]), max(measured[key])))
        return f"{middle} ({least} to {most})"

    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    tokens = arguments.block * arguments.micro_batch
    text = "\n".join([
        "",
        f"## {datetime.date.today()}: what checkpoints cost",
        "",
        f"{os.cpu_count()} cores, Linux {platform.machine()}, load average {load}; `python3 benches/checkpoint.py FT_TRAINER {' '.join(sys.argv[2:])}`",
        "",
        f"| what, {arguments.rounds} rounds | median (least to most) | bar |",
        "|---|---:|---:|",
        f"| {arguments.steps} steps of {tokens} tokens, {arguments.precision}, with the last checkpoint only | {told('plain', 1)} s | |",
        f"| the same with one every {arguments.every} steps | {told('often', 1)} s | |",
        f"| what training waited for a checkpoint on the way | {told('waited', 4)} s | |",
        f"| of {arguments.every} steps | {told('share', 3)} % | 1 % |",
        f"| what steps beside it took longer, the waiting included | {told('longer', 2)} s | |",
        f"| of {arguments.every} steps | {told('longer_share', 2)} % | |",
        f"| peak memory without it | {told('plain_peak', 0)} MiB | |",
        f"| and with it | {told('often_peak', 0)} MiB | one tensor |",
        "",
    ])  # fmt: skip
    print(text)
    if arguments.record:
        with RESULTS.open("a") as results:
            results.write(text)


if __name__ == "__main__":
    main()
