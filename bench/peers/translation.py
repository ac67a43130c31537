#!/usr/bin/env python3
"""Times regard's translation beside CTranslate2's, f32, with the same weights, in one run.

    python3 bench/peers/translation.py --model runs/transformer-small/model.safetensors --source test.en[.gz]

Builds the Rust side, makes a virtual environment in bench/.venv with CTranslate2 unless --python names an interpreter
that has it, converts the model (ctranslate2_convert.py), hands both sides the same sentences of ids in the same
batches, sorted by length, and lets them take turns. Several models (--model, given again) are compared one after the other.

Before anything is timed, both must find the same translations by greedy search, and with a beam of 5 without a length penalty:
99 % of them, as rounding breaks some ties. (CTranslate2 is told that a translation may be empty, as in regard: by probability
alone the empty one wins now and then.) Timed is a beam of 5 with a length penalty. There translations differ: CTranslate2 divides
log P by |Y|^a, regard by ((5 + |Y|) / 6)^a, and CTranslate2's search ends when five hypotheses have finished, regard's when none
is left. So both sides' translations are scored by the model under teacher forcing and ranked by regard's formula: regard's must
not be worse than the best of the five that CTranslate2 found, neither in the mean nor in more than 5 % of the sentences.

Prints milliseconds a sentence, regard's share of CTranslate2's time (below 1: faster), and the most memory that each held.
"""

import argparse
import gzip
import json
import statistics
import sys

from common import PEERS, ROOT, Side, build, interpreter, turns

# How much rounding can change a score, in nats.
TIE = 1e-3
REQUIREMENTS = {"ctranslate2": "ctranslate2==4.8.5", "safetensors": "safetensors==0.8.0", "numpy": "numpy"}


def sentences(path, ours, count):
    """The first `count` lines of a file, as ids."""
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line, _ in zip(file, range(count))]
    ids = [ours.ask(json.dumps({"encode": line}))["ids"] for line in lines]
    return [sentence for sentence in ids if sentence]


def batches(sentences, size):
    """Sorted by length, so that there is little padding."""
    ordered = sorted(sentences, key=len)
    return [ordered[at : at + size] for at in range(0, len(ordered), size)]


def question(batch, beam, length_penalty=1.0, **more):
    return json.dumps({"sentences": batch, "beam": beam, "length_penalty": length_penalty, **more})


def ranks(ours, sources, targets, length_penalty):
    """The scores by which regard ranks targets, from the model's log-probabilities under teacher forcing."""
    found = ours.ask(json.dumps({"sources": sources, "targets": targets}))["log_probabilities"]
    return [one / ((6 + len(target)) / 6) ** length_penalty for one, target in zip(found, targets)]


def check(ours, theirs, sentences):
    """Checks that both sides have the same model, and that regard's search is not worse: see the head of this file."""
    for beam, length_penalty, least_same, most_worse in ((1, 0.0, 0.99, 0.01), (5, 0.0, 0.99, 0.01), (5, 1.0, 0.0, 0.05)):
        sources, found, others = [], [], []
        for batch in batches(sentences, 32):
            sources += batch
            found += ours.ask(question(batch, beam, length_penalty))["translations"]
            n_best = beam if length_penalty else 1
            others += theirs.ask(question(batch, beam, length_penalty, n_best=n_best))["translations"]
        same = statistics.mean(mine == n_best[0] for mine, n_best in zip(found, others))
        mine = ranks(ours, sources, found, length_penalty)
        # The best of CTranslate2's five translations, by regard's ranking.
        pairs = [(source, one) for source, n_best in zip(sources, others) for one in n_best]
        ranked = iter(ranks(ours, *map(list, zip(*pairs)), length_penalty))
        gains = [a - max(next(ranked) for _ in n_best) for a, n_best in zip(mine, others)]
        mean, better, worse = statistics.mean(gains), *(sum(sign * gain > TIE for gain in gains) for sign in (1, -1))
        print(f"beam {beam}, length penalty {length_penalty}: {same:.1%} of {len(sources)} translations are the same; "
              f"regard's rank higher in {better} and lower in {worse}, {mean:+.5f} nats in the mean", file=sys.stderr)
        if same < least_same:
            sys.exit(f"translation.py: beam {beam}: only {same:.1%} of the translations are the same")
        if mean < -TIE or worse > most_worse * len(sources):
            sys.exit(f"translation.py: beam {beam}: regard's translations are less likely than CTranslate2's")


def compare(model, binary, python, arguments):
    """Both sides with one model."""
    threads = arguments.threads
    ours = Side("regard", [binary, model], threads)
    peer = [python, PEERS / "translation_ctranslate2.py", "--model", model, "--threads", threads]
    theirs = Side("CTranslate2", peer, threads)
    sides = [ours, theirs]
    text = sentences(arguments.source, ours, arguments.sentences)
    check(ours, theirs, text)
    result = {}
    for size in (1, 32):
        # A round translates a few batches from everywhere in the order of lengths, each round others.
        all_batches = batches(text, size)
        count = max(1, len(all_batches) // arguments.rounds)
        times = {side.name: [] for side in sides}
        for side in turns(sides, arguments.rounds):
            number = len(times[side.name])
            chosen = all_batches[number :: arguments.rounds][:count] or all_batches
            seconds = sum(side.ask(question(batch, 5))["seconds"] for batch in chosen)
            times[side.name].append(seconds / sum(map(len, chosen)))
        shares = [a / b for a, b in zip(times[ours.name], times[theirs.name])]
        low, middle, high = statistics.quantiles(shares, n=4) if len(shares) > 1 else shares * 3
        milliseconds = {name: 1e3 * statistics.median(seconds) for name, seconds in times.items()}
        print(f"beam 5, batch {size}: regard {milliseconds['regard']:.2f} ms a sentence, CTranslate2 "
              f"{milliseconds['CTranslate2']:.2f} ms: regard takes {middle:.2f} of its time ({low:.2f} to {high:.2f})")
        result[f"batch {size}"] = {"ms": milliseconds, "of_its_time": middle, "quartiles": [low, high]}
    for side in sides:
        result[f"{side.name} peak_bytes"] = memory = side.ask('{"memory": true}')["peak_bytes"]
        if memory is not None:
            print(f"most memory: {side.name} {memory / 2**20:.0f} MiB")
        side.close()
    if arguments.json:
        print(json.dumps(result))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True, action="append", help="a Transformer of `regard train`; may be given again, for the same source")
    parser.add_argument("--source", required=True, help="text to translate, a sentence a line, plain or .gz")
    parser.add_argument("--sentences", type=int, default=256, help="how many of them (default 256)")
    parser.add_argument("--rounds", type=int, default=8, help="rounds each side gets (default 8)")
    parser.add_argument("--threads", type=int, default=2, help="threads of each side (default 2)")
    parser.add_argument("--python", help="an interpreter that has ctranslate2, safetensors and numpy")
    parser.add_argument("--binary", help="the built example, instead of building it")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON, each model")
    arguments = parser.parse_args()
    binary = arguments.binary or build(ROOT, "--workspace", "--example", "translation_peer")["translation_peer"]
    python = interpreter(arguments.python, REQUIREMENTS)
    for model in arguments.model:
        if len(arguments.model) > 1:
            print(f"{model}:", flush=True)
        compare(model, binary, python, arguments)


if __name__ == "__main__":
    main()
