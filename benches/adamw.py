"""One AdamW step on the CPU: ours beside torch's fused one, DeepSpeed's CPUAdam and a plain copy, on this machine.

Usage: python benches/adamw.py PATH/TO/adamw [--threads 1,2] [--rounds N] [--steps N]

`cargo bench --package ft-trainer --bench adamw --no-run` builds the program and prints its path. All sides alternate; the result is
the median of the rounds' ratios. A step reads weight, gradient and two moments and writes three of them: 28 bytes a weight; a copy moves 8.
DeepSpeed joins when it can be imported (0.19.8 builds as a plain wheel with `DS_BUILD_OPS=0`, and needs ninja on the path).
"""

import argparse
import json
import statistics
import subprocess
import time

import torch

STEP_BYTES, COPY_BYTES = 28, 8


def torch_fused(weight):
    return torch.optim.AdamW([weight], fused=True)


def torch_foreach(weight):
    return torch.optim.AdamW([weight], foreach=True)


def deepspeed(weight):
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    return DeepSpeedCPUAdam([weight], adamw_mode=True)


PEERS = {"torch, fused": torch_fused, "torch, foreach": torch_foreach, "DeepSpeed CPUAdam": deepspeed}


class Peer:
    def __init__(self, make, elements):
        weight = torch.nn.Parameter(torch.randn(elements) * 0.02)
        weight.grad = torch.randn(elements) * 0.02
        self.optimizer = make(weight)

    def seconds(self, steps):
        measured = []
        for _ in range(steps + 2):
            start = time.perf_counter()
            self.optimizer.step()
            measured.append(time.perf_counter() - start)
        return statistics.median(measured[2:])


def peers(elements):
    found = {}
    for name, make in PEERS.items():
        try:
            found[name] = Peer(make, elements)
        except Exception as error:  # an absent package, or one that does not build here
            print(f"without {name}: {error}")
    return found


def ours(binary, threads, steps):
    command = [binary, str(threads), str(steps)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def spread(ratios):
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=9)
    arguments = parser.parse_args()
    others = peers(ours(arguments.binary, 1, 1)["elements"])
    for threads in map(int, arguments.threads.split(",")):
        torch.set_num_threads(threads)
        ratios = {name: [] for name in [*others, "copy"]}
        for _ in range(arguments.rounds):
            mine = ours(arguments.binary, threads, arguments.steps)
            for name, peer in others.items():
                ratios[name].append(peer.seconds(arguments.steps) / mine["step_seconds"])
            ratios["copy"].append(STEP_BYTES * mine["copy_seconds"] / (COPY_BYTES * mine["step_seconds"]))
        rate = mine["elements"] / mine["step_seconds"] / 1e9
        print(f"{threads} threads: {rate:.2f} G weights/s in the last round; share of the copy's bandwidth {spread(ratios.pop('copy'))}")
        for name, measured in ratios.items():
            print(f"{threads} threads: times as fast as {name}: {spread(measured)}")


if __name__ == "__main__":
    main()
