"""What issue 3 asks of a GPU, in one command: parity, training steps beside peers, and the machine's ceilings.

Usage: python benches/gpu.py PATH/TO/ft-trainer [--only ceilings parity xl medium small] [--rounds N] [--steps N] [--record]
       python benches/gpu.py PATH/TO/ft-trainer --device cpu        (tries the script itself on small shapes; never recorded)

  ceilings   8192³ products in bf16, fp16 and fp32, copies on the device and over PCIe from and to pinned memory
  parity     trainer/tests/oracle/grads.py with FT_DEVICE=cuda: logits and gradients against float64 transformers
  xl         GPT-2 XL in fp16, 2 × 8 sequences of 1,024, optimizer in main memory, under a cap of 16 GB; peer: DeepSpeed ZeRO-2 offload
  medium     GPT-2 Medium in fp32 (no TF32), 4 × 1,024; peer: transformers, eager
  small      GPT-2 small in bf16, 16 × 1,024; peer: nanoGPT's model and step, torch.compile

Sides alternate; each round gives the median step of each, a result is the median of the rounds' ratios, above 1 where ft-trainer is
faster. ft-trainer is a process a round, of which the first steps do not count; a peer is one process that waits meanwhile. Memory is
what nvidia-smi says that ft-trainer added at its peak, CUDA's own included, and for a peer what torch reserved; main memory is the
process's peak. A peer that cannot be imported is left out, and said. Needs torch with CUDA, transformers, numpy, and for xl deepspeed.
"""

import argparse
import datetime
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ORACLES = Path(__file__).parent.parent / "trainer" / "tests" / "oracle"
sys.path.append(str(ORACLES))

RESULTS = Path(__file__).parent / "RESULTS.md"
CAP = 16e9
# The first steps of a process choose kernels and fill the allocator's cache.
WARM_UP = 3
# layers, heads, width, vocabulary, tokens of a sequence, sequences at once, accumulation
TASKS = {
    "xl": {
        "shape": (48, 25, 1600, 50257, 1024, 8, 2), "peer": "deepspeed", "bar": 2.0,
        "train": {"precision": "fp16", "offload": "optimizer", "recompute": "full"},
    },
    "medium": {"shape": (24, 16, 1024, 50257, 1024, 4, 1), "peer": "eager", "bar": 1.52, "train": {"precision": "fp32"}},
    "small": {"shape": (12, 12, 768, 50257, 1024, 16, 1), "peer": "nanogpt", "bar": 1.0, "train": {"precision": "bf16"}},
}  # fmt: skip
TOY = (2, 2, 64, 512, 64, 2, 2)


def environment(name, device):
    """Of every process of a task: the cap is libtorch's own, so that both sides are held to it alike."""
    if device != "cuda":
        return os.environ | {"OMP_NUM_THREADS": "1"}
    if name != "xl":
        return dict(os.environ)
    total = float(smi("memory.total")) * 2**20
    option = f"per_process_memory_fraction:{min(1.0, CAP / total):.4f}"
    return os.environ | {"PYTORCH_ALLOC_CONF": option, "PYTORCH_CUDA_ALLOC_CONF": option}


def smi(what):
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits", "--id=0"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


class Memory:
    """Most memory of the device that was added since this began, in MiB."""

    def __init__(self, device):
        self.most, self.running = 0.0, device == "cuda"
        if self.running:
            self.before = float(smi("memory.used"))
            self.thread = threading.Thread(target=self.watch, daemon=True)
            self.thread.start()

    def watch(self):
        while self.running:
            self.most = max(self.most, float(smi("memory.used")) - self.before)
            time.sleep(0.05)

    def end(self):
        if self.running:
            self.running = False
            self.thread.join()
        return self.most


def ours(binary, data, name, shape, device, steps):
    """Seconds of one step, MiB of the device, MiB of main memory. Ended when it has made its steps: a checkpoint is not what is measured."""
    layers, heads, width, _, block, micro_batch, accumulation = shape
    with tempfile.TemporaryDirectory() as folder:
        output, file = Path(folder) / "run", Path(folder) / "config.json"
        train = TASKS[name]["train"] | {
            "steps": 1_000_000, "block_size": block, "micro_batch": micro_batch, "gradient_accumulation": accumulation, "log_every": 1,
            "device": device, "engine": "libtorch", "checkpoint_every": 0,
        }  # fmt: skip
        model = {"layers": layers, "heads": heads, "width": width, "context": block}
        file.write_text(json.dumps({"data": str(data), "output": str(output), "model": model, "train": train}))
        memory = Memory(device)
        with open(Path(folder) / "said", "w+") as said:
            process = subprocess.Popen([binary, "train", str(file)], stdout=said, stderr=said, env=environment(name, device))
            progress = output / "progress.jsonl"
            while process.poll() is None and made(progress) < WARM_UP + steps:
                time.sleep(0.05)
            failed = process.poll() is not None
            process.kill()
            process.wait()
            said.seek(0)
            if failed:
                sys.exit(f"{binary} train ended with {process.returncode}: {said.read()}")
        lines = [line for line in map(json.loads, progress.read_text().splitlines()) if line["event"] == "step"]
    tokens = block * micro_batch * accumulation
    wall = statistics.median(tokens / line["tokens_per_second"] for line in lines[WARM_UP : WARM_UP + steps])
    return wall, memory.end(), lines[-1].get("peak_memory_bytes", 0) / 2**20


