#!/usr/bin/env python3
"""Attention on a graphics card beside PyTorch's, in turns in one run:

    cargo build --release -p regard-gpu --features cuda --example speed
    bench/gpu/attention.py [CASE ...]

A case is NUMBERS,BATCH,HEADS,LENGTH,SIZE,MASK such as bf16,4,16,4096,128,causal. Needs PyTorch with CUDA. Times are medians of rounds, each the
median of five sets of calls; TFLOP/s count 4 L^2 d a head for the forward pass (half of it under a causal mask) and 3.5 times that for both.

Then the time and memory of training by the kernel and by Burn's own attention, which stores the matrix of scores: a process for each figure, so
that none has what another one's pool held.
"""
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from common import Speed, torch_time

CASES = [
    "bf16,4,16,4096,128,all",
    "bf16,4,16,4096,128,causal",
    "bf16,4,16,4096,64,all",
    "bf16,4,16,4096,64,causal",
]
# Beside Burn's own.
STORED = ["bf16,4,16,4096,128,causal", "f32,4,16,4096,64,causal"]
PEERS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
ROUNDS = 3


def attention_time(backend, what, numbers, batch, heads, length, size, mask):
    """Milliseconds of a call."""
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[numbers]
    training = what == "training"
    q, k, v, gradient = (
        torch.randn(batch, heads, length, size, device="cuda", dtype=dtype, requires_grad=training) for _ in range(4)
    )

    def call():
        with sdpa_kernel(backend):
            found = F.scaled_dot_product_attention(q, k, v, is_causal=mask == "causal")
        if training:
            torch.autograd.grad(found, (q, k, v), gradient)

    return torch_time(call)


def beside_burn():
    """Milliseconds and memory of training, beside Burn's own attention."""
    print(f"{'training':32} {'regard':>22} {'burn':>22}  of burn")
    for case in STORED:
        found = {"regard": [], "burn": []}
        for _ in range(ROUNDS):
            for name, measured in found.items():
                speed = Speed()
                measured.append(speed.measure(name, "training", *case.split(",")))
                speed.close()
        medians = {name: statistics.median(ms for ms, _ in measured) for name, measured in found.items()}
        cells = " ".join(f"{medians[name]:9.1f} ms {max(held for _, held in measured) / 1e9:6.1f} GB" for name, measured in found.items())
        print(f"{case:32} {cells}  {medians['regard'] / medians['burn']:.2f}", flush=True)


def main():
    ours = Speed()
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    print(f"{'case':32} {'pass':9} " + " ".join(f"{name:>22}" for name in ["regard", *PEERS]) + "  of flash")
    for case in sys.argv[1:] or CASES:
        fields = case.split(",")
        numbers, batch, heads, length, size, mask = fields
        sizes = [int(x) for x in (batch, heads, length, size)]
        for what in ("forward", "training"):
            times = {"regard": [], **{name: [] for name in PEERS}}
            for _ in range(ROUNDS):
                times["regard"].append(ours.time("regard", what, *fields))
                for name, backend in PEERS.items():
                    try:
                        times[name].append(attention_time(backend, what, numbers, *sizes, mask))
                    except RuntimeError:
                        times[name].append(float("nan"))
            flop = 4 * sizes[0] * sizes[1] * sizes[2] ** 2 * sizes[3]
            flop *= (0.5 if mask == "causal" else 1) * (3.5 if what == "training" else 1)
            medians = {name: statistics.median(all) for name, all in times.items()}
            cells = " ".join(f"{ms:9.3f} ms {flop / ms / 1e9:5.0f} TF/s" for ms in medians.values())
            print(f"{case:32} {what:9} {cells}  {medians['flash'] / medians['regard']:.2f}", flush=True)
    ours.close()
    if not sys.argv[1:]:
        beside_burn()


if __name__ == "__main__":
    main()
