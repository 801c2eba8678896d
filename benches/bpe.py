"""GPT-2's byte-pair encoding beside tiktoken's, one core each, on about 40 MB of real text and on adversarial text; the ids must be equal.

Usage: python benches/bpe.py PATH/TO/encode [--megabytes N] [--rounds N]

`cargo bench --package ft-trainer --bench encode --no-run` builds the program and prints its path. The text is Rust sources and Markdown of the
packages that cargo has unpacked on this machine; tiktoken is built from the rank file in the package tiktoken-rs. The two alternate; the
result is the median of the rounds' ratios.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import unicodedata
from pathlib import Path

import numpy
import tiktoken
from tiktoken.load import load_tiktoken_bpe

SPLIT = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
PUBLISHED = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"


def packages():
    """Directories of the packages of this workspace."""
    command = ["cargo", "metadata", "--format-version", "1", "--offline"]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {package["name"]: Path(package["manifest_path"]).parent for package in metadata["packages"]}


def peer(ranks):
    return tiktoken.Encoding(
        "gpt2", pat_str=SPLIT, mergeable_ranks=load_tiktoken_bpe(str(ranks), expected_hash=PUBLISHED), special_tokens={}
    )


def real(registry, megabytes):
    texts, size = [], 0
    for path in sorted(registry.glob("*/**/*")):
        if path.suffix in (".rs", ".md") and path.is_file() and size < megabytes * 1_000_000:
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
            texts.append(text)
            size += len(text.encode())
    return texts


def adversarial():
    """Every assigned character, long runs, white space of all kinds, and lines of hundreds of kilobytes."""
    draw = random.Random(8)
    characters = [c for c in map(chr, range(1, sys.maxunicode + 1)) if unicodedata.category(c) not in ("Cs", "Cn")]
    blank = list(" \n\r\t\u0085\u00a0\u2003\u3000\u200d\ufeff")
    texts = ["".join(characters), "".join(draw.sample(characters, len(characters)))]
    texts += [unit * 20_000 for unit in ["a", "7", "!", " ", "\n", "é", "漢", "'s", "👩", "\r\n", " x", "👩‍👩‍👧", "e\u0301"]]
    texts += ["".join(draw.choice(draw.choice([characters, blank, "abc'", "0123"])) for _ in range(100_000)) for _ in range(10)]
    return texts


def ours(binary, folder, texts):
    names = []
    for number, text in enumerate(texts):
        name = folder / f"{number}.txt"
        if not name.exists():
            name.write_text(text, encoding="utf-8", newline="")
        names.append(str(name))
    (folder / "list").write_text("\n".join(names))
    seconds = float(subprocess.run([binary, folder / "list", folder / "ids"], check=True, capture_output=True, text=True).stdout)
    return seconds, numpy.fromfile(folder / "ids", dtype="<u4")


def theirs(encoding, texts):
    started = time.perf_counter()
    ids = [encoding.encode_ordinary(text) for text in texts]
    return time.perf_counter() - started, numpy.concatenate(ids)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--megabytes", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    package = packages()["tiktoken-rs"]
    encoding = peer(package / "assets" / "r50k_base.tiktoken")
    different = False
    for name, texts, bar in [("real text", real(package.parent, arguments.megabytes), 2.0), ("adversarial text", adversarial(), 2.0)]:
        size, ratios = sum(len(text.encode()) for text in texts), []
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(arguments.rounds):
                (mine, found), (other, expected) = ours(arguments.binary, Path(folder), texts), theirs(encoding, texts)
                ratios.append(other / mine)
        same = numpy.array_equal(found, expected)
        different |= not same
        verdict = "" if bar is None else f", bar {bar:.0f}"
        print(
            f"{name}: {size / 1e6:.1f} MB, {len(expected):,} ids, {'identical' if same else 'DIFFERENT'}; {size / mine / 1e6:.1f} against "
            f"{size / other / 1e6:.1f} MB/s; ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}){verdict}"
        )
    sys.exit(different)


if __name__ == "__main__":
    main()
