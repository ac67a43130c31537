"""Shared by the scripts of comparisons: an interpreter with the peers, regard's programs, sides that take turns."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

PEERS = Path(__file__).resolve().parent
ROOT = PEERS.parents[1]


def interpreter(given, requirements):
    """`given`, or the one in bench/.venv, in which `requirements` ({module: what pip is to install}) are then installed."""
    if given:
        return given
    folder = ROOT / "bench" / ".venv"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        venv.create(folder, with_pip=True)
    if subprocess.run([python, "-c", f"import {', '.join(requirements)}"], stderr=subprocess.DEVNULL).returncode:
        print(f"installing {', '.join(requirements.values())} in {folder}", file=sys.stderr)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements.values()], check=True)
    return python


def build(folder, *options):
    """Builds with cargo and gives the executables by name."""
    command = ["cargo", "build", "--release", *options, "--message-format=json-render-diagnostics"]
    done = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    messages = map(json.loads, done.stdout.splitlines())
    return {m["target"]["name"]: m["executable"] for m in messages if m.get("executable")}


class Side:
    """A process that answers a line of its standard input with a line of JSON."""

    def __init__(self, name, command, threads):
        environment = {**os.environ, "RAYON_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
        self.name = name
        self.process = subprocess.Popen(
            [str(part) for part in command], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )

    def ask(self, question):
        self.process.stdin.write(f"{question}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{Path(sys.argv[0]).name}: {self.name} ended with code {self.process.wait()}")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def turns(sides, rounds):
    """Every side once a round, in another order each round, so that no side always runs after the same other one."""
    for number in range(rounds):
        turn = number % len(sides)
        yield from sides[turn:] + sides[:turn]
