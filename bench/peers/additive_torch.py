#!/usr/bin/env python3
"""The PyTorch side of additive.py: one JSON line out for every line in, as examples/additive_peer.rs.

    python3 bench/peers/additive_torch.py [--compile] BATCH QUERIES KEYS DIM VALUE_DIM
"""

import argparse
import json
import sys
import time

import numpy as np
import torch


def numbers(shape, seed, scale):
    """The same numbers as `numbers` in the Rust side, to the last bit."""
    at = np.arange(int(np.prod(shape)), dtype=np.int64)
    row = ((at * 7919 + seed * 104_729) % 2003).astype(np.float32)
    return torch.from_numpy(((row / np.float32(1001.5) - np.float32(1)) * np.float32(scale)).reshape(shape))


def attend(query, key, v, value):
    scores = (torch.tanh(query[:, :, None, :] + key[:, None, :, :]) @ v)  # [batch, queries, keys]
    return torch.softmax(scores, -1) @ value


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("sizes", type=int, nargs=5)
    arguments = parser.parse_args()
    batch, queries, keys, dim, value_dim = arguments.sizes
    torch.set_num_threads(arguments.threads)
    function = torch.compile(attend) if arguments.compile else attend
    inputs = [
        numbers((batch, queries, dim), 1, 2.0),
        numbers((batch, keys, dim), 2, 2.0),
        numbers((dim,), 3, 0.3),
        numbers((batch, keys, value_dim), 4, 1.0),
    ]
    d_context = numbers((batch, queries, value_dim), 5, 1.0)
    learned = [x.clone().requires_grad_() for x in inputs]

    def forward():
        with torch.inference_mode():
            return function(*inputs)

    def both():
        context = function(*learned)
        return context, torch.autograd.grad(context, learned, d_context)

    def seconds(call):
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    for line in sys.stdin:
        if line.strip() == "check":
            forward()
            context, gradients = both()
            answer = [x.detach().double().square().sum().item() for x in (context, *gradients)]
        else:
            answer = {"forward": [], "both": []}
            for _ in range(int(line)):
                answer["forward"].append(seconds(forward))
                answer["both"].append(seconds(both))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