def made(progress):
    """Steps of which there is a whole line."""
    return progress.read_text().count('"event":"step"') if progress.exists() else 0


class Peer:
    def __init__(self, name, shape, device):
        command = [sys.executable, __file__, "--serve", json.dumps([TASKS[name]["peer"], shape, device])]
        variables = environment(name, device) | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables)

    def steps(self, count):
        print(count, file=self.process.stdin, flush=True)
        while line := self.process.stdout.readline():
            if line.startswith("measured "):  # DeepSpeed writes there too
                return json.loads(line.removeprefix("measured "))
        sys.exit("the peer has ended; its complaint is above")

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def serve(peer, shape, device):
    import torch

    torch.manual_seed(1)
    vocabulary, block, micro_batch, accumulation = shape[3:]
    batches = torch.randint(vocabulary, (accumulation, micro_batch, block), device=device)
    step = {"eager": eager, "nanogpt": nanogpt, "deepspeed": deepspeed_offload}[peer](shape, device)
    gpu = device == "cuda"

    def timed():
        started = time.perf_counter()
        step(batches)
        if gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - started

    for line in sys.stdin:
        wall = statistics.median([timed() for _ in range(WARM_UP + int(line))][WARM_UP:])
        reserved = torch.cuda.max_memory_reserved() / 2**20 if gpu else 0.0
        print("measured " + json.dumps([wall, reserved, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]), flush=True)


def hugging_face(shape, attention):
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, heads, width, vocabulary, block = shape[:5]
    return GPT2LMHeadModel(GPT2Config(
        n_layer=layers, n_head=heads, n_embd=width, vocab_size=vocabulary, n_positions=block, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, attn_implementation=attention,
    ))  # fmt: skip


def plain_step(model, loss_of, optimizer, device, autocast):
    import torch

    def step(batches):
        optimizer.zero_grad(set_to_none=True)
        for batch in batches:
            with torch.autocast(device, torch.bfloat16, enabled=autocast):
                loss = loss_of(batch) / len(batches)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def eager(shape, device):
    import torch

    model = hugging_face(shape, "eager").to(device)
    return plain_step(model, lambda batch: model(input_ids=batch, labels=batch).loss, torch.optim.AdamW(model.parameters(), lr=5e-5), device, False)


