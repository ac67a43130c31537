"""Arguments of wrong types and values: each is named, whether Python or Rust would have refused it."""

import typing
from pathlib import Path

import numpy as np
import pytest

import regard
from regard import _regard

X = np.ones((1, 4, 5, 8), np.float32)
WEIGHTS = np.full((2, 1, 2), 0.5, np.float32)
HALF = "\ud800"


def trace():
    found = regard.Trace("model", "a", "")
    found.add("self", 0, 1, 2, WEIGHTS)
    return found


def add(kind="self", **more):
    regard.Trace().add(kind, 0, 1, 2, WEIGHTS, **more)


WRONG = [
    (lambda: regard.attention(X, X, X, alignment=np.ones(3)), TypeError, "alignment"),
    (lambda: regard.attention(X, X, X, alignment="left"), ValueError, "alignment"),
    (lambda: regard.attention(X, X, X, alibi=[[1, 2], [3, 4]]), ValueError, "alibi"),
    (lambda: regard.attention(X, X, X, sink=np.ones((2, 2))), ValueError, "sink"),
    (lambda: regard.attention(X, X, X, sink=np.broadcast_to(np.float32(1), 3 * 10**8)), ValueError, "sink"),
    (lambda: regard.attention(X, X, X, lengths=[[3]]), ValueError, "lengths"),
    (lambda: regard.attention(X, X, X, prefix=[3, 3]), ValueError, "prefix"),
    (lambda: regard.attention(X, X, X, offsets=([[0, 5]], [0, 5])), ValueError, r"offsets\[0\]"),
    (lambda: regard.attention(X, X, X, offsets=([0, 2, 5], [0, 2, 5]), lengths=[5]), ValueError, "lengths"),
    (lambda: regard.observe(X, X, pool=np.ones(3)), TypeError, "pool"),
    (lambda: regard.observe(X, X, pool="sum"), ValueError, "pool"),
    (lambda: regard.observe(X, X, entropy=1), TypeError, "entropy"),
    (lambda: regard.observe(X, X, column_sums=2), TypeError, "column_sums"),
    (lambda: regard.observe(X, X, rows=[[1, 2]]), ValueError, "rows"),
    (lambda: regard.observe(X, X, cells=(2**20, 2**20)), ValueError, "cells"),
    (lambda: regard.attention(X, X, X, return_lse=1), TypeError, "return_lse"),
    (lambda: regard.bleu(["a"], [["a"]], lowercase=1), TypeError, "lowercase"),
    (lambda: regard.evaluate(["a"], [["a"]], lowercase=1), TypeError, "lowercase"),
    (lambda: regard.chrf(["a"], [["a"]], word_order=65), ValueError, "word_order"),
    (lambda: regard.bleu([HALF], [["a"]]), ValueError, r"hypotheses\[0\]"),
    (lambda: regard.bleu(["a"], [["a"], ["a", "b"]]), ValueError, r"references\[1\]"),
    (lambda: regard.serve([1]), TypeError, r"traces\[0\]"),
    (lambda: regard.serve(None), TypeError, "traces"),
    (lambda: regard.write_traces("never", [trace(), 1]), TypeError, r"traces\[1\]"),
    (lambda: regard.write_traces("never", None), TypeError, "traces"),
    (lambda: regard.write_traces(3, []), TypeError, "path"),
    (lambda: regard.read_traces(5), TypeError, "path"),
    (lambda: regard.read_traces(b"never"), TypeError, "path"),
    (lambda: regard.load(5), TypeError, "name"),
    (lambda: regard.load(b"/tmp"), TypeError, "name"),
    (lambda: regard.load(HALF), ValueError, "name"),
    (lambda: regard.load().translate(HALF), ValueError, "texts"),
    (lambda: regard.load().translate(["a", HALF]), ValueError, r"texts\[1\]"),
    (lambda: regard.load().generate(HALF), ValueError, "prompt"),
    (lambda: regard.load().translate("a", beam=-1), ValueError, "beam"),
    (lambda: regard.load().translate("a", beam=0), ValueError, "beam"),
    (lambda: regard.Trace(3), TypeError, "model"),
    (lambda: regard.Trace(target=HALF), ValueError, "target"),
    (lambda: add(3), TypeError, "kind"),
    (lambda: add(name=3), TypeError, "name"),
    (lambda: add(name=HALF), ValueError, "name"),
    (lambda: add(normalized=1), TypeError, "normalized"),
    (lambda: trace().map("a"), TypeError, "index"),
    (lambda: trace().svg(0, "a"), TypeError, "head"),
]


