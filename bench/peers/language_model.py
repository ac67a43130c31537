#!/usr/bin/env python3
"""Times regard's pretrained models beside transformers (PyTorch), ONNX Runtime, candle and llama.cpp, in turns in one run.

    python3 bench/peers/language_model.py --folder FOLDER [--only encode] [--rounds 5] [--threads 2]

FOLDER takes 2.2 GB of checkpoints of real size with random weights, which the PyTorch side makes if they are not there. Builds the
Rust sides, makes a virtual environment in bench/.venv unless --python names an interpreter that has the packages. llama.cpp takes part
where that interpreter has llama-cpp-python and gguf, which pip has to compile. Prints the median of each side, and
regard's time as a share of the others' (below 1: faster). Before timing it says how many tokens each side writes like regard in f32: all, of
PyTorch and candle. Encoders' last states must agree to 1e-3.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys

from common import PEERS, ROOT, Side, build, interpreter, turns

REQUIREMENTS = {
    "torch": "torch==2.15.0", "transformers": "transformers==5.23.0", "onnxruntime": "onnxruntime==1.32.0", "onnx": "onnx",
    "onnxscript": "onnxscript", "safetensors": "safetensors",
}
WORK = [
    *({"work": "decode", "model": model, "dtype": dtype, "tokens": 64} for model in ("gpt2", "llama") for dtype in ("f32", "bf16")),
    *({"work": "prompt", "model": model, "dtype": dtype, "length": 512} for model in ("gpt2", "llama") for dtype in ("f32", "bf16")),
    *({"work": "encode", "model": "minilm", "dtype": "f32", "batch": b, "length": n} for b, n in ((1, 32), (32, 64), (8, 256))),
    {"work": "encode", "model": "bert", "dtype": "f32", "batch": 8, "length": 128},
    {"work": "decode", "model": "llama", "dtype": "f32", "tokens": 64, "weights": "int8"},
    {"work": "prompt", "model": "llama", "dtype": "f32", "length": 512, "weights": "int8"},
]
# Questions that only regard answers: GPT-2 in 8 bits, looking at a head beside not looking, memory after a row of its own.
ALONE = [
    {"work": "decode", "model": "gpt2", "dtype": "f32", "tokens": 64, "weights": "int8"},
    *({"work": work, "model": "llama", "dtype": "bf16", "length": 4096} for work in ("prompt", "look")),
]
BEST = {"work": "best", "dtype": "f32", "length": 512}
MEMORY = {"work": "decode", "model": "llama", "dtype": "bf16", "tokens": 64}


def alone(ours, folder, rounds, threads):
    """The rows of regard alone."""
    side = Side("regard", [ours, "--folder", folder], threads)
    for work in ALONE:
        time = statistics.median(side.ask(json.dumps(work))["seconds"] for _ in range(rounds))
        rate = f"  {work['tokens'] / time:.1f} tokens/s" if "tokens" in work else ""
        print(f"{' '.join(map(str, work.values())):32s} regard {1000 * time:8.1f} ms{rate}", flush=True)
    for model in ("gpt2", "llama"):
        best = lambda weights: side.ask(json.dumps(BEST | {"model": model, "weights": weights}))["best"]
        exact = best("f32")
        for weights in ("bf16", "int8"):
            same = sum(a == b for a, b in zip(exact, best(weights))) / len(exact)
            print(f"{model}: {weights} has the next token of f32 after {100 * same:.1f} % of {len(exact)} tokens", flush=True)
    side.close()
    side = Side("regard", [ours, "--folder", folder], threads)
    side.ask(json.dumps(MEMORY))
    print(f"memory of llama bf16: {side.ask(json.dumps({'work': 'memory'}))['bytes'] / 1e6:.0f} MB")
    side.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--python")
    parser.add_argument("--only", default="", help="measure the rows that contain this")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    python = interpreter(options.python, REQUIREMENTS)
    ours = build(ROOT, "-p", "regard-models", "--example", "language_model_peer")["language_model_peer"]
    candle = build(PEERS / "attention_rust", "--bin", "language_model_candle")["language_model_candle"]
    script = lambda name: [python, PEERS / f"language_model_{name}.py", "--folder", options.folder]
    llama_cpp = subprocess.run([python, "-c", "import llama_cpp, gguf"], stderr=subprocess.DEVNULL).returncode == 0
    for work in WORK:
        row = " ".join(str(value) for value in work.values())
        if options.only not in row:
            continue
        question = json.dumps(work)
        commands = {"regard": [ours, "--folder", options.folder]}
        if "weights" not in work:
            commands = {"torch": script("torch"), **commands}
            if work["model"] != "gpt2":  # candle-transformers has none
                commands["candle"] = [candle, "--folder", options.folder]
        if work["work"] == "encode":
            commands["onnx"] = script("onnx")
        if work["model"] == "llama" and llama_cpp:
            commands["llama.cpp"] = [*script("llama_cpp"), "--threads", options.threads]
        # Processes of their own for each row: none keeps another row's memory, or its threads. The first one makes the checkpoint.
        sides, first = [], {}
        for name, command in commands.items():
            sides.append(Side(name, command, options.threads))
            first[name] = sides[-1].ask(question)
        if work["work"] == "decode" and "torch" in first and work["dtype"] == "f32":
            same = lambda ids: [a == b for a, b in zip(first["regard"]["ids"], ids)]
            alike = lambda ids: len(list(itertools.takewhile(bool, same(ids))))
            print("  tokens like those of regard:", ", ".join(f"{name} {alike(answer['ids'])}" for name, answer in first.items()))
        if work["work"] == "encode":
            for name, answer in first.items():
                mine, theirs = first["regard"]["probe"], answer["probe"]
                if max(abs(a - b) for a, b in zip(mine, theirs)) > 1e-3:
                    sys.exit(f"{row}: {name} computes something else: {mine}, {theirs}")
        seconds = {side.name: [] for side in sides}
        for side in turns(sides, options.rounds):
            seconds[side.name].append(side.ask(question)["seconds"])
        median = {name: statistics.median(times) for name, times in seconds.items()}
        shown = "  ".join(f"{name} {1000 * time:8.1f} ms" for name, time in median.items())
        shares = "  ".join(f"{median['regard'] / time:.2f} of {name}" for name, time in median.items() if name != "regard")
        rates = "  ".join(f"{name} {work['tokens'] / time:.1f}" for name, time in median.items()) if "tokens" in work else ""
        print(f"{row:32s} {shown}  {shares}{'  tokens/s: ' if rates else ''}{rates}", flush=True)
        for side in sides:
            side.close()
    if not options.only:
        alone(ours, options.folder, options.rounds, options.threads)


if __name__ == "__main__":
    main()
