#!/usr/bin/env python3
"""Uploads to a blob service that reads and forgets (benches/sink.rs), ours beside azcopy, rclone and az where they are found, in turns.

    cargo build --release && python3 benches/store.py [--program FILE] [--peers FOLDER] [--rounds N] [--record]

With --peers, azcopy (from npm), rclone (from Debian) and az (600 MB, from PyPI) are put into FOLDER unless they are there; a peer that
cannot be had is told and left out. Without, the peers are those in PATH. Five rounds take about as many minutes.

Wall time, processor time and the largest resident memory of each program; the median of the rounds. az, which sends one file at a time,
takes part in the first round only. --record appends to RESULTS.md.
The processor's bar for 1 GiB is 1 s beside what MD5 of as many bytes takes Python's hashlib, measured in the same run. Exit code 1: a
bar is missed.
"""

import argparse
import datetime
import functools
import hashlib
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ACCOUNT = "devstoreaccount1"
# The emulators' key, from their documentation.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

GIB = 1 << 30

# Files, bytes of each, milliseconds per request, and the bar for ours: seconds on the wall; without one, azcopy's.
CASES = [
    ("2,000 files of 20 kB, 20 ms per request", 2_000, 20_000, 20, 1.5),
    ("2,000 files of 20 kB", 2_000, 20_000, 0, None),
    ("one file of 1 GiB", 1, GIB, 0, None),
    ("16 files of 64 MiB", 16, 64 << 20, 0, None),
]
BAR_MEMORY_MB = 150

# Peers that are measured once.
SLOW = ["az"]


def main():
    arguments = parse()
    install(arguments)
    programs = tools(arguments)
    md5 = seconds_of_md5()
    print(f"MD5 of 1 GiB by hashlib: {md5:.2f} s", file=sys.stderr, flush=True)
    rows, missed = [], False
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        sink = directory / "sink"
        subprocess.run(["rustc", "--edition", "2024", "-O", "-o", sink, HERE / "sink.rs"], check=True)
        for name, files, size, latency, bar in CASES:
            data = directory / "data"
            make(data, files, size)
            found = {tool: [] for tool in programs}
            for round in range(arguments.rounds):
                for tool, command in programs.items():
                    if round == 0 or tool not in SLOW:
                        found[tool].append(measure(sink, latency, data, command, directory))
            shutil.rmtree(data)
            for tool, rounds in found.items():
                wall, processor, memory = (statistics.median(column) for column in zip(*rounds))
                ours = tool == "ftctl"
                limit = bar if bar is not None or "azcopy" not in found else statistics.median(row[0] for row in found["azcopy"])
                busy = 1 + md5 if files * size == GIB else None
                bad = ours and (limit is not None and wall > limit or memory > BAR_MEMORY_MB or busy is not None and processor > busy)
                missed |= bad
                bars = [limit and f"{limit:.2f} s", busy and f"{busy:.2f} s of processor"]
                note = ", ".join(bar for bar in bars if bar) if ours else "one round" if tool in SLOW else ""
                print(name, tool, f"{wall:.2f} {processor:.2f} {memory:.0f}", file=sys.stderr, flush=True)
                rows.append(f"| {name} | {tool} | {wall:.2f} s | {processor:.2f} s | {memory:.0f} MB | {note}{' MISSED' if bad else ''} |")
    text = "\n".join(["| what | tool | wall | processor | memory | bar |", "|---|---|---:|---:|---:|---|", *rows])
    print(text)
    if arguments.record:
        with open(HERE / "RESULTS.md", "a", encoding="utf-8") as results:
            load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
            results.write(
                f"\n## {datetime.date.today()}: uploads to a service that reads and forgets\n\n"
                f"{arguments.machine}, load average {load}; `python3 benches/store.py --rounds {arguments.rounds} --record`\n\n{text}\n"
            )
    sys.exit(missed)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target"))
    parser.add_argument("--program", type=pathlib.Path, default=target / "release/ftctl")
    parser.add_argument("--peers", type=pathlib.Path, default=None, help="where azcopy, rclone and az are, or shall be")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", action="store_true", help="append the result to RESULTS.md")
    parser.add_argument("--machine", default=f"{os.cpu_count()} cores, {os.uname().sysname} {os.uname().machine}")
    return parser.parse_args()


AZCOPY = "@azure-tools/azcopy-linux"


