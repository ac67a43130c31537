"""What PyTorch models attend to, while they run with their own fast attention.

A recorder keeps references to queries, keys and masks, which the model has computed anyway; weights come from regard's kernels when they are
asked for. Nothing that the model computes changes.
"""

from __future__ import annotations

import html
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial, wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _trace
from ._calls import kind_of, masks_of, numbered, problem_of, read_by_cache, sides, texts_of
from ._given import integer, or_none, path_of, text_of, whole, wholes
from ._layer import REORDERED, Attention, on_cpu
from ._regard import LongFile, Trace, traces_page
from ._trace import frame

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
else:
    Module = Tensor = Any  # Where hints are asked for, PyTorch need not be there.

MOST_WEIGHTS = 1 << 25
"""A trace with more weights than this is refused: a page with so many numbers would not open."""

_active: list[Recorder] = []

_keeping = threading.Lock()
"""Held while a call is kept: a model may run on several threads at once."""


def record(
    model: Module,
    tokenizer: Any = None,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
) -> Recorder:
    """Keeps what a model attends to inside of a `with` block.

    >>> with regard.record(model, tokenizer) as seen:                 # doctest: +SKIP
    ...     model.generate(**inputs)
    >>> seen.weights(layer=0)[0]                                      # doctest: +SKIP
    >>> seen                                                          # doctest: +SKIP

    In a notebook the last line shows the page.

    The model may be one of transformers that takes its attention from transformers' AttentionInterface (most do; Falcon, BLOOM, GPT-Neo, DeBERTa
    and MPNet, for example, do not), which goes on with the implementation that it has (SDPA, flash attention, eager); or any other module, of
    which `torch.nn.MultiheadAttention`, `torch.nn.TransformerEncoderLayer` (on PyTorch's fast path of inference, too), calls of
    `torch.nn.functional.scaled_dot_product_attention` and models of transformers inside of it are seen. Modules count as they are when the
    block begins. Of several texts the last one is kept; a module that runs several times in one pass (ALBERT's layers are one module) has an
    entry for each. The model may run on any thread; a call of PyTorch's functions counts on the thread that runs the module around it. Record a
    model before `torch.compile`: PyTorch leaves compiled code where a recorder looks on, and may go on without it.

    Parameters
    ----------
    model: the model; its configuration, parameters and outputs stay as they are
    tokenizer: gives tokens their texts; without it they are numbers
    layers: layers that are kept, of each kind of attention, counted from 0; all if left out
    heads: heads that are kept, in this order; all if left out
    rows: positions of the queries that are kept, counted from 0 along the whole text (also where the recording begins on a cache with the first
        part of it, whose tokens have no texts then), or from the end of each call if negative: -1 keeps the last query of the prompt and each
        generated one. All if left out. Keys are kept whole: a row needs them

    Raises
    ------
    TypeError: for a model that is no module, a tokenizer that is none of transformers, and layers, heads or rows that are no lists of whole numbers
    ValueError: for layers and heads below 0 and no heads; when the block begins, for a model that does not take its attention from transformers' AttentionInterface
    """
    return Recorder(model, tokenizer, layers, heads, rows)


