"""Shared by the Python sides of attention.py: questions, inputs by a formula that every side has, probes."""

import dataclasses
import sys

import numpy


@dataclasses.dataclass
class Question:
    """A line `kind batch heads key_heads queries keys dim causal dtype repeats`."""

    kind: str
    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    dim: int
    causal: bool
    dtype: str
    repeats: int


def questions():
    """The questions on standard input."""
    for line in sys.stdin:
        yield Question(*(read(field.type, word) for field, word in zip(dataclasses.fields(Question), line.split())))


def read(kind, word):
    """A word of a question."""
    return word == "1" if kind is bool else kind(word)


def numbers(seed, shape):
    """The inputs of every side, in [-1, 1]."""
    index = numpy.arange(numpy.prod(shape), dtype=numpy.int64)
    return (((index * 7919 + seed * 104729) % 2003) / 1001.5 - 1).astype(numpy.float32).reshape(shape)


def probe(result):
    """Eight numbers of a result `[batch, heads, length, dim]`, by which two sides are compared."""
    flat = numpy.ascontiguousarray(result).reshape(-1)
    return [float(flat[k * (len(flat) - 1) // 7]) for k in range(8)]


def sentences():
    """The lengths of 64 sentences, 5 to 80 tokens."""
    return [5 + index * 29 % 76 for index in range(64)]
