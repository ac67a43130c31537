"""What PyTorch models attend to, while they run with their own fast attention.

A recorder keeps references to queries, keys and masks, which the model has computed anyway; weights come from regard's kernels when they are
asked for. Nothing that the model computes changes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _trace
from ._attention import observe
from ._regard import LongFile, Trace, traces_page

if TYPE_CHECKING:
    import torch

NAME = "regard"
"""The name of the implementation of attention in transformers' registry while a model is recorded."""

MOST_WEIGHTS = 1 << 25
"""A trace with more weights than this is refused: a page with so many numbers would not open."""

_active: list[Recorder] = []


def record(
    model: torch.nn.Module,
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
    >>> seen                                                          # doctest: +SKIP  (in a notebook: the page)

    The model may be any model of transformers, which goes on with the implementation of attention that it has (SDPA, flash attention, eager);
    or any other module, of which `torch.nn.MultiheadAttention` and calls of `torch.nn.functional.scaled_dot_product_attention` are seen.

    Parameters
    ----------
    model: the model; its parameters and outputs stay as they are
    tokenizer: gives tokens their texts; without it they are numbers
    layers: layers that are kept, of each kind of attention, counted from 0; all if left out
    heads: heads that are kept, in this order; all if left out
    rows: positions of the queries that are kept, counted from 0 along the whole text, or from the end of each call if negative: -1 keeps the
        last query of the prompt and each generated one. All if left out. Keys are kept whole: a row needs them
    """
    return Recorder(model, tokenizer, layers, heads, rows)


@dataclass
class _Piece:
    """One call of attention: queries that follow those of the calls before."""

    query: torch.Tensor  # [batch, heads, queries, dim]
    keys: tuple[int, int]  # which of all keys it sees
    options: dict[str, Any]
    first: int  # the position of its first query


@dataclass
class Attention:
    """The attention of one layer: all its calls together."""

    name: str
    """The module's name in the model."""
    kind: str
    """encoder.self, decoder.self, decoder.cross or attention."""
    layer: int
    """Counted from 0, among those of its kind."""
    _pieces: list[_Piece] = field(default_factory=list, repr=False)
    _keys: list[torch.Tensor] = field(default_factory=list, repr=False)
    _problem: str = field(default="", repr=False)
    # The positions of queries that are kept, or None for all; and how many queries there were.
    _rows: list[int] | None = field(default=None, repr=False)
    _count: int = field(default=0, repr=False)
    # The last row that was kept, to notice a cache that was put in another order.
    _last: Any = field(default=None, repr=False)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[batch, heads, queries, keys]; the queries are those that were kept."""
        if not self._pieces:
            raise ValueError(f"no query of {self.name} was kept{': ' + self._problem if self._problem else ''}")
        first = self._pieces[0].query
        return first.shape[0], first.shape[1], sum(p.query.shape[2] for p in self._pieces), sum(k.shape[2] for k in self._keys)

    @property
    def positions(self) -> list[int]:
        """The positions of the queries that were kept, counted from 0 along the whole text."""
        return [p.first + i for p in self._pieces for i in range(p.query.shape[2])]

    def add(self, query: torch.Tensor, key: torch.Tensor, options: dict[str, Any]) -> None:
        """One call: `query [batch, heads, queries, dim]`, `key [batch, key_heads, keys, dim]`."""
        if self._problem:
            return
        query, key = query.detach(), key.detach()
        before, count = sum(k.shape[2] for k in self._keys), query.shape[2]
        cross = self.kind == "decoder.cross"
        if self._keys and cross and key.data_ptr() == self._keys[0].data_ptr():
            seen = (0, before)
        elif not self._keys or cross or self.kind == "encoder.self":
            self._begin(key)
            seen = (0, key.shape[2])
        elif key.shape[2] == count and count > 1:
            self._begin(key)
            seen = (0, key.shape[2])
        elif key.shape[2] > before + count:
            self._problem = "its cache has room for more keys than there are (a static cache)"
            return
        else:
            # With a cache the new keys are the last ones; a sliding cache has lost the first ones.
            known = key.shape[2] - count
            if self._last is not None and known > 0 and not bool((key[:, :, known - 1] == self._last).all()):
                self._problem = "the batch changed its order on the way (beam search): run the model once more on the finished text"
                return
            self._keys.append(key[:, :, known:].clone())
            seen = (before + count - key.shape[2], before + count)
        self._last = key[:, :, -1]
        first = self._count
        self._count += count
        if self._rows is None:
            self._pieces.append(_Piece(query, seen, options, first))
            return
        for row in sorted({row - first if row >= 0 else row + count for row in self._rows}):
            if 0 <= row < count:
                self._pieces.append(_row_of(query, seen, options, first, row))

    def _begin(self, key: torch.Tensor) -> None:
        """A new text begins with these keys."""
        self._pieces.clear()
        self._keys[:] = [key]
        self._count = 0

    def _key(self) -> torch.Tensor:
        if self._problem:
            raise ValueError(f"the attention of {self.name} cannot be computed: {self._problem}")
        import torch

        if len(self._keys) > 1:
            self._keys[:] = [torch.cat(self._keys, 2)]
        return self._keys[0]

    def _observe(self, batch: int, **wanted: Any) -> list[tuple[_Piece, Any]]:
        key = self._key()
        if not 0 <= batch < key.shape[0]:
            raise IndexError(f"there is no entry {batch} in a batch of {key.shape[0]}")
        found = []
        for piece in self._pieces:
            first, last = piece.keys
            options = {name: _of_entry(x, batch) if name in ("mask", "bias") else x for name, x in piece.options.items()}
            query = _on_cpu(piece.query[batch : batch + 1])
            found.append((piece, observe(query, _on_cpu(key[batch : batch + 1, :, first:last]), **options, **wanted)))
        return found

    def weights(self, *, batch: int = 0, head: int | None = None) -> np.ndarray:
        """[heads, queries, keys], or [queries, keys] of one head; 0 where a query could not see a key.

        Raises ValueError if the keys are not known any more, with the reason.
        """
        _, heads, queries, keys = self.shape
        weights = np.zeros((heads, queries, keys), np.float32)
        row = 0
        for piece, observed in self._observe(batch, rows=True):
            count = piece.query.shape[2]
            weights[:, row : row + count, piece.keys[0] : piece.keys[1]] = observed.weights[0]
            row += count
        return weights if head is None else weights[head]

    def entropy(self, *, batch: int = 0) -> np.ndarray:
        """[heads, queries], nats."""
        return np.concatenate([observed.entropy[0] for _, observed in self._observe(batch, entropy=True)], axis=1)

    def top(self, k: int, *, batch: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """The k largest weights of each query and their keys, [heads, queries, k] each; a key that is none is -1."""
        found = self._observe(batch, top=k)
        weights = np.concatenate([observed.top_weights[0] for _, observed in found], axis=1)
        keys = [np.where(o.top_keys[0] == 2**32 - 1, -1, o.top_keys[0].astype(np.int64) + p.keys[0]) for p, o in found]
        return weights, np.concatenate(keys, axis=1)

    def pooled(self, rows: int, columns: int, *, batch: int = 0, pool: str = "max") -> np.ndarray:
        """[heads, rows, columns]: the whole map in cells, without ever holding it; of attention that was computed in one call.

        Raises ValueError for attention of several calls (generation).
        """
        if len(self._pieces) != 1 or self._rows is not None:
            reason = "some of its queries were kept" if self._rows is not None else f"it was computed in {len(self._pieces)} calls"
            raise ValueError(f"no pooled map of {self.name}, as {reason}; run the model once on the finished text, with all rows")
        return self._observe(batch, cells=(rows, columns), pool=pool)[0][1].pooled[0]


    def _long(self, batch: int) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
        """All queries and keys `[heads, tokens, dim]` of an entry, and scale, softcap, causal and window.

        Raises ValueError for attention that does not follow from these.
        """
        import torch

        key = self._key()
        if not 0 <= batch < key.shape[0]:
            raise IndexError(f"there is no entry {batch} in a batch of {key.shape[0]}")
        query = torch.cat([p.query[batch] for p in self._pieces], 1)
        if query.shape[1] != key.shape[2]:
            raise ValueError(f"{self.name} has {query.shape[1]} queries and {key.shape[2]} keys: a long trace keeps one text, whole")
        described = []
        for piece in self._pieces:
            options = {name: x for name, x in piece.options.items() if x is not None}
            count, seen = piece.query.shape[2], piece.keys[1] - piece.keys[0]
            causal, left = options.pop("causal", False) or None, None
            options.pop("alignment", None)
            mask, bias = options.pop("mask", None), options.pop("bias", None)
            if bias is not None:
                mask = _as_mask(bias, self.name) if mask is None else mask & _as_mask(bias, self.name)
            if mask is not None:
                causal, left = _as_window(mask, batch, count, seen, self.name)
            elif piece.keys[0] > 0:
                left = seen - 1
            elif count == 1:
                causal = True  # The last query may see all keys either way.
            if refused := set(options) - {"scale", "softcap"}:
                raise ValueError(f"the attention of {self.name} has {', '.join(sorted(refused))}, which a long trace does not keep")
            described.append((bool(causal), left, options.get("scale"), options.get("softcap")))
        # Windows show only where they hide something.
        windows = {one[1] for one in described} - {None}
        if len({(one[0], *one[2:]) for one in described}) > 1 or len(windows) > 1:
            raise ValueError(f"the calls of {self.name} saw their keys by different rules, which a long trace does not keep")
        causal, _, scale, softcap = described[0]
        return query, key[batch], {"causal": causal, "left": next(iter(windows), None), "scale": scale, "softcap": softcap}


class Recorder:
    """What a model attended to; see `record`. In a notebook it shows itself as a page."""

    def __init__(
        self, model: torch.nn.Module, tokenizer: Any, layers: Sequence[int] | None, heads: Sequence[int] | None, rows: Sequence[int] | None = None
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.layers = None if layers is None else set(layers)
        self.heads = None if heads is None else list(heads)
        self.rows = None if rows is None else [int(row) for row in rows]
        self.found: dict[str, Attention] = {}
        self._names: dict[int, str] = {id(module): name for name, module in model.named_modules()}
        self._ids: dict[str, list[torch.Tensor]] = {"source": [], "target": []}
        self._undo: list[Any] = []

    # ---- recording ----

    def __enter__(self) -> Recorder:
        if self._undo:
            raise RuntimeError("this recorder is recording already")
        self.found.clear()
        for ids in self._ids.values():
            ids.clear()
        _active.append(self)
        self._undo.append(partial(_active.remove, self))
        try:
            self._hook_inputs()
            if hasattr(self.model, "set_attn_implementation"):
                self._hook_transformers()
            else:
                self._hook_torch()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        while self._undo:
            self._undo.pop()()

    def _hook_inputs(self) -> None:
        def ids_of(into: str, names: Sequence[str], _: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            found = next((named[name] for name in names if named.get(name) is not None), arguments[0] if arguments else None)
            if found is not None and getattr(found, "ndim", 0) == 2 and not found.is_floating_point():
                self._ids[into].append(found.detach())

        def hook(module: torch.nn.Module, into: str, *names: str) -> None:
            handle = module.register_forward_pre_hook(partial(ids_of, into, names), with_kwargs=True)
            self._undo.append(handle.remove)

        if getattr(getattr(self.model, "config", None), "is_encoder_decoder", False):
            hook(self.model.get_encoder(), "source", "input_ids")
            hook(self.model.get_decoder(), "target", "input_ids")
        else:
            hook(self.model, "source", "input_ids")

    def _hook_transformers(self) -> None:
        from transformers import AttentionInterface
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

        AttentionInterface.register(NAME, _attend)
        configs = {id(m.config): m.config for m in self.model.modules() if hasattr(m, "config")}
        before = {key: config._attn_implementation for key, config in configs.items()}
        self._before = {key: name or "eager" for key, name in before.items()}
        of_model = self._before[id(self.model.config)]
        # Masks take the form that the model's own implementation wants.
        AttentionMaskInterface.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS[of_model])

        def restore() -> None:
            for key, config in configs.items():
                config._attn_implementation_internal = before[key]

        self._undo.append(restore)
        self.model.set_attn_implementation(NAME)
        if self.model.config._attn_implementation != NAME:
            raise ValueError(f"{type(self.model).__name__} does not take its attention from transformers' AttentionInterface: it cannot be recorded")

    def _hook_torch(self) -> None:
        import torch

        functional = torch.nn.functional
        plain = functional.scaled_dot_product_attention
        stack: list[torch.nn.Module] = []

        def attend(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, scale: Any = None, **more: Any) -> Any:
            if stack and query.dim() == 4:
                options = {"causal": is_causal, "alignment": "upper-left", "scale": scale, **_masks(attn_mask, query.shape[2])}
                self._keep(self._names[id(stack[-1])], query, key, options)
            return plain(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, **more)

        functional.scaled_dot_product_attention = attend
        self._undo.append(lambda: setattr(functional, "scaled_dot_product_attention", plain))
        # The fast path of inference is one operation for a whole layer.
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        self._undo.append(lambda: torch.backends.mha.set_fastpath_enabled(fast))

        def enter(module: torch.nn.Module, *_: Any) -> None:
            stack.append(module)

        def leave(*_: Any) -> None:
            stack.pop()

        for module in self.model.modules():
            if isinstance(module, torch.nn.MultiheadAttention):
                self._undo.append(module.register_forward_pre_hook(partial(_multihead, self), with_kwargs=True).remove)
            self._undo.append(module.register_forward_pre_hook(enter).remove)
            self._undo.append(module.register_forward_hook(leave, always_call=True).remove)

    def _keep(
        self, name: str, query: torch.Tensor, key: torch.Tensor, options: dict[str, Any], causal: bool = False, problem: str = ""
    ) -> None:
        attention = self.found.get(name)
        if attention is None:
            kind = _kind(name, causal, getattr(getattr(self.model, "config", None), "is_encoder_decoder", False))
            layer = sum(one.kind == kind for one in self.found.values())
            attention = self.found[name] = Attention(name, kind, layer, _rows=self.rows, _problem=problem)
        if self.layers is not None and attention.layer not in self.layers:
            return
        if self.heads is not None:
            groups = query.shape[1] // key.shape[1]
            query, key = query[:, self.heads], key[:, [head // groups for head in self.heads]]
            options = {name: _of_heads(x, self.heads) for name, x in options.items()}
        attention.add(query, key, options)

    # ---- reading ----

    @property
    def maps(self) -> list[Attention]:
        """The attention of each layer that was kept."""
        return [one for one in self.found.values() if one._pieces or one._problem]

    def _one(self, layer: int, kind: str | None) -> Attention:
        self._expect(self.maps)
        kind = kind or self.maps[-1].kind
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

    def _tokens(self, which: str, batch: int, length: int) -> Any:
        pieces = self._ids[which]
        ids = [int(x) for piece in pieces if piece.shape[0] > batch for x in piece[batch].tolist()]
        # The last call of several: a new text began.
        ids = ids[-length:] if len(ids) > length else ids
        if len(ids) != length:
            return length
        return _texts(self.tokenizer, ids)

    def trace(self, *, batch: int = 0, layers: Sequence[int] | None = None) -> Trace:
        """The maps of one entry of the batch, with weights, as the rest of regard reads them.

        Raises ValueError for more weights than a page can hold: choose layers, or ask for `pooled` cells.
        """
        chosen = [one for one in self.maps if layers is None or one.layer in layers]
        self._expect(chosen)
        count = sum(int(np.prod(one.shape[1:])) for one in chosen)
        if count > MOST_WEIGHTS:
            raise ValueError(
                f"{len(chosen)} layers have {count} weights, at most {MOST_WEIGHTS} fit a trace: pass layers=[...], record rows=[...], "
                "use `pooled`, or `save` queries and keys (long=True)"
            )
        encoder = any(one.kind == "encoder.self" for one in chosen) and any(one.kind == "decoder.cross" for one in chosen)
        added = []
        for one in chosen:
            of_queries = "target" if one.kind.startswith("decoder") and (encoder or self._ids["target"]) else "source"
            of_keys = "source" if one.kind == "decoder.cross" else of_queries
            added.append((one, self._tokens(of_queries, batch, one._count), self._tokens(of_keys, batch, one.shape[3])))
        between = "" if self.tokenizer else " "
        texts = [between.join(text for text, _, special in tokens if not special).strip() if isinstance(tokens, list) else "" for tokens in _sides(added)]
        trace = Trace(type(self.model).__name__, *texts)
        for one, queries, keys in added:
            queries = [queries[at] for at in one.positions] if isinstance(queries, list) else len(one.positions)
            trace.add(one.kind, one.layer, queries, keys, one.weights(batch=batch), normalized=True)
        return trace

    def report(self, *, batch: int = 0) -> str:
        """What stands out, in words."""
        return "\n".join(self.trace(batch=batch).report())

    def save(self, path: str | os.PathLike[str], *, batch: int = 0, long: bool | None = None) -> None:
        """Writes the trace to a file, for `regard view` and `regard serve`. It appears whole or not at all.

        Parameters
        ----------
        batch: which entry
        long: keep queries and keys (as float16) in place of weights, as `regard look --long` does, so that any part of a map of 100,000 tokens
            can be looked at; if left out, where there are more weights than a trace holds

        Raises
        ------
        ValueError: for a long trace: a model with two texts (encoder-decoders), rows that were chosen, attention that does not follow from
            causal order and a window (padding, biases, sinks)
        """
        if long is None:
            long = sum(int(np.prod(one.shape[1:])) for one in self.maps) > MOST_WEIGHTS and self.rows is None
        if long:
            self._save_long(path, batch)
        else:
            _trace.write_traces(path, self.trace(batch=batch))

    def _save_long(self, path: str | os.PathLike[str], batch: int) -> None:
        self._expect(self.maps)
        if self.rows is not None:
            raise ValueError("a long trace keeps all queries: record without rows=")
        kinds = {one.kind for one in self.maps}
        if len(kinds) > 1 or "decoder.cross" in kinds:
            raise ValueError(f"a long trace keeps one text, and this model has {', '.join(sorted(kinds))}")
        layers = []
        for one in self.maps:
            _, heads, _, _ = one.shape
            groups, dim = one._keys[0].shape[1], one._pieces[0].query.shape[3]
            numbers = list(range(heads)) if self.heads is None else self.heads
            layers.append(SimpleNamespace(layer=one.layer, heads=numbers, keys_of=[head * groups // heads for head in range(heads)], dim=dim))
        tokens = self._tokens("source", batch, self.maps[0].shape[3])
        file = LongFile(os.fspath(path), type(self.model).__name__, "", tokens, layers)
        for number, (one, layer) in enumerate(zip(self.maps, layers)):
            query, key, options = one._long(batch)
            query, key = (np.ascontiguousarray(_on_cpu(x).numpy()) for x in (query, key))
            for head, of_key in enumerate(layer.keys_of):
                file.head(number, head, query[head], key[of_key], **options)
        file.finish()

    def _expect(self, maps: list[Attention]) -> None:
        if not maps:
            kept = f"; none of rows={self.rows} came" if self.found and self.rows is not None else ""
            raise ValueError(f"nothing was recorded: run the model inside of the `with` block{kept}")

    def serve(self, *, batch: int = 0, port: int = 0, open_browser: bool = True) -> _trace.Viewer:
        """Opens the viewer."""
        return _trace.serve(self.trace(batch=batch), port=port, open_browser=open_browser)

    def html(self, *, batch: int = 0) -> str:
        """One page, which needs nothing else."""
        return traces_page([self.trace(batch=batch)], type(self.model).__name__)

    def show(self, *, batch: int = 0, height: int = 760) -> Any:
        """The page in a notebook."""
        from IPython.display import HTML

        return HTML(_frame(self.html(batch=batch), height))

    def _repr_html_(self) -> str | None:
        return _frame(self.html(), 760) if self.maps else None

    def __repr__(self) -> str:
        kinds = {one.kind: 0 for one in self.maps}
        for one in self.maps:
            kinds[one.kind] += 1
        maps = ", ".join(f"{count} layers of {kind}" for kind, count in kinds.items())
        return f"<regard.Recorder of {type(self.model).__name__}: {maps or 'nothing yet'}>"


def _attend(module: torch.nn.Module, query: Any, key: Any, value: Any, attention_mask: Any, **named: Any) -> Any:
    """An implementation of attention for transformers: the one that the model had, seen by its recorder."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    recorder = next(one for one in reversed(_active) if id(module) in one._names)
    config = getattr(module, "config", None)
    before = recorder._before.get(id(config), recorder._before[id(recorder.model.config)])
    if before == "eager":
        attend = sys.modules[type(module).__module__].eager_attention_forward
    else:
        attend = ALL_ATTENTION_FUNCTIONS[before]
    causal = named.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    options = {
        "scale": named.get("scaling"),
        "softcap": named.get("softcap"),
        "sink": named.get("s_aux"),
        "causal": bool(causal) and query.shape[2] > 1 and attention_mask is None,
        **_masks(attention_mask, query.shape[2], key.shape[2], named.get("position_bias")),
    }
    recorder._keep(recorder._names[id(module)], query, key, options, causal)
    return attend(module, query, key, value, attention_mask, **named)


def _multihead(recorder: Recorder, module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """`torch.nn.MultiheadAttention` with weights asked for, or on its way of training, computes them in steps: seen by its inputs."""
    import torch

    names = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal")
    given = {**dict(zip(names, arguments)), **named}
    if not given.get("need_weights", True):
        return  # It calls scaled_dot_product_attention.
    query, key = given["query"], given["key"]
    if query.dim() != 3:
        return
    with torch.no_grad():
        if module._qkv_same_embed_dim:
            w_query, w_key, _ = module.in_proj_weight.chunk(3)
        else:
            w_query, w_key = module.q_proj_weight, module.k_proj_weight
        b_query, b_key = (None, None) if module.in_proj_bias is None else module.in_proj_bias.chunk(3)[:2]
        query, key = torch.nn.functional.linear(query, w_query, b_query), torch.nn.functional.linear(key, w_key, b_key)
        if not module.batch_first:
            query, key = query.transpose(0, 1), key.transpose(0, 1)
        query, key = (x.unflatten(-1, (module.num_heads, module.head_dim)).transpose(1, 2) for x in (query, key))
        mask = given.get("attn_mask")
        if mask is not None and mask.dim() == 3:
            mask = mask.unflatten(0, (query.shape[0], module.num_heads))
        padding = given.get("key_padding_mask")
        masks = [_added(m) for m in (mask, None if padding is None else padding[:, None, None]) if m is not None]
        options = {"bias": sum(masks)} if masks else {}
    problem = "its keys are not those of its input (add_bias_kv or add_zero_attn)" if module.bias_k is not None or module.add_zero_attn else ""
    recorder._keep(recorder._names[id(module)], query, key, options, problem=problem)


def _added(mask: Any) -> Any:
    """PyTorch's masks of `MultiheadAttention` as numbers to add: True hides."""
    import torch

    return torch.zeros(mask.shape).masked_fill(mask.cpu(), -torch.inf) if mask.dtype == torch.bool else mask.float().cpu()


def _masks(mask: Any, queries: int, keys: int | None = None, bias: Any = None) -> dict[str, Any]:
    found = {}
    if mask is not None and mask.dtype.is_floating_point:
        bias = mask if bias is None else bias + mask
    elif mask is not None:
        # A mask may have room for keys that are not there yet.
        found["mask"] = mask[..., -queries:, : keys or mask.shape[-1]] if mask.ndim == 4 else mask
    if bias is not None:
        found["bias"] = bias[..., : keys or bias.shape[-1]]
    return found


def _row_of(query: Any, seen: tuple[int, int], options: dict[str, Any], first: int, row: int) -> _Piece:
    """One query of a call, with the keys that it may see; copied, so that the others can be forgotten."""
    count, keys = query.shape[2], seen[1] - seen[0]
    options = dict(options)
    upper_left = options.pop("alignment", None) == "upper-left"
    visible = keys
    if options.pop("causal", False):
        visible = min(max(row + 1 + (0 if upper_left else keys - count), 0), keys)
    for name in ("mask", "bias"):
        x = options.get(name)
        if x is not None:
            x = x[..., row : row + 1, :] if x.shape[-2] > 1 else x
            options[name] = (x[..., :visible] if x.shape[-1] > 1 else x).clone()
    return _Piece(query[:, :, row : row + 1].clone(), (seen[0], seen[0] + visible), options, first + row)


def _as_mask(bias: Any, name: str) -> Any:
    """A bias that only hides keys as a mask, True where a key may be seen.

    Raises ValueError for any other.
    """
    import torch

    hidden = bias <= torch.finfo(torch.bfloat16).min / 2
    if bool(bias.masked_fill(hidden, 0).any()):
        raise ValueError(f"the attention of {name} has a bias, which a long trace does not keep")
    return ~hidden


def _as_window(mask: Any, batch: int, queries: int, keys: int, name: str) -> tuple[bool, int | None]:
    """Whether a mask is causal, and how far a query sees under it; the last query stands at the last key.

    Raises ValueError for a mask that hides anything else.
    """
    import torch

    while mask.ndim < 4:
        mask = mask[None]
    shown = mask[batch if mask.shape[0] > 1 else 0].cpu()
    if bool((shown != shown[:1]).any()):
        raise ValueError(f"the attention of {name} has a mask for each head, which a long trace does not keep")
    shown = shown[0].expand(queries, keys)
    if bool(shown.all()):
        return queries == 1, None
    own = torch.arange(keys - queries, keys)
    first = shown.int().argmax(1)
    columns = torch.arange(keys)
    lefts = set((own - first)[first > 0].tolist())
    as_window = (columns >= first[:, None]) & (columns <= own[:, None])
    left = next(iter(lefts), None)
    if len(lefts) > 1 or not torch.equal(shown, as_window) or (left is not None and bool((own[first == 0] > left).any())):
        raise ValueError(f"the attention of {name} has a mask other than causal order and a window, which a long trace does not keep")
    return True, left


def _of_heads(x: Any, heads: list[int]) -> Any:
    """An option for some heads: a mask or bias with an axis of heads, or numbers of each head."""
    axis = {4: 1, 1: 0}.get(getattr(x, "ndim", None))
    return x if axis is None or x.shape[axis] == 1 else x.index_select(axis, x.new_tensor(heads).long())


def _of_entry(x: Any, batch: int) -> Any:
    """The mask or bias of one entry of the batch, in CPU memory."""
    x = x[batch : batch + 1] if x.ndim == 4 and x.shape[0] > 1 else x
    if not x.dtype.is_floating_point:
        return x.cpu().bool()
    import torch

    x = _on_cpu(x)
    # Models write the lowest number of a type for a key that is hidden.
    return x.masked_fill(x <= torch.finfo(torch.bfloat16).min / 2, -torch.inf)


def _on_cpu(x: Any) -> Any:
    return x.detach().float().cpu()


def _kind(name: str, causal: bool, encoder_decoder: bool) -> str:
    parts = name.lower()
    if any(mark in parts for mark in ("cross", "encoder_attn", "encdecattention", "multihead_attn")):
        return "decoder.cross"
    if encoder_decoder:
        return "decoder.self" if "decoder" in parts else "encoder.self"
    return "decoder.self" if causal else "encoder.self"


def _sides(added: list[tuple[Attention, Any, Any]]) -> tuple[Any, Any]:
    source = next((keys for one, _, keys in added if one.kind != "decoder.self"), None)
    target = next((queries for one, queries, _ in added if one.kind.startswith("decoder") and (source is not None)), None)
    return (added[0][2] if source is None else source), target


def _texts(tokenizer: Any, ids: list[int]) -> list[tuple[str, int | None, bool]]:
    """The text of each token, the number of its word, and whether it is special."""
    if tokenizer is None:
        return [(str(i), None, False) for i in ids]
    special = set(tokenizer.all_special_ids)
    written = tokenizer.convert_ids_to_tokens(ids)
    marked = any(piece and piece[0] in "Ġ▁" for piece in written)
    word, found = -1, []
    for i, piece in zip(ids, written):
        begins = piece is None or (piece[:1] in ("Ġ", "▁") if marked else not piece.startswith("##"))
        word += begins or word < 0
        text = tokenizer.decode([i]) if i not in special else piece
        text = text.removeprefix("##") if not marked else (" " if begins else "") + text.strip()
        found.append((text, None if i in special else word, i in special))
    return found


def _frame(page: str, height: int) -> str:
    import html

    return f'<iframe srcdoc="{html.escape(page)}" style="width:100%;height:{height}px;border:0" sandbox="allow-scripts allow-downloads"></iframe>'
