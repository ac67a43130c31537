#!/usr/bin/env python3
"""Times regard's dot-product attention beside PyTorch, ONNX Runtime, Burn and candle, in one run, and beside plain products.

    python3 bench/peers/attention.py [--only causal] [--rounds 9] [--python VENV/bin/python] [--rust]

Builds regard's side, makes a virtual environment in bench/.venv with PyTorch and ONNX Runtime unless --python
names an interpreter that has them, and with --rust builds Burn's and candle's side too (minutes). Every side is
a process of its own; all get the same inputs, must agree on what they compute, and take turns, round after
round, so that other work of the machine slows all of them.

Prints the median milliseconds of each side, and how many times as fast regard is as each peer (above 1: faster).
Ratios are taken round by round; their median is the answer. The rows of "products alone" set regard's whole forward pass
beside two plain products of the same sizes in PyTorch and numpy: no attention that multiplies by their BLAS is faster.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

from common import PEERS, ROOT, Side, build, interpreter, turns

REQUIREMENTS = {"torch": "torch==2.15.0", "numpy": "numpy", "onnxruntime": "onnxruntime", "onnx": "onnx"}
# The peers' time is that of the products Q Kᵀ and scores times V alone; regard's is that of the whole forward pass.
ALONE = "forward beside the products alone"
ROWS = [
    # name; kind batch heads key_heads queries keys dim causal dtype
    ("forward L 128", "forward 8 8 8 128 128 64 0 f32"),
    ("forward L 128 causal", "forward 8 8 8 128 128 64 1 f32"),
    ("forward L 512", "forward 1 8 8 512 512 64 0 f32"),
    ("forward L 512 causal", "forward 1 8 8 512 512 64 1 f32"),
    ("forward L 2048", "forward 1 8 8 2048 2048 64 0 f32"),
    ("forward L 2048 causal", "forward 1 8 8 2048 2048 64 1 f32"),
    ("forward L 2048 D 128", "forward 1 8 8 2048 2048 128 0 f32"),
    ("forward L 2048 D 128 causal", "forward 1 8 8 2048 2048 128 1 f32"),
    ("forward bf16 L 1024", "forward 1 8 8 1024 1024 64 0 bf16"),
    ("forward bf16 L 4096", "forward 1 8 8 4096 4096 64 0 bf16"),
    ("backward L 512", "backward 1 8 8 512 512 64 0 f32"),
    ("backward L 512 causal", "backward 1 8 8 512 512 64 1 f32"),
    ("backward L 2048", "backward 1 8 8 2048 2048 64 0 f32"),
    ("backward L 2048 causal", "backward 1 8 8 2048 2048 64 1 f32"),
    ("backward L 2048, one head", "backward 1 1 1 2048 2048 64 0 f32"),
    ("64 sentences of 5-80, D 32, both passes", "packed 1 8 8 0 0 32 0 f32"),
    ("64 sentences of 5-80, D 64, both passes", "packed 1 8 8 0 0 64 0 f32"),
    (f"{ALONE}, L 512", "products 1 8 8 512 512 64 0 f32"),
    (f"{ALONE}, L 2048", "products 1 8 8 2048 2048 64 0 f32"),
    (f"{ALONE}, L 2048 D 128", "products 1 8 8 2048 2048 128 0 f32"),
    ("decode KV 32768, 32/8 heads, D 128", "decode 1 32 8 1 32768 128 0 f32"),
    ("decode KV 32768, 8 heads, D 128", "decode 1 8 8 1 32768 128 0 f32"),
    ("decode KV 32768, 32/8 heads, bf16", "decode 1 32 8 1 32768 128 0 bf16"),
    ("decode KV 32768, 32/8 heads, f16", "decode 1 32 8 1 32768 128 0 f16"),
]
TOLERANCE = {"f32": 1e-4, "bf16": 2e-2, "f16": 2e-3}


def compare(name, question, ours, peers, arguments):
    """One row: ratios of all peers that can do it."""
    alone = question.startswith("products")
    asked = {peer: question for peer in peers} | {ours: question.replace("products", "forward")}
    mine = ours.ask(f"{asked[ours]} 1")
    if "error" in mine:
        print(f"{name}: {mine['error']}", file=sys.stderr)
        return
    able = []
    for peer in peers:
        theirs = peer.ask(f"{asked[peer]} 1")
        if "error" in theirs:
            continue
        worst = max(abs(a - b) for a, b in zip(mine["probe"], theirs["probe"]))
        if not alone and not worst <= TOLERANCE[question.split()[8]]:
            sys.exit(f"attention.py: {name}: {peer.name} computes something else: {mine['probe']}, {theirs['probe']}")
        able.append(peer)
    repeats = max(1, min(50, int(arguments.seconds / mine["seconds"][0])))
    times = {side.name: [] for side in [ours, *able]}
    for side in turns([ours, *able], arguments.rounds):
        # A slow peer need not repeat as often.
        slow = times[side.name] and times[side.name][0] * repeats > 4 * arguments.seconds
        answer = side.ask(f"{asked[side]} {1 if slow else repeats}")
        times[side.name].append(statistics.median(answer["seconds"]))
    row = {"work": name, "regard_ms": 1e3 * statistics.median(times[ours.name])}
    line = f"{name:42} {row['regard_ms']:9.3f} ms"
    for peer in peers:
        if peer not in able:
            line += f"{'':>12}"
            continue
        ratio = statistics.median(b / a for a, b in zip(times[ours.name], times[peer.name]))
        row[peer.name] = {"ms": 1e3 * statistics.median(times[peer.name]), "ratio": ratio}
        line += f"{ratio:11.2f}x"
    print(json.dumps(row) if arguments.json else line, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="only rows whose name contains this")
    parser.add_argument("--rounds", type=int, default=9, help="rounds each side gets (default 9)")
    parser.add_argument("--seconds", type=float, default=0.05, help="regard's share of a round (default 0.05)")
    parser.add_argument("--threads", type=int, default=2, help="threads of each side (default 2)")
    parser.add_argument("--python", help="an interpreter that has torch, onnx and onnxruntime")
    parser.add_argument("--rust", action="store_true", help="Burn and candle too")
    parser.add_argument("--json", action="store_true", help="one line of JSON a row")
    parser.add_argument("--binaries", type=Path, help="folder of the built programs, instead of building them")
    arguments = parser.parse_args()
    rows = [row for row in ROWS if arguments.only.lower() in row[0].lower()]
    if not rows:
        sys.exit(f"attention.py: no row contains {arguments.only!r}")
    if arguments.binaries:
        binaries = {name: arguments.binaries / name for name in ("attention_peer", "burn", "candle")}
    else:
        binaries = build(ROOT, "-p", "regard-kernels", "--example", "attention_peer")
        if arguments.rust:
            binaries |= build(PEERS / "attention_rust")
    python, threads = interpreter(arguments.python, REQUIREMENTS), arguments.threads
    ours = Side("regard", [binaries["attention_peer"]], threads)
    peers = [
        Side("PyTorch", [python, PEERS / "attention_torch.py", threads], threads),
        Side("ONNX Runtime", [python, PEERS / "attention_onnx.py", threads], threads),
        Side("numpy", [python, PEERS / "attention_numpy.py"], threads),
    ]
    if arguments.rust:
        peers += [Side(name, [binaries[name.lower()]], threads) for name in ("Burn", "candle")]
    if not arguments.json:
        print(f"{'':42} {'regard':>12}" + "".join(f"{peer.name:>12}" for peer in peers))
    for name, question in rows:
        compare(name, question, ours, peers, arguments)
    for side in [ours, *peers]:
        side.close()


if __name__ == "__main__":
    main()
