"""Attention on arrays and tensors: against plain numpy in double precision, gradients against finite differences, and bad input."""

import copy
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import regard


def plain(query, key, value, *, scale=None, causal=False, mask=None, bias=None, softcap=None, sink=None):
    """The definition, in double precision."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    groups = query.shape[1] // key.shape[1]
    key, value = (np.repeat(x, groups, axis=1) for x in (key, value))
    scores = np.einsum("bhqd,bhkd->bhqk", query, key) * (scale or query.shape[-1] ** -0.5)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    queries, keys = scores.shape[-2:]
    seen = np.ones(scores.shape, bool) if mask is None else np.broadcast_to(mask, scores.shape)
    if causal:
        seen = seen & np.tri(queries, keys, keys - queries, dtype=bool)
    scores = np.where(seen, scores, -np.inf)
    largest = np.maximum(scores.max(-1, keepdims=True), -1e300)
    weights = np.exp(scores - largest)
    total = weights.sum(-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(np.asarray(sink, np.float64)[None, :, None, None] - largest)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return weights @ value, weights


def random(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


OPTIONS = [
    {},
    {"causal": True},
    {"scale": 0.3, "softcap": 2.0},
    {"mask": np.random.default_rng(1).random((2, 1, 7, 9)) > 0.4},
    {"bias": random(2, 1, 4, 7, 9)},
    {"sink": random(3, 4), "causal": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "+".join(options) or "plain")
def test_attention_is_its_definition(options):
    query, key, value = random(4, 2, 4, 7, 16), random(5, 2, 2, 9, 16), random(6, 2, 2, 9, 8)
    expected, weights = plain(query, key, value, **options)
    output, lse = regard.attention(query, key, value, return_lse=True, **options)
    assert output.shape == (2, 4, 7, 8) and lse.shape == (2, 4, 7)
    np.testing.assert_allclose(output, expected, atol=2e-6)
    seen = regard.observe(query, key, rows=True, entropy=True, column_sums=True, top=3, cells=(3, 4), pool="mean", **options)
    np.testing.assert_allclose(seen.weights, weights, atol=1e-6)
    logs = np.log(weights, where=weights > 0, out=np.zeros_like(weights))
    if "sink" not in options:
        np.testing.assert_allclose(seen.entropy, -(weights * logs).sum(-1), atol=1e-5)
    np.testing.assert_allclose(seen.column_sums, weights.sum(-2), atol=1e-5)
    np.testing.assert_allclose(seen.top_weights, -np.sort(-weights, -1)[..., :3], atol=1e-6)
    assert seen.pooled.shape == (2, 4, 3, 4)


def test_arrays_are_read_where_they_are():
    joint = random(7, 2, 6, 3, 4, 8)  # batch, length, which, heads, dim
    query, key, value = (joint[:, :, which].transpose(0, 2, 1, 3) for which in range(3))
    expected, _ = plain(query, key, value)
    np.testing.assert_allclose(regard.attention(query, key, value), expected, atol=2e-6)
    turned = query[..., ::-1], key[..., ::-1], value[:, :, ::-1]
    expected, _ = plain(*turned)
    np.testing.assert_allclose(regard.attention(*turned), expected, atol=2e-6)


class Exchanged:
    """An array of another library, of which only DLPack is known."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack__(self, **options):
        if self.device != (1, 0):
            raise BufferError("not on this device")
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.device


def test_dlpack_goes_in_and_out_without_a_copy():
    x = random(18, 1, 2, 5, 8)
    from regard._arrays import numbers

    seen = numbers("query", Exchanged(x))
    assert seen.__array_interface__["data"][0] == x.__array_interface__["data"][0]
    output = regard.attention(Exchanged(x), Exchanged(x), Exchanged(x), causal=True)
    np.testing.assert_array_equal(output, regard.attention(x, x, x, causal=True))
    back = np.from_dlpack(output)
    assert back.__array_interface__["data"][0] == output.__array_interface__["data"][0]
    with pytest.raises(ValueError, match="`key`"):
        regard.attention(x, Exchanged(x, device=(2, 0)), x)


def test_half_precision_goes_in_by_dlpack():
    x = random(18, 1, 2, 5, 8).astype(np.float16)
    output = regard.attention(*[Exchanged(x)] * 3, causal=True)
    assert output.dtype == np.float16
    np.testing.assert_array_equal(output, regard.attention(x, x, x, causal=True))


