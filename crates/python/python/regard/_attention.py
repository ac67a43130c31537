"""Attention on numpy arrays and PyTorch tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from . import _regard
from ._arrays import dtype_of, floats, four_axes, given, integers, is_tensor, numbers, of_axes, readable, seen, single
from ._given import flag, number, one_of, or_none, whole

if sys.version_info >= (3, 11):
    from typing import Unpack  # Where hints are asked for, too.
elif TYPE_CHECKING:
    from typing_extensions import Unpack

ALIGNMENTS = ("lower-right", "upper-left")

POOLS = ("max", "mean")


class Options(TypedDict, total=False):
    """The options of `attention` and `observe`; `attention` says what each means."""

    scale: float | None
    causal: bool
    alignment: str
    window: tuple[int | None, int | None] | None
    softcap: float | None
    mask: Any
    bias: Any
    lengths: Any
    prefix: Any
    documents: tuple[Any, Any] | None
    blocks: tuple[int, int, Any] | None
    relative: tuple[Any, int] | None
    alibi: Any
    sink: Any
    dropout: tuple[float, int] | None
    offsets: tuple[Any, Any] | None


# `Options` as `_regard` reads them, where nothing is given.
_NOTHING: dict[str, Any] = {**dict.fromkeys(Options.__annotations__), "causal": False}


def _options(query: Sequence[int] = (), key: Sequence[int] = (), /, **given: Unpack[Options]) -> dict[str, Any]:
    """Options as `_regard` reads them, for a query and a key of these shapes; where these have no four axes, `_regard` refuses them.

    Raises TypeError for an option that there is not, or that is of another type, and ValueError for one of another shape, by name.
    """
    unknown = given.keys() - Options.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown options: {', '.join(sorted(unknown))}; there are {', '.join(Options.__annotations__)}")
    options = {**_NOTHING, **{name: x for name, x in given.items() if x is not None}}
    options["upper_left"] = or_none(lambda name, x: one_of(name, x, ALIGNMENTS), "alignment", options.pop("alignment")) == ALIGNMENTS[1]
    for name, read in _READ.items():
        if options[name] is not None:
            options[name] = read(name, options[name])
    batch, heads, queries, keys = (*query[:3], key[2]) if len(query) == len(key) == 4 else (None,) * 4
    # Of a packed batch there are as many entries as sequences.
    entries = batch if options["offsets"] is None else max(len(options["offsets"][0]) - 1, 0)
    for names, read, axis in ((("lengths", "prefix"), integers, {"batch": entries}), (("alibi", "sink"), floats, {"heads": heads})):
        for name in names:
            if options[name] is not None:
                options[name] = read(name, of_axes(name, options[name], **axis))
    if options["relative"] is not None:
        options["relative"] = _relative("relative", options["relative"], heads)
    if options["documents"] is not None:
        options["documents"] = _documents("documents", options["documents"], batch, queries, keys)
    return options


def _window(name: str, x: tuple[int | None, int | None]) -> tuple[int | None, ...]:
    if not isinstance(x, (tuple, list)) or len(x) != 2:
        raise TypeError(f"`{name}` is {x!r}, expected (keys to the left, keys to the right), None where there is no bound")
    return tuple(None if side is None else whole(f"{name}[{at}]", side, most=sys.maxsize) for at, side in enumerate(x))


def _dropout(name: str, x: tuple[float, int]) -> tuple[float, int]:
    if not isinstance(x, (tuple, list)) or len(x) != 2:
        raise TypeError(f"`{name}` is {x!r}, expected (probability, seed)")
    return number(f"{name}[0]", x[0]), whole(f"{name}[1]", x[1], most=2**64 - 1)


def _pair(name: str, x: tuple[Any, Any]) -> tuple[list[int], ...]:
    if not isinstance(x, (tuple, list)) or len(x) != 2:
        raise TypeError(f"`{name}` is {x!r}, expected two lists: of the queries, of the keys")
    return tuple(integers(f"{name}[{at}]", of_axes(f"{name}[{at}]", side, **{"sequences + 1": None})) for at, side in enumerate(x))


def _documents(name: str, x: tuple[Any, Any], batch: int | None, queries: int | None, keys: int | None) -> tuple[Any, Any]:
    if not isinstance(x, (tuple, list)) or len(x) != 2:
        raise TypeError(f"`{name}` is {x!r}, expected ([batch, queries], [batch, keys])")
    of_queries = of_axes(f"{name}[0]", x[0], batch=batch, queries=queries)
    of_keys = of_axes(f"{name}[1]", x[1], batch=batch, keys=keys)
    return integers(f"{name}[0]", of_queries), integers(f"{name}[1]", of_keys)


def _relative(name: str, x: tuple[Any, int], heads: int | None) -> tuple[Any, int]:
    if not isinstance(x, (tuple, list)) or len(x) != 2:
        raise TypeError(f"`{name}` is {x!r}, expected ([heads, distances], place of distance 0)")
    return floats(f"{name}[0]", of_axes(f"{name}[0]", x[0], heads=heads, distances=None)), whole(f"{name}[1]", x[1])


def _blocks(name: str, x: tuple[int, int, Any]) -> tuple[int, int, Any]:
    if not isinstance(x, (tuple, list)) or len(x) != 3:
        raise TypeError(f"`{name}` is {x!r}, expected (queries in a block, keys in a block, booleans)")
    # Copied, as it is small and the pass backward reads it again.
    sizes = (whole(f"{name}[{at}]", x[at], most=sys.maxsize) for at in range(2))
    return *sizes, seen(name, x[2]).copy()


_READ: dict[str, Any] = {
    "bias": lambda name, x: readable(four_axes(name, numbers(name, x))),
    "mask": seen,
    "causal": flag,
    "window": _window,
    "dropout": _dropout,
    "blocks": _blocks,
    "offsets": _pair,
    **dict.fromkeys(("scale", "softcap"), number),
}


def attention(query: Any, key: Any, value: Any, *, return_lse: bool = False, **options: Unpack[Options]) -> Any:
    """Scaled dot-product attention, in one pass that holds no matrix of weights.

    For query i and key j of one head, with p_i the query's position among the keys::

        s_ij = cap(scale q_i . k_j) + bias_ij + relative(j - p_i) - alibi |p_i - j|       cap(s) = softcap tanh(s / softcap)
        w_ij = exp(s_ij) / (exp(sink) + sum_l exp(s_il))        over the keys l that i may see
        o_i  = sum_j dropout(w_ij) v_j

    Vaswani et al. 2017; the order of computation is FlashAttention's (Dao et al. 2022). A query that sees nothing gets 0, and gradients
    of 0. Query head h reads key head h // (heads // key_heads). Ctrl-C ends a long call, a pass backward too.

    Parameters
    ----------
    query: [batch, heads, queries, dim], float32, bfloat16 or float16; numpy array or PyTorch tensor in CPU memory, any strides; dim, a head's,
        is 1 to 256
    key: [batch, key_heads, keys, dim]
    value: [batch, key_heads, keys, value_dim]; value_dim is 1 to 256
    scale: factor of the scores; 1 / sqrt(dim) if left out
    causal: a query sees no key after its own position
    alignment: "lower-right": the last query stands at the last key, as with a cache; "upper-left": the first at the first, as PyTorch's
        `is_causal`
    window: (left, right): how far a query sees to both sides; None sets no bound
    softcap: scores are bent into (-softcap, softcap)
    mask: booleans that broadcast to [batch, heads, queries, keys], True where a key may be seen; with `offsets` to [sequences, heads, queries
        of the longest sequence, keys of the longest]
    bias: float32, as mask; added to the scores, has a gradient
    lengths: [batch], with `offsets` [sequences]: how many keys of each entry are no padding
    prefix: as lengths: so many first keys are seen by every query, whatever causal and window say
    documents: ([batch, queries], [batch, keys]): a query sees keys of its own document; ([queries], [keys]) where batch is 1
    blocks: (queries in a block, keys in a block, booleans [batch or 1, heads or 1, query blocks, key blocks]); with `offsets` [sequences or 1,
        heads or 1, query blocks of the longest sequence, its key blocks]
    relative: ([heads, distances], place of distance 0): added to the scores by j - p_i; [distances] where there is one head; without
        gradient
    alibi: [heads]: slopes; without gradient
    sink: [heads]: a logit that takes part in the softmax and has no value; has a gradient
    dropout: (probability, seed)
    offsets: (of queries, of keys): where the sequences of a packed batch begin, each [sequences + 1]; batch is then 1
    return_lse: whether to return the log of the softmax's sum too

    Returns
    -------
    [batch, heads, queries, value_dim], array or tensor as the query; with return_lse also [batch, heads, queries], float32, without gradient.
    Gradients are those of `backward` and `torch.autograd.grad`, once; not of `torch.func`

    Raises
    ------
    TypeError, ValueError: an argument whose type, shape or values do not fit, by name
    """
    return_lse = flag("return_lse", return_lse)
    named = {"query": query, "key": key, "value": value}
    if _are_tensors(named):
        bias, mask, sink = (options.pop(name, None) for name in ("bias", "mask", "sink"))
        bias = _saved(bias, lambda x: numbers("bias", x))
        mask = _saved(mask, lambda x: seen("mask", x).view(np.bool_))
        output, lse = _dot().apply(query, key, value, bias, mask, sink, options)
    else:
        query = given("query", query)
        dtype = dtype_of("query", query)
        operands = [numbers(name, x, dtype) for name, x in {**named, "query": query}.items()]
        output, lse = _regard.dot_forward(*operands, _options(operands[0].shape, operands[1].shape, **options), dtype)
        output = output if dtype == "float32" else output.view(query.dtype)
    return (output, lse.sum(-1)) if return_lse else output


def _are_tensors(named: dict[str, Any]) -> bool:
    """Whether arguments are tensors.

    Raises TypeError where only some are.
    """
    tensors = [is_tensor(x) for x in named.values()]
    if any(tensors) and not all(tensors):
        name, x = next((name, x) for name, x in named.items() if not is_tensor(x))
        raise TypeError(f"`{name}` is a {type(x).__name__}, expected a tensor as the others")
    return any(tensors)


def _saved(x: Any, read: Callable[[Any], np.ndarray]) -> Any:
    """A bias or mask as a tensor: PyTorch keeps it for the pass backward, and refuses that if it was changed since. What is none is copied."""
    if x is None or is_tensor(x):
        return x
    import torch

    return torch.from_numpy(np.array(read(x), order="C"))


@cache
def _dot() -> Any:
    import torch

    class Dot(torch.autograd.Function):
        """`_regard.dot_forward` and its gradient."""

        @staticmethod
        def forward(ctx: Any, query: Any, key: Any, value: Any, bias: Any, mask: Any, sink: Any, options: dict[str, Any]) -> Any:
            dtype = dtype_of("query", query)
            operands = [numbers(name, x, dtype) for name, x in (("query", query), ("key", key), ("value", value))]
            options = _options(query.shape, key.shape, bias=bias, mask=mask, sink=sink, **options)
            output, lse = _regard.dot_forward(*operands, options, dtype)
            output, lse = torch.from_numpy(output), torch.from_numpy(lse)
            if dtype != "float32":
                output = output.view(query.dtype)
            # What is kept of the options is copied; the maps are read once more.
            ctx.options, ctx.dtype = {**options, "bias": None, "mask": None}, dtype
            ctx.sink = (sink.shape, sink.dtype) if is_tensor(sink) else None
            ctx.save_for_backward(query, key, value, bias, mask, output, lse)
            ctx.mark_non_differentiable(lse)
            return output, lse

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, d_output: Any, _: Any) -> Any:
            query, key, value, bias, mask, output, lse = ctx.saved_tensors
            named = {"query": query, "key": key, "value": value, "output": output}
            operands = [numbers(name, x, ctx.dtype) for name, x in named.items()]
            d_output = numbers("d_output", d_output, ctx.dtype)
            maps = {name: _READ[name](name, x) for name, x in (("bias", bias), ("mask", mask)) if x is not None}
            of_bias, of_sink = ctx.needs_input_grad[3], ctx.needs_input_grad[5]
            of_inputs, d_bias, d_sink = _regard.dot_backward(*operands, lse.numpy(), d_output, {**ctx.options, **maps}, ctx.dtype, of_bias)
            gradients = [torch.from_numpy(d).to(query.dtype) for d in of_inputs]
            d_bias = torch.from_numpy(d_bias).reshape(bias.shape) if of_bias else None
            if of_sink:
                shape, dtype = ctx.sink
                d_sink = torch.from_numpy(d_sink).reshape(shape).to(dtype)
            return (*gradients, d_bias, None, d_sink if of_sink else None, None)

    return Dot


@dataclass
class Observed:
    """What attention looked at; what was not asked for is None."""

    weights: np.ndarray | None = None
    """[batch, heads, rows, keys]: the weights of the queries that were asked for; with `offsets` the keys of a row count from the beginning of
    its query's sequence, and 0 follows behind its last one"""
    entropy: np.ndarray | None = None
    """[batch, heads, queries], nats; a sink's share is in it"""
    column_sums: np.ndarray | None = None
    """[batch, heads, keys]: how much attention each key gets; with `offsets` the keys of all sequences, one behind the other"""
    top_weights: np.ndarray | None = None
    """[batch, heads, queries, k], largest first"""
    top_keys: np.ndarray | None = None
    """[batch, heads, queries, k]; 2^32 - 1, with the weight 0, where a query sees fewer keys; with `offsets` they count from the beginning of the
    query's sequence"""
    pooled: np.ndarray | None = None
    """[batch, heads, rows of cells, columns of cells]"""


