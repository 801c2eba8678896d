"""One training step of a GPT-2 with 1.5 billion parameters in a fraction of 16 GB of main memory, on this machine's CPU.

Usage: python benches/xl.py PATH/TO/ft-trainer [--offload model|optimizer] [--block 1024] [--set KEY=VALUE ...] [--record]

Random weights and tokens; recomputation, and what --offload names in files. Prints the estimate that `ft-trainer inspect` gives, the
memory that the process had at most up to the end of the step, and the error of the estimate. The run is then killed: its checkpoint would be 19 GB.
The folder for the files (TMPDIR) needs 13 GB with optimizer, 25 GB with model. Needs numpy.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "trainer" / "tests" / "oracle"))

RESULTS = Path(__file__).parent / "RESULTS.md"
VOCABULARY = 50257


def configure(arguments, workspace):
    import numpy
    from train import write_dataset

    tokens = numpy.random.default_rng(1).integers(VOCABULARY, size=4 * arguments.block)
    write_dataset(workspace / "data", tokens, vocabulary=VOCABULARY)
    train = {"steps": 2, "block_size": arguments.block, "recompute": "full", "offload": arguments.offload, "log_every": 1}
    config = {"data": str(workspace / "data"), "output": str(workspace / "run"), "model": {"preset": "gpt2-xl"}, "train": train}
    (workspace / "config.json").write_text(json.dumps(config))
    return workspace / "config.json", [word for value in arguments.set for word in ("--set", value)]


def first_step(binary, config, sets, progress):
    """The progress line of the first step, and the seconds until it came."""
    started = time.monotonic()
    process = subprocess.Popen([binary, "train", config, *sets], stdout=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            for line in progress.read_text().splitlines() if progress.exists() else []:
                event = json.loads(line)
                if event["event"] == "step":
                    return event, time.monotonic() - started
            time.sleep(0.2)
        sys.exit(f"ft-trainer ended with {process.returncode} before its first step")
    finally:
        process.kill()
        process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--offload", choices=["model", "optimizer"], default="model")
    parser.add_argument("--block", type=int, default=1024)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config, sets = configure(arguments, Path(folder))
        inspected = json.loads(subprocess.check_output([arguments.binary, "inspect", config, *sets, "--json"]))
        event, seconds = first_step(arguments.binary, config, sets, Path(folder) / "run" / "progress.jsonl")
    estimate, peak = inspected["training_memory_bytes"]["total"], event["peak_memory_bytes"]
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    text = "\n".join([
        "",
        f"## {datetime.date.today()}: a training step of 1.5 billion parameters on the CPU",
        "",
        f"{os.cpu_count()} cores, Linux {platform.machine()}, load average {load}; `python3 benches/xl.py FT_TRAINER {' '.join(sys.argv[2:])}`",
        "",
        "| what | measured |",
        "|---|---:|",
        f"| parameters | {inspected['parameters']:,} |",
        f"| tokens in the step | {inspected['micro_batch'] * inspected['block_size']:,} |",
        f"| loss | {event['loss']:.4f} |",
        f"| main memory at most | {peak / 2**20:,.0f} MiB |",
        f"| estimated before the run | {estimate / 2**20:,.0f} MiB ({100 * (estimate / peak - 1):+.1f} %) |",
        f"| seconds, from the start of the program to the end of the step | {seconds:.0f} |",
        f"| tokens/s in the step | {event['tokens_per_second']:.1f} |",
        "",
    ])  # fmt: skip
    print(text)
    if arguments.record:
        with RESULTS.open("a") as results:
            results.write(text)


if __name__ == "__main__":
    main()
