"""The CTranslate2 side of translation.py: f32, one translation at a time on all threads.

Reads a question a line, as crates/train/examples/translation_peer does: {"sentences": [[ids], ..], "beam": n,
"length_penalty": a} translates the sentences as one batch (with "n_best": n it gives the n best of each in place of the
best alone); {"memory": true} asks for the most memory that the process has held.
"""

import argparse
import json
import sys
import tempfile
import time

import ctranslate2

from ctranslate2_convert import convert
from memory import peak_bytes

LONGEST = 250


def answer(translator, question):
    """The answer to a question."""
    asked = json.loads(question)
    if "memory" in asked:
        return {"peak_bytes": peak_bytes()}
    started = time.perf_counter()
    sentences = [[str(token) for token in sentence] for sentence in asked["sentences"]]
    found = translator.translate_batch(
        sentences, beam_size=asked["beam"], length_penalty=asked["length_penalty"], max_decoding_length=LONGEST,
        min_decoding_length=0, num_hypotheses=asked.get("n_best", 1),
    )
    n_best = [[[int(token) for token in tokens] for tokens in one.hypotheses] for one in found]
    translations = n_best if "n_best" in asked else [best for best, in n_best]
    return {"seconds": time.perf_counter() - started, "translations": translations}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="a model file of `regard train`")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        convert(arguments.model, f"{folder}/model")
        translator = ctranslate2.Translator(
            f"{folder}/model", device="cpu", compute_type="float32", inter_threads=1, intra_threads=arguments.threads,
        )
    for line in sys.stdin:
        print(json.dumps(answer(translator, line.strip())), flush=True)


if __name__ == "__main__":
    main()
