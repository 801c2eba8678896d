"""What issue 3 asks of a GPU, in one command: parity, training steps beside peers, and the machine's ceilings.

Usage: python benches/gpu.py PATH/TO/ft-trainer [--only ceilings parity offload ranks xl streamed medium small] [--rounds N] [--steps N] [--record]
       python benches/gpu.py PATH/TO/ft-trainer --device cpu        (tries the script itself on small shapes; never recorded)

  ceilings   8192³ products in bf16, fp16 and fp32, copies on the device and over PCIe from and to pinned memory
  parity     trainer/tests/oracle/grads.py with FT_DEVICE=cuda: logits and gradients against float64 transformers
  offload    losses and weights of runs with the optimizer, and with the model, in main memory against one with both on the device, in fp32 and fp16
  ranks      runs of two processes on one GPU, and of 2 to all GPUs with one each, with ZeRO 0 and 2, against one of one process: equal bits
  xl         GPT-2 XL in fp16, a step of 16 sequences of 1,024, optimizer in main memory, under a cap of 16 GB; ours 4 at once, by its estimate
             the most in 6 GB with CUDA's own; peer: DeepSpeed ZeRO-2 offload, 8 at once
  streamed   the same with the blocks' weights in main memory too, two of them on the device at a time; no peer
  medium     GPT-2 Medium in fp32 (no TF32), 4 × 1,024; peer: transformers, eager
  small      GPT-2 small in bf16, 16 × 1,024; peer: nanoGPT's model and step, torch.compile

Sides alternate; each round gives the median step of each, a result is the median of the rounds' ratios, above 1 where ft-trainer is
faster. ft-trainer is a process a round, of which the first steps do not count; a peer is one process that waits meanwhile. Memory is
what nvidia-smi says that ft-trainer added at its peak, CUDA's own included, and for a peer what torch reserved; main memory is the
process's peak. A peer that cannot be imported is left out, and said. Needs torch with CUDA, transformers, numpy, and for xl deepspeed.

Each task is printed, and with --record written to RESULTS.md, as soon as it is done, so that one that fails or is cut off takes no other with it,
and several calls can share the work. Bars are met or MISSED beside each figure; exit code 1 when a task failed, 0 when bars were only missed.
"""

import argparse
import datetime
import hashlib
import importlib.util
import json
import os
import resource
import socket
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
# shape: layers, heads, width, vocabulary, tokens of a sequence, sequences of a step; at once: ours and the peer's
# bars: the least ratio, the most GB of the device and of main memory
TASKS = {
    "xl": {
        "shape": (48, 25, 1600, 50257, 1024, 16), "at once": (4, 8), "peer": "deepspeed", "bars": (2.0, 6, 28),
        "train": {"precision": "fp16", "offload": "optimizer", "recompute": "full"},
    },
    "streamed": {
        "shape": (48, 25, 1600, 50257, 1024, 16), "at once": (4, 0), "peer": None, "bars": (None, None, None),
        "train": {"precision": "fp16", "offload": "model", "recompute": "host"},
    },
    "medium": {"shape": (24, 16, 1024, 50257, 1024, 4), "at once": (4, 4), "peer": "eager", "bars": (1.52, None, None), "train": {"precision": "fp32"}},
    "small": {"shape": (12, 12, 768, 50257, 1024, 16), "at once": (16, 16), "peer": "nanogpt", "bars": (1.0, None, None), "train": {"precision": "bf16"}},
}  # fmt: skip
TOY, TOY_AT_ONCE = (2, 2, 64, 512, 64, 4), (1, 2)
# The bar of a run with the optimizer in main memory: its update is this program's kernel, the device's is libtorch's, whose
# roundings differ.
OFFLOAD_BAR = 1e-5
OFFLOAD_STEPS = 30


def environment(name, device):
    """Of every process of a task: the cap is libtorch's own, so that both sides are held to it alike."""
    if device != "cuda":
        return os.environ | {"OMP_NUM_THREADS": "1"}
    if name not in ("xl", "streamed"):
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


def configure(folder, data, shape, at_once, device, train):
    """Writes the configuration of a run; its file, and where the run writes."""
    layers, heads, width, _, block, sequences = shape
    output, file = Path(folder) / "run", Path(folder) / "config.json"
    train = train | {
        "block_size": block, "micro_batch": at_once, "gradient_accumulation": sequences // at_once, "log_every": 1, "device": device,
        "engine": "libtorch", "checkpoint_every": 0,
    }  # fmt: skip
    model = {"layers": layers, "heads": heads, "width": width, "context": block}
    file.write_text(json.dumps({"data": str(data), "output": str(output), "model": model, "train": train}))
    return file, output


