"""What it costs to look: a prompt read by a model of transformers as it is, recorded by `regard.record`, and with
`attn_implementation="eager", output_attentions=True`; `regard.attention` beside PyTorch's `scaled_dot_product_attention`; and
`regard.additive_attention` beside the same in PyTorch's operations.

    python3 bench/peers/record.py [--tokens 4096] [--rounds 7] [--threads 2] [--json FILE]

Needs an interpreter with regard (crates/python), torch and transformers. The sides take turns in one process each; memory is the most that a
process held above what it held with the model loaded.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from functools import partial

SIDES = ("as it is", "recorded", "eager with weights")


def peak():
    """Bytes that this process held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def side(name, tokens, layers, threads):
    """One process: answers each line of its input with the seconds of one prompt, and the end of it with its memory."""
    import torch
    import transformers

    import regard

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=1000, hidden_size=768, intermediate_size=2048, num_hidden_layers=layers, num_attention_heads=12, num_key_value_heads=4,
        max_position_embeddings=tokens, attn_implementation="eager" if name == SIDES[2] else "sdpa",
    )
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 1000, (1, tokens))

    def run(ids):
        with torch.inference_mode():
            if name == SIDES[1]:
                with regard.record(model) as seen:
                    model.model(input_ids=ids, use_cache=False)
                return seen
            return model.model(input_ids=ids, use_cache=False, output_attentions=name == SIDES[2])

    run(ids[:, :64])
    before = peak()
    print("ready", flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        run(ids)
        print(time.perf_counter() - begin, flush=True)
    print(peak() - before, flush=True)


def recorded(arguments):
    """The three sides in turns."""
    command = [sys.executable, __file__, "--tokens", str(arguments.tokens), "--layers", str(arguments.layers), "--threads", str(arguments.threads)]
    sides = {name: subprocess.Popen([*command, "--side", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for name in SIDES}
    seconds = {name: [] for name in SIDES}
    for process in sides.values():
        assert process.stdout.readline() == "ready\n"
    for _ in range(arguments.rounds):
        for name, process in sides.items():
            process.stdin.write("\n")
            process.stdin.flush()
            seconds[name].append(float(process.stdout.readline()))
    found = {}
    plain = statistics.median(seconds[SIDES[0]])
    for name, process in sides.items():
        memory = int(process.communicate("")[0])
        median = statistics.median(seconds[name])
        ratios = [a / b for a, b in zip(seconds[name], seconds[SIDES[0]])]
        found[name] = {"seconds": median, "ratio": statistics.median(ratios), "memory": memory}
        print(f"{name:20} {median:8.3f} s   {statistics.median(ratios):6.3f} of as it is   {memory / 1e6:8.0f} MB more than the model")
    return {"tokens": arguments.tokens, "layers": arguments.layers, "plain": plain, "sides": found}


CASES = {
    "L 2,048, d 64, causal": ((1, 8, 2048, 64), True),
    "L 512, d 64": ((4, 8, 512, 64), False),
    "L 128, d 32, causal": ((32, 4, 128, 32), True),
}

# Batch, queries, keys, dim and value dim.
ADDITIVE_CASES = {
    "20 x 50, d 256": (64, 20, 50, 256, 256),
    "1 x 50, d 512": (64, 1, 50, 512, 512),
}


def beside(name, rounds, peer, tensors, shape, ours, theirs):
    """Two functions of the same tensors in turns, whose result is of this shape: forward alone and with the backward pass."""
    import torch

    upstream = torch.randn(shape)

    def both(run):
        return torch.autograd.grad(run(*tensors), tensors, upstream)

    torch.testing.assert_close(ours(*tensors), theirs(*tensors), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(both(ours), both(theirs), rtol=1e-3, atol=1e-3)
    found = {}
    for part in ("forward", "both passes"):
        seconds = {"ours": [], "theirs": []}
        for _ in range(4 * rounds):
            for key, run in (("ours", ours), ("theirs", theirs)):
                begin = time.perf_counter()
                if part == "forward":
                    with torch.no_grad():
                        run(*tensors)
                else:
                    both(run)
                seconds[key].append(time.perf_counter() - begin)
        ours_s, theirs_s = (statistics.median(seconds[key]) for key in ("ours", "theirs"))
        found[f"{name}, {part}"] = {"ours": ours_s, "theirs": theirs_s}
        print(f"{name:26} {part:12} regard {1e3 * ours_s:8.2f} ms   {peer} {1e3 * theirs_s:8.2f} ms   {theirs_s / ours_s:5.2f}x as fast")
    return found


def attention(arguments):
    """`regard.attention` and SDPA in turns, forward alone and with the backward pass."""
    import torch

    import regard

    torch.set_num_threads(arguments.threads)
    found = {}
    for name, (shape, causal) in CASES.items():
        torch.manual_seed(0)
        tensors = [torch.randn(shape, requires_grad=True) for _ in range(3)]
        ours = partial(regard.attention, causal=causal)
        theirs = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=causal)
        found |= beside(name, arguments.rounds, "SDPA", tensors, shape, ours, theirs)
    return found


def additive(arguments):
    """`regard.additive_attention` and PyTorch's operations in turns: `softmax(tanh(q + k) v) value`, both projected already (`q W`, `k U`)."""
    import torch

    import regard

    torch.set_num_threads(arguments.threads)

    def ours(query, key, v, value):
        return regard.additive_attention(query, key, v, value)[0]

    def theirs(query, key, v, value):
        return torch.softmax(torch.tanh(query[:, :, None] + key[:, None]) @ v, -1) @ value

    found = {}
    for name, (batch, queries, keys, dim, value_dim) in ADDITIVE_CASES.items():
        torch.manual_seed(0)
        shapes = [(batch, queries, dim), (batch, keys, dim), (dim,), (batch, keys, value_dim)]
        tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
        found |= beside(f"additive, {name}", arguments.rounds, "PyTorch", tensors, (batch, queries, value_dim), ours, theirs)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=("record", "attention", "additive"))
    parser.add_argument("--json")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        side(arguments.side, arguments.tokens, arguments.layers, arguments.threads)
        return
    found = {}
    for name, measure in (("record", recorded), ("attention", attention), ("additive", additive)):
        if arguments.only in (None, name):
            found[name] = measure(arguments)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
