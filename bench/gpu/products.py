#!/usr/bin/env python3
"""Products of f32 matrices on a graphics card beside Burn's and PyTorch's, in turns in one run:

    cargo build --release -p regard-gpu --features cuda --example speed
    bench/gpu/products.py [BATCH,M,K,N ...]

of `[m, k] [k, n]`. Burn's factors are rounded to TF32, as PyTorch's are in the last column. Needs PyTorch with CUDA. TFLOP/s (2 m k n a
product) from medians of rounds, each the median of five sets of calls.
"""
import statistics
import sys

import torch

from common import Speed, torch_time

CASES = ["1,4096,4096,4096", "1,4096,512,2048", "1,1024,256,8000", "64,256,64,256"]
ROUNDS = 3


def product_time(tf32, batch, m, k, n):
    """Milliseconds of a product of PyTorch."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    a, b = torch.randn(batch, m, k, device="cuda"), torch.randn(batch, k, n, device="cuda")
    return torch_time(lambda: a @ b)


def main():
    ours = Speed()
    sides = {
        "regard": lambda sizes: ours.time("regard", "product", "f32", *sizes, "-"),
        "burn": lambda sizes: ours.time("burn", "product", "f32", *sizes, "-"),
        "torch": lambda sizes: product_time(False, *sizes),
        "torch tf32": lambda sizes: product_time(True, *sizes),
    }
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    print(f"{'batch,m,k,n':20} " + " ".join(f"{name:>22}" for name in sides))
    for case in sys.argv[1:] or CASES:
        sizes = [int(x) for x in case.split(",")]
        rounds = [{name: side(sizes) for name, side in sides.items()} for _ in range(ROUNDS)]
        medians = [statistics.median(of[name] for of in rounds) for name in sides]
        batch, m, k, n = sizes
        rate = 2 * batch * m * k * n / 1e9
        print(f"{case:20} " + " ".join(f"{ms:9.3f} ms {rate / ms:5.1f} TF/s" for ms in medians), flush=True)


if __name__ == "__main__":
    main()
