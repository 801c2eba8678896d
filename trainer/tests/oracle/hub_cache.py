"""The cache that `ftctl` fills, read by Hugging Face's own clients; and the one that they fill, read by `ftctl`.

Usage: python hub_cache.py [PATH/TO/ftctl]

A hub on loopback has a small model in two shards and a dataset. `ftctl run` fetches both at rehearsal; then, offline,
`huggingface_hub` finds every file, its scan of the cache has no complaint, and `transformers` loads model and tokenizer. Into an
empty cache `huggingface_hub` fetches the model, and `ftctl` takes every byte of it from there. Exit code 1 when one of it fails.
"""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import torch
from tokenizer import program
from tokenizers.pre_tokenizers import ByteLevel
from transformers import GPT2Config, GPT2LMHeadModel, GPT2TokenizerFast

MODEL, DATASET = "owner/tiny", "owner/tales"
COMMIT = {MODEL: "1" * 40, DATASET: "2" * 40}
README = b"---\nconfigs:\n- config_name: long\n  data_files:\n  - split: train\n    path: long/train-*\n---\n"


def git(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def is_large(name):
    return name.endswith((".safetensors", ".jsonl"))


def make_model(directory):
    torch.manual_seed(7)
    words = sorted(ByteLevel.alphabet()) + ["<|endoftext|>"]
    (directory / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}), encoding="utf-8")
    (directory / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    GPT2TokenizerFast(str(directory / "vocab.json"), str(directory / "merges.txt")).save_pretrained(directory)
    config = GPT2Config(vocab_size=len(words), n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=256, eos_token_id=256)
    GPT2LMHeadModel(config).save_pretrained(directory, max_shard_size="60KB")


class Hub(http.server.BaseHTTPRequestHandler):
    repositories = {}
    downloads = []

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def answer(self, status, headers=(), body=b""):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self):
        path = self.path.split("?")[0]
        for name, files in self.repositories.items():
            kind = "datasets" if name == DATASET else "models"
            if path.startswith(f"/api/{kind}/{name}"):
                return self.answer(200, [("Content-Type", "application/json")], json.dumps(self.listing(name, files)).encode())
            prefix = f"{'/datasets' if kind == 'datasets' else ''}/{name}/resolve/"
            if path.startswith(prefix):
                file = path[len(prefix) :].split("/", 1)[1]
                return self.file(name, file, files.get(file))
        self.answer(404, [("X-Error-Code", "RepoNotFound")])

    @staticmethod
    def listing(name, files):
        def sibling(file, content):
            large = {"lfs": {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}}
            return {"rfilename": file, "size": len(content), "blobId": git(content), **(large if is_large(file) else {})}

        return {"id": name, "sha": COMMIT[name], "siblings": [sibling(*item) for item in files.items()]}

    def file(self, name, file, content):
        if content is None:
            return self.answer(404, [("X-Error-Code", "EntryNotFound"), ("X-Repo-Commit", COMMIT[name])])
        digest = hashlib.sha256(content).hexdigest() if is_large(file) else git(content)
        headers = [("ETag", f'"{digest}"'), ("X-Repo-Commit", COMMIT[name]), ("X-Linked-Etag", f'"{digest}"'), ("X-Linked-Size", str(len(content)))]
        if self.command == "GET":
            self.downloads.append(file)
        return self.answer(200, headers, content)


def ftctl(scratch, address, cache, name, offline=False):
    home = scratch / "home"
    home.mkdir(exist_ok=True)
    job = scratch / "job.toml"
    job.write_text(
        f'name = "{name}"\ninitial_weights = "hf:{MODEL}"\n[data]\ntrain = ["hf:{DATASET}/train"]\n'
        f'[data.tokenizer]\nkind = "files"\ndirectory = "hf:{MODEL}"\n[train]\nblock_size = 32\nsteps = 4\n'
    )
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "HF_ENDPOINT": address, "HF_HOME": str(cache)}
    if offline:
        environment["HF_HUB_OFFLINE"] = "1"
    subprocess.run([str(Path(program()).resolve()), "run", str(job), "--backend", "fake"], check=True, cwd=scratch, env=environment, stdout=subprocess.DEVNULL)


def read_with_their_clients(cache, directory, files):
    """In a process of its own: the library reads its environment when it is loaded."""
    check = f"""
import json, sys
from pathlib import Path
from huggingface_hub import hf_hub_download, scan_cache_dir, snapshot_download
from transformers import AutoTokenizer, GPT2LMHeadModel
original = Path({str(directory)!r})
for file in {files!r}:
    found = hf_hub_download({MODEL!r}, file)
    assert Path(found).read_bytes() == (original / file).read_bytes(), file
rows = hf_hub_download({DATASET!r}, "long/train-0.jsonl", repo_type="dataset", revision={COMMIT[DATASET]!r})
assert Path(rows).read_text().startswith('{{"text"')
scan = scan_cache_dir()
assert not scan.warnings, scan.warnings
found = {{(repo.repo_type, repo.repo_id, tuple(sorted(revision.commit_hash for revision in repo.revisions))) for repo in scan.repos}}
assert found == {{("model", {MODEL!r}, ({COMMIT[MODEL]!r},)), ("dataset", {DATASET!r}, ({COMMIT[DATASET]!r},))}}, found
model, same = GPT2LMHeadModel.from_pretrained({MODEL!r}), GPT2LMHeadModel.from_pretrained(original)
assert all((left == right).all() for left, right in zip(model.parameters(), same.parameters()))
assert AutoTokenizer.from_pretrained({MODEL!r})("a b").input_ids == AutoTokenizer.from_pretrained(original)("a b").input_ids
"""
    environment = {**os.environ, "HF_HOME": str(cache), "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-c", check], check=True, env=environment)


def fill_with_their_client(cache, address, files):
    fetch = f"from huggingface_hub import hf_hub_download; [hf_hub_download({MODEL!r}, file) for file in {files!r}]"
    environment = {**os.environ, "HF_HOME": str(cache), "HF_ENDPOINT": address}
    subprocess.run([sys.executable, "-c", fetch], check=True, env=environment)


def main():
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        directory = scratch / "model"
        directory.mkdir()
        make_model(directory)
        files = {path.name: path.read_bytes() for path in directory.iterdir()}
        assert sum(name.endswith(".safetensors") for name in files) > 1, "several shards"
        rows = b"".join(json.dumps({"text": f"Once upon a time {number}."}).encode() + b"\n" for number in range(200))
        Hub.repositories = {MODEL: {**files, "tf_model.h5": b"x"}, DATASET: {"README.md": README, "long/train-0.jsonl": rows}}
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"

        ours = scratch / "ours"
        ftctl(scratch, address, ours, "first")
        fetched = sorted(set(Hub.downloads))
        assert "tf_model.h5" not in fetched and len(Hub.downloads) == len(fetched), Hub.downloads
        read_with_their_clients(ours, directory, [name for name in fetched if name in files])

        theirs = scratch / "theirs"
        fill_with_their_client(theirs, address, list(files))
        Hub.downloads.clear()
        ftctl(scratch, address, theirs, "second")
        assert set(Hub.downloads) <= {"README.md", "long/train-0.jsonl"}, Hub.downloads
        server.shutdown()
        ftctl(scratch, address, theirs, "third", offline=True)
    print("the cache of the hub is one for ftctl and Hugging Face's clients")


if __name__ == "__main__":
    main()
