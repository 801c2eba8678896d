#!/usr/bin/env python3
"""How long the command line takes to answer, and how large it is, against the bars that it promises.

    cargo build --release && python3 benches/cli.py [--program FILE] [--record]

Takes the median of many runs, each a process of its own with its start-up and end. The jobs of `status` are one rehearsed job, copied a
thousand times in a throw-away store; the weights of `plan` are a hole behind their header. --record appends the
table to RESULTS.md. Exit code 1: a bar is missed.
"""

import argparse
import datetime
import json
import math
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
LETTERS = "bcdfghjkmnpqrstvwxyz23456789"
JOBS = 1_000
WARM_UP = 3


def main():
    arguments = parse()
    program = arguments.program.resolve()
    with tempfile.TemporaryDirectory() as home:
        place = Place(program, pathlib.Path(home))
        place.make_jobs()
        place.make_model()
        rows = [
            ("ftctl --version", milliseconds(place, arguments.runs, "--version"), 10, "ms"),
            ("ftctl --help", milliseconds(place, arguments.runs, "--help"), 10, "ms"),
            (f"ftctl status --all, {JOBS:,} jobs", milliseconds(place, arguments.runs, "status", "--all"), 50, "ms"),
            ("ftctl plan, the weights of GPT-2 XL (6.2 GB)", milliseconds(place, arguments.runs, "plan", "model.toml"), 100, "ms"),
            ("size of the program", (program.stat().st_size / 1e6, None), 36, "MB"),
        ]
    text = table(rows)
    print(text)
    if arguments.record:
        record(text, arguments.machine)
    sys.exit(any(value > bar for _, (value, _), bar, _ in rows))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target"))
    parser.add_argument("--program", type=pathlib.Path, default=target / "release/ftctl")
    parser.add_argument("--runs", type=int, default=51)
    parser.add_argument("--record", action="store_true", help="append the result to RESULTS.md")
    parser.add_argument("--machine", default=f"{os.cpu_count()} cores, {os.uname().sysname} {os.uname().machine}")
    return parser.parse_args()


class Place:
    """A home of its own for the program, and nothing else of the environment."""

    def __init__(self, program, home):
        self.program, self.home = program, home
        self.environment = {"HOME": str(home), "PATH": os.environ["PATH"], "FTCTL_TRUST_PROJECT": "1"}

    def run(self, *arguments):
        command = [self.program, *arguments]
        done = subprocess.run(command, env=self.environment, cwd=self.home, stdin=subprocess.DEVNULL, capture_output=True)
        if done.returncode != 0:
            sys.exit(f"{arguments} failed:\n{done.stderr.decode()}")
        return done.stdout.decode()

    def make_jobs(self):
        """Rehearses one job on the fake backend and copies its folder under a thousand ids."""
        (self.home / "data").write_text("tokens")
        (self.home / "job.toml").write_text('name = "first"\ndataset = "data"\n[compute]\nbackend = "fake"\n')
        first = self.run("submit", "job.toml", "--wait").strip()
        jobs = self.home / ".local/state/ftctl/store/ftctl/v1/jobs"
        text = (jobs / first / "record.json").read_text()
        for number in range(JOBS - 1):
            name = f"job-{number}"
            job = f"{name}-{suffix(number)}"
            (jobs / job).mkdir()
            # A record is that of its path, and its plan that of its name.
            (jobs / job / "record.json").write_text(text.replace(first, job).replace('"name":"first"', f'"name":"{name}"'))
        assert len(json.loads(self.run("status", "--all", "-o", "json"))["jobs"]) == JOBS

    def make_model(self):
        """Writes the weights of GPT-2 XL, and a job that starts from them."""
        layers, width, vocabulary, context = 48, 1_600, 50_257, 1_024
        shapes = {"wte.weight": [vocabulary, width], "wpe.weight": [context, width], "ln_f.weight": [width], "ln_f.bias": [width]}
        for layer in range(layers):
            maps = {"attn.c_attn": [width, 3 * width], "attn.c_proj": [width, width], "mlp.c_fc": [width, 4 * width]}
            others = {"mlp.c_proj": [4 * width, width], "ln_1": [width], "ln_2": [width]}
            for name, shape in {**maps, **others}.items():
                shapes[f"h.{layer}.{name}.weight"], shapes[f"h.{layer}.{name}.bias"] = shape, shape[-1:]
        header, end = {}, 0
        for name, shape in shapes.items():
            start, end = end, end + 4 * math.prod(shape)
            header[f"transformer.{name}"] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
        header = json.dumps(header).encode()
        (self.home / "xl").mkdir()
        with open(self.home / "xl/model.safetensors", "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + end)
        config = {"model_type": "gpt2", "n_layer": layers, "n_head": 25, "n_embd": width, "n_positions": context, "vocab_size": vocabulary}
        (self.home / "xl/config.json").write_text(json.dumps(config))
        (self.home / "text.txt").write_text("Once upon a time there was a small town by the sea. " * 200)
        self.run("prepare", "text.txt", "--out", "tokens")
        train = "[train]\nsteps = 1\nblock_size = 64\nmicro_batch = 1\n"
        (self.home / "model.toml").write_text(f'name = "xl"\ninitial_weights = "xl"\ndataset = "tokens"\n{train}')


def suffix(number):
    """The six characters at the end of a job's id."""
    return "".join(LETTERS[number // len(LETTERS) ** place % len(LETTERS)] for place in range(6))


def milliseconds(place, runs, *arguments):
    """The median time of one run, and the processor's time for one: on a busy machine the first is mostly waiting."""
    times = []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(runs + WARM_UP):
        start = time.perf_counter()
        place.run(*arguments)
        times.append(time.perf_counter() - start)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return statistics.median(times[WARM_UP:]) * 1e3, busy / len(times) * 1e3


def table(rows):
    lines = ["| what | measured | processor | bar | |", "|---|---:|---:|---:|---|"]
    for what, (value, busy), bar, unit in rows:
        busy = "" if busy is None else f"{busy:.1f} {unit}"
        lines.append(f"| {what} | {value:.1f} {unit} | {busy} | {bar} {unit} | {'met' if value <= bar else 'MISSED'} |")
    return "\n".join(lines)


def record(text, machine):
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    entry = f"\n## {datetime.date.today()}: the command line\n\n{machine}, load average {load}; `python3 benches/cli.py --record`\n\n{text}\n"
    with open(HERE / "RESULTS.md", "a", encoding="utf-8") as file:
        file.write(entry)


if __name__ == "__main__":
    main()