def test_the_other_order_of_bytes_is_read():
    x = random(18, 1, 2, 5, 8)
    for dtype in (np.float32, np.float16):
        x = x.astype(dtype)
        other = x.astype(x.dtype.newbyteorder())
        np.testing.assert_array_equal(regard.attention(other, other, other, sink=x[0, :, 0, 0]), regard.attention(x, x, x, sink=other[0, :, 0, 0]))


HALF_OPTIONS = [
    {"sink": np.array([1, 2])},
    {"alibi": np.array([0.5, 0.25])},
    {"relative": (np.ones((2, 9)) * np.arange(9), 4)},
]


@pytest.mark.parametrize("options", HALF_OPTIONS, ids=lambda options: next(iter(options)))
def test_options_of_half_precision_are_numbers(options):
    x = random(20, 1, 2, 4, 8)
    expected = regard.attention(x, x, x, **options)
    in_half = {name: tuple(y.astype(np.float16) if isinstance(y, np.ndarray) else y for y in of) if isinstance(of, tuple) else of.astype(np.float16) for name, of in options.items()}
    np.testing.assert_array_equal(regard.attention(x, x, x, **in_half), expected)


def test_a_large_table_of_distances_stays_an_array():
    from regard._attention import _options

    x = random(20, 1, 2, 4, 8)
    small, large = random(21, 2, 7), np.zeros((2, 100_001), np.float32)
    large[:, 49_997:50_004] = small
    kept, zero = _options(x.shape, x.shape, relative=(large.T.copy().T, 50_000))["relative"]
    assert isinstance(kept, np.ndarray) and kept.dtype == np.float32 and kept.flags.c_contiguous and zero == 50_000
    np.testing.assert_array_equal(kept, large.reshape(-1))
    assert not np.shares_memory(kept, large)
    np.testing.assert_array_equal(regard.attention(x, x, x, relative=(large, 50_000)), regard.attention(x, x, x, relative=(small, 3)))


def test_lists_of_numbers_are_read():
    x = random(20, 1, 2, 4, 8)
    bias = [[0.5, 0.0, -1.0, 2.0]] * 4
    np.testing.assert_array_equal(regard.attention(x, x, x, bias=bias), regard.attention(x, x, x, bias=np.array(bias, np.float32)))


def test_whole_numbers_are_no_fractions():
    x = random(20, 1, 2, 4, 8)
    for name in ("lengths", "prefix"):
        with pytest.raises(TypeError, match=f"`{name}` is of float16"):
            regard.attention(x, x, x, **{name: np.array([3], np.float16)})


def test_arrays_without_numbers_are_answered():
    for shape in ((0, 2, 4, 8), (1, 0, 4, 8), (1, 2, 0, 8)):
        x = np.zeros(shape, np.float32)
        assert regard.attention(x, x, x).shape == shape
    x = np.zeros((0, 2, 4, 8), np.float32)
    assert regard.attention(x, x, x, lengths=[]).shape == x.shape


def test_nothing_is_hidden_by_entropy():
    x = random(21, 1, 2, 4, 8)
    query = x.copy()
    query[0, 0, 1, 0] = np.nan
    seen = regard.observe(query, x, rows=True, entropy=True)
    assert np.isnan(seen.weights[0, 0, 1]).all()
    np.testing.assert_array_equal(np.isnan(seen.entropy[0]), [[False, True, False, False], [False] * 4])
    # A key that no query sees stays hidden.
    key = x.copy()
    key[0, :, 3] = np.nan
    assert np.isfinite(regard.observe(x, key, entropy=True, mask=np.arange(4) < 3).entropy).all()


def test_a_sinks_share_is_in_the_entropy():
    query, key, sink = random(22, 1, 2, 4, 8), random(23, 1, 2, 5, 8), np.array([1.0, -0.5])
    seen = regard.observe(query, key, rows=True, entropy=True, sink=sink)
    weights = seen.weights.astype(np.float64)
    share = 1 - weights.sum(-1)
    expected = -(weights * np.log(weights)).sum(-1) - share * np.log(share)
    np.testing.assert_allclose(seen.entropy, expected, atol=1e-5)