def observe(
    query: Any,
    key: Any,
    *,
    rows: Any = None,
    entropy: bool = False,
    column_sums: bool = False,
    top: int | None = None,
    cells: tuple[int, int] | None = None,
    pool: str = "max",
    **options: Unpack[Options],
) -> Observed:
    """What `attention` with the same arguments looks at, without the matrix of weights.

    With `offsets` `rows` counts the queries of all sequences, one behind the other; `Observed` says which keys each result counts.

    Parameters
    ----------
    query, key, options: as for `attention`; half precision is read as float32
    rows: queries whose weights are wanted, or True for all of them
    entropy: the entropy of each query's weights; with `sink`, which takes a share of the softmax, that of the weights and this share together
    column_sums: the sum of the weights that each key gets
    top: so many largest weights of each query
    cells: (rows, columns): the whole map in so many cells, each its largest weight (pool = "max") or its mean ("mean")

    Raises
    ------
    TypeError, ValueError: as `attention`; a query that is not there
    MemoryError: a result that there is no memory for, before anything is computed
    """
    query, key = _single("query", query), _single("key", key)
    if query.ndim != 4 or key.ndim != 4:
        raise ValueError(f"`query` and `key` have the shapes {query.shape} and {key.shape}, expected [batch, heads, length, dim]")
    pool, entropy, column_sums = one_of("pool", pool, POOLS), flag("entropy", entropy), flag("column_sums", column_sums)
    top = or_none(whole, "top", top)
    rows = _rows(rows, query.shape, key.shape[2])
    cells = None if cells is None else _cells(cells, query.shape[2], key.shape[2])
    for last in ((query.shape[2], top or 0), cells or (0, 0)):
        _expect_room(*query.shape[:2], *last)
    options = _options(query.shape, key.shape, **options)
    nothing = np.broadcast_to(np.zeros(1, np.float32), (*key.shape[:3], 1))
    _, lse = _regard.dot_forward(query, key, nothing, options, "float32")
    found = {}
    if rows is not None or entropy or column_sums or top is not None:
        found = _regard.dot_observe(query, key, lse, options, rows=rows, entropy=entropy, column_sums=column_sums, top=top)
    observed = Observed(found.get("rows"), *(found.get(name) for name in ("entropy", "column_sums", "top_weights", "top_keys")))
    if cells is not None:
        everything = (0, query.shape[2]), (0, key.shape[2])
        observed.pooled = _regard.dot_pool(query, key, lse, options, *everything, cells, pool)
    return observed


