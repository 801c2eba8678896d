"""Text with special tokens in it: our ids under `data.end_of_text = "split"` against those of `transformers`.

Usage: python special_tokens.py [PATH/TO/ftctl]

`transformers` adds tokens of every kind to GPT-2's tokenizer and to a small one, gives one of them another end of text, and saves
both as it does today and as it did; `ftctl prepare` reads each form. A text may begin and end with such tokens, and have several in a row.
Exit code 1 when one document differs.
"""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizer import program, stored_documents
from transformers import AddedToken, AutoTokenizer

ADDED = [
    AddedToken("<pad>", special=True, normalized=False),
    AddedToken("<mask>", special=True, normalized=False, lstrip=True),
    AddedToken("<tail>", special=True, normalized=False, rstrip=True),
    AddedToken("town", special=False, normalized=False, single_word=True),
    AddedToken("<pad>ding", special=False, normalized=True),
    AddedToken("«é»", special=True, normalized=False),
    AddedToken("the end", special=False, normalized=True),
]


def prepare(source, out, flags):
    command = [program(), "prepare", str(source), "--out", str(out), "--validation-fraction", "0", *flags]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out


def texts(names):
    rng = random.Random(7)
    parts = [*names, *names, "never", " ", "  ", "\n", "\t", "town", "towns", "uptown", "the end", "é", "«", "a word", "12", "'s", "<pa", "d>", "漢字"]
    found = ["".join(rng.choice(parts) for _ in range(rng.randrange(1, 14))) for _ in range(1000)]
    return [text for text in found if text.strip("\0")]


def compare(name, directory, scratch):
    tokenizer = AutoTokenizer.from_pretrained(directory)
    documents = texts([tokenizer.eos_token, *(str(token) for token in ADDED)])
    source = scratch / f"{name}.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="utf-8")
    out = prepare(source, scratch / f"{name}-out", ["--tokenizer-from", str(directory), "--end-of-text", "split"])
    stored, description = stored_documents(out)
    end = description["end_of_text"]
    assert end == tokenizer.eos_token_id, (end, tokenizer.eos_token_id)
    assert description["vocabulary"] == len(tokenizer), (description["vocabulary"], len(tokenizer))
    ours = [token for document in stored for token in [*document, end]]
    theirs = []
    for text in documents:
        ids = tokenizer(text, add_special_tokens=False).input_ids
        theirs += ids if ids[-1:] == [end] else [*ids, end]
    first = next((at for at, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]), min(len(ours), len(theirs)))
    same = ours == theirs
    kept = AutoTokenizer.from_pretrained(out)
    again = all(kept(text).input_ids == tokenizer(text, add_special_tokens=False).input_ids for text in documents[:500])
    where = "" if same else f": {tokenizer.convert_ids_to_tokens(ours[first - 5 : first + 5])} and {tokenizer.convert_ids_to_tokens(theirs[first - 5 : first + 5])}"
    print(f"{name}: {len(documents)} documents, {len(theirs)} ids, {'the same' if same and again else 'different'}{where}")
    return same and again


def main():
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        text = scratch / "text.txt"
        text.write_text("the town by the sea, the towns of the others, and the end of them all. " * 60)
        bases = {"gpt2": prepare(text, scratch / "gpt2", []), "small": prepare(text, scratch / "small", ["--tokenizer", "train", "--vocabulary", "300"])}
        good = []
        for name, base in bases.items():
            for end in ["<|endoftext|>", "</s>"]:
                tokenizer = AutoTokenizer.from_pretrained(base)
                tokenizer.add_tokens(ADDED)
                tokenizer.add_special_tokens({"eos_token": end})
                directory = scratch / f"{name}-{len(good)}"
                tokenizer.save_pretrained(directory)
                good.append(compare(directory.name, directory, scratch))
                # Names that only the configuration has, and the list of names that counts before it; with a model that has rows.
                named = scratch / f"{directory.name}-named"
                prepare(text, named, ["--tokenizer-from", str(base)])
                config = json.loads((named / "tokenizer_config.json").read_text())
                config.update(eos_token=end, bos_token="<pad>", mask_token="«é»", additional_special_tokens=["never"])
                config["extra_special_tokens"] = ["<tail>", "town"]
                (named / "tokenizer_config.json").write_text(json.dumps(config))
                names = {"bos_token": "the end", "pad_token": {"content": "<mask>", "lstrip": True}}
                (named / "special_tokens_map.json").write_text(json.dumps(names))
                (named / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": 60_000}))
                good.append(compare(named.name, named, scratch))
                # As little as transformers needs.
                alone = scratch / f"{directory.name}-alone"
                alone.mkdir()
                (alone / "tokenizer.json").write_bytes((directory / "tokenizer.json").read_bytes())
                if end == "<|endoftext|>":
                    (alone / "tokenizer_config.json").write_text(json.dumps({"eos_token": end, "tokenizer_class": "PreTrainedTokenizerFast"}))
                    good.append(compare(alone.name, alone, scratch))
        sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