def nanogpt(shape, device):
    """nanoGPT's model and step (train.py of 2023): fused attention, a vocabulary padded to 64, bf16 autocast, compiled, fused AdamW."""
    import torch
    from torch import nn
    from torch.nn import functional

    layers, heads, width, vocabulary, block = shape[:5]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.c_attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            qkv = self.c_attn(self.ln_1(x)).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(*qkv, is_causal=True)
            x = x + self.proj(y.transpose(1, 2).flatten(2))
            return x + self.mlp(self.ln_2(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding((vocabulary + 63) // 64 * 64, width), nn.Embedding(block, width)
            self.blocks, self.ln_f = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(width)

        def forward(self, tokens):
            x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
            for layer in self.blocks:
                x = layer(x)
            logits = functional.linear(self.ln_f(x), self.wte.weight)
            return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    torch.set_float32_matmul_precision("high")
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    return plain_step(model, torch.compile(model), optimizer, device, True)


def deepspeed_offload(shape, device):
    import deepspeed

    micro_batch, accumulation = shape[5:]
    model = hugging_face(shape, "sdpa")
    model.gradient_checkpointing_enable()
    model.config.use_cache = False
    config = {
        "train_micro_batch_size_per_gpu": micro_batch, "gradient_accumulation_steps": accumulation, "gradient_clipping": 1.0,
        "fp16": {"enabled": True, "initial_scale_power": 16},
        "optimizer": {"type": "AdamW", "params": {"lr": 5e-5}},
        "zero_optimization": {
            "stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}, "overlap_comm": True, "reduce_scatter": True,
            "contiguous_gradients": True, "allgather_bucket_size": 200_000_000, "reduce_bucket_size": 200_000_000,
        },
    }  # fmt: skip
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

    def step(batches):
        for batch in batches:
            engine.backward(engine(input_ids=batch, labels=batch).loss)
            engine.step()

    return step


def compare(binary, folder, name, arguments):
    """The row of one task."""
    import numpy
    from train import write_dataset

    task, device = TASKS[name], arguments.device
    shape = task["shape"] if device == "cuda" else TOY
    vocabulary, block, micro_batch, accumulation = shape[3:]
    data, tokens = folder / f"data-{name}", block * micro_batch * accumulation
    write_dataset(data, numpy.random.default_rng(1).integers(vocabulary, size=4 * tokens + 1), vocabulary=vocabulary)
    absent = task["peer"] == "deepspeed" and (device != "cuda" or importlib.util.find_spec("deepspeed") is None)
    peer, rounds = None if absent else Peer(name, shape, device), []
    for number in range(arguments.rounds):
        rounds.append((ours(binary, data, name, shape, device, arguments.steps), peer.steps(arguments.steps) if peer else None))
        told = [f"{side[0] * 1e3:.0f} ms, {side[1]:,.0f} MiB of the device" for side in rounds[-1] if side]
        print(f"{name}, round {number + 1}: ours and the peer's: {'; '.join(told)}", file=sys.stderr, flush=True)
    if peer:
        peer.end()

    def middle(side, what):
        return statistics.median(measured[side][what] for measured in rounds)

    own = f"{middle(0, 0) * 1e3:,.0f} ms | {tokens / middle(0, 0):,.0f} | {middle(0, 1):,.0f} | {max(ours[2] for ours, _ in rounds):,.0f}"
    if not peer:
        return f"| {name} | {own} | {task['peer']}: absent | | | | {task['bar']} |"
    ratios = [theirs[0] / ours[0] for ours, theirs in rounds]
    return (
        f"| {name} | {own} | {task['peer']}: {middle(1, 0) * 1e3:,.0f} ms | {middle(1, 1):,.0f} | {middle(1, 2):,.0f} "
        f"| {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | {task['bar']} |"
    )


def ceilings(device):
    """One line for each."""
    import torch

    gpu = device == "cuda"
    size, count = (8192, 2**28) if gpu else (512, 2**20)
    torch.backends.cuda.matmul.allow_tf32 = False

    def best(work):
        times = []
        for _ in range(12):
            if gpu:
                torch.cuda.synchronize()
            started = time.perf_counter()
            work()
            if gpu:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
        return min(times[2:])

    lines = []
    for kind in (torch.bfloat16, torch.float16, torch.float32):
        matrix = torch.ones(size, size, dtype=kind, device=device)
        lines.append(f"product of {size}³ in {str(kind).removeprefix('torch.')}: {2 * size**3 / best(lambda m=matrix: m @ m) / 1e12:.2f} TFLOP/s")
    there, other = (torch.zeros(count, device=device) for _ in range(2))
    here = torch.zeros(count, pin_memory=gpu)
    copies = [
        ("on the device, bytes read and written", there, other, 8),
        ("from pinned memory to the device", there, here, 4),
        ("from the device to pinned memory", here, there, 4),
    ]
    lines += [f"copy {what}: {size * count / best(lambda t=to, f=source: t.copy_(f)) / 1e9:.1f} GB/s" for what, to, source, size in copies]
    return lines


def parity(binary, device):
    """What the oracle found, its worst lines first to fail."""
    process = subprocess.run(
        [sys.executable, ORACLES / "grads.py", binary], capture_output=True, text=True, env=os.environ | {"FT_DEVICE": device}
    )
    checks = [line for line in process.stdout.splitlines() if line.startswith(("ok", "FAILED")) and f"on {device}" in line]
    if not checks:
        sys.exit(f"the oracle compared nothing on {device}: {process.stdout}{process.stderr}")
    failed = [line for line in checks if line.startswith("FAILED")]
    return [f"{len(checks) - len(failed)} of {len(checks)} checks on {device} within their bars", *failed]


def machine(device):
    import torch

    name = f"{smi('name')}, driver {smi('driver_version')}, {float(smi('memory.total')) / 1024:.0f} GiB" if device == "cuda" else "CPU"
    return f"{name}; {os.cpu_count()} cores; torch {torch.__version__}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--only", nargs="+", choices=["ceilings", "parity", *TASKS], default=["ceilings", "parity", *TASKS])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    if arguments.record and arguments.device != "cuda":
        parser.error("--record is for figures of a GPU")
    arguments.binary = os.path.abspath(arguments.binary)

    text = [
        "", f"## {datetime.date.today()}: on a GPU", "", machine(arguments.device) + ";",
        f"`python3 benches/gpu.py FT_TRAINER {' '.join(sys.argv[2:])}`. Ratios are medians of {arguments.rounds} rounds, least and most in brackets.", "",
    ]  # fmt: skip
    for name, work in (("ceilings", lambda: ceilings(arguments.device)), ("parity", lambda: parity(arguments.binary, arguments.device))):
        if name in arguments.only:
            text += [*(f"- {line}" for line in work()), ""]
    tasks = [name for name in TASKS if name in arguments.only]
    if tasks:
        text += [
            "| task | ours, step | tokens/s | device MiB | main memory MiB | peer, step | device MiB | main memory MiB | ratio | bar |",
            "|---|---:|---:|---:|---:|---|---:|---:|---:|---:|",
        ]
        with tempfile.TemporaryDirectory() as folder:
            text += [compare(arguments.binary, Path(folder), name, arguments) for name in tasks]
        text.append("")
    print("\n".join(text))
    if arguments.record:
        with RESULTS.open("a") as results:
            results.write("\n".join(text))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*json.loads(sys.argv[2]))
    else:
        main()
