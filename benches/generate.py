"""Greedy generation beside `transformers`: 50 prompts x 200 tokens on the CPU, as one left-padded batch and one prompt at a time.

Usage: python benches/generate.py PATH/TO/ft-trainer [--tokens N] [--rounds N] [--threads N] [--shape gpt2|small] [--alone N]

Weights are random, in the shape of GPT-2 small; the tokens that both write must be equal. The two alternate; the result is the median of
the rounds' ratios. What is timed is the writing of all tokens but the first: reading the weights and the prompts is not in it, on either
side. Needs torch, transformers, tokenizers.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import transformers
from tokenizers import ByteLevelBPETokenizer

END_OF_TEXT = "<|endoftext|>"
WORDS = "the quick brown fox jumps over a lazy dog while seven wizards quietly boil their best potions".split()
SHAPES = {"gpt2": dict(n_layer=12, n_head=12, n_embd=768, vocab_size=50257), "small": dict(n_layer=4, n_head=4, n_embd=256, vocab_size=4096)}


def prompts(count):
    return [" ".join(WORDS[(number * 7 + word) % len(WORDS)] for word in range(3 + number * 5 % 17)) for number in range(count)]


def make(directory, shape):
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(prompts(50), vocab_size=320, special_tokens=[END_OF_TEXT])
    tokenizer.save_model(directory)
    torch.manual_seed(3)
    end = tokenizer.token_to_id(END_OF_TEXT)
    config = transformers.GPT2Config(**SHAPES[shape], initializer_range=0.1, bos_token_id=end, eos_token_id=end)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(directory)
    return model.eval()


def ours(program, directory, texts, tokens, threads):
    """The samples, and the seconds of wall and of processor time that the process took."""
    command = [program, "generate", "--model", directory, "--tokens", str(tokens), "--temperature", "0", "--json"]
    command += [f"--prompt={text}" for text in texts]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment).stdout
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(output)["samples"], (wall, cpu)


def theirs(model, ids, tokens):
    longest, end = max(map(len, ids)), model.config.eos_token_id
    padded = torch.tensor([[end] * (longest - len(row)) + row for row in ids])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in ids])
    started, cpu = time.perf_counter(), time.process_time()
    with torch.no_grad():
        rows = model.generate(padded, attention_mask=mask, max_new_tokens=tokens, do_sample=False, pad_token_id=end)
    seconds = time.perf_counter() - started, time.process_time() - cpu
    rows = [row[longest:].tolist() for row in rows]
    return [row[: row.index(end)] if end in row else row for row in rows], seconds


def difference(long, short):
    return tuple(a - b for a, b in zip(long, short))


def compare(what, program, directory, model, texts, arguments):
    ratios = []
    for _ in range(arguments.rounds):
        first, short = ours(program, directory, texts, 1, arguments.threads)
        samples, long = ours(program, directory, texts, arguments.tokens, arguments.threads)
        mine = difference(long, short)
        ids = [sample["prompt_tokens"] for sample in first]
        _, short = theirs(model, ids, 1)
        rows, long = theirs(model, ids, arguments.tokens)
        other = difference(long, short)
        same = rows == [sample["tokens"] for sample in samples]
        assert same, f"{what}: the tokens differ"
        ratios.append((other[0] / mine[0], other[1] / mine[1]))
        written = sum(map(len, rows)) - len(rows)
    wall, cpu = (sorted(column) for column in zip(*ratios))
    print(
        f"{what}: {written} tokens, equal; {written / mine[0]:.0f} against {written / other[0]:.0f} tokens/s; ratio "
        f"{statistics.median(wall):.2f} ({wall[0]:.2f} to {wall[-1]:.2f}), of processor time {statistics.median(cpu):.2f}, bar 3",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shape", choices=SHAPES, default="gpt2")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--alone", type=int, default=3, help="prompts that are continued one at a time")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as directory:
        model = make(directory, arguments.shape)
        program, texts = arguments.program, prompts(max(arguments.batch, arguments.alone))
        compare(f"{arguments.batch} prompts at once", program, directory, model, texts[: arguments.batch], arguments)
        for text in texts[: arguments.alone]:
            compare("one prompt", program, directory, model, [text], arguments)


if __name__ == "__main__":
    sys.exit(main())