class Recorder:
    """What a model attended to; see `record`. In a notebook it shows itself as a page."""

    def __init__(
        self, model: Module, tokenizer: Any, layers: Sequence[int] | None, heads: Sequence[int] | None, rows: Sequence[int] | None = None
    ) -> None:
        if isinstance(model, type) or not hasattr(model, "named_modules"):
            found = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
            raise TypeError(f"`model` is {found}, expected a torch.nn.Module")
        if tokenizer is not None and not all(hasattr(tokenizer, name) for name in ("all_special_ids", "convert_ids_to_tokens", "decode")):
            raise TypeError(f"`tokenizer` is a {type(tokenizer).__name__}, expected a tokenizer of transformers")
        self.model = model
        self.tokenizer = tokenizer
        self.layers = or_none(wholes, "layers", layers)
        self.heads = or_none(wholes, "heads", heads)
        self.rows = or_none(wholes, "rows", rows)
        for name, numbers in (("layers", self.layers), ("heads", self.heads)):
            if min(numbers or [0]) < 0:
                raise ValueError(f"`{name}` is {numbers}, expected numbers that count from 0")
        if self.heads == []:
            raise ValueError("`heads` is empty, expected at least one number; leave it out for all heads")
        self.found: dict[str, Attention] = {}
        self._names: dict[Module, str] = {}
        self._undo: list[Callable[[], Any]] = []
        self._now = _Running()
        self._ran = False
        # How often each module without causal order ran.
        self._runs: dict[Module, int] = {}

    # ---- recording ----

    def __enter__(self) -> Recorder:
        if self._undo:
            raise RuntimeError("this recorder is recording already")
        self.found.clear()
        # Closures ask it whether a module is the model's own: a copy of the model has the hooks, too.
        self._names = {module: name for name, module in self.model.named_modules()}
        self._undo.append(self._end)
        self._now, self._ran = _Running(), False
        try:
            self._hook_passes()
            of_transformers = hasattr(self.model, "set_attn_implementation")
            if of_transformers or any(hasattr(module, "set_attn_implementation") for module in self._names):
                self._hook_transformers()
            if not of_transformers:
                self._hook_torch()
            _active.append(self)
            self._undo.append(partial(_active.remove, self))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        while self._undo:
            self._undo.pop()()

    def _end(self) -> None:
        with _keeping:
            self._names.clear()
            self._runs.clear()
        self._now = _Running()
        for one in self.found.values():
            one._source = None

    def _hook(self, module: Module, before: Callable[..., Any], after: Callable[..., Any] | None = None) -> None:
        """Calls `before(module, arguments, named)` and `after(module)` around each run of a module of the model."""
        import torch

        if isinstance(module, (torch.nn.TransformerEncoderLayer, torch.nn.MultiheadAttention)):
            return  # A layer leaves its fast path where it or a part of it has hooks. It attends once: what is seen is a pass by itself.

        def enter(module: Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            if module in self._names:
                before(module, arguments, named)

        def leave(module: Module, *_: Any) -> None:
            if module in self._names:
                after(module)

        self._undo.append(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
        if after is not None:
            self._undo.append(module.register_forward_hook(leave, always_call=True).remove)

    def _two_texts(self) -> bool:
        return getattr(getattr(self.model, "config", None), "is_encoder_decoder", False)

    def _hook_passes(self) -> None:
        """Tokens, and passes: the runs of the outermost model of transformers, or of a module that holds none."""

        def read(_: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            found = named.get("input_ids")
            found = arguments[0] if found is None and arguments else found
            known = getattr(found, "ndim", 0) == 2 and not found.is_floating_point()
            self._now.ids = found.detach() if known else None

        def forget(_: Any) -> None:
            self._now.ids = None

        for module in [self.model.get_encoder(), self.model.get_decoder()] if self._two_texts() else [self.model]:
            self._hook(module, read, forget)

        def enter(_: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            if not self._now.models:
                self._new_pass()
            self._now.models.append(read_by_cache(arguments, named))

        def leave(_: Any) -> None:
            # It may have begun before the recorder did, on another thread.
            del self._now.models[-1:]

        for module in [one for one in self._names if hasattr(one, "set_attn_implementation")] or [self.model]:
            self._hook(module, enter, leave)

    def _new_pass(self) -> None:
        self._ran = True
        self._now.turns.clear()
        self._now.text_begins = None

    def _hook_transformers(self) -> None:
        can = getattr(self.model, "_can_set_attn_implementation", None)
        if can is not None and not can():
            raise ValueError(f"{type(self.model).__name__} does not take its attention from transformers' AttentionInterface: it cannot be recorded")
        self._undo.append(_transformers.take())

    def _hook_torch(self) -> None:
        import torch
        from torch.nn.modules import module as modules

        self._undo.append(_torch.take())
        # By id: torch.compile compiles these hooks for one layer and runs them for the others, with the first one's module where that is a key.
        known = {id(module) for module in self._names}

        def enter(module: Module, *_: Any) -> None:
            # On its fast path a layer attends without calling its part that does.
            attends = isinstance(module, torch.nn.TransformerEncoderLayer) and id(module.self_attn) in known
            if attends or id(module) in known:
                self._now.stack.append(module)

        def leave(module: Module, *_: Any) -> None:
            if self._now.stack[-1:] == [module]:
                self._now.stack.pop()

        # Hooks of all modules there are, which leave an encoder layer on its fast path.
        self._undo.append(modules.register_module_forward_pre_hook(enter).remove)
        self._undo.append(modules.register_module_forward_hook(leave, always_call=True).remove)

    def _see_call(self, given: dict[str, Any], implementation: str) -> None:
        """A call of an implementation of attention of transformers, with its arguments."""
        module, query, key, mask = (given.get(name) for name in ("module", "query", "key", "attention_mask"))
        causal = given.get("is_causal")
        causal = bool(getattr(module, "is_causal", True) if causal is None else causal)
        if not causal and module not in self._runs:
            self._runs[module] = 0

            def count(*_: Any) -> None:
                self._runs[module] = self._runs.get(module, 0) + 1

            self._hook(module, count)
        queries, keys = query.shape[2], key.shape[2]
        flash, sdpa = "flash" in implementation, implementation == "sdpa"
        problem, options, filled = problem_of(given, implementation), {}, None
        if problem:
            mask = None
        # Eager and flex attention apply no order but that of the mask.
        ordered = causal and queries > 1 and implementation not in ("eager", "flex_attention")
        if flash:
            if mask is not None and mask.ndim == 2:
                filled = mask.shape[1] if mask.shape[1] < keys else None
                mask = mask.bool()[:, None, None, -keys:]
            window = given.get("sliding_window")
            if window is not None and keys > window:
                options["window"] = (window - 1, None if causal else window - 1)
        elif mask is not None:
            ordered = False
        if sdpa and ordered and keys > queries:
            # The cache is empty but for these; SDPA cuts it, too.
            filled, options["alignment"] = queries, "upper-left"
        options |= {
            "scale": given.get("scaling"),
            "softcap": given.get("softcap"),
            "sink": None if sdpa else given.get("s_aux"),
            "causal": ordered,
            **masks_of(mask, queries, keys, given.get("position_bias")),
        }
        self._keep(module, query, key, options, causal, problem, filled, windows=not causal and mask is None)

    def _see_torch(
        self, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, scale: Any = None, **_: Any
    ) -> None:
        """A call of `scaled_dot_product_attention`."""
        now = self._now
        if now.stack and not now.inside and query.dim() == 4 and not query.is_nested:
            # PyTorch repeats what has one entry, or one head of queries.
            batch = max(len(x) for x in (query, key, value))
            query, key = (x.expand(batch, -1, -1, -1) if len(x) == 1 else x for x in (query, key))
            query = query.expand(-1, key.shape[1], -1, -1) if query.shape[1] == 1 else query
            options = {"causal": bool(is_causal), "alignment": "upper-left", "scale": scale, **masks_of(attn_mask, query.shape[2])}
            self._keep(now.stack[-1], query, key, options, is_causal)

    def _inside(self, kind: str) -> Any:
        """The module of PyTorch of this kind that runs, if it is the innermost one of the model."""
        import torch

        around = self._now.stack[-1:]
        return around[0] if around and isinstance(around[0], getattr(torch.nn, kind)) else None

    def _keep(self, module: Module, *call: Any, **more: Any) -> None:
        with _keeping:
            if module in self._names:  # The recording may have ended meanwhile, on another thread.
                self._add(module, *call, **more)

    def _add(
        self, module: Module, query: Tensor, key: Tensor, options: dict[str, Any],
        causal: bool = False, problem: str = "", filled: int | None = None, windows: bool = False,
    ) -> None:
        now = self._now
        if not now.models:
            self._new_pass()  # A part of the model was called by itself.
        count, groups, run = query.shape[2], query.shape[1] // key.shape[1], self._runs.get(module, 0)
        turn, last_run = now.turns.get(module, (0, run))
        name, block = self._names[module], False
        if turn:
            before = self.found[numbered(name, turn)]
            # A module that attends again in the same run does so for other windows; one that runs again is another layer, or goes on.
            block = windows and run == last_run and before.kind == "encoder.self" and key.shape[2] == count
            if not block and not before.follows(key, count, groups):
                turn += 1
        turn = turn or 1
        now.turns[module] = turn, run
        name = numbered(name, turn)
        attention = self.found.get(name)
        if attention is None:
            kind = kind_of(name, causal, self._two_texts())
            layer = sum(one.kind == kind for one in self.found.values())
            attention = self.found[name] = Attention(name, kind, layer, _rows=self.rows, _heads=self.heads)
        # What looks at images in a model that reads text, too, has other queries.
        ids = now.ids if now.ids is not None and now.ids.shape == (query.shape[0], count) else None
        if self.layers is not None and attention.layer not in self.layers:
            attention._held, attention._ids = key.shape[2], [ids]
            return
        had = attention._problem
        read = now.models[-1] if now.models else 0
        begins = attention.add(query, key, options, filled=filled, block=block, text_begins=now.text_begins, problem=problem, ids=ids, read=read)
        if attention.kind != "decoder.cross":
            now.text_begins = bool(now.text_begins) or begins
        if attention._problem is REORDERED and not had:
            # In the first layer keys of the same token are equal: a later one notices for all.
            for one in self.found.values():
                if one.kind.startswith("decoder") and not one._problem:
                    one._stop(REORDERED)

    # ---- reading ----

    @property
    def maps(self) -> list[Attention]:
        """The attention of each layer that was kept."""
        return [one for one in self.found.values() if one._pieces or one._problem]

    def _one(self, layer: int, kind: str | None) -> Attention:
        self._expect(self.maps)
        layer, kind = integer("layer", layer), or_none(text_of, "kind", kind) or self.maps[-1].kind
        for one in self.maps:
            if (one.layer, one.kind) == (layer, kind):
                return one
        there = ", ".join(f"{one.kind} {one.layer}" for one in self.maps)
        raise IndexError(f"there is no layer {layer} of {kind}; there are {there}")

    def weights(self, layer: int, *, head: int | None = None, kind: str | None = None, batch: int = 0) -> np.ndarray:
        """[heads, queries, keys] of a layer, or [queries, keys] of one of its heads. Kind: that of the last layer if left out."""
        return self._one(layer, kind).weights(batch=batch, head=head)

    def entropy(self, layer: int, *, kind: str | None = None, batch: int = 0) -> np.ndarray:
        """[heads, queries] of a layer, nats."""
        return self._one(layer, kind).entropy(batch=batch)

    def top(self, layer: int, k: int, *, kind: str | None = None, batch: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """The k largest weights of each query of a layer, and their keys: [heads, queries, k] each; a key that is none is -1."""
        return self._one(layer, kind).top(k, batch=batch)

    def pooled(self, layer: int, rows: int, columns: int, *, kind: str | None = None, batch: int = 0, pool: str = "max") -> np.ndarray:
        """[heads, rows, columns] of a layer: its map in cells, each the largest weight or (pool = "mean") the mean, without the map."""
        return self._one(layer, kind).pooled(rows, columns, batch=batch, pool=pool)

    def _tokens(self, pieces: list[Any], batch: int, length: int, before: int = 0) -> Any:
        """The texts of ids `[batch, some]` that follow each other, behind `before` that have none; where they are not those of all `length`
        places, that number."""
        if any(piece is None or piece.shape[0] <= batch for piece in pieces) or before + sum(piece.shape[1] for piece in pieces) != length:
            return length
        return [("", None, False)] * before + texts_of(self.tokenizer, [x for piece in pieces for x in piece[batch].tolist()])

    def _layers(self, layers: Sequence[int] | None) -> list[Attention]:
        """The maps of some layers, or all.

        Raises ValueError where there is none.
        """
        layers = or_none(wholes, "layers", layers)
        chosen = [one for one in self.maps if layers is None or one.layer in layers]
        self._expect(chosen or self.maps)
        if not chosen:
            there = ", ".join(f"{one.kind} {one.layer}" for one in self.maps)
            raise ValueError(f"`layers` is {layers}, and no such layer was recorded; there are {there}")
        return chosen

    def trace(self, *, batch: int = 0, layers: Sequence[int] | None = None) -> Trace:
        """The maps of one entry of the batch, with weights, as the rest of regard reads them.

        Raises ValueError for more weights than a page can hold: choose layers, or ask for `pooled` cells.
        """
        chosen = self._layers(layers)
        count = sum(int(np.prod(one.shape[1:])) for one in chosen)
        if count > MOST_WEIGHTS:
            raise ValueError(
                f"{len(chosen)} layers have {count} weights, at most {MOST_WEIGHTS} fit a trace: pass layers=[...] here, record rows=[...], "
                "use `pooled`, or `save` queries and keys (long=True)"
            )
        batch, _ = chosen[0]._entry(batch)
        source = next((one._ids for one in self.found.values() if one.kind == "encoder.self"), [None])
        added = []
        for one in chosen:
            of_keys, before = (source, 0) if one.kind == "decoder.cross" else (one._ids, one._before)
            queries = self._tokens(one._ids, batch, one._count, one._before)
            added.append((one, queries, self._tokens(of_keys, batch, one.shape[3], before)))
        between = "" if self.tokenizer else " "
        texts = [between.join(text for text, _, special in tokens if not special).strip() if isinstance(tokens, list) else "" for tokens in sides(added)]
        trace = Trace(type(self.model).__name__, *texts)
        for one, queries, keys in added:
            queries = [queries[at] for at in one.positions] if isinstance(queries, list) else len(one.positions)
            # A sink takes a share of the softmax.
            whole = all(piece.options.get("sink") is None for piece in one._pieces)
            weights = one.weights(batch=batch)
            if self.heads is None:
                trace.add(one.kind, one.layer, queries, keys, weights, normalized=whole)
            for at, head in enumerate(self.heads or []):
                # By its number in the model, as `regard look --head` says it.
                trace.add(one.kind, one.layer, queries, keys, weights[at : at + 1], normalized=whole, name=f"{one.kind}, head {head + 1}")
        return trace

    def report(self, *, batch: int = 0, layers: Sequence[int] | None = None) -> str:
        """What stands out, in words; arguments as for `trace`."""
        return "\n".join(self.trace(batch=batch, layers=layers).report())

    def save(
        self, path: str | os.PathLike[str], *, batch: int = 0, layers: Sequence[int] | None = None, long: bool | None = None
    ) -> None:
        """Writes the trace to a file, for `regard view` and `regard serve`. It appears whole or not at all.

        Parameters
        ----------
        batch: which entry
        layers: which of the layers that were recorded; all if left out
        long: keep queries and keys (as float16) in place of weights, as `regard look --long` does, so that any part of a map of 100,000 tokens
            can be looked at; if left out, where there are more weights than a trace holds

        Raises
        ------
        ValueError: for a long trace: a model with two texts (encoder-decoders), rows that were chosen, attention that does not follow from
            causal order and a window (padding, biases, sinks)
        """
        path, layers = path_of("path", path), or_none(wholes, "layers", layers)
        chosen = self._layers(layers)
        if long is None:
            long = sum(int(np.prod(one.shape[1:])) for one in chosen) > MOST_WEIGHTS and self.rows is None
        if long:
            self._save_long(path, batch, chosen)
        else:
            _trace.write_traces(path, self.trace(batch=batch, layers=layers))

    def _save_long(self, path: str, batch: int, chosen: list[Attention]) -> None:
        if self.rows is not None:
            raise ValueError("a long trace keeps all queries: record without rows=")
        kinds = {one.kind for one in chosen}
        if len(kinds) > 1 or "decoder.cross" in kinds:
            raise ValueError(f"a long trace keeps one text, and this model has {', '.join(sorted(kinds))}")
        layers = []
        for one in chosen:
            _, heads, _, _ = one.shape
            groups, dim = one._keys[0].shape[1], one._pieces[0].query.shape[3]
            numbers = list(range(heads)) if self.heads is None else self.heads
            layers.append(SimpleNamespace(layer=one.layer, heads=numbers, keys_of=[head * groups // heads for head in range(heads)], dim=dim))
        batch, _ = chosen[0]._entry(batch)
        tokens = self._tokens(chosen[0]._ids, batch, chosen[0].shape[3])
        file = LongFile(path, type(self.model).__name__, "", tokens, layers)
        for number, (one, layer) in enumerate(zip(chosen, layers)):
            query, key, options = one._long(batch)
            query, key = (np.ascontiguousarray(on_cpu(x).numpy()) for x in (query, key))
            for head, of_key in enumerate(layer.keys_of):
                file.head(number, head, query[head], key[of_key], **options)
        file.finish()

    def _expect(self, maps: list[Attention]) -> None:
        if maps:
            return
        if not self.found:
            why = "run the model inside of the `with` block"
            if self._ran:
                why = f"the attention of {type(self.model).__name__} came neither through transformers' AttentionInterface nor through PyTorch"
            raise ValueError(f"nothing was recorded: {why}")
        there = ", ".join(f"{one.kind} {one.layer}" for one in self.found.values())
        raise ValueError(f"nothing was recorded: none of layers={self.layers} with rows={self.rows} came; there were {there}")

    def serve(self, *, batch: int = 0, layers: Sequence[int] | None = None, port: int = 0, open_browser: bool = True) -> _trace.Viewer:
        """Opens the viewer; batch and layers as for `trace`."""
        return _trace.serve(self.trace(batch=batch, layers=layers), port=port, open_browser=open_browser)

    def html(self, *, batch: int = 0, layers: Sequence[int] | None = None) -> str:
        """One page, which needs nothing else; arguments as for `trace`."""
        return traces_page([self.trace(batch=batch, layers=layers)], type(self.model).__name__)

    def show(self, *, batch: int = 0, layers: Sequence[int] | None = None, height: int = 760) -> Any:
        """The page in a notebook; batch and layers as for `trace`.

        Raises ImportError without IPython.
        """
        try:
            from IPython.display import HTML
        except ImportError as error:
            raise ImportError("`show` needs IPython, which notebooks have: pip install ipython; `serve`, `save` and `html` work without it") from error
        return HTML(frame(self.html(batch=batch, layers=layers), whole("height", height)))

    def _repr_html_(self) -> str | None:
        if not self.maps:
            return None
        try:
            return frame(self.html(), 760)
        except ValueError as reason:
            # A notebook would print where in here it was raised.
            advice = "seen.maps tells what was recorded; seen.show(layers=[...]) shows some of it, and seen.weights(layer, kind=...) reads it."
            return f"<p>{html.escape(repr(self))}<br>There is no page of all of it: {html.escape(str(reason))}.<br>{advice}</p>"

    def __repr__(self) -> str:
        kinds = {one.kind: 0 for one in self.maps}
        for one in self.maps:
            kinds[one.kind] += 1
        maps = ", ".join(f"{count} layers of {kind}" for kind, count in kinds.items())
        return f"<regard.Recorder of {type(self.model).__name__}: {maps or 'nothing yet'}>"


class _Running(threading.local):
    """What runs now, on each thread by itself: a call belongs to the modules around it on its own thread."""

    def __init__(self) -> None:
        # The modules around what runs, where PyTorch's functions are seen.
        self.stack: list[Module] = []
        # Whether an implementation of attention runs that was seen already.
        self.inside = False
        # The ids that the model, or that of its two parts which runs, reads now.
        self.ids: Tensor | None = None
        # The models of transformers around it, each by how many tokens its cache had read; of their pass: how many entries each module has
        # used, and its run.
        self.models: list[int] = []
        self.turns: dict[Module, tuple[int, int]] = {}
        # Whether a text began in this pass, in self-attention; None before there was any.
        self.text_begins: bool | None = None

    def __reduce__(self) -> Any:
        return _Running, ()  # A copy of a recorder runs nothing.


class _Change:
    """A change of another library, which lasts while any recorder needs it."""

    def __init__(self, make: Callable[[], Callable[[], None]]) -> None:
        self._make, self._users, self._lock = make, 0, threading.Lock()

    def take(self) -> Callable[[], None]:
        """Makes the change if it is not there; the answer gives it back."""
        with self._lock:
            if self._users == 0:
                self._undo = self._make()
            self._users += 1
        return self._give

    def _give(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._undo()


def _change_transformers() -> Callable[[], None]:
    """Whoever asks transformers for an implementation of attention gets it with `_attend` around it.

    The names in configurations stay: models compute other things, and other masks, under another name.
    """
    from transformers import AttentionInterface

    item, interface = AttentionInterface.__getitem__, getattr(AttentionInterface, "get_interface", None)

    def get_item(self: Any, name: str) -> Any:
        return partial(_attend, item(self, name), name)

    def get_interface(self: Any, name: str | None, default: Any) -> Any:
        return partial(_attend, interface(self, name, default), name or "eager")

    own = vars(AttentionInterface).get("__getitem__")

    def undo() -> None:
        if own is None:
            del AttentionInterface.__getitem__
        else:
            AttentionInterface.__getitem__ = own
        if interface is not None:
            AttentionInterface.get_interface = interface

    AttentionInterface.__getitem__ = get_item
    if interface is not None:
        AttentionInterface.get_interface = get_interface
    return undo


def _change_torch() -> Callable[[], None]:
    """Recorders look on wherever PyTorch's own modules and functions attend."""
    import torch

    undo: list[Callable[[], None]] = []

    def watch(holder: Any, name: str, see: Callable[..., None]) -> None:
        plain = getattr(holder, name)

        @wraps(plain)
        def call(*arguments: Any, **named: Any) -> Any:
            for recorder in tuple(_active):
                see(recorder, *arguments, **named)
            return plain(*arguments, **named)

        setattr(holder, name, call)
        undo.append(partial(setattr, holder, name, plain))

    watch(torch.nn.functional, "scaled_dot_product_attention", Recorder._see_torch)
    watch(torch.nn.MultiheadAttention, "forward", _see_multihead)
    # The fast path of inference: one operation for an attention, or for a whole layer.
    watch(torch, "_native_multi_head_attention", _see_native)
    watch(torch, "_transformer_encoder_layer_fwd", _see_layer)

    def back() -> None:
        for one in undo:
            one()

    return back


_transformers, _torch = _Change(_change_transformers), _Change(_change_torch)


def _attend(attend: Callable[..., Any], implementation: str, *arguments: Any, **named: Any) -> Any:
    """An implementation of attention of transformers, seen by the recorders of the model that calls it."""
    given = {**dict(zip(("module", "query", "key", "value", "attention_mask"), arguments)), **named}
    seeing = [(one, one._now) for one in tuple(_active) if given.get("module") in one._names and not one._now.inside]
    for one, now in seeing:
        one._see_call(given, implementation)
        now.inside = True
    try:
        return attend(*arguments, **named)
    finally:
        for _, now in seeing:
            now.inside = False


def _see_multihead(
    recorder: Recorder, module: Any, query: Any, key: Any, value: Any, key_padding_mask: Any = None, need_weights: bool = True, attn_mask: Any = None,
    average_attn_weights: bool = True, is_causal: bool = False,
) -> None:
    """`torch.nn.MultiheadAttention` with weights asked for computes them in steps, or on its fast path: seen by its inputs."""
    if not need_weights or recorder._now.stack[-1:] != [module]:
        return  # Without weights it calls scaled_dot_product_attention, or the operation of the fast path.
    if query.is_nested:
        _see_fast(recorder, module, query)
        return
    batched, mask, padding = query.dim() == 3, attn_mask, key_padding_mask
    if not batched:
        query, key = query[None], key[None]
    elif not module.batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    if mask is not None and mask.dim() == 3:
        mask = mask.unflatten(0, (query.shape[0], module.num_heads))
    if padding is not None:
        padding = (padding if batched else padding[None])[:, None, None]
    _project(recorder, module, query, key, [m for m in (mask, padding) if m is not None])


def _see_native(
    recorder: Recorder, query: Any, key: Any, value: Any, embed_dim: int, num_heads: int, qkv_weight: Any, qkv_bias: Any, proj_weight: Any,
    proj_bias: Any, mask: Any = None, need_weights: bool = True, average_attn_weights: bool = True, mask_type: int | None = None,
) -> None:
    """The fast path of `torch.nn.MultiheadAttention`; where weights are asked for, that was seen already."""
    module = recorder._inside("MultiheadAttention")
    if module is not None and not need_weights:
        _see_fast(recorder, module, query, mask, mask_type)


def _see_layer(recorder: Recorder, src: Any, *more: Any) -> None:
    """The fast path of `torch.nn.TransformerEncoderLayer`, whose last arguments are the mask and its type."""
    import torch

    layer = recorder._inside("TransformerEncoderLayer")
    if layer is not None:
        if layer.norm_first:
            with torch.no_grad():
                norm = layer.norm1
                src = torch.nn.functional.layer_norm(src, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
        _see_fast(recorder, layer.self_attn, src, *more[-2:])


def _see_fast(recorder: Recorder, module: Any, x: Any, mask: Any = None, mask_type: int | None = None) -> None:
    """`x` attends to itself on the fast path, where a mask hides whatever it adds a number to."""
    import torch

    masks, causal = [], False
    with torch.no_grad():
        if x.is_nested:
            lengths = torch.tensor([len(text) for text in x.unbind()])
            x = x.to_padded_tensor(0.0)
            there = torch.arange(x.shape[1]) < lengths[:, None]
            # Queries of the padding are not computed.
            masks = [~(there[:, None, :, None] & there[:, None, None])]
        elif mask is not None and mask_type == 1:
            masks = [mask[:, None, None] != 0]
        elif mask is not None:
            # One mask of all texts and heads is repeated for each; it is kept once.
            hidden = mask[tuple(slice(None if step else 1) for step in mask.stride())] != 0
            causal = hidden.numel() == x.shape[1] ** 2 and torch.equal(hidden, torch.ones_like(hidden).triu(1))
            masks = [hidden]
    _project(recorder, module, x, x, masks, causal)


def _project(recorder: Recorder, module: Any, query: Any, key: Any, masks: list[Any], causal: bool = False) -> None:
    """Keeps `torch.nn.MultiheadAttention` by its inputs `[batch, length, size]`."""
    import torch

    with torch.no_grad():
        if module._qkv_same_embed_dim:
            w_query, w_key, _ = module.in_proj_weight.chunk(3)
        else:
            w_query, w_key = module.q_proj_weight, module.k_proj_weight
        b_query, b_key = (None, None) if module.in_proj_bias is None else module.in_proj_bias.chunk(3)[:2]
        query, key = torch.nn.functional.linear(query, w_query, b_query), torch.nn.functional.linear(key, w_key, b_key)
        query, key = (x.unflatten(-1, (module.num_heads, module.head_dim)).transpose(1, 2) for x in (query, key))
        options = {"bias": sum(_added(mask) for mask in masks)} if masks else {}
    problem = "its keys are not those of its input (add_bias_kv or add_zero_attn)" if module.bias_k is not None or module.add_zero_attn else ""
    recorder._keep(module, query, key, options, causal, problem)


def _added(mask: Any) -> Any:
    """PyTorch's masks of `MultiheadAttention` as numbers to add: True hides."""
    import torch

    return torch.zeros(mask.shape).masked_fill(mask.cpu(), -torch.inf) if mask.dtype == torch.bool else mask.float().cpu()
