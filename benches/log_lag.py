#!/usr/bin/env python3
"""How far what a job has written is behind in the store, with Microsoft's emulator as the store.

    cargo build --release && python3 benches/log_lag.py AZURITE SDK [--program FILE] [--steps N] [--record]

AZURITE is the program azurite-blob and SDK a folder with the Python package azure-storage-blob; tests/run installs both. A small job trains
with a line for every step. Every 20 ms the length of the agent's own log and that of the one in the store are noted; how far the store is behind
is the time since the agent's log was as short. The bar is 2 s. --record appends to RESULTS.md. Exit code 1: the bar is missed.
"""

import argparse
import datetime
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ACCOUNT = "devstoreaccount1"
# The emulator's key, from its documentation.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
BAR = 2.0

JOB = """
name = "lag"
[data]
train = ["{sources}"]
tokenizer = {{ kind = "train", vocabulary = 400 }}
[model]
layers = 2
heads = 2
width = 64
context = 64
[train]
steps = {steps}
block_size = 64
micro_batch = 8
learning_rate = 1e-3
checkpoint_every = 100
log_every = 1
eval_sequences = 8
threads = 1
"""


def main():
    arguments = parse()
    sys.path.insert(0, str(arguments.sdk))
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        emulator, port = start(arguments.azurite, directory / "azurite")
        try:
            lags = measure(arguments, directory, f"http://127.0.0.1:{port}/{ACCOUNT}/container")
        finally:
            emulator.kill()
    lags.sort()
    median, high, worst = (lags[int(len(lags) * part)] for part in (0.5, 0.99, 1 - 1e-9))
    print(f"{len(lags)} lengths of the log: {median:.2f} s behind (median), {high:.2f} s (99 %), {worst:.2f} s at most; bar {BAR} s")
    if arguments.record:
        record(len(lags), median, high, worst)
    return worst > BAR


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("azurite", type=pathlib.Path)
    parser.add_argument("sdk", type=pathlib.Path)
    parser.add_argument("--program", type=pathlib.Path, default=HERE.parent / "target/release/ftctl")
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--record", action="store_true")
    return parser.parse_args()


def start(program, directory):
    command = [program, "--blobHost", "127.0.0.1", "--blobPort", "0", "--disableTelemetry", "--skipApiVersionCheck", "--silent", "--location", directory]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if "successfully listens on" in line:
            return process, int(line.rsplit(":", 1)[1])
    raise SystemExit("the emulator did not start")


def measure(arguments, directory, store):
    """Seconds behind, for each length that the store's log was seen to have."""
    from azure.storage.blob import ContainerClient

    home = directory / "home"
    (directory / "job.toml").write_text(JOB.format(sources=HERE.parent / "src/**/*.rs", steps=arguments.steps))
    environment = {**os.environ, "FTCTL_STORE": store, "AZURE_STORAGE_KEY": KEY}
    environment |= {f"XDG_{name}_HOME": str(home / name) for name in ("STATE", "CONFIG", "DATA")}
    command = [arguments.program.resolve(), "run", "job.toml", "--quiet"]
    job = subprocess.Popen(command, cwd=directory, env=environment, stdout=subprocess.DEVNULL)
    container = ContainerClient.from_container_url(store, credential={"account_name": ACCOUNT, "account_key": KEY})
    folder = home / "STATE" / "ftctl" / "work"
    written, lags, seen = [], [], 0
    while job.poll() is None:
        written.append((time.perf_counter(), sum(log.stat().st_size for log in folder.glob("*/1/log"))))
        there = length_of_log(container)
        # What is missing in the store was first written at this time or later.
        missing = next((moment for moment, length in written if length > there), None)
        if missing is not None:
            lags.append(written[-1][0] - missing)
        if there != seen:
            seen = there
            written = [entry for entry in written if entry[1] > there] or written[-1:]
        time.sleep(0.02)
    if job.returncode or seen == 0:
        raise SystemExit(f"the job ended with code {job.returncode}, and {seen} bytes of its log were seen in the store")
    return lags


def length_of_log(container):
    """Of the first attempt's, in bytes; 0 while there is none."""
    from azure.core.exceptions import ResourceNotFoundError

    try:
        return sum(blob.size for blob in container.list_blobs("ftctl/v1/jobs/") if "/attempts/1/log" in blob.name)
    except ResourceNotFoundError:
        return 0


def record(count, median, high, worst):
    load = ", ".join(f"{part:.1f}" for part in os.getloadavg())
    text = f"""
## {datetime.date.today()}: how far logs in the store are behind

{os.cpu_count()} cores, {os.uname().sysname} {os.uname().machine}, load average {load}; the emulator as the store; `python3 benches/log_lag.py AZURITE SDK --record`

{count} looks at a log that got a line for every step: {median:.2f} s behind (median), {high:.2f} s (99 %), {worst:.2f} s at most; the bar is {BAR} s.
"""
    with open(HERE / "RESULTS.md", "a") as file:
        file.write(text)


if __name__ == "__main__":
    sys.exit(main())