def ours(binary, data, name, shape, at_once, device, steps):
    """Seconds of one step, MiB of the device, MiB of main memory. Ended when it has made its steps: a checkpoint is not what is measured."""
    with tempfile.TemporaryDirectory() as folder:
        file, output = configure(folder, data, shape, at_once, device, TASKS[name]["train"] | {"steps": 1_000_000})
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
                raise RuntimeError(f"ft-trainer train ended with {process.returncode}: {said.read()}")
        lines = [line for line in map(json.loads, progress.read_text().splitlines()) if line["event"] == "step"]
    tokens = shape[4] * shape[5]
    wall = statistics.median(tokens / line["tokens_per_second"] for line in lines[WARM_UP : WARM_UP + steps])
    return wall, memory.end(), lines[-1].get("peak_memory_bytes", 0) / 2**20


def made(progress):
    """Steps of which there is a whole line."""
    return progress.read_text().count('"event":"step"') if progress.exists() else 0


class Peer:
    def __init__(self, name, shape, at_once, device):
        command = [sys.executable, __file__, "--serve", json.dumps([TASKS[name]["peer"], shape, at_once, device])]
        variables = environment(name, device) | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables)

    def steps(self, count):
        print(count, file=self.process.stdin, flush=True)
        while line := self.process.stdout.readline():
            if line.startswith("measured "):  # DeepSpeed writes there too
                return json.loads(line.removeprefix("measured "))
        raise RuntimeError("the peer has ended; its complaint is above")

    def end(self):
        """Closes its standard input, at which it ends."""
        self.process.communicate()


