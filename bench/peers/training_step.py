#!/usr/bin/env python3
"""Times training steps of regard's rnnsearch beside PyTorch's, in one run.

    python3 bench/peers/training_step.py [--rounds 12] [--steps 4] [--python VENV/bin/python]

Builds the Rust side, makes a virtual environment in bench/.venv with PyTorch unless --python names an
interpreter that has it, starts every side as a process of its own from the same weights, and lets them take
turns: a few steps each, round after round, so that whatever else the machine does falls on all. Before
anything is timed both must compute the same losses, over several updates, to 1e-4.

Prints the median milliseconds a step, and how many times as fast regard is as each PyTorch model (above 1:
faster). Ratios are taken round by round; their median is the answer, their quartiles say how sure it is.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ["torch==2.15.0", "safetensors==0.8.0", "numpy"]
CHECKED_STEPS = 4


def python_with_torch(given):
    if given:
        return given
    folder = ROOT / "bench" / ".venv"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        print(f"installing {', '.join(REQUIREMENTS)} in {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
    return python


def build():
    command = ["cargo", "build", "--release", "-p", "regard-train", "--example", "training_step",
               "--message-format=json-render-diagnostics"]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message.get("target", {}).get("name") == "training_step":
            return message["executable"]
    sys.exit("training_step.py: cargo built no executable `training_step`")


class Side:
    """A process that makes training steps when asked."""

    def __init__(self, name, command, threads):
        environment = {**os.environ, "RAYON_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
        self.name, self.rounds = name, []
        self.process = subprocess.Popen(
            [str(part) for part in command], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )

    def steps(self, count):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"training_step.py: {self.name} ended with code {self.process.wait()}")
        return json.loads(line)

    def milliseconds(self):
        return 1e3 * statistics.median(second for seconds in self.rounds for second in seconds)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def check(ours, twin):
    """The same losses from the same weights, through forward, backward, clipping and Adam."""
    mine, theirs = (side.steps(CHECKED_STEPS)["losses"] for side in (ours, twin))
    worst = max(abs(a - b) for a, b in zip(mine, theirs))
    print(f"losses of {CHECKED_STEPS} updates: {', '.join(f'{loss:.5f}' for loss in mine)}; "
          f"PyTorch's differ by at most {worst:.1e}")
    if worst > 1e-4:
        sys.exit(f"training_step.py: not the same model: {mine} and {theirs}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="rounds each side gets (default 12)")
    parser.add_argument("--steps", type=int, default=4, help="steps of a round (default 4)")
    parser.add_argument("--threads", type=int, default=2, help="threads of each side (default 2)")
    parser.add_argument("--python", help="an interpreter that has torch and safetensors")
    parser.add_argument("--binary", help="the built example, instead of building it")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    arguments = parser.parse_args()
    binary = arguments.binary or build()
    python = python_with_torch(arguments.python)
    threads = arguments.threads
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "weights.safetensors"
        ours = Side("regard", [binary, "--serve", "--export", weights], threads)
        ours.steps(0)  # it answers once the weights are written
        twin = [python, ROOT / "bench/peers/rnnsearch_torch.py", "--weights", weights, "--threads", threads]
        cell = Side("PyTorch, same model", [*twin, "--encoder", "cell"], threads)
        library = Side("PyTorch, torch.nn.GRU encoder", [*twin, "--encoder", "torch"], threads)
        check(ours, cell)
        library.steps(CHECKED_STEPS)
        sides = [ours, cell, library]
        for number in range(arguments.rounds):
            # Each round in another order, so that none always follows the same one.
            turn = number % len(sides)
            for side in sides[turn:] + sides[:turn]:
                side.rounds.append(side.steps(arguments.steps)["seconds"])
        for side in sides:
            side.close()
    print(f"{arguments.rounds} rounds of {arguments.steps} steps, {threads} threads; median a step:")
    print(f"  {ours.name:32} {ours.milliseconds():8.1f} ms")
    result = {"regard_ms": ours.milliseconds()}
    for key, peer in (("same_model", cell), ("library_encoder", library)):
        ratios = [statistics.median(b) / statistics.median(a) for a, b in zip(ours.rounds, peer.rounds)]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        print(f"  {peer.name:32} {peer.milliseconds():8.1f} ms   "
              f"regard is {middle:.2f} times as fast (quartiles {low:.2f} to {high:.2f})")
        result[key] = {"ms": peer.milliseconds(), "ratio": middle, "quartiles": [low, high]}
    if arguments.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
