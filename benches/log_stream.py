#!/usr/bin/env python3
"""`ftctl logs -f` against the stream of Microsoft's SDK: bytes that were read, and how long after it was written a line is shown.

    cargo build --release && python3 benches/log_stream.py AZURITE SDK [--program FILE] [--megabytes N] [--seconds N]

AZURITE is the program azurite-blob and SDK a folder with the Python package azure-ai-ml; tests/run installs both. Two jobs on one simulated
Azure ML write the same at the same time: lines with the time at which they were written. One is ours, whose log is followed from
another machine, through proxies that count; the other is a command job of the SDK, whose process counts what its sockets receive.
"""

import argparse
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ACCOUNT = "devstoreaccount1"
# The emulator's key, from its documentation.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
LINE = 200

# Both the trainer of our job and the command of the other one.
WRITER = """#!/bin/sh
exec python3 -u -c '
import time
lines, seconds = {lines}, {seconds}
begun = time.time()
for line in range(lines):
    time.sleep(max(0, begun + seconds * line / lines - time.time()))
    print(("WRITTEN %.6f " % time.time()).ljust({width}, "x"), flush=True)
'
"""

JOB = """
name = "stream"
[data]
train = ["{sources}"]
tokenizer = {{ kind = "train", vocabulary = 400 }}
[model]
layers = 1
heads = 1
width = 32
context = 32
[train]
steps = 10
block_size = 32
micro_batch = 1
[retry]
attempts = 1
[compute.azureml]
image = "registry.example/ftctl@sha256:{digest}"
identity = "none"
"""

STREAM = """
import os, socket, sys
received = 0
plain = socket.socket.recv_into
def counted(self, *arguments, **further):
    global received
    count = plain(self, *arguments, **further)
    received += count
    return count
socket.socket.recv_into = counted
os.environ["AZUREML_DEV_URL_MFE"] = os.environ["FTCTL_ENDPOINT_AZUREML"]
from azure.ai.ml import MLClient, command
from azure.ai.ml.entities import AmlCompute, Environment
from azure.ai.ml.operations import _job_ops_helper
from azure.core.pipeline.policies import _authentication
from azure.identity import ManagedIdentityCredential
# As in tests/common/azureml_sdk.py: plain HTTP on loopback, and logs from the addresses in the run history.
_authentication._enforce_https = lambda request: request.context.options.pop("enforce_https", None)
_job_ops_helper.get_datastore_info = lambda *_: None
place = [os.environ["AZUREML_ARM_" + name] for name in ("SUBSCRIPTION", "RESOURCEGROUP", "WORKSPACE_NAME")]
client = MLClient(ManagedIdentityCredential(), *place, enable_telemetry=False, polling_interval=1)
client.compute.begin_create_or_update(
    AmlCompute(name="gpu", size="Standard_ND40rs_v2", tier="low_priority", min_instances=0, max_instances=1)
).result()
environment = Environment(name="any", version="1", image="registry.example/any:1")
job = client.jobs.create_or_update(
    command(name="stream-a1", command=sys.argv[1], compute="gpu", environment=environment, instance_count=1)
)
received = 0
client.jobs.stream(job.name)
print("RECEIVED", received, flush=True)
"""


class Proxy:
    """Counts what comes back from `port`."""

    def __init__(self, port):
        self.port, self.received = port, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.own = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            near, _ = self.listener.accept()
            far = socket.create_connection(("127.0.0.1", self.port))
            for source, target, counts in ((near, far, False), (far, near, True)):
                threading.Thread(target=self.pump, args=(source, target, counts), daemon=True).start()

    def pump(self, source, target, counts):
        try:
            while piece := source.recv(65_536):
                if counts:
                    self.received += len(piece)
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass


class Reader:
    """The delays of the lines that a program shows, and how many bytes it says it has received."""

    def __init__(self, command, environment, folder):
        self.delays, self.received, self.rest = [], None, []
        self.process = subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            now = time.time()
            if match := re.search(r"WRITTEN (\d+\.\d+) ", line):
                self.delays.append(now - float(match[1]))
            elif match := re.match(r"RECEIVED (\d+)", line):
                self.received = int(match[1])
            else:
                self.rest.append(line)