@pytest.mark.parametrize(("call", "error", "name"), WRONG, ids=lambda x: x if isinstance(x, str) else "")
def test_what_is_wrong_is_named(call, error, name):
    with pytest.raises(error, match=rf"^`{name}`") as raised:
        call()
    assert raised.type is error


def test_what_a_trace_has_not_is_named():
    for index in (-1, 1, 2**70):
        with pytest.raises(IndexError, match=f"^there is no map {index}: the trace has 1$"):
            trace().map(index)
    for head in (-1, 2, 2**70):
        for draw in (trace().svg, trace().png):
            with pytest.raises(IndexError, match=f"^there is no head {head}: the map has 2$"):
                draw(0, head)
    assert trace().svg(np.int64(0), np.int64(1)).startswith("<svg")


def test_texts_that_are_none_are_named_on_axes():
    Figure = pytest.importorskip("matplotlib.figure").Figure
    ax, weights = Figure().subplots(), np.full((1, 3), 1 / 3)
    for keys, name in (([1, 2, 3], r"keys\[0\]"), (["a", "b", None], r"keys\[2\]"), ("abc", "keys"), (3, "keys")):
        with pytest.raises(TypeError, match=f"^`{name}` is"):
            regard.plot(weights, keys=keys, ax=ax)
    regard.plot(weights, keys=(x for x in "abc"), ax=ax)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "b", "c"]


def test_kernels_name_the_size_that_does_not_fit():
    for arguments, options, message in (
        ((X, X[:, :3], X[:, :3]), {}, "`key` has heads 3, expected 4: as the query has, or a number that divides it"),
        ((X, X, X), {"mask": np.ones((4, 7), bool)}, "`mask` has rows 4, expected 5: as the scores have, or 1 to serve for all"),
        ((np.ones((1, 1, 1, 257), np.float32),) * 3, {}, "`query` has dim 257, expected 256: a dim is 1 to 256"),
        ((X, X, X), {"lengths": []}, r"`lengths` holds 0 numbers, expected 1 \(\[batch\]\)"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            regard.attention(*arguments, **options)


def test_a_result_without_room_is_refused_before_it_is_computed():
    long = np.broadcast_to(np.float32(0), (1, 1, 2**30, 1))  # It would take hours.
    for wanted, shape in (({"rows": True}, [1, 1, 2**30, 2**30]), ({"top": 2**31}, [1, 1, 2**30, 2**31]), ({"cells": (2**30, 2**30)}, [1, 1, 2**30, 2**30])):
        with pytest.raises(MemoryError, match=f"no memory for a result of the shape {shape}".replace("[", r"\[")):
            regard.observe(long, long, **wanted)
    with pytest.raises(MemoryError, match="no memory"):
        regard.observe(X, X, rows=range(10**18))


def test_a_packed_batch_counts_its_keys_as_documented():
    draw = np.random.default_rng(0)
    query, key = (draw.standard_normal((1, 1, 5, 4), dtype=np.float32) for _ in range(2))
    seen = regard.observe(query, key, rows=True, column_sums=True, top=1, offsets=([0, 2, 5], [0, 2, 5]))
    for first, last in ((0, 2), (2, 5)):
        alone = regard.observe(query[:, :, first:last], key[:, :, first:last], rows=True, column_sums=True, top=1)
        np.testing.assert_allclose(seen.weights[:, :, first:last, : last - first], alone.weights, atol=1e-6)
        assert not seen.weights[:, :, first:last, last - first :].any()
        np.testing.assert_array_equal(seen.top_keys[:, :, first:last], alone.top_keys)
        np.testing.assert_allclose(seen.column_sums[:, :, first:last], alone.column_sums, atol=1e-6)


def test_hints_of_all_that_is_public_are_read():
    for name in regard.__all__:
        found = getattr(regard, name)
        for part in [found, *vars(found).values()] if isinstance(found, type) else [found]:
            part = part.fget if isinstance(part, property) else part
            if isinstance(part, type) or callable(part) and hasattr(part, "__annotations__"):
                typing.get_type_hints(part)


def test_the_stub_exports_what_there_is():
    stub = Path(regard.__file__).with_name("_regard.pyi").read_text(encoding="utf-8")
    names = stub.split("__all__ = [")[1].split("]")[0]
    assert sorted(name.strip().strip('"') for name in names.split(",") if name.strip()) == sorted(_regard.__all__)