OBSERVE = [
    ({"rows": 2}, "`rows`"),
    ({"rows": [-1]}, "`rows`"),
    ({"rows": [4]}, "rows"),
    ({"rows": [0.5]}, "`rows` is of float32"),
    ({"rows": False}, "`rows`"),
    ({"top": -1}, "`top` is -1"),
    ({"top": 1.5}, "`top` is a float"),
    ({"cells": 4}, "`cells` is 4"),
    ({"cells": (0, 0)}, "`cells` is 0"),
    ({"cells": (-1, 2)}, "`cells` is -1"),
    ({"cells": (2, 2), "pool": "sum"}, "`pool` is 'sum'"),
]


@pytest.mark.parametrize("asked, named", OBSERVE, ids=lambda x: str(x) if isinstance(x, dict) else "")
def test_what_cannot_be_observed_is_named(asked, named):
    x = random(24, 1, 2, 4, 8)
    with pytest.raises((TypeError, ValueError), match=named):
        regard.observe(x, x, **asked)


def test_what_is_observed_may_be_nothing():
    x = random(24, 1, 2, 4, 8)
    assert regard.observe(x, x, rows=[]).weights.shape == (1, 2, 0, 4)
    assert regard.observe(x, x, top=0).top_keys.shape == (1, 2, 4, 0)
    assert regard.observe(x, x, cells=[2, 2]).pooled.shape == (1, 2, 2, 2)


def test_a_row_that_sees_nothing_is_0():
    x = random(8, 1, 1, 3, 4)
    mask = np.ones((3, 3), bool)
    mask[1] = False
    output = regard.attention(x, x, x, mask=mask)
    assert (output[0, 0, 1] == 0).all() and np.isfinite(output).all()


BAD = [
    (lambda x: (x[0], x, x), "four axes"),
    (lambda x: (x.astype(np.float64), x, x), "float64"),
    (lambda x: (x, x[:, :, :2], x), "value"),
    (lambda x: (x, x.astype(np.float16), x), "float16"),
    (lambda x: ("x", x, x), "str"),
]


@pytest.mark.parametrize(("arguments", "named"), BAD)
def test_bad_arguments_are_named(arguments, named):
    with pytest.raises((TypeError, ValueError), match=named):
        regard.attention(*arguments(random(9, 1, 2, 3, 4)))


BAD_OPTIONS = [
    ({"mask": np.ones((3, 3))}, "booleans"),
    ({"mask": np.ones((2, 3), bool)}, "`mask`"),
    ({"bias": np.ones((5, 3), np.float32)}, "bias"),
    ({"alignment": "left"}, "lower-right"),
    ({"lengths": [1, 2]}, "lengths"),
    ({"lengths": [-1]}, "lengths"),
    ({"dropout": (2.0, 1)}, r"`dropout\[0\]`"),
    ({"relative": (np.zeros((2, 5), np.float32), 9)}, r"`relative\[1\]`"),
    ({"blocks": (2, 2, np.ones((1, 1, 3, 2), bool))}, r"`blocks\[2\]`"),
    ({"blocks": (2, 0, np.ones((1, 1, 2, 2), bool))}, r"`blocks\[1\]`"),
    ({"offsets": ([0, 3], [1, 3])}, r"`offsets\[1\]`"),
    ({"softcap": -1.0}, "softcap"),
    ({"scale": "a"}, "scale"),
    ({"sinks": [1.0]}, "sinks"),
]


@pytest.mark.parametrize(("options", "named"), BAD_OPTIONS, ids=lambda x: str(x) if isinstance(x, str) else None)
def test_bad_options_are_named(options, named):
    x = random(10, 1, 2, 3, 4)
    with pytest.raises((TypeError, ValueError), match=named):
        regard.attention(x, x, x, **options)


OTHER_AXES = [
    ({"relative": (random(45, 9, 2), 4)}, r"`relative\[0\]` has the shape \[9, 2\], expected \[heads = 2, distances\]"),
    ({"relative": (random(45, 18), 4)}, r"`relative\[0\]` has the shape \[18\]"),
    ({"relative": (random(45, 1, 2, 9), 4)}, r"`relative\[0\]` has the shape \[1, 2, 9\]"),
    ({"documents": (np.zeros((4, 3), int), np.zeros((3, 5), int))}, r"`documents\[0\]` has the shape \[4, 3\], expected \[batch = 3, queries = 4\]"),
    ({"documents": (np.zeros((3, 4), int), np.zeros((5, 3), int))}, r"`documents\[1\]` has the shape \[5, 3\], expected \[batch = 3, keys = 5\]"),
    ({"documents": ([0] * 12, [0] * 15)}, r"`documents\[0\]` has the shape \[12\]"),
]