def serve(peer, shape, at_once, device):
    import torch

    torch.manual_seed(1)
    vocabulary, block, sequences = shape[3:]
    batches = torch.randint(vocabulary, (sequences // at_once, at_once, block), device=device)
    step = {"eager": eager, "nanogpt": nanogpt, "deepspeed": deepspeed_offload}[peer](shape, at_once, device)
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


def eager(shape, _at_once, device):
    import torch

    model = hugging_face(shape, "eager").to(device)
    return plain_step(model, lambda batch: model(input_ids=batch, labels=batch).loss, torch.optim.AdamW(model.parameters(), lr=5e-5), device, False)


def nanogpt(shape, _at_once, device):
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


def deepspeed_offload(shape, at_once, _device):
    import deepspeed

    model = hugging_face(shape, "sdpa")
    model.gradient_checkpointing_enable()
    model.config.use_cache = False
    config = {
        "train_micro_batch_size_per_gpu": at_once, "gradient_accumulation_steps": shape[5] // at_once, "gradient_clipping": 1.0,
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


def verdict(what, measured, bar, is_met):
    return f"{what} {bar}: {'met' if is_met(measured, bar) else 'MISSED'}"


def verdicts(bars, ratio, device, main):
    """Of those bars whose figure was measured; memory in bytes."""
    judged = [
        ("ratio ≥", ratio, bars[0], lambda measured, bar: measured >= bar),
        ("GB of the device ≤", device and device / 1e9, bars[1], lambda measured, bar: measured <= bar),
        ("GB of main memory ≤", main and main / 1e9, bars[2], lambda measured, bar: measured <= bar),
    ]
    return "; ".join(verdict(*each) if each[1] else f"{each[0]} {each[2]}: not measured" for each in judged if each[2])


HEADER = [
    "| task | ours, step | tokens/s | device MiB | main memory MiB | peer, step | device MiB | main memory MiB | ratio | bars |",
    "|---|---:|---:|---:|---:|---|---:|---:|---:|---|",
]


def compare(binary, name, arguments):
    """The row of one task, and whether all of it could be measured."""
    import numpy

    task, gpu = TASKS[name], arguments.device == "cuda"
    shape, at_once = (task["shape"], task["at once"]) if gpu else (TOY, TOY_AT_ONCE)
    tokens = shape[4] * shape[5]
    with tempfile.TemporaryDirectory() as folder:
        data = dataset(Path(folder), shape, numpy.random.default_rng(1).integers(shape[3], size=4 * tokens + 1))
        peer, said = None, f"{task['peer']}: absent" if task["peer"] else "none"
        if task["peer"] and (task["peer"] != "deepspeed" or (gpu and importlib.util.find_spec("deepspeed") is not None)):
            peer = Peer(name, shape, at_once[1], arguments.device)
        rounds = []
        try:
            for number in range(arguments.rounds):
                mine, theirs = ours(binary, data, name, shape, at_once[0], arguments.device, arguments.steps), None
                # What is measured of ours stays, whatever becomes of the peer.
                if peer and not said.endswith("failed"):
                    try:
                        theirs = peer.steps(arguments.steps)
                    except (OSError, RuntimeError) as error:
                        said = f"{task['peer']}: failed"
                        print(f"{name}: {error}", file=sys.stderr, flush=True)
                rounds.append((mine, theirs))
                told = [f"{side[0] * 1e3:.0f} ms, {side[1]:,.0f} MiB of the device" for side in rounds[-1] if side]
                print(f"{name}, round {number + 1}: ours and the peer's: {'; '.join(told)}", file=sys.stderr, flush=True)
        finally:
            if peer:
                peer.end()

    def middle(side, what):
        return statistics.median(measured[side][what] for measured in rounds if measured[side])

    device, main = (max(mine[what] for mine, _ in rounds) for what in (1, 2))
    own = f"{middle(0, 0) * 1e3:,.0f} ms | {tokens / middle(0, 0):,.0f} | {device:,.0f} | {main:,.0f}"
    ratios = [theirs[0] / mine[0] for mine, theirs in rounds if theirs]
    ratio = statistics.median(ratios) if ratios else None
    bars = verdicts(task["bars"], ratio, device * 2**20, main * 2**20)
    if not ratios:
        return f"| {name} | {own} | {said} | | | | {bars} |", not said.endswith("failed")
    return (
        f"| {name} | {own} | {task['peer']}: {middle(1, 0) * 1e3:,.0f} ms | {middle(1, 1):,.0f} | {middle(1, 2):,.0f} "
        f"| {ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | {bars} |"
    ), not said.endswith("failed")


def dataset(folder, shape, tokens):
    from train import write_dataset

    data = folder / "data"
    write_dataset(data, tokens, vocabulary=shape[3])
    return data


def offload(binary, device):
    """How far a run with the optimizer in main memory is from one with it on the device: losses, relatively, and weights, relative L2; and whether all runs
    with it there, or with the model, are the same."""
    import torch
    from safetensors.torch import load_file
    from train import text_like

    # Large enough that the device is behind whoever launches its kernels: what does not wait for a copy is then seen.
    shape = (5, 25, 1600, 512, 1024, 8) if device == "cuda" else TOY
    lines = []
    for precision in ("fp32", "fp16"):
        results = {}
        # What leaves the device meanwhile leaves on one way: inputs of blocks too.
        for place, recompute in (("none", "full"), ("optimizer", "host"), ("optimizer", "none"), ("model", "host"), ("model", "full"), ("model", "none")):
            with tempfile.TemporaryDirectory() as folder:
                data = dataset(Path(folder), shape, text_like(16 * shape[4] * shape[5] + 1))
                train = {"precision": precision, "offload": place, "recompute": recompute, "deterministic": True, "steps": OFFLOAD_STEPS, "learning_rate": 1e-3}
                file, output = configure(folder, data, shape, 2, device, train)
                run = subprocess.run([binary, "train", file], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                if run.returncode:
                    raise RuntimeError(f"ft-trainer train ended with {run.returncode}: {run.stderr}")
                log = map(json.loads, (output / "steps.jsonl").read_text().splitlines())
                losses = torch.tensor([line["loss"] for line in log if "loss" in line], dtype=torch.float64)
                [checkpoint] = (output / "checkpoints").glob("step-*")
                weights = torch.cat([tensor.flatten() for _, tensor in sorted(load_file(checkpoint / "model.safetensors").items())])
                results[place, recompute] = (losses, weights.double())
        losses, weights = results["none", "full"]
        if len(losses) != OFFLOAD_STEPS or losses[-1] > losses[0] - 0.1:
            raise RuntimeError(f"a run in {precision} that learns nothing compares nothing: {losses.tolist()}")
        other_losses, other_weights = results["optimizer", "host"]
        off = ((other_losses / losses - 1).abs().max().item(), ((other_weights - weights).norm() / weights.norm()).item())
        met = "met" if max(off) <= OFFLOAD_BAR else "MISSED"
        lines.append(
            f"optimizer in main memory, {precision}, {OFFLOAD_STEPS} steps of {shape[5]} sequences, 2 at once: losses at most {off[0]:.1e} and weights {off[1]:.1e} from those "
            f"of the optimizer on the device (bar {OFFLOAD_BAR:.0e}: {met})"
        )
        # The same kernels in the same order.
        others = {ways: torch.equal(found, other_weights) for ways, (_, found) in results.items() if ways[0] != "none"}
        differ = [f"{place} with recompute = {recompute}" for (place, recompute), equal in others.items() if not equal]
        lines.append(f"{len(others)} ways of keeping the optimizer or the model in main memory, {precision}: {'equal bits: met' if not differ else f'{differ} differ: MISSED'}")
    return lines


def ranks(binary, device):
    """Whether several processes train to the bits of one: two on one device, and as many as there are GPUs, by NCCL."""
    import torch
    from train import text_like

    gpus = torch.cuda.device_count() if device == "cuda" else 0
    leaves = max(2, gpus)
    shape = ((5, 8, 512, 512, 256, 4) if device == "cuda" else TOY)[:5] + (2 * leaves,)
    ways = [(1, 0, 1), (2, 0, 1), (2, 2, 1)] + [(size, zero, size) for size in range(2, gpus + 1) for zero in (0, 2)]
    digests = {}
    for size, zero, devices in ways:
        with tempfile.TemporaryDirectory() as folder:
            data = dataset(Path(folder), shape, text_like(16 * shape[4] * shape[5] + 1))
            train = {"precision": "bf16", "deterministic": True, "steps": OFFLOAD_STEPS, "learning_rate": 1e-3, "leaves": leaves, "zero": zero, "threads": 1}
            file, output = configure(folder, data, shape, 2, device, train)
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                port = str(listener.getsockname()[1])
            meeting = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            places = [{"RANK": str(rank), "LOCAL_RANK": str(rank % devices)} for rank in range(size)]
            processes = [subprocess.Popen([binary, "train", file], stdout=subprocess.DEVNULL, env=os.environ | meeting | place) for place in places]
            if codes := [process.returncode for process in processes if process.wait()]:
                raise RuntimeError(f"ft-trainer train ended with {codes}")
            [checkpoint] = (output / "checkpoints").glob("step-*")
            files = [checkpoint / name for name in ("model.safetensors", "optimizer.safetensors", "steps.jsonl")]
            digests[size, zero, devices] = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    differ = [f"{size} processes on {devices} with ZeRO-{zero}" for (size, zero, devices), found in digests.items() if found != digests[ways[0]]]
    verdict = "equal bits: met" if not differ else f"{differ} differ: MISSED"
    return [f"one and two processes on one {device}, up to {gpus} on GPUs of their own, bf16, {OFFLOAD_STEPS} steps: {verdict}"]


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
    """What the oracle found, what failed by name."""
    process = subprocess.run(
        [sys.executable, ORACLES / "grads.py", binary], capture_output=True, text=True, env=os.environ | {"FT_DEVICE": device}
    )
    checks = [line for line in process.stdout.splitlines() if line.startswith(("ok", "FAILED"))]
    failed = [line for line in checks if line.startswith("FAILED")]
    # The oracle ends with 1 when a bar is missed; otherwise it has not come to its end.
    if not checks or process.returncode != bool(failed):
        raise RuntimeError(f"the oracle ended with {process.returncode} after {len(checks)} checks: {process.stdout}{process.stderr}")
    return [f"parity on {device}: {len(checks) - len(failed)} of {len(checks)} checks within their bars: {'MISSED' if failed else 'met'}", *failed]


def machine(device):
    import torch

    name = f"{smi('name')}, driver {smi('driver_version')}, {float(smi('memory.total')) / 1024:.0f} GiB" if device == "cuda" else "CPU"
    return f"{name}; {os.cpu_count()} cores; torch {torch.__version__}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    lists = {"ceilings": lambda: ceilings(arguments.device)}
    lists |= {name: lambda work=work: work(arguments.binary, arguments.device) for name, work in (("parity", parity), ("offload", offload), ("ranks", ranks))}
    parser.add_argument("--only", nargs="+", choices=[*lists, *TASKS], default=[*lists, *TASKS])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    if arguments.record and arguments.device != "cuda":
        parser.error("--record is for figures of a GPU")
    arguments.binary = os.path.abspath(arguments.binary)

    def tell(*lines):
        print(*lines, sep="\n", flush=True)
        if arguments.record:
            with RESULTS.open("a") as results:
                results.writelines(f"{line}\n" for line in lines)

    tell(
        "", f"## {datetime.date.today()}: on a GPU", "", machine(arguments.device) + ";",
        f"`python3 benches/gpu.py FT_TRAINER {' '.join(sys.argv[2:])}`. Ratios are medians of {arguments.rounds} rounds, least and most in brackets.", "",
    )  # fmt: skip
    complete = True
    for name in filter(arguments.only.__contains__, lists):
        try:
            tell(*(f"- {line}" for line in lists[name]()))
        except Exception as error:  # Whatever it is, the others go on.
            complete = False
            tell(f"- {name} failed: {brief(error)}")
    tasks = [name for name in TASKS if name in arguments.only]
    if tasks:
        tell("", *HEADER)
    for name in tasks:
        try:
            row, whole = compare(arguments.binary, name, arguments)
            complete &= whole
            tell(row)
        except Exception as error:
            complete = False
            tell(f"| {name} | failed: {brief(error)} | | | | | | | | |")
    sys.exit(0 if complete else 1)


def brief(error):
    """Its first line for the results, all of it for who watches."""
    print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    return f"{type(error).__name__}: {error}".splitlines()[0]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*json.loads(sys.argv[2]))
    else:
        main()
