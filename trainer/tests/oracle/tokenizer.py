"""Our token ids against those of `transformers`, on the tokenizer files that we write.

Usage: python tokenizer.py [PATH/TO/ftctl]

`ftctl prepare` turns generated text into a dataset, once with GPT-2's vocabulary and once with one trained on the text.
`transformers` loads the tokenizer from the dataset's directory and encodes the same documents; the ids must be those in the
token files. Exit code 1 when one document differs.
"""

import array
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

from transformers import AutoTokenizer

END_OF_TEXT = "<|endoftext|>"


def program():
    """The ftctl to test: named, or the one of the release build."""
    if len(sys.argv) > 1:
        return sys.argv[1]
    return str(Path(os.environ.get("CARGO_TARGET_DIR", "target")) / "release" / "ftctl")


def texts():
    """Documents of every assigned character, of runs, of white space, of words and of program text."""
    rng = random.Random(20)
    characters = [c for c in map(chr, range(1, sys.maxunicode + 1)) if unicodedata.category(c) not in ("Cs", "Cn")]
    blank = [" ", "  ", "\n", "\r\n", "\t", "\u0085", "\u00a0", "\u2003", "\u3000", "\u200d", "\ufeff"]
    words = "the don't we'll I've it's THEY'RE x='s' 12 3.5 ½ naïve 東京 👩‍👩‍👧 e\u0301 ... --> {}; // _ /*".split(" ")
    every = "".join(characters)
    found = ["x" + every[start : start + 5000] for start in range(0, len(every), 5000)]
    found += [unit * 2000 for unit in ["a", "7", "!", " ", "\n", "é", "漢", "'s", "👩"]]
    for _ in range(300):
        tokens = (rng.choice([rng.choice(words), rng.choice(characters), rng.choice(blank)]) for _ in range(500))
        found.append("".join(token + rng.choice(["", " "]) for token in tokens))
    found += [path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.py"))] * 3
    return [text.replace(END_OF_TEXT, "") for text in found]


def prepare(directory, documents, flags):
    """A dataset of these documents and nothing held out, with the tokenizer that the flags name."""
    source = directory / "documents.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="utf-8")
    out = directory / "-".join(["out", *flags])
    command = [program(), "prepare", str(source), "--out", str(out), "--validation-fraction", "0", *flags]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out


def stored_documents(dataset):
    """The ids of each document in the token files, and the description."""
    description = json.loads((dataset / "dataset.json").read_text())
    ids = []
    for shard in description["train"]["shards"]:
        content = (dataset / shard["file"]).read_bytes()
        magic, version, width, count = struct.unpack_from("<8sIIQ", content)
        assert (magic, version, count) == (b"FTTOKENS", 1, shard["tokens"]), (magic, version, count)
        tokens = array.array({2: "H", 4: "I"}[width], content[64:])
        if sys.byteorder == "big":
            tokens.byteswap()
        ids.extend(tokens)
    documents = [[]]
    for token in ids:
        if token == description["end_of_text"]:
            documents.append([])
        else:
            documents[-1].append(token)
    assert documents.pop() == [], "the last document has no end"
    return documents, description


def compare(name, dataset, documents):
    """Whether the stored ids are those of transformers, which reads the text back from them."""
    tokenizer = AutoTokenizer.from_pretrained(dataset)
    stored, description = stored_documents(dataset)
    assert len(tokenizer) == description["vocabulary"], (len(tokenizer), description["vocabulary"])
    assert tokenizer.eos_token_id == description["end_of_text"], tokenizer.eos_token_id
    assert len(stored) == len(documents), (len(stored), len(documents))
    different = 0
    for text, ids in zip(documents, stored):
        theirs = tokenizer(text, add_special_tokens=False).input_ids
        if ids != theirs or tokenizer.decode(ids, clean_up_tokenization_spaces=False) != text:
            different += 1
            print(f"{name}: differs on {text[:60]!r}")
    total = sum(map(len, stored))
    kind = type(tokenizer).__name__
    print(f"{name}: {len(documents)} documents, {total} ids, {len(tokenizer)} tokens, {kind}: {different} documents differ")
    return different == 0


def main():
    documents = texts()
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        gpt2 = prepare(directory, documents, [])
        trained = prepare(directory, documents, ["--tokenizer", "train", "--vocabulary", "3000"])
        good = [compare("gpt2", gpt2, documents), compare("trained", trained, documents)]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
