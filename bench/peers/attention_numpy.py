"""numpy's side of attention.py: the two products alone, as its BLAS makes them."""

import json
import time

import numpy

from attention_common import numbers, probe, questions


def answer(question):
    if question.kind != "products":
        return {"error": "numpy has products alone"}
    shapes = [(question.batch, question.heads, question.queries, question.dim)]
    shapes += 2 * [(question.batch, question.key_heads, question.keys, question.dim)]
    query, key, value = (numbers(seed, shape) for seed, shape in zip((1, 2, 3), shapes))
    seconds = []
    for _ in range(1 + question.repeats):
        start = time.perf_counter()
        result = query @ key.swapaxes(2, 3) @ value
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds[1:], "probe": probe(result)}


if __name__ == "__main__":
    for question in questions():
        print(json.dumps(answer(question)), flush=True)