def install(arguments):
    folder = arguments.peers
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    unpack = "for package in *.deb; do dpkg -x $package . && rm $package; done"
    ways = {
        # npm leaves the program without the right to be run, and without libraries that it wants.
        "azcopy": f"npm install --silent --no-audit --no-fund --prefix . {AZCOPY} && chmod +x node_modules/{AZCOPY}/dist/bin/* && "
        f"apt-get download libsecret-1-0 libglib2.0-0 && {unpack}",
        "rclone": f"apt-get download rclone && {unpack}",
        "az": "python3 -m venv az && az/bin/pip install --quiet --disable-pip-version-check --no-compile azure-cli",
    }
    for name, command in ways.items():
        if not runs(find(name, folder), folder):
            subprocess.run(["sh", "-c", command], cwd=folder, stdout=sys.stderr, check=False)
            if not runs(find(name, folder), folder):
                print(f"{name} cannot be had ({command}): it is left out", file=sys.stderr, flush=True)


def libraries(folder):
    found = sorted({str(path.parent) for path in folder.rglob("*.so.*")}) if folder else []
    return {"LD_LIBRARY_PATH": ":".join(found)} if found else {}


def runs(program, folder):
    """Whether there is such a program and it can be started."""
    environment = os.environ | libraries(folder)
    return program is not None and subprocess.run([program, "--version"], env=environment, capture_output=True, check=False).returncode == 0


def seconds_of_md5():
    block = os.urandom(4 << 20)
    begun = time.process_time()
    for _ in range(GIB // len(block)):
        hashlib.md5(block, usedforsecurity=False)
    return time.process_time() - begun


# The service looks at no signature.
SIGNATURE = "sv=2020-12-06&ss=b&srt=sco&sp=rwdlac&se=2099-01-01T00:00:00Z&sig=bm9ib2R5IGxvb2tz"


def ftctl(program, container, service, data):
    return [program, "upload", data, "--store", container], {"AZURE_STORAGE_KEY": KEY}


def azcopy(program, container, service, data):
    return [program, "copy", data, f"{container}?{SIGNATURE}", "--recursive", "--from-to=LocalBlob", "--log-level=NONE"], {}


def rclone(program, container, service, data):
    # With a key it would make a host of the account's name.
    remote = f":azureblob,sas_url='{container}?{SIGNATURE}':container"
    # More transfers at once than by default, which are 4; and no look at what is there.
    return [program, "copy", data, remote, "--transfers=48", "--checkers=48", "--no-traverse", "--no-check-dest"], {}


def az(program, container, service, data):
    connection = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={service};"
    command = [program, "storage", "blob", "upload-batch", "--source", data, "--destination", "container", "--overwrite"]
    return [*command, "--connection-string", connection, "--no-progress", "--output", "none"], {}


def tools(arguments):
    """Each: from the container's URL, the service's URL and the data to a command and what it needs in the environment."""
    found = {"ftctl": functools.partial(ftctl, arguments.program)}
    for peer in (azcopy, rclone, az):
        program = find(peer.__name__, arguments.peers)
        if runs(program, arguments.peers):
            found[peer.__name__] = functools.partial(with_libraries, functools.partial(peer, program), libraries(arguments.peers))
    return found


def with_libraries(peer, variables, container, service, data):
    command, environment = peer(container, service, data)
    return command, environment | variables


def find(name, folder):
    """The program, in `folder` or in PATH."""
    inside = sorted(folder.rglob(f"{name}*")) if folder else []
    programs = [path for path in inside if path.is_file() and path.stem.split("_")[0] == name and os.access(path, os.X_OK)]
    return programs[0] if programs else shutil.which(name)


def make(directory, files, size):
    """Files in which nothing comes twice, so that nothing can be sent once for all."""
    directory.mkdir()
    for number in range(files):
        with open(directory / f"{number:05}", "wb") as file:
            for begin in range(0, size, 1 << 20):
                file.write(os.urandom(min(1 << 20, size - begin)))


def measure(sink, latency, data, command, directory):
    """Seconds on the wall, seconds of processor, megabytes."""
    server = subprocess.Popen([sink, "0", str(latency)], stdout=subprocess.PIPE, text=True)
    try:
        port = server.stdout.readline().split()[-1]
        service = f"http://127.0.0.1:{port}/{ACCOUNT}"
        arguments, environment = command(f"{service}/container", service, data)
        home = tempfile.mkdtemp(dir=directory)
        environment |= {"PATH": os.environ["PATH"], "HOME": home, "AZCOPY_LOG_LOCATION": home, "AZCOPY_JOB_PLAN_LOCATION": home}
        begun = time.monotonic()
        child = subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        # A peer that hangs shall not hold everything up.
        guard = threading.Timer(300, child.kill)
        guard.start()
        talk = child.stdout.read()
        guard.cancel()
        _, status, used = os.wait4(child.pid, 0)
        wall = time.monotonic() - begun
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            sys.exit(f"{arguments[0]} failed with {child.returncode}: {talk.decode(errors='replace')[-500:]}")
        return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
