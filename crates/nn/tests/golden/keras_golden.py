"""Makes keras.safetensors: expected outputs and gradients of Keras' two attention layers.

Run in this folder: `python keras_golden.py`. Made with Python 3, keras 3.15.1 on torch 2.15.0, numpy 2.4.6,
safetensors 0.8.0.

Sources: keras.layers.Attention (Luong's dot score, with a learned factor as an option; or its "concat", a tanh of the
factor times query plus key, summed) and keras.layers.AdditiveAttention (Bahdanau's score with a learned vector, the
projections left to the caller). Masks: `mask=[None, value_mask]`, true at real positions, and `use_causal_mask`, which
Keras counts from the upper left; here there are as many queries as keys where it is set.

Not compared, as it means something else: a query mask, which in Keras zeroes rows of the output.

Layouts are those of regard-nn: x W with W [inputs, outputs]; Keras has one head.
"""

import os
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch
from keras.src.backend.common import dtypes

from golden_file import GoldenFile

# Outside TensorFlow Keras computes in 32 bits whatever it is given; the expected numbers are to be those of 64.
dtypes.BIT64_TO_BIT32_DTYPE["float64"] = "float64"

golden = GoldenFile()
BATCH, QUERIES, KEYS, SIZE, VALUE, QUERY, ANNOTATION = 2, 4, 6, 5, 3, 4, 7


def attend(draw, layer, variables, query, key, value, lengths, causal):
    """Context and weights of a layer with `variables` in place of its own."""
    with torch.no_grad():
        layer([query, value, key])  # makes the variables
    assert [tuple(v.shape) for v in layer.trainable_variables] == [tuple(v.shape) for v in variables]
    mask = None
    if lengths is not None:
        mask = [None, torch.arange(key.shape[1])[None] < torch.tensor(lengths)[:, None]]
    (context, weights), _ = layer.stateless_call(
        variables, layer.non_trainable_variables, [query, value, key], mask=mask,
        return_attention_scores=True, use_causal_mask=causal)
    loss = (context * draw.constant("loss", *context.shape)).sum()
    return loss, {"context": context, "weights": weights}


def dtype_of(draw):
    return {torch.float64: "float64", torch.float32: "float32"}[draw.dtype]


def scalar(draw, number):
    return torch.tensor(number, dtype=draw.dtype)


def inputs(draw, queries, keys):
    return (draw("query", BATCH, queries, SIZE, scale=1.0), draw("key", BATCH, keys, SIZE, scale=1.0),
            draw("value", BATCH, keys, VALUE, scale=1.0))


def dot_case(scale, queries, keys, lengths, causal):
    def compute(draw):
        query, key, value = inputs(draw, queries, keys)
        layer = keras.layers.Attention(use_scale=scale is not None, dtype=dtype_of(draw))
        variables = [] if scale is None else [scalar(draw, scale)]
        return attend(draw, layer, variables, query, key, value, lengths, causal)

    return compute


def concat_case(scale, weight, queries, keys, lengths, causal):
    def compute(draw):
        query, key, value = inputs(draw, queries, keys)
        layer = keras.layers.Attention(use_scale=True, score_mode="concat", dtype=dtype_of(draw))
        variables = [scalar(draw, scale), scalar(draw, weight)]
        return attend(draw, layer, variables, query, key, value, lengths, causal)

    return compute


def additive_case(queries, keys, lengths, causal):
    def compute(draw):
        states = draw("query", BATCH, queries, QUERY, scale=1.0)
        annotations = draw("key", BATCH, keys, ANNOTATION, scale=1.0)
        value = draw("value", BATCH, keys, VALUE, scale=1.0)
        query = states @ draw("query.weight", QUERY, SIZE)
        key = annotations @ draw("key.weight", ANNOTATION, SIZE) + draw("key.bias", SIZE)
        layer = keras.layers.AdditiveAttention(use_scale=True, dtype=dtype_of(draw))
        vector = draw("vector", SIZE, scale=1.0)
        return attend(draw, layer, [vector], query, key, value, lengths, causal)

    return compute


SIZES = [
    ("all", QUERIES, KEYS, None, False),
    ("padded", QUERIES, KEYS, [6, 2], False),
    ("causal", KEYS, KEYS, None, True),
    ("causal-padded", KEYS, KEYS, [4, 6], True),
    ("one", 1, 1, None, False),
    ("wide", 9, 65, [65, 40], False),
]
for name, queries, keys, lengths, causal in SIZES:
    common = dict(queries=queries, keys=keys, lengths=lengths, causal=causal)
    for label, scale in (("dot", None), ("scaled", 0.375)):
        golden.case(f"keras-{label}-{name}", dot_case(scale, queries, keys, lengths, causal),
                    kind="dot", scale=scale, **common)
    golden.case(f"keras-concat-{name}", concat_case(0.75, 1.5, queries, keys, lengths, causal),
                kind="concat", scale=0.75, weight=1.5, **common)
    golden.case(f"keras-additive-{name}", additive_case(queries, keys, lengths, causal), kind="additive", **common)
golden.save(Path(__file__).parent / "keras.safetensors")