def _single(name: str, x: Any) -> np.ndarray:
    x = given(name, x)
    dtype_of(name, x)
    return readable(single(x))


def _expect_room(*shape: int) -> None:
    """Raises MemoryError for a result of float32 that there is no memory for: known at once, where the result comes after seconds."""
    try:
        np.empty(shape, np.float32)
    except (MemoryError, ValueError):  # ValueError: more numbers than can be addressed.
        raise MemoryError(f"no memory for a result of the shape {list(shape)}") from None


def _rows(rows: Any, query: Sequence[int], keys: int) -> list[int] | None:
    """The queries whose weights are wanted, for a query of this shape and so many keys."""
    if rows is None:
        return None
    rows = range(query[2]) if rows is True else rows
    try:
        # Before they are a list, which would take memory itself.
        _expect_room(*query[:2], len(rows) if hasattr(rows, "__len__") else 0, keys)
        rows = list(rows)
    except TypeError:
        raise TypeError(f"`rows` is {rows!r}, expected a list of queries, or True for all of them") from None
    return integers("rows", of_axes("rows", rows, rows=None))


def _cells(cells: Any, queries: int, keys: int) -> tuple[int, int]:
    if not isinstance(cells, (tuple, list)) or len(cells) != 2:
        raise TypeError(f"`cells` is {cells!r}, expected (rows, columns)")
    rows, columns = whole("cells", cells[0], 1), whole("cells", cells[1], 1)
    if rows > queries or columns > keys:
        raise ValueError(f"`cells` asks for {rows} x {columns} cells of {queries} queries and {keys} keys: a cell holds at least one weight")
    return rows, columns


