"""`ftctl prepare` on the token files of nanoGPT, llm.c and fairseq, written here as those programs write them.

Usage: python token_files.py PATH/TO/ftctl

The tokens of the dataset must be the tokens that were written. Exit code 1 when one differs.
"""

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy
from tokenizer import stored_documents

END_OF_TEXT = 50256


def documents():
    generator = numpy.random.default_rng(3)
    return [generator.zipf(1.3, size=generator.integers(1, 400)).clip(max=50255).tolist() for _ in range(300)]


def nanogpt(folder, documents):
    """`data/openwebtext/prepare.py`: 16-bit numbers, an end of text after each document."""
    tokens = [token for document in documents for token in [*document, END_OF_TEXT]]
    numpy.array(tokens, dtype=numpy.uint16).tofile(folder / "train.bin")


def llm_c(folder, documents):
    """`dev/data/data_common.py`: a header of 256 numbers, then 16-bit tokens."""
    header = numpy.zeros(256, dtype=numpy.int32)
    tokens = [token for document in documents for token in [*document, END_OF_TEXT]]
    header[:3] = 20240520, 1, len(tokens)
    with open(folder / "train.bin", "wb") as file:
        file.write(header.tobytes())
        file.write(numpy.array(tokens, dtype=numpy.uint16).tobytes())


def fairseq(folder, documents):
    """`fairseq-preprocess --only-source --dataset-impl mmap` on lines of token numbers: a dictionary by frequency padded to a multiple of 8,
    each line with `</s>`."""
    counts = Counter(str(token) for document in documents for token in document).most_common()
    words = [*counts, *[(f"madeupword{number:04}", 0) for number in range(-(len(counts) + 4) % 8)]]
    (folder / "dict.txt").write_text("".join(f"{word} {count}\n" for word, count in words))
    ids = {word: number + 4 for number, (word, _) in enumerate(words)}
    lines = [numpy.array([ids[str(token)] for token in document] + [2], dtype=numpy.uint16) for document in documents]
    sizes = numpy.array([len(line) for line in lines], dtype=numpy.int32)
    positions = numpy.concatenate([[0], numpy.cumsum(sizes[:-1].astype(numpy.int64) * 2)]).astype(numpy.int64)
    with open(folder / "train.idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + (8).to_bytes(1, "little") + len(lines).to_bytes(8, "little"))
        file.write(sizes.tobytes() + positions.tobytes())
    (folder / "train.bin").write_bytes(b"".join(line.tobytes() for line in lines))


def prepared(folder, form):
    (folder / "job.toml").write_text(f'name = "tokens"\n[data]\nformat = "{form}"\ntrain = ["train.bin"]\n')
    out = folder / "prepared"
    subprocess.run([sys.argv[1], "prepare", "--job", folder / "job.toml", "--out", out], check=True, stdout=subprocess.DEVNULL)
    return stored_documents(out)


def main():
    failed = False
    for form, write in {"nanogpt": nanogpt, "llm-c": llm_c, "fairseq": fairseq}.items():
        with tempfile.TemporaryDirectory() as scratch:
            write(Path(scratch), documents())
            found, description = prepared(Path(scratch), form)
        good = found == documents() and description["train"]["documents"] == len(documents())
        print(f"{'ok' if good else 'FAILED':6} {form}: {len(found)} documents, {sum(map(len, found))} tokens")
        failed |= not good
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