def main():
    arguments = parse()
    lines = int(arguments.megabytes * 1e6 / LINE)
    writer = WRITER.format(lines=lines, seconds=arguments.seconds, width=LINE - 1)
    started = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "image").mkdir()
        trainer = folder / "image/ft-trainer"
        trainer.write_text(writer)
        trainer.chmod(0o755)
        (folder / "job.toml").write_text(JOB.format(sources=HERE.parent / "src/job/**/*.rs", digest=64 * "0"))
        (folder / "stream.py").write_text(STREAM)
        try:
            report(*measure(arguments, folder, trainer, started), lines)
        finally:
            for process in reversed(started):
                process.kill()


def measure(arguments, folder, trainer, started):
    """A reader of each kind that has shown everything, with what it has received."""
    program = str(arguments.program.resolve())
    base = dict(os.environ, FTCTL_TRUST_PROJECT="1", FTCTL_BACKEND="azureml", AZURE_STORAGE_KEY=KEY, DEVCLOUD_IMAGE_PATH=str(folder / "image"))
    base |= {f"XDG_{name}_HOME": str(folder / "home" / name) for name in ("STATE", "CONFIG")}
    blobs = ["--blobHost", "127.0.0.1", "--blobPort", "0", "--disableTelemetry", "--skipApiVersionCheck", "--silent", "--location", str(folder / "blobs")]
    blob_port = int(start(started, [arguments.azurite, *blobs], base, r"successfully listens on .*:(\d+)")[1])
    said = start(started, [program, "devcloud", "azureml", "--speed", "10", "-o", "jsonl"], base, r"^(\{.*\})$")[1]
    printed = json.loads(said)
    base |= printed.get("environment", printed)
    store = f"http://127.0.0.1:{{}}/{ACCOUNT}/stream"
    base["FTCTL_STORE"] = store.format(blob_port)
    submit = [program, "submit", "job.toml", "--ttl", "12h"]
    job = subprocess.run(submit, env=base, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    # Another ftctl goes on with it; the one that is measured only looks, from another home.
    started.append(subprocess.Popen([program, "logs", "-f", job], env=base, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    devcloud_port = int(base["FTCTL_ENDPOINT_AZUREML"].rsplit(":", 1)[1])
    proxies = [Proxy(blob_port), Proxy(devcloud_port)]
    apart = base | {"FTCTL_STORE": store.format(proxies[0].own), "FTCTL_ENDPOINT_AZUREML": f"http://127.0.0.1:{proxies[1].own}"}
    apart |= {f"XDG_{name}_HOME": str(folder / "apart" / name) for name in ("STATE", "CONFIG")}
    ours = Reader([program, "logs", "-f", job], apart, folder)
    theirs = Reader([sys.executable, "-u", "stream.py", f"sh {trainer}"], base | {"PYTHONPATH": str(arguments.sdk)}, folder)
    started += [ours.process, theirs.process]
    for reader in (ours, theirs):
        reader.thread.join(arguments.seconds + 600)
    ours.received = sum(proxy.received for proxy in proxies)
    return ours, theirs


def start(started, command, environment, until):
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    started.append(process)
    for line in process.stdout:
        if match := re.search(until, line):
            return match
    raise SystemExit(f"{command[0]} did not start")


def report(ours, theirs, lines):
    for name, reader in (("ftctl logs -f", ours), ("the SDK's stream", theirs)):
        delays = sorted(reader.delays)
        if len(delays) != lines or reader.received is None:
            raise SystemExit(f"{name} has shown {len(delays)} of {lines} lines:\n{''.join(reader.rest[-30:])}")
        median, high, worst = (delays[int(len(delays) * part)] for part in (0.5, 0.99, 1 - 1e-9))
        size = reader.received / 1e6
        print(f"{name}: {size:.1f} MB for {lines * LINE / 1e6:.1f} MB of log; a line is shown after {median:.2f} s (median), {high:.2f} s (99 %), {worst:.2f} s at most")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("azurite", type=pathlib.Path)
    parser.add_argument("sdk", type=pathlib.Path)
    parser.add_argument("--program", type=pathlib.Path, default=HERE.parent / "target/release/ftctl")
    parser.add_argument("--megabytes", type=float, default=2)
    parser.add_argument("--seconds", type=float, default=180)
    return parser.parse_args()


if __name__ == "__main__":
    main()
