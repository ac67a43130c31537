#!/usr/bin/env python3
"""Times regard's training steps beside PyTorch's, eager and compiled, in one run.

    python3 bench/peers/training.py [--only rnnsearch] [--rounds 9] [--steps 3] [--python VENV/bin/python]

Builds the Rust side, makes a virtual environment in bench/.venv with PyTorch unless --python names an
interpreter that has it, starts every side as a process of its own from the same weights, and lets them take
turns: a few steps each, round after round, so that other work of the machine slows all of them. Before anything
is timed both must compute the same losses, over several updates with dropout off, to 1e-4.

Prints the median milliseconds a step of each side, regard's share of each peer's time (below 1: faster), the
fraction of this machine's peak of multiply-adds that each reaches, and the most memory that each held. Shares are
taken round by round; their median is the answer, and their quartiles show how much it varies.

Below each row it prints the rates of plain f32 products of the row's sizes in regard, PyTorch and numpy. Most of a step is
products, so their rate bounds what a step can reach, and much of a difference between two sides may be that of their BLAS:
PyTorch's MKL, for example, reaches on AMD a fraction of its rate on Intel. numpy from PyPI has OpenBLAS.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
from pathlib import Path

from common import PEERS, ROOT, Side, build, interpreter, turns
from flops import products, training_step

REQUIREMENTS = {"torch": "torch==2.15.0", "safetensors": "safetensors==0.8.0", "numpy": "numpy"}
CHECKED_STEPS = 4
VOCABULARY = {"source_vocabulary": 8000, "target_vocabulary": 8000}


@dataclasses.dataclass
class Row:
    """A model, the shape of its batches and its PyTorch twins."""

    name: str
    model: dict
    # Peers by name: further arguments of training_torch.py.
    peers: dict
    batch: int = 64
    tokens: int = 20


def layers(size, heads, dropout):
    """Layers of the original Transformer with norms before the blocks; feed-forward of four times the size."""
    return {
        "d_model": size, "heads": heads, "key_value_heads": heads, "feed_forward": 4 * size, "activation": "relu",
        "norm": {"kind": "layer", "epsilon": 1e-5}, "norm_place": "pre", "position": "none", "window": None,
        "bias": True, "dropout": dropout,
    }


# regard reads these in the language model's layers, its PyTorch twin reads `bias`; the other models are described in a former form.
BIASES = {"query_key_value": True, "attention_output": True, "feed_forward": True}
EAGER, COMPILED = {"PyTorch eager": []}, {"torch.compile": ["--compile"]}
ROWS = [
    Row(
        "Transformer d 256, 8 heads, ffn 1024, 3+3",
        {
            "kind": "transformer", **VOCABULARY, "encoder_layers": 3, "decoder_layers": 3,
            "layer": layers(256, 8, {"residual": 0.3, "attention": 0.1, "activation": 0.1}),
            "positions": {"kind": "sinusoidal"}, "tie": "all", "embedding_dropout": 0.3,
        },
        {**EAGER, **COMPILED},
    ),
    Row(
        "rnnsearch 256",
        {
            "kind": "rnnsearch", **VOCABULARY, "embedding": 256, "hidden": 256, "attention": 256, "maxout": 256,
            "tie": "all", "embedding_dropout": 0.3, "annotation_dropout": 0.4, "output_dropout": 0.4,
            "paper_initialisation": False,
        },
        # Another model of the same size: see rnnsearch_torch.py.
        {**EAGER, **COMPILED, "PyTorch eager, torch.nn.GRU encoder": ["--encoder", "library"]},
    ),
    Row(
        "luong 2 x 256, input feeding",
        {
            "kind": "luong", **VOCABULARY, "embedding": 256, "hidden": 256, "layers": 2, "score": "general",
            "attention": 256, "locality": "global", "input_feeding": True, "reading": "bidirectional",
            "positions": 50, "tie": "all", "embedding_dropout": 0.3, "layer_dropout": 0.2,
            "annotation_dropout": 0.3, "output_dropout": 0.3,
        },
        {**EAGER, **COMPILED},
    ),
    Row(
        "long text: causal d 512, 8 heads, 4 layers",
        {
            "kind": "language-model", "vocabulary": 8000, "layers": 4,
            "layer": {**layers(512, 8, {"residual": 0.1, "attention": 0.0, "activation": 0.0}), "biases": BIASES},
            "positions": {"kind": "sinusoidal"}, "embedding_dropout": 0.1,
        },
        EAGER,
        batch=2,
        tokens=2048,
    ),
]


def check(row, ours, peers):
    """The same losses from the same weights, through forward, backward, clipping and Adam."""
    mine = ours.ask(f"check {CHECKED_STEPS}")["losses"]
    for name, arguments in row.peers.items():
        # Not checked: a library's encoder is another model, and a compiled model is one that was checked before.
        if arguments:
            continue
        theirs = peers[name].ask(f"check {CHECKED_STEPS}")["losses"]
        worst = max(abs(a - b) for a, b in zip(mine, theirs))
        print(f"{row.name}: losses of {CHECKED_STEPS} updates {', '.join(f'{loss:.5f}' for loss in mine)}; "
              f"{name}'s differ by at most {worst:.1e}", file=sys.stderr)
        if not worst <= 1e-4:
            sys.exit(f"training.py: {row.name}: not the same model: {mine} and {theirs}")


def compare(row, binary, python, arguments, folder):
    """One row: all sides in turns."""
    threads, model = arguments.threads, json.dumps(row.model)
    weights = folder / "weights.safetensors"
    shape = ["--batch", row.batch, "--tokens", row.tokens]
    ours = Side("regard", [binary, "--model", model, *shape, "--serve", "--export", weights], threads)
    ours.ask("0")  # it answers once the weights are written
    twin = [python, PEERS / "training_torch.py", "--model", model, "--weights", weights, "--threads", threads]
    wanted = {name: more for name, more in row.peers.items() if not (arguments.no_compile and "--compile" in more)}
    peers = {name: Side(name, [*twin, *more], threads) for name, more in wanted.items()}
    check(row, ours, peers)
    sides = [ours, *peers.values()]
    for side in sides:
        side.ask("2")  # warms up, and lets torch.compile compile
    times, peaks = {side.name: [] for side in sides}, []
    numpy = Side("numpy", [python, PEERS / "product.py"], threads)
    plain = [side for side in sides if side is ours or not row.peers[side.name]] + [numpy]
    rates = {sizes: {side.name: [] for side in plain} for sizes in products(row.model, row.batch, row.tokens)}
    for side in turns(sides, arguments.rounds):
        if side is ours:
            peaks.append(side.ask("peak")["multiply_adds"])
            for sizes, found in rates.items():
                for one in plain:
                    found[one.name].append(one.ask("product {} {} {}".format(*sizes))["multiply_adds"])
        times[side.name].append(statistics.median(side.ask(arguments.steps)["seconds"]))
    work, peak = training_step(row.model, row.batch, row.tokens), statistics.median(peaks)
    result = {"work": row.name, "operations": work, "peak": peak, "sides": {}, "products": [
        {"sizes": sizes, "fraction_of_peak": {name: statistics.median(all) / peak for name, all in found.items()}}
        for sizes, found in rates.items()
    ]}
    for side in sides:
        seconds = statistics.median(times[side.name])
        shares = [a / b for a, b in zip(times[ours.name], times[side.name])]
        quartiles = statistics.quantiles(shares, n=4) if len(shares) > 1 else shares * 3
        memory = side.ask("memory")["peak_bytes"]
        result["sides"][side.name] = {
            "ms": 1e3 * seconds, "of_its_time": quartiles[1], "quartiles": quartiles[::2],
            "fraction_of_peak": work / seconds / peak, "peak_bytes": memory,
        }
        side.close()
    numpy.close()
    tell(result, arguments.json)


def tell(result, as_json):
    """Prints a row."""
    if as_json:
        print(json.dumps(result), flush=True)
        return
    print(f"{result['work']}: {result['operations'] / 1e9:.1f} GFLOP a step, peak {result['peak'] / 1e9:.0f} GFLOP/s")
    for name, side in result["sides"].items():
        low, high = side["quartiles"]
        share = "" if name == "regard" else f"   regard takes {side['of_its_time']:.2f} of it ({low:.2f} to {high:.2f})"
        memory = "" if side["peak_bytes"] is None else f"{side['peak_bytes'] / 2**20:7.0f} MiB"
        print(f"  {name:36} {side['ms']:8.1f} ms {side['fraction_of_peak']:6.0%} of peak {memory}{share}", flush=True)
    for product in result["products"]:
        fractions = ", ".join(f"{name} {fraction:.0%}" for name, fraction in product["fraction_of_peak"].items())
        rows, inner, columns = product["sizes"]
        print(f"  plain product [{rows}, {inner}] x [{inner}, {columns}]: {fractions} of peak", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="only rows whose name contains this")
    parser.add_argument("--rounds", type=int, default=9, help="rounds each side gets (default 9)")
    parser.add_argument("--steps", type=int, default=3, help="steps of a round (default 3)")
    parser.add_argument("--threads", type=int, default=2, help="threads of each side (default 2)")
    parser.add_argument("--python", help="an interpreter that has torch and safetensors")
    parser.add_argument("--binary", help="the built example, instead of building it")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out: it takes minutes")
    parser.add_argument("--json", action="store_true", help="one line of JSON a row")
    arguments = parser.parse_args()
    rows = [row for row in ROWS if arguments.only.lower() in row.name.lower()]
    if not rows:
        sys.exit(f"training.py: no row contains {arguments.only!r}")
    binary = arguments.binary or build(ROOT, "--workspace", "--example", "training_peer")["training_peer"]
    python = interpreter(arguments.python, REQUIREMENTS)
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            compare(row, binary, python, arguments, Path(folder))


if __name__ == "__main__":
    main()