@pytest.mark.parametrize(("options", "named"), OTHER_AXES, ids=lambda x: x if isinstance(x, str) else "")
def test_options_of_other_axes_with_as_many_numbers_are_named(options, named):
    query, key = random(46, 3, 2, 4, 8), random(47, 3, 2, 5, 8)
    with pytest.raises(ValueError, match=named):
        regard.attention(query, key, key, **options)
    with pytest.raises(ValueError, match=named):
        regard.observe(query, key, rows=True, **options)


def test_an_axis_of_one_may_be_left_out():
    x, own, distances = random(48, 1, 1, 4, 8), np.array([0, 0, 1, 1]), random(49, 9)
    whole = regard.attention(x, x, x, documents=(own[None], own[None]), relative=(distances[None], 4))
    np.testing.assert_array_equal(regard.attention(x, x, x, documents=(own, own.tolist()), relative=(distances, 4)), whole)


OTHER_TYPES = [
    ({"scale": "x"}, "`scale` is a str, expected a number"),
    ({"scale": [1.0, 2.0]}, "`scale` is a list, expected a number"),
    ({"softcap": np.ones(2)}, "`softcap` is a ndarray, expected a number"),
    ({"causal": "yes"}, "`causal` is 'yes', expected True or False"),
    ({"window": 3}, r"`window` is 3, expected \(keys to the left, keys to the right\)"),
    ({"window": (1, 2, 3)}, "`window` is"),
    ({"window": (1.5, None)}, r"`window\[0\]` is a float, expected a whole number"),
    ({"dropout": "x"}, r"`dropout` is 'x', expected \(probability, seed\)"),
    ({"dropout": 0.1}, "`dropout` is 0.1"),
    ({"dropout": ("x", 1)}, r"`dropout\[0\]` is a str, expected a number"),
    ({"dropout": (0.1, 1.5)}, r"`dropout\[1\]` is a float, expected a whole number"),
    ({"relative": ([[0.0]] * 2, 0.5)}, r"`relative\[1\]` is a float"),
    ({"blocks": (2, "x", np.ones((1, 1, 2, 1), bool))}, r"`blocks\[1\]` is a str"),
    ({"lengths": "x"}, "`lengths` is a str"),
    ({"offsets": 3}, "`offsets` is 3"),
]


@pytest.mark.parametrize(("options", "named"), OTHER_TYPES, ids=lambda x: x if isinstance(x, str) else "")
def test_options_of_other_types_are_named(options, named):
    x = random(10, 1, 2, 3, 4)
    with pytest.raises(TypeError, match=named):
        regard.attention(x, x, x, **options)
    with pytest.raises(TypeError, match=named):
        regard.observe(x, x, rows=True, **options)


def test_numbers_of_numpy_and_none_are_options():
    x = random(10, 1, 2, 3, 4)
    given = {"scale": np.float32(0.5), "softcap": np.array(2.0), "causal": np.bool_(True), "window": [np.int64(1), None], "dropout": [0.5, 2**64 - 1]}
    plain = {"scale": 0.5, "softcap": 2.0, "causal": True, "window": (1, None), "dropout": (0.5, 2**64 - 1)}
    np.testing.assert_array_equal(regard.attention(x, x, x, **given), regard.attention(x, x, x, **plain))
    np.testing.assert_array_equal(regard.attention(x, x, x, **dict.fromkeys(given)), regard.attention(x, x, x))


def test_lists_that_are_no_arrays_are_named():
    x = random(10, 1, 2, 3, 4)
    for name in ("sink", "bias", "lengths"):
        with pytest.raises(ValueError, match=f"`{name}` is no array"):
            regard.attention(x, x, x, **{name: [1, [2, 3]]})


