"""Most memory of `ftctl prepare` on a large text file.

Usage: python benches/tokenize_memory.py PATH/TO/ftctl [--megabytes N]

The file is made of this repository's own sources over and over, with a number before each to keep them apart. Peak resident memory is
what the operating system counted for the process, pages of the mapped or read file included.
"""

import argparse
import resource
import subprocess
import tempfile
import time
from pathlib import Path

BAR = 500


def write(path, megabytes):
    root = Path(__file__).parent.parent
    texts = [file.read_text() for file in sorted([*root.glob("src/**/*.rs"), *root.glob("trainer/src/**/*.rs"), *root.glob("*.md")])]
    with open(path, "w") as file:
        number = 0
        while file.tell() < megabytes * 1_000_000:
            file.write(f"// {number}\n{texts[number % len(texts)]}")
            number += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--megabytes", type=int, default=1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        write(text, arguments.megabytes)
        started = time.perf_counter()
        command = [arguments.binary, "prepare", text, "--out", Path(folder) / "out", "--validation-fraction", "0", "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000
    verdict = "met" if peak <= BAR else "MISSED"
    print(f"{arguments.megabytes} MB of text: peak {peak:.0f} MB (bar {BAR}, {verdict}), {seconds:.0f} s")


if __name__ == "__main__":
    main()
