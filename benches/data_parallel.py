"""Two processes that train one model together, beside torch's DistributedDataParallel, on this machine, in one run.

Usage: python benches/data_parallel.py PATH/TO/ft-trainer [--only peers ways reduction memory] [--accumulation 8 1] [--rounds N] [--steps N]

  peers      steps of 2 processes of one thread, beside transformers' GPT-2 (eager) in DistributedDataParallel over Gloo with torch's AdamW (ddp),
             and with ZeroRedundancyOptimizer (zero), also 2 processes of one thread
  ways       2 processes of one thread beside one process of two threads
  reduction  the exact sum of all gradients between 2 processes, beside Gloo's all-reduce of as many numbers
  memory     the most main memory of the first of 2 processes under ZeRO 0, 1 and 2, and what was estimated

Shape: GPT-2 small, float32, sequences of 256 tokens, one at a time, as many in a process's step as --accumulation says; random tokens. Sides alternate;
each round gives the median step of each, and a result is the median of the rounds' ratios, above 1 where ours (in `ways`: the 2 processes) is faster.
A reduction is the shortest of a run, for both: the others contain what one process waits for another; ours is the sum of a step's exchanges, of
sequences of 8 tokens, beside which little is computed. Needs torch, transformers and numpy.
"""

import argparse
import contextlib
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "trainer" / "tests" / "oracle"))

SHAPE = (12, 12, 768, 50257, 256)  # layers, heads, width, vocabulary, tokens of a sequence
PARAMETERS = 124_439_808
WARM_UP = 1


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def environment(rank, size, port, threads):
    return os.environ | {
        "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        "OMP_NUM_THREADS": str(threads),
    }  # fmt: skip


def covered(spans):
    """The length of what spans, which begin and last, cover together: several threads exchange at once."""
    total, end = 0, 0
    for began, lasted in sorted(spans):
        total += max(began + lasted - max(began, end), 0)
        end = max(end, began + lasted)
    return total


def ours(binary, data, size, threads, sequences, steps, **train):
    """Seconds of the median step, of the shortest reduction (all exchanges of a step), and the first process's peak and estimated MiB."""
    layers, heads, width, _, block = SHAPE
    with tempfile.TemporaryDirectory() as folder:
        output, file = Path(folder) / "run", Path(folder) / "config.json"
        train = {
            "steps": WARM_UP + steps, "block_size": block, "micro_batch": 1, "gradient_accumulation": sequences, "log_every": 1, "threads": threads,
            "profile": True,
        } | train  # fmt: skip
        model = {"layers": layers, "heads": heads, "width": width, "context": 1024}
        file.write_text(json.dumps({"data": str(data), "output": str(output), "model": model, "train": train}))
        port = free_port()
        start = lambda rank: subprocess.Popen(
            [binary, "train", str(file)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(rank, size, port, threads)
        )
        processes = [start(rank) for rank in range(size)]
        said = [process.communicate()[0] for process in processes]
        if any(process.returncode for process in processes):
            sys.exit(f"{binary} train failed: {said}")
        lines = [json.loads(line) for line in (output / "progress.jsonl").read_text().splitlines()]
        events = json.loads((output / "trace.json").read_text())
        peak = json.loads((output / "summary.json").read_text())["peak_memory_bytes"] / 2**20
    rates = [line["tokens_per_second"] for line in lines if line["event"] == "step"][WARM_UP:]
    lasting = lambda name: [(event["ts"], event["dur"]) for event in events if event.get("name") == name]
    of_step = lambda began, took: covered((ts, dur) for ts, dur in lasting("reduction") if began <= ts < began + took) / 1e6
    sums = [of_step(*step) for step in lasting("step")]
    estimate = float(re.search(r"memory: about ([\d,]+) MiB", said[0])[1].replace(",", ""))
    return statistics.median(sequences * block / rate for rate in rates), min(sums, default=0.0), peak, estimate


class Peer:
    """Two processes that wait while the others work."""

    def __init__(self, name, sequences):
        port = free_port()
        command = [sys.executable, __file__, "--serve", name, str(sequences)]
        start = lambda rank: subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(rank, 2, port, 1)
        )
        self.processes = [start(rank) for rank in range(2)]
        self.steps(WARM_UP)

    def steps(self, count):
        for process in self.processes:
            print(count, file=process.stdin, flush=True)
        return [json.loads(process.stdout.readline()) for process in self.processes][0]

    def end(self):
        for process in self.processes:
            process.stdin.close()
            process.wait()