def test_random_calls_raise_or_answer():
    draw = np.random.default_rng(11)
    kinds = [np.float32, np.float32, np.float32, np.float64, np.int64, np.float16]
    answered = 0
    for _ in range(2000):
        shape = draw.integers(0, 4, 4) if draw.random() < 0.5 else np.array([1, 2, 3, 4])
        arrays = []
        for _ in range(3):
            own = shape.copy()
            if draw.random() < 0.2:
                own[draw.integers(0, 4)] = draw.integers(0, 5)
            x = draw.standard_normal(own[: draw.choice([4, 4, 4, 4, 3])]).astype(kinds[draw.integers(0, len(kinds))] if draw.random() < 0.1 else np.float32)
            if x.ndim == 4 and draw.random() < 0.3:
                x = x.transpose(draw.permutation(4))[:: draw.choice([1, -1, 2])]
            arrays.append(x)
        options = {}
        if draw.random() < 0.3:
            options["causal"] = True
        if draw.random() < 0.3:
            options["mask"] = draw.random(draw.integers(0, 4, draw.integers(0, 6))) > 0.5
        if draw.random() < 0.2:
            options["window"] = (int(draw.integers(0, 3)), None)
        if draw.random() < 0.2:
            options["lengths"] = draw.integers(-1, 5, draw.integers(0, 3))
        try:
            regard.attention(*arrays, **options)
            answered += 1
        except (TypeError, ValueError) as error:
            # Whatever is wrong is named.
            assert re.search(r"query|key|value|mask|window|lengths", str(error)), error
    assert answered > 100


def test_random_calls_of_the_other_functions_raise_or_answer():
    draw = np.random.default_rng(19)

    def array():
        x = draw.standard_normal(draw.integers(0, 4, draw.integers(0, 5))).astype([np.float32, np.float32, np.float64, np.int32][draw.integers(0, 4)])
        return x.T if draw.random() < 0.3 else [x, x[::-1] if x.ndim else x, None, "x", [1.0, 2.0]][draw.choice(5, p=[0.7, 0.15, 0.05, 0.05, 0.05])]

    def shaped(*shape):
        return draw.standard_normal(shape, dtype=np.float32) if draw.random() < 0.8 else array()

    calls = [
        lambda: regard.observe(shaped(1, 2, 3, 4), shaped(1, 2, 5, 4), rows=array() if draw.random() < 0.3 else True, top=int(draw.integers(-1, 9)), entropy=True),
        lambda: regard.observe(shaped(1, 2, 3, 4), shaped(1, 2, 5, 4), cells=(int(draw.integers(-1, 5)), int(draw.integers(0, 7))), pool=str(draw.choice(["max", "mean", "x"]))),
        lambda: regard.additive_attention(shaped(2, 3, 4), shaped(2, 5, 4), shaped(4), shaped(2, 5, 3), bias=shaped(2, 3, 5) if draw.random() < 0.5 else None),
        lambda: regard.attention(shaped(1, 2, 3, 4), shaped(1, 1, 5, 4), shaped(1, 1, 5, 4), bias=array(), alibi=array(), sink=array()),
        lambda: regard.attention(shaped(1, 2, 6, 4), shaped(1, 2, 6, 4), shaped(1, 2, 6, 4), offsets=(array(), array()), dropout=(float(draw.normal()), int(draw.integers(0, 9)))),
    ]
    answered = 0
    for _ in range(2000):
        try:
            calls[draw.integers(0, len(calls))]()
            answered += 1
        except (TypeError, ValueError) as error:
            assert re.search(r"\b(query|key|v|value|rows|top|cells|pool|bias|alibi|sink|offsets|dropout)\b", str(error)), error
    assert answered > 100


def test_threads_answer_alike():
    x = random(12, 2, 4, 65, 16)
    expected = regard.attention(x, x, x, causal=True)
    found = [None] * 8

    def work(i):
        found[i] = regard.attention(x, x, x, causal=True)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((one == expected).all() for one in found)