def additive_attention(query: Any, key: Any, v: Any, value: Any, *, mask: Any = None, bias: Any = None) -> tuple[Any, Any]:
    """Additive attention (Bahdanau, Cho, Bengio 2014)::

        e_ij = sum_d v_d tanh(q_id + k_jd) + bias_ij       w_i = softmax of e_i       c_i = sum_j w_ij value_j

    Parameters
    ----------
    query: [batch, queries, dim], already projected (W s), float32
    key: [batch, keys, dim], already projected (U h)
    v: [dim]; or [heads, dim], the batch being sentences times heads, the head innermost
    value: [batch, keys, value_dim]
    mask: [batch, keys], True where a key may be seen
    bias: [batch, queries, keys], added to the scores; has a gradient

    Returns
    -------
    context [batch, queries, value_dim], weights [batch, queries, keys]; arrays, or tensors if the arguments are

    Raises
    ------
    TypeError, ValueError: an argument whose type, shape or values do not fit, by name
    """
    if _are_tensors({"query": query, "key": key, "v": v, "value": value}):
        bias = _saved(bias, lambda x: numbers("bias", x))
        mask = _saved(mask, lambda x: _padding(x).view(np.bool_))
        return _additive().apply(query, key, v, value, bias, mask)
    return _regard.additive_forward(_arguments(query, key, v, value, mask, bias))