def serve(name, sequences):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    step = all_reduce if name == "all-reduce" else trained(name, sequences)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            dist.barrier()
            started = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - started)
        print(json.dumps(seconds), flush=True)
    dist.destroy_process_group()


NUMBERS = []


def all_reduce():
    import torch
    import torch.distributed as dist

    if not NUMBERS:
        NUMBERS.append(torch.ones(PARAMETERS))
    dist.all_reduce(NUMBERS[0])


def trained(name, sequences):
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, heads, width, vocabulary, block = SHAPE
    config = GPT2Config(vocab_size=vocabulary, n_positions=1024, n_embd=width, n_layer=layers, n_head=heads, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    config._attn_implementation = "eager"
    torch.manual_seed(1)
    model = DistributedDataParallel(GPT2LMHeadModel(config))
    settings = {"lr": 5e-5, "weight_decay": 0.01}
    optimizer = (
        ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **settings) if name == "zero" else torch.optim.AdamW(model.parameters(), **settings)
    )
    tokens = torch.randint(vocabulary, (sequences, 1, block))

    def step():
        optimizer.zero_grad(set_to_none=True)
        for number, inputs in enumerate(tokens):
            last = number + 1 == sequences
            with contextlib.nullcontext() if last else model.no_sync():
                (model(input_ids=inputs, labels=inputs).loss / sequences).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def said(name, ratios, own, other):
    print(
        f"| {name} | {statistics.median(own):.2f} s | {statistics.median(other):.2f} s | {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f}) |", flush=True,
    )  # fmt: skip


def compared(name, rounds, own, other):
    """`own` and `other` give seconds, and alternate."""
    pairs = [(own(), other()) for _ in range(rounds)]
    said(name, [theirs / ours for ours, theirs in pairs], *zip(*pairs, strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    tasks = ["peers", "ways", "reduction", "memory"]
    parser.add_argument("--only", nargs="+", choices=tasks, default=tasks)
    parser.add_argument("--accumulation", nargs="+", type=int, default=[8, 1])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    binary, rounds, steps = os.path.abspath(arguments.binary), arguments.rounds, arguments.steps
    from train import text_like, write_dataset

    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        write_dataset(data, text_like(64 * 1024 + 1), vocabulary=SHAPE[3])
        print("| what | ours, or 2 processes | the other | ratio (range) |\n|---|---|---|---|", flush=True)
        for each in arguments.accumulation:
            of_two = lambda **train: ours(binary, data, 2, 1, 2 * each, steps, **train)
            if "peers" in arguments.only:
                for name, zero in [("ddp", 0), ("zero", 1)]:
                    peer = Peer(name, each)
                    compared(f"{name}, accumulation {each}", rounds, lambda: of_two(zero=zero)[0], lambda: statistics.median(peer.steps(steps)))
                    peer.end()
            if "ways" in arguments.only:
                compared(f"one process of 2 threads, accumulation {each}", rounds, lambda: of_two()[0],
                         lambda: ours(binary, data, 1, 2, 2 * each, steps)[0])  # fmt: skip
        if "reduction" in arguments.only:
            peer = Peer("all-reduce", 1)
            compared("the reduction", rounds, lambda: ours(binary, data, 2, 1, 2, steps, block_size=8)[1], lambda: min(peer.steps(2 * steps)))
            peer.end()
        for zero in (0, 1, 2) if "memory" in arguments.only else ():
            _, _, peak, estimate = ours(binary, data, 2, 1, 2, 2, zero=zero)
            print(f"| memory under ZeRO-{zero}: measured, estimated | {peak:,.0f} MiB | {estimate:,.0f} MiB | {estimate / peak:.3f} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        main()