def of_eight_heads(batch, length):
    """Options of a call of eight heads, and what head `h` of entry `b` has of them."""
    per_head, distances = random(31, 8), random(35, 8, 9)
    bias, mask = random(32, 1, 8, 1, length), random(33, batch, 1, 1, length) > -1
    table, own = random(34, batch, 8, length // 64, length // 64) > 0, np.arange(batch * length).reshape(batch, length) // 700
    packed = {"causal": True, "offsets": ([0, 900, length],) * 2, "lengths": [800, 500], "documents": (own, own)}
    of_maps = {"window": (300, 5), "softcap": 2.0}
    return {
        "heads": (
            {"causal": True, "sink": per_head, "alibi": abs(per_head), "lengths": [length - 7 * b for b in range(batch)]},
            lambda b, h: {"causal": True, "sink": per_head[h : h + 1], "alibi": abs(per_head[h : h + 1]), "lengths": [length - 7 * b]},
        ),
        "maps": (
            {**of_maps, "prefix": list(range(batch)), "bias": bias, "mask": mask},
            lambda b, h: {**of_maps, "prefix": [b], "bias": bias[:, h : h + 1], "mask": mask[b : b + 1]},
        ),
        "blocks": (
            {"blocks": (64, 64, table), "documents": (own, own), "relative": (distances, 4)},
            lambda b, h: {"blocks": (64, 64, table[b : b + 1, h : h + 1]), "documents": (own[b : b + 1],) * 2, "relative": (distances[h : h + 1], 4)},
        ),
        "packed": ({**packed, "sink": per_head}, lambda b, h: {**packed, "sink": per_head[h : h + 1]}),
    }


def test_a_call_has_the_bits_of_its_heads_alone():
    for batch, length, kinds in ((1, 2048, ("heads", "maps", "blocks", "packed")), (4, 1024, ("heads", "maps", "blocks"))):
        query, key, value = random(36, batch, 8, length, 64), random(37, batch, length, 4, 64).swapaxes(1, 2), random(38, batch, 4, length, 64)
        for kind in kinds:
            options, alone = of_eight_heads(batch, length)[kind]
            output, lse = regard.attention(query, key, value, **options, return_lse=True)
            for b in range(batch):
                for h in range(0, 8, 3):
                    entry, head, of = slice(b, b + 1), slice(h, h + 1), slice(h // 2, h // 2 + 1)
                    one, its_lse = regard.attention(query[entry, head], key[entry, of], value[entry, of], **alone(b, h), return_lse=True)
                    np.testing.assert_array_equal(output[entry, head], one, err_msg=f"{kind} {b} {h}")
                    np.testing.assert_array_equal(lse[entry, head], its_lse, err_msg=f"{kind} {b} {h}")
    for name, options in {"sink": {"sink": np.ones(16)}, "lengths": {"lengths": [9] * 8}, "mask": {"mask": np.ones((3, 1, 1, 1), bool)}}.items():
        with pytest.raises(ValueError, match=name):
            regard.attention(query, key, value, **options)
    with pytest.raises(ValueError, match="key"):
        regard.attention(query, key[:1], value[:1])


LONG_CALLS = {
    "many heads": "x = np.broadcast_to(ones, (1, 4096, 8192, 64)); begin(); regard.attention(x, x, x[..., :1])",
    "dropout": "begin(); regard.attention(x, x, x, dropout=(0.1, 1))",
    "backward": "begin(); _regard.dot_backward(x, x, x, x, lse, x, _options(), 'float32', False)",
    "weights": "begin(); _regard.dot_observe(x, x, lse, _options(), entropy=True)",
    "pooled": "begin(); _regard.dot_pool(x, x, lse, _options(), whole, whole, (1, 1), 'mean')",
}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
@pytest.mark.parametrize("call", LONG_CALLS.values(), ids=LONG_CALLS)
def test_an_interrupt_ends_a_long_call(call):
    # One head of half a million queries: no machine is done with it before the interrupt.
    program = (
        "import numpy as np, regard; from regard import _regard; from regard._attention import _options;"
        "begin = lambda: print('ready', flush=True); ones = np.ones(64, np.float32); whole = (0, 1 << 19);"
        "x = np.broadcast_to(ones, (1, 1, 1 << 19, 64)); lse = np.zeros((1, 1, 1 << 19, 3), np.float32);"
    ) + call
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        threading.Event().wait(0.5)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "KeyboardInterrupt" in said


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the memory of a process is not limited so")
@pytest.mark.parametrize("length", [8, 1 << 15], ids=["short", "long"])
@pytest.mark.parametrize("where", ["home", "forked"])
def test_threads_that_cannot_be_started_raise(where, length):
    # Room for some of 200 threads with stacks of 2 MB.
    program = f"""
import os, resource, numpy as np, regard
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (200 << 20),) * 2)
child = os.fork() if {where == "forked"} else 0
if child:
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
x = np.zeros((1, 1, {length}, 64), np.float32)
for call in (lambda: regard.attention(x, x, x), lambda: regard.attention(x, x, x), lambda: regard.load()):
    try:
        call()
        raise SystemExit("it answered")
    except RuntimeError as error:
        assert "RAYON_NUM_THREADS" in str(error), error
"""
    # One arena: glibc would give some threads 64 MB, and others, which are running already, nothing.
    few = {**os.environ, "RAYON_NUM_THREADS": "200", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=few, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_answers():
    x = random(17, 2, 8, 257, 32)
    expected = regard.attention(x, x, x, causal=True)
    child = os.fork()
    if child == 0:
        same = (regard.attention(x, x, x, causal=True) == expected).all()
        os._exit(0 if same else 1)
    for _ in range(600):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.1)
    else:
        os.kill(child, signal.SIGKILL)
        pytest.fail("the forked process did not answer")
    assert os.waitstatus_to_exitcode(status) == 0


def test_additive_attention_is_its_definition():
    query, key, v, value = random(13, 2, 3, 5), random(14, 2, 4, 5), random(15, 5), random(16, 2, 4, 6)
    mask = np.array([[True, True, False, True], [True, True, True, True]])
    scores = np.einsum("d,bqkd->bqk", v, np.tanh(query[:, :, None] + key[:, None]).astype(np.float64))
    scores = np.where(mask[:, None], scores, -np.inf)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    context, found = regard.additive_attention(query, key, v, value, mask=mask)
    np.testing.assert_allclose(found, weights, atol=1e-6)
    np.testing.assert_allclose(context, weights @ value, atol=1e-6)


def test_additive_attention_has_a_score_vector_for_each_head():
    query, key, v, value = random(13, 6, 3, 5), random(14, 6, 4, 5), random(15, 3, 5), random(16, 6, 4, 2)
    context, weights = regard.additive_attention(query, key, v, value)
    for head in range(3):
        expected = regard.additive_attention(query[head::3], key[head::3], v[head], value[head::3])
        np.testing.assert_array_equal(context[head::3], expected[0])
        np.testing.assert_array_equal(weights[head::3], expected[1])
    for bad in (random(15, 4, 5), random(15, 3, 4), random(15, 1, 3, 5)):
        with pytest.raises(ValueError, match="`v` has the shape"):
            regard.additive_attention(query, key, bad, value)


def test_additive_attention_is_of_float32():
    arguments = [random(13, 2, 3, 5), random(14, 2, 4, 5), random(15, 5), random(16, 2, 4, 6)]
    for at, name in enumerate(("query", "key", "v", "value")):
        some = [x.astype(np.float16) if i == at else x for i, x in enumerate(arguments)]
        with pytest.raises(TypeError, match=f"`{name}` is of float16, expected float32$"):
            regard.additive_attention(*some)
        some[at] = None
        with pytest.raises(TypeError, match=f"`{name}`"):
            regard.additive_attention(*some)


@pytest.mark.parametrize(
    "name, given",
    [
        ("key", random(14, 4, 2, 5)),
        ("v", random(15, 6)),
        ("value", random(16, 4, 2, 6)),
        ("bias", random(17, 2, 4, 3)),
        ("mask", np.ones((4, 2), bool)),
        ("mask", np.ones((2, 1, 4), bool)),
    ],
)
def test_additive_attention_refuses_other_shapes_of_as_many_numbers(name, given):
    arguments = {"query": random(13, 2, 3, 5), "key": random(14, 2, 4, 5), "v": random(15, 5), "value": random(16, 2, 4, 6)}
    with pytest.raises(ValueError, match=f"`{name}` has the shape"):
        regard.additive_attention(**{**arguments, name: given})


def test_scores_are_those_of_the_evaluation():
    full = regard.bleu(["the cat sat on the mat"], [["the cat sat on the mat"]])
    assert full.score == pytest.approx(100) and "tok:13a" in full.signature
    assert 0 < regard.chrf(["the cat"], [["the dog"]]).score < 100
    with pytest.raises(ValueError):
        regard.bleu(["a"], [["a", "b"]])


def test_traces_go_to_disk_and_back(tmp_path):
    trace = regard.Trace("model", "a b", "c")
    tokens = [("a", 0, False), ("b", 1, False)]
    trace.add("decoder.cross", 0, [("c", 0, False)], tokens, np.array([[[0.25, 0.75]]], np.float32))
    regard.write_traces(tmp_path / "x.safetensors", trace)
    (back,) = regard.read_traces(tmp_path / "x.safetensors")
    assert back.map(0)["weights"].tolist() == [[[0.25, 0.75]]] and back.map(0)["keys"] == ["a", "b"]
    assert back.svg(0).startswith("<svg") and back.png(0)[:4] == b"\x89PNG" and back.report()
    turned = np.asfortranarray(np.full((1, 2, 2), 0.5, np.float32))
    with pytest.raises(ValueError, match="contiguous"):
        trace.add("decoder.cross", 0, tokens, tokens, turned)
    with pytest.raises(ValueError, match="`weights` has the shape"):
        trace.add("decoder.cross", 0, [("c", 0, False)], tokens, np.ones((1, 2, 1), np.float32))
    with pytest.raises(ValueError, match="sum"):
        trace.add("self", 0, tokens, tokens, np.ones((1, 2, 2), np.float32))
    for other in (np.full((1, 2, 2), 0.5), [[[0.5, 0.5]] * 2]):
        with pytest.raises(TypeError, match="`weights` is no numpy array of float32"):
            trace.add("self", 0, tokens, tokens, other)
    with pytest.raises(IndexError, match="no map 3"):
        back.svg(3)
    (tmp_path / "bad").write_bytes(b"x")
    with pytest.raises(ValueError, match="bad"):
        regard.read_traces(tmp_path / "bad")


def test_what_is_no_axis_and_no_layer_is_named():
    trace, weights = regard.Trace("model", "a b", ""), np.full((1, 2, 2), 0.5, np.float32)
    last = 2**32 - 2
    trace.add("self", np.int64(last), 2, 2, weights, name="self, head 4")
    assert (trace.map(0)["name"], trace.map(0)["layer"]) == ("self, head 4", last)
    assert f"self, head 4 layer {last + 1} head 1" in "\n".join(trace.report())
    for layer in (last + 1, 2**64 - 1, 2**70, -1):
        with pytest.raises(ValueError, match=f"`layer` is {layer}, expected 0 to {last}"):
            trace.add("self", layer, 2, 2, weights)
    with pytest.raises(TypeError, match="`layer` is no whole number"):
        trace.add("self", 1.5, 2, 2, weights)
    for name, axes in (("queries", ("ab", 2)), ("queries", (-1, 2)), ("keys", (2, [("a", 0, False), "b"]))):
        with pytest.raises(TypeError, match=f"`{name}` is neither a number of positions nor a list of tokens"):
            trace.add("self", 0, *axes, weights)
    assert len(trace) == 1


def test_traces_are_copied_and_pickled():
    trace = regard.Trace("model", "a b", "c")
    tokens = [("a", 0, False), ("b", None, True)]
    trace.add("decoder.cross", 3, [("c", 0, False)], tokens, np.array([[[0.25, 0.75]], [[1, 0]]], np.float32))
    trace.add("attention", 1, 1, 2, np.array([[[0.25, 0.25]]], np.float32), normalized=False)
    caption = regard.Caption("c", trace)
    for other in (copy.copy(trace), copy.deepcopy(trace), pickle.loads(pickle.dumps(caption)).trace):
        assert (other.model, other.source, other.target, len(other)) == ("model", "a b", "c", 2)
        for at in range(2):
            one, same = trace.map(at), other.map(at)
            np.testing.assert_array_equal(one.pop("weights"), same.pop("weights"))
            assert one == same
    assert len(copy.copy(regard.Trace())) == 0
    with pytest.raises(ValueError):
        regard.Trace().__setstate__(b"x")


def test_a_notebook_shows_the_viewer():
    trace = regard.Trace("model", "a", "")
    trace.add("self", 0, 1, 1, np.ones((1, 1, 1), np.float32))
    with regard.serve(trace) as viewer:
        assert viewer._repr_html_().startswith("<iframe srcdoc=")
    for port in (99999, -1):
        with pytest.raises(ValueError, match=f"`port` is {port}, expected 0 to 65535"):
            regard.serve(trace, port=port)


def test_the_viewer_answers_and_stops():
    from urllib.request import urlopen

    trace = regard.Trace("model", "a", "")
    trace.add("self", 0, 1, 1, np.ones((1, 1, 1), np.float32))
    with regard.serve(trace) as viewer:
        assert b"<html" in urlopen(viewer.url).read()


def test_maps_are_drawn_on_axes():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    regard.plot(np.ones((2, 2, 3)) / 3, ["a", "b"], ["$x$", "y", "z"], ax=ax)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"]
    with pytest.raises(ValueError, match="3 texts"):
        regard.plot(np.ones((2, 2)), ["a", "b", "c"], ax=ax)