class _Arguments:
    """Fields that `_regard` reads."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def _arguments(query: Any, key: Any, v: Any, value: Any, mask: Any, bias: Any) -> _Arguments:
    def contiguous(name: str, x: Any) -> np.ndarray | None:
        return None if x is None and name == "bias" else np.ascontiguousarray(numbers(name, x))

    named = {"query": query, "key": key, "v": v, "value": value, "bias": bias}
    return _Arguments(mask=None if mask is None else _padding(mask), **{name: contiguous(name, x) for name, x in named.items()})


def _padding(mask: Any) -> np.ndarray:
    found = given("mask", mask)
    if found.ndim != 2:
        raise ValueError(f"`mask` has the shape {list(found.shape)}, expected two axes: [batch, keys]")
    return np.ascontiguousarray(seen("mask", found)[0, 0])


@cache
def _additive() -> Any:
    import torch

    class Additive(torch.autograd.Function):
        """`_regard.additive_forward` and its gradient."""

        @staticmethod
        def forward(ctx: Any, query: Any, key: Any, v: Any, value: Any, bias: Any, mask: Any) -> Any:
            arguments = _arguments(query, key, v, value, mask, bias)
            context, weights = (torch.from_numpy(x) for x in _regard.additive_forward(arguments))
            ctx.save_for_backward(query, key, v, value, bias, mask, weights)
            return context, weights

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, d_context: Any, d_weights: Any) -> Any:
            query, key, v, value, bias, mask, weights = ctx.saved_tensors
            arguments = _arguments(query, key, v, value, mask, bias)
            d_context, d_weights = (np.ascontiguousarray(d.numpy()) for d in (d_context, d_weights))
            gradients, d_bias = _regard.additive_backward(arguments, weights.numpy(), d_context, d_weights)
            of_inputs = [torch.from_numpy(d) for d in gradients]
            return (*of_inputs, None if d_bias is None else torch.from_numpy(d_bias), None)

    return Additive
