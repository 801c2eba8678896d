"""Greedy generation against `transformers`: 50 prompts x 200 tokens in one left-padded batch, and ten of them alone.

Usage: python generate.py PATH/TO/ft-trainer [--checkpoint output/checkpoints/step-0000000040]

Without --checkpoint a random model and a small tokenizer are made with transformers and tokenizers. With it, the checkpoint that
ft-trainer wrote is loaded by transformers as it is; then its tokenizer must also agree.
Exit code 0 when everything is equal. Needs torch, transformers, tokenizers.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from tokenizers import ByteLevelBPETokenizer

END_OF_TEXT = "<|endoftext|>"
TOKENS = 200
ALONE = 10
BEGINNINGS = [
    "fn main() {",
    "let",
    "pub struct Shape { layers: usize, heads: usize }",
    "// a comment, and more",
    "x",
    "impl Display for Error {\n    fn fmt(",
    "use std::io;",
    "    match value",
]
PROMPTS = [" ".join(BEGINNINGS[(number + part) % 8] for part in range(1 + number * 3 % 7)) for number in range(50)]


def random_model(directory):
    """Random weights, large enough that the likeliest token is clearly so, and a vocabulary of 400."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(PROMPTS * 20, vocab_size=400, min_frequency=2, special_tokens=[END_OF_TEXT])
    tokenizer.save_model(str(directory))
    torch.manual_seed(3)
    config = transformers.GPT2Config(
        vocab_size=tokenizer.get_vocab_size(), n_positions=512, n_embd=64, n_layer=3, n_head=4, initializer_range=0.15,
        bos_token_id=tokenizer.token_to_id(END_OF_TEXT), eos_token_id=tokenizer.token_to_id(END_OF_TEXT),
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(directory)


def load(directory):
    model, report = transformers.GPT2LMHeadModel.from_pretrained(directory, output_loading_info=True, dtype=torch.float32)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[kind], f"transformers reports {kind}: {report[kind]}"
    return model.eval()


def expected(model, prompts):
    """What transformers generates for token prompts, given as one left-padded batch."""
    end = model.config.eos_token_id
    longest = max(map(len, prompts))
    ids = torch.tensor([[end] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    with torch.no_grad():
        rows = model.generate(ids, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False, pad_token_id=end)
    rows = [row[longest:].tolist() for row in rows]
    return [row[: row.index(end)] if end in row else row for row in rows]


def ours(program, directory, prompts):
    command = [program, "generate", "--model", directory, "--tokens", str(TOKENS), "--temperature", "0", "--json"]
    for prompt in prompts:
        command += [f"--prompt={prompt}"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["samples"]


def compare(what, found, wanted):
    if found == wanted:
        print(f"equal: {what}")
        return True
    print(f"DIFFERENT: {what}\n  transformers {wanted}\n  ft-trainer   {found}")
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--checkpoint", type=pathlib.Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = arguments.checkpoint or pathlib.Path(scratch)
        if arguments.checkpoint is None:
            random_model(directory)
        model = load(directory)
        batch = ours(arguments.program, directory, PROMPTS)
        prompts = [sample["prompt_tokens"] for sample in batch]
        room = model.config.n_positions - max(map(len, prompts))
        assert room >= TOKENS, f"the model's context leaves room for {room} tokens, {TOKENS} are needed"
        equal = [compare("left-padded batch", [sample["tokens"] for sample in batch], expected(model, prompts))]
        for prompt, ids in list(zip(PROMPTS, prompts))[:ALONE]:
            alone = ours(arguments.program, directory, [prompt])[0]["tokens"]
            equal.append(compare(f"alone {prompt!r}", alone, expected(model, [ids])[0]))
        if arguments.checkpoint is not None:
            tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
            equal.append(compare("AutoTokenizer's ids", prompts, [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]))
            texts = [prompt + tokenizer.decode(sample["tokens"]) for prompt, sample in zip(PROMPTS, batch)]
            equal.append(compare("AutoTokenizer's text", [sample["text"] for sample in batch], texts))
            equal.append(compare("end of text", tokenizer.eos_token_id, model.config.eos_token_id))
    return 0 if all(equal) else 1


if __name__ == "__main__":
    sys.exit(main())
