"""Training steps of `ft-trainer` beside transformers and torch.compile, on this machine, in one run.

Usage: python benches/train_step.py PATH/TO/ft-trainer [--shape gpt2|small] [--blocks 256 512] [--threads 1 2]
                                    [--peers eager compile autocast] [--rounds N] [--steps N] [--record]

A step is forward, backward, clipping and AdamW on random tokens, 512 of them for the shape of GPT-2 small. All sides alternate: each
round gives the median step of each of them, and a result is the median of the rounds' ratios, above 1 where ft-trainer is faster. On a
busy machine only the processor time with one thread means anything: that of the programs, not of the system for them, which for ours depends more on
how the last checkpoint reaches the disk than on the steps. Peak memory is that of the whole process. `--record` appends the
table to benches/RESULTS.md.

Peers: transformers' GPT-2 in float32 with eager attention and torch's AdamW as it comes (eager); the same with fused attention
and AdamW, compiled (compile); the same under bf16 autocast instead (autocast). Needs torch, transformers, numpy and a C++ compiler.
"""

import argparse
import datetime
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "trainer" / "tests" / "oracle"))

RESULTS = Path(__file__).parent / "RESULTS.md"
WARM_UP = 2
# layers, heads, width, vocabulary, tokens per step
SHAPES = {"small": (4, 4, 256, 4096, 2048), "gpt2": (12, 12, 768, 50257, 512)}
PRECISIONS = ("fp32", "bf16")
PEERS = ("eager", "compile", "autocast")


def ours(binary, data, shape, block, threads, precision, steps):
    """Wall and processor seconds of one step, and the peak memory in MiB."""
    long, wall, memory = run(binary, data, shape, block, threads, precision, WARM_UP + steps)
    short, _, _ = run(binary, data, shape, block, threads, precision, WARM_UP)
    return wall, (long - short) / steps, memory


def run(binary, data, shape, block, threads, precision, steps):
    layers, heads, width, _, tokens = shape
    with tempfile.TemporaryDirectory() as folder:
        output, file = Path(folder) / "run", Path(folder) / "config.json"
        train = {
            "steps": steps, "block_size": block, "micro_batch": tokens // block, "log_every": 1, "threads": threads, "precision": precision,
        }  # fmt: skip
        model = {"layers": layers, "heads": heads, "width": width, "context": 1024}
        file.write_text(json.dumps({"data": str(data), "output": str(output), "model": model, "train": train}))
        process = subprocess.Popen([binary, "train", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        complaint = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            sys.exit(f"{binary} train failed: {complaint.decode()}")
        lines = [json.loads(line) for line in (output / "progress.jsonl").read_text().splitlines()]
    rates = [line["tokens_per_second"] for line in lines if line["event"] == "step"][WARM_UP:]
    wall = statistics.median(tokens / rate for rate in rates) if rates else 0.0
    return usage.ru_utime, wall, usage.ru_maxrss / 1024


class Peer:
    """A process of its own, so that its memory can be told; it waits while the others work."""

    def __init__(self, name, shape, block, threads):
        command = [sys.executable, __file__, "--serve", json.dumps([name, shape, block, threads])]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.steps(0)  # nothing is measured while it imports and compiles

    def steps(self, count):
        print(count, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def processor_time():
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def serve(name, shape, block, threads):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, heads, width, vocabulary, tokens = shape
    torch.set_num_threads(threads)
    config = GPT2Config(
        n_layer=layers, n_head=heads, n_embd=width, vocab_size=vocabulary, n_positions=1024, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, attn_implementation="eager" if name == "eager" else "sdpa",
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=None if name == "eager" else True)
    batch = torch.randint(vocabulary, (tokens // block, block))
    forward = torch.compile(model) if name == "compile" else model

    def step():
        wall, processor = time.perf_counter(), processor_time()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "autocast"):
            loss = forward(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return time.perf_counter() - wall, processor_time() - processor

    for line in sys.stdin:
        times = list(zip(*[step() for _ in range(WARM_UP + int(line))][WARM_UP:], strict=True)) or [[0.0], [0.0]]
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps([*map(statistics.median, times), memory]), flush=True)


def compare(binary, data, arguments, block, threads):
    """One row for each pair of ours and a peer."""
    shape = SHAPES[arguments.shape]
    peers = {name: Peer(name, shape, block, threads) for name in arguments.peers}
    rounds = []
    for number in range(arguments.rounds):
        measured = {precision: ours(binary, data, shape, block, threads, precision, arguments.steps) for precision in PRECISIONS}
        measured |= {name: peer.steps(arguments.steps) for name, peer in peers.items()}
        rounds.append(measured)
        told = ", ".join(f"{name} {wall * 1e3:.0f} ({cpu * 1e3:.0f})" for name, (wall, cpu, _) in measured.items())
        print(f"T = {block}, {threads} threads, round {number + 1}: ms on the wall (processor): {told}", file=sys.stderr, flush=True)
    for peer in peers.values():
        peer.end()
    return [row(rounds, block, threads, precision, peer) for precision in PRECISIONS for peer in peers]


def row(rounds, block, threads, precision, peer):
    def ratios(what):
        return [measured[peer][what] / measured[precision][what] for measured in rounds]

    def middle(side, what):
        return statistics.median(measured[side][what] for measured in rounds)

    wall = ratios(0)
    return (
        f"| {block} | {threads} | {precision} | {peer} | {middle(precision, 0) * 1e3:,.0f} ms | {middle(peer, 0) * 1e3:,.0f} ms "
        f"| {statistics.median(wall):.2f} ({min(wall):.2f} to {max(wall):.2f}) | {statistics.median(ratios(1)):.2f} "
        f"| {middle(precision, 2):,.0f} MiB | {1 / statistics.median(ratios(2)):.2f} |"
    )


def report(arguments, rows):
    import torch
    import transformers

    options = " ".join(sys.argv[2:])
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    layers, _, width, vocabulary, tokens = SHAPES[arguments.shape]
    return "\n".join([
        "",
        f"## {datetime.date.today()}: a training step, {layers} × {width}, vocabulary {vocabulary:,}, {tokens:,} tokens",
        "",
        f"{os.cpu_count()} cores, Linux {platform.machine()}, load average {load}; transformers {transformers.__version__}, torch {torch.__version__};",
        f"`python3 benches/train_step.py FT_TRAINER {options}`. Ratios are medians of {arguments.rounds} rounds, least and most in brackets.",
        "",
        "| T | threads | ours | peer | ours, wall | peer, wall | ratio, wall | processor | our peak memory | of the peer's |",
        "|---:|---:|---|---|---:|---:|---:|---:|---:|---:|",
        *rows,
        "",
    ])  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--shape", choices=SHAPES, default="gpt2")
    parser.add_argument("--blocks", type=int, nargs="+", default=[256, 512])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--peers", choices=PEERS, nargs="+", default=PEERS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()

    import numpy
    from train import write_dataset

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        data, vocabulary = Path(folder) / "data", SHAPES[arguments.shape][3]
        write_dataset(data, numpy.random.default_rng(1).integers(vocabulary, size=100_000), vocabulary=vocabulary)
        for block in arguments.blocks:
            for threads in arguments.threads:
                rows += compare(arguments.binary, data, arguments, block, threads)
    text = report(arguments, rows)
    print(text)
    if arguments.record:
        with RESULTS.open("a") as results:
            results.write(text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*json.loads(sys.argv[2]))
    else:
        main()
