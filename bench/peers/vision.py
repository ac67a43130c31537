#!/usr/bin/env python3
"""Times regard's convolutions, blocks and training steps over images beside PyTorch's, in one run.

    python3 bench/peers/vision.py [--only conv] [--rounds 9] [--threads 2] [--python VENV/bin/python]

Builds the Rust side (crates/train/examples/vision_peer.rs), makes a virtual environment in bench/.venv with PyTorch unless --python
names an interpreter that has it, and lets all sides take turns: round after round, each for a second or one piece of work,
after one that is not counted, in which the caches are filled and the threads of the side before go to sleep.
PyTorch runs in both layouts of images; the better one counts.

Prints the median milliseconds of each side, rates of convolutions and of the products of vision Transformers, and regard's share of the better
one's time (below 1: faster), taken round by round.
"""

import argparse
import statistics

from common import PEERS, ROOT, Side, build, interpreter, turns

REQUIREMENTS = {"torch": "torch==2.15.0"}
SECONDS = 1.0


def products(batch, channels, side, times):
    """Operations of a 3x3 convolution: each pass is two for every pair of a weight and an output."""
    return times * 2 * batch * channels * channels * 9 * side * side


def transformer(batch, patches, numbers, width, layers, times):
    """Operations of the products of a vision Transformer with a class token, whose patches are so many numbers; scores are not made twice."""
    tokens = patches + 1
    layer = 2 * tokens * 12 * width * width + 4 * tokens * tokens * width
    return times * batch * (2 * patches * numbers * width + layers * layer)


# Name, what it is, operations where they are counted.
WORK = [
    ("conv64", "3x3 convolution, 64 channels, 32 x 32, batch 64, forward", products(64, 64, 32, 1)),
    ("conv64-both", "both passes", products(64, 64, 32, 3)),
    ("conv128", "128 channels, 16 x 16, forward", products(64, 128, 16, 1)),
    ("conv128-both", "both passes", products(64, 128, 16, 3)),
    ("conv16", "16 channels, 32 x 32, forward", products(64, 16, 32, 1)),
    ("conv16-both", "both passes", products(64, 16, 32, 3)),
    ("resnet20", "training step, ResNet-20, batch 128, 32 x 32", None),
    ("vit", "training step, ViT d 192, 12 layers, patch 4, batch 64, 32 x 32", transformer(64, 64, 48, 192, 12, 3)),
    ("vit-b", "ViT-B/16 forward, batch 4, 224 x 224", transformer(4, 196, 768, 768, 12, 1)),
    ("non-local", "non-local block, 64 channels, 56 x 56, batch 8, forward", None),
    ("non-local-both", "both passes", None),
]


def measure(name, sides, rounds):
    """Seconds of each side by name, round by round: the median of each round."""
    times = {}
    for side in sides:
        warm = min(side.ask(f"{name} 3")["seconds"])
        times[side.name] = max(1, round(SECONDS / warm))
    seconds = {side.name: [] for side in sides}
    for side in turns(sides, rounds):
        _, *found = side.ask(f"{name} {1 + times[side.name]}")["seconds"]
        seconds[side.name].append(statistics.median(found))
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="measure the work whose name contains this")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--python", help="an interpreter that has PyTorch")
    parser.add_argument("--binary", help="the built example, instead of building it")
    arguments = parser.parse_args()
    python = interpreter(arguments.python, REQUIREMENTS)
    binary = arguments.binary or build(ROOT, "--workspace", "--example", "vision_peer")["vision_peer"]
    twin = [python, PEERS / "vision_torch.py", "--threads", arguments.threads]
    sides = [
        Side("regard", [binary], arguments.threads),
        Side("PyTorch", twin, arguments.threads),
        Side("channels last", [*twin, "--channels-last"], arguments.threads),
    ]
    print("| work | regard | PyTorch | channels last | share of the better one's time |\n|---|---|---|---|---|")
    for name, title, operations in WORK:
        if arguments.only not in name:
            continue
        seconds = measure(name, sides, arguments.rounds)
        cells = []
        for side in sides:
            middle = statistics.median(seconds[side.name])
            rate = f", {operations / middle / 1e9:.0f} GFLOP/s" if operations else ""
            cells.append(f"{1e3 * middle:.1f} ms{rate}")
        ours, *theirs = seconds.values()
        better = min(theirs, key=statistics.median)
        shares = sorted(a / b for a, b in zip(ours, better))
        low, middle, high = statistics.quantiles(shares, n=4)
        print(f"| {title} | {' | '.join(cells)} | {middle:.2f} ({low:.2f} to {high:.2f}) |", flush=True)
    for side in sides:
        side.close()


if __name__ == "__main__":
    main()
