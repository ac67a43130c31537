#!/usr/bin/env python3
"""Times additive attention beside PyTorch's, eager and compiled, in one run.

    python3 bench/peers/additive.py [--rounds 12] [--python VENV/bin/python]

Builds the Rust side, starts every side as a process of its own on the same numbers, checks that all compute
the same context and gradients, and lets them take turns, round after round, so that other work of the machine
slows all of them. Prints median milliseconds and how many times as fast regard is (above 1: faster), forward
alone and forward with backward. Ratios are taken round by round; their quartiles show how much they vary.
`--python` names an interpreter that has torch and numpy (default: the one that runs this script).
"""

import argparse
import json
import statistics
import sys

from common import PEERS, ROOT, Side, build, turns


def check(sides):
    ours, *others = [side.ask("check") for side in sides]
    for side, theirs in zip(sides[1:], others):
        worst = max(abs(a - b) / (1e-12 + abs(b)) for a, b in zip(ours, theirs))
        print(f"squares of context and gradients differ from {side.name}'s by at most {worst:.1e} of their size")
        if not worst < 1e-3:
            sys.exit(f"additive.py: not the same function: {ours} and {theirs}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="rounds each side gets (default 12)")
    parser.add_argument("--threads", type=int, default=2, help="threads of each side (default 2)")
    parser.add_argument("--sizes", type=int, nargs=5, default=[64, 20, 50, 256, 256],
                        metavar=("BATCH", "QUERIES", "KEYS", "DIM", "VALUE_DIM"))
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has torch and numpy")
    parser.add_argument("--binary", help="the built example, instead of building it")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    arguments = parser.parse_args()
    threads, sizes = arguments.threads, arguments.sizes
    binary = arguments.binary or build(ROOT, "-p", "regard-kernels", "--example", "additive_peer")["additive_peer"]
    twin = [arguments.python, PEERS / "additive_torch.py", "--threads", threads]
    ours = Side("regard", [binary, *sizes], threads)
    peers = [Side("PyTorch eager", [*twin, *sizes], threads)]
    if not arguments.no_compile:
        peers.append(Side("torch.compile", [*twin, "--compile", *sizes], threads))
    sides = [ours, *peers]
    check(sides)
    times = {side.name: {"forward": [], "both": []} for side in sides}
    for side in turns(sides, arguments.rounds):
        answer = side.ask(10 if side is ours else 2)
        for what, medians in times[side.name].items():
            medians.append(statistics.median(answer[what]))
    for side in sides:
        side.close()

    batch, queries, keys, dim, value_dim = sizes
    terms = batch * queries * keys * dim
    print(f"batch {batch}, queries {queries}, keys {keys}, dim {dim}, value dim {value_dim}, {threads} threads; "
          f"median of {arguments.rounds} rounds:")
    result = {}
    for what, label in (("forward", "forward"), ("both", "forward + backward")):
        seconds = statistics.median(times[ours.name][what])
        print(f"  {label}\n    {ours.name:16} {1e3 * seconds:9.2f} ms   {terms / seconds / 1e9:.1f}e9 terms/s")
        result[what] = {"regard_ms": 1e3 * seconds, "terms_per_second": terms / seconds}
        for peer in peers:
            ratios = [b / a for a, b in zip(times[ours.name][what], times[peer.name][what])]
            low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
            milliseconds = 1e3 * statistics.median(times[peer.name][what])
            print(f"    {peer.name:16} {milliseconds:9.2f} ms   regard is {middle:.1f} times as fast "
                  f"(quartiles {low:.1f} to {high:.1f})")
            result[what][peer.name] = {"ms": milliseconds, "ratio": middle, "quartiles": [low, high]}
    if arguments.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
