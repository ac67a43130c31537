"""The attention of one layer: queries and keys of all its calls, and the weights that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ._attention import observe
from ._given import place, whole

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any  # Where hints are asked for, PyTorch need not be there.

UNSEEN = "its cache has read more than was seen: record the text from its beginning"
"""The problem of a decoder that goes on with a text of which it is not known where these queries stand."""

REORDERED = "its cache was put in another order or changed on the way (beam search): run the model once more on the finished text"
"""The problem of a decoder of which earlier keys are not those that were seen."""


@dataclass
class _Piece:
    """One call of attention: queries that follow those of the calls before."""

    query: Tensor  # [batch, heads, queries, dim]
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
    _keys: list[Tensor] = field(default_factory=list, repr=False)
    _problem: str = field(default="", repr=False)
    # The positions of queries and the heads that are kept, or None for all.
    _rows: list[int] | None = field(default=None, repr=False)
    _heads: list[int] | None = field(default=None, repr=False)
    # How many keys a cache held before the first query that was seen.
    _before: int = field(default=0, repr=False)
    # How many queries there were, with those before, and how many keys there are.
    _count: int = field(default=0, repr=False)
    _held: int = field(default=0, repr=False)
    # The keys of cross-attention as the model holds them, all heads.
    _source: Any = field(default=None, repr=False)
    # Whether its cache was seen with room for more keys.
    _room: bool = field(default=False, repr=False)
    # The ids of the queries of each call [batch, queries], or None where they are not known.
    _ids: list[Any] = field(default_factory=list, repr=False)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[batch, heads, queries, keys]; the queries are those that were kept."""
        self._expect()
        if not self._pieces:
            raise ValueError(f"no query of {self._called} was kept")
        first = self._pieces[0].query
        return first.shape[0], first.shape[1], sum(p.query.shape[2] for p in self._pieces), sum(k.shape[2] for k in self._keys)

    @property
    def _called(self) -> str:
        """The module in a sentence; the model itself has no name."""
        return self.name or "the model"

    @property
    def positions(self) -> list[int]:
        """The positions of the queries that were kept, counted from 0 along the whole text."""
        return [p.first + i for p in self._pieces for i in range(p.query.shape[2])]

    def add(
        self, query: Tensor, key: Tensor, options: dict[str, Any], *,
        filled: int | None = None, block: bool = False, text_begins: bool | None = None, problem: str = "", ids: Any = None,
        read: int = 0,
    ) -> bool:
        """One call: `query [batch, heads, queries, dim]`, `key [batch, key_heads, keys, dim]`. Whether a text begins with it.

        Parameters
        ----------
        filled: how many keys are there, if a static cache has room for more; if left out, the mask says so
        block: its keys stand beside those of the calls before (images, read window by window)
        text_begins: of cross-attention: whether a text of its decoder begins, None if that is not known
        problem: why its weights cannot be told
        ids: of its queries, [batch, queries], if they are known
        read: how many tokens its model's cache had read; the cache of a layer with windows or chunks holds the keys of the last ones alone
        """
        if problem:
            self._stop(problem)
            return False
        query, key = query.detach(), key.detach()
        count, groups, cut = query.shape[2], query.shape[1] // key.shape[1], False
        if self.kind == "decoder.self" and (filled or self._room or key.shape[2] != self._held + count):
            filled = max(count, filled or _filled(options, key.shape[2]))
            if cut := filled < key.shape[2]:
                self._room = True
                key = key[:, :, :filled]
                options = {name: x[..., :filled] if name in ("mask", "bias") and x.shape[-1] > 1 else x for name, x in options.items()}
        if self._heads is not None:
            if max(self._heads) >= query.shape[1]:
                raise IndexError(f"`heads` is {self._heads}, and {self._called} has {query.shape[1]} heads, counted from 0")
            options = {name: _of_heads(x, self._heads) for name, x in options.items()}
            query = query[:, self._heads]
        # Causal order from the upper left is that of a text without a cache.
        alone = options.get("causal") and options.get("alignment") == "upper-left"
        begins = not block and (alone or self._begins(key, count, groups, text_begins))
        # A recording may begin in the middle of a text, with a cache of what came before.
        before = key.shape[2] - count if begins and not alone and self.kind == "decoder.self" else 0
        if begins and self.kind == "decoder.self" and before < read:
            self._stop(UNSEEN)  # It has lost keys, and with them the positions of those that are left.
            return False
        if begins:
            # A static cache writes over its keys.
            writes = cut or _was_written(key)
            self._begin(key, self._chosen(key.clone() if writes and self._heads is None else key, groups))
            self._before = self._count = max(before, 0)
            seen = (0, self._held)
        elif self._problem:
            return False
        elif block:
            self._append(self._chosen(key, groups))
            seen = (self._held - key.shape[2], self._held)
        elif self.kind == "decoder.cross":
            if not self._is_source(key) and not key.equal(self._source):
                self._stop("its keys changed on the way: run the model once more on the finished text")
                return False
            seen = (0, self._held)
        elif key.shape[2] > self._held + count:
            self._stop(UNSEEN)
            return False
        elif not self._joins(key, count, groups):
            self._stop(REORDERED)
            return False
        else:
            # With a cache the new keys are the last ones; a sliding cache has lost the first ones.
            new = key[:, :, key.shape[2] - count :]
            self._append(self._chosen(new.clone() if self._heads is None else new, groups))
            seen = (self._held - key.shape[2], self._held)
        first = self._count
        self._count += count
        self._ids.append(ids)
        if self._rows is None:
            self._pieces.append(_Piece(query, seen, options, first))
            return begins
        for row in sorted({row - first if row >= 0 else row + count for row in self._rows}):
            if 0 <= row < count:
                self._pieces.append(_row_of(query, seen, options, first, row))
        return begins

    def _begins(self, key: Tensor, count: int, groups: int, text_begins: bool | None) -> bool:
        """Whether a text begins with these keys, of `count` queries."""
        if not self._keys and not self._problem:
            return True
        if self.kind == "decoder.cross":
            return not self._is_source(key) if text_begins is None else text_begins
        if key.shape[2] <= count or (self._keys and key.shape[0] != self._keys[0].shape[0]):
            return True
        return self.kind == "encoder.self" and not self.follows(key, count, groups)

    def follows(self, key: Tensor, count: int, groups: int) -> bool:
        """Whether a call with `count` queries and these keys, all heads, goes on with the text: its keys are those before and one of each query."""
        if self._problem or not 0 < self._held == key.shape[2] - count:
            return False
        return not self._keys or (key.shape[0] == self._keys[0].shape[0] and self._joins(key, count, groups))

    def _joins(self, key: Tensor, count: int, groups: int) -> bool:
        """Whether the keys before the new ones are those that were seen, by the last of them."""
        first, known = self._keys[0], key.shape[2] - count
        if key.data_ptr() == first.data_ptr() and key.shape[2] == first.shape[2]:
            return False  # A cache that was written over.
        return self._chosen(key[:, :, known - 1], groups).equal(self._keys[-1][:, :, -1])

    def _is_source(self, key: Tensor) -> bool:
        return self._source is not None and key.data_ptr() == self._source.data_ptr() and key.shape == self._source.shape

    def _chosen(self, key: Tensor, groups: int) -> Tensor:
        return key if self._heads is None else key[:, [head // groups for head in self._heads]]

    def _begin(self, key: Tensor, chosen: Tensor) -> None:
        """A new text begins with these keys, of which some heads are kept."""
        self._stop("")
        self._append(chosen)
        self._source = key if self.kind == "decoder.cross" else None

    def _append(self, key: Tensor) -> None:
        self._keys.append(key)
        self._held += key.shape[2]

    def _stop(self, problem: str) -> None:
        """Forgets what there was; a new text may begin."""
        self._problem = problem
        self._pieces.clear()
        self._keys.clear()
        self._ids.clear()
        self._before = self._count = self._held = 0
        self._source = None

    def _expect(self) -> None:
        if self._problem:
            raise ValueError(f"the attention of {self._called} cannot be computed: {self._problem}")

    def _key(self) -> Tensor:
        self._expect()
        import torch

        if len(self._keys) > 1:
            self._keys[:] = [torch.cat(self._keys, 2)]
        return self._keys[0]

    def _entry(self, batch: int) -> tuple[int, Tensor]:
        """Which entry of the batch, and all keys.

        Raises IndexError for one that there is not.
        """
        key = self._key()
        return place("batch", batch, key.shape[0], f"{self._called} has a batch of {key.shape[0]}"), key

    def _observe(self, batch: int, **wanted: Any) -> list[tuple[_Piece, Any]]:
        batch, key = self._entry(batch)
        found = []
        for piece in self._pieces:
            first, last = piece.keys
            options = {name: _of_entry(x, batch) if name in ("mask", "bias") else x for name, x in piece.options.items()}
            if options.get("sink") is not None:
                options["sink"] = on_cpu(options["sink"])
            query = on_cpu(piece.query[batch : batch + 1])
            found.append((piece, observe(query, on_cpu(key[batch : batch + 1, :, first:last]), **options, **wanted)))
        return found

    def weights(self, *, batch: int = 0, head: int | None = None) -> np.ndarray:
        """[heads, queries, keys], or [queries, keys] of one head; 0 where a query could not see a key.

        Raises ValueError if the keys are not known any more, with the reason.
        """
        _, heads, queries, keys = self.shape
        if head is not None:
            head = place("head", head, heads, f"{self._called} has {heads} heads{'' if self._heads is None else ' that were kept'}")
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
        found = self._observe(batch, top=whole("k", k))
        weights = np.concatenate([observed.top_weights[0] for _, observed in found], axis=1)
        keys = [np.where(o.top_keys[0] == 2**32 - 1, -1, o.top_keys[0].astype(np.int64) + p.keys[0]) for p, o in found]
        return weights, np.concatenate(keys, axis=1)

    def pooled(self, rows: int, columns: int, *, batch: int = 0, pool: str = "max") -> np.ndarray:
        """[heads, rows, columns]: the whole map in cells, without ever holding it; of attention that was computed in one call.

        Raises ValueError for attention of several calls (generation).
        """
        if len(self._pieces) != 1 or self._rows is not None:
            reason = "some of its queries were kept" if self._rows is not None else f"it was computed in {len(self._pieces)} calls"
            raise ValueError(f"no pooled map of {self._called}, as {reason}; run the model once on the finished text, with all rows")
        _, _, queries, keys = self.shape
        rows, columns = whole("rows", rows, 1, queries), whole("columns", columns, 1, keys)
        return self._observe(batch, cells=(rows, columns), pool=pool)[0][1].pooled[0]

    def _long(self, batch: int) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """All queries and keys `[heads, tokens, dim]` of an entry, and scale, softcap, causal and window.

        Raises ValueError for attention that does not follow from these.
        """
        import torch

        batch, key = self._entry(batch)
        query = torch.cat([p.query[batch] for p in self._pieces], 1)
        if query.shape[1] != key.shape[2]:
            raise ValueError(f"{self._called} has {query.shape[1]} queries and {key.shape[2]} keys: a long trace keeps one text, whole")
        described = []
        for piece in self._pieces:
            options = {name: x for name, x in piece.options.items() if x is not None}
            count, seen = piece.query.shape[2], piece.keys[1] - piece.keys[0]
            causal = options.pop("causal", False) or None
            options.pop("alignment", None)
            left, right = options.pop("window", None) or (None, None)
            if right is not None:
                raise ValueError(f"the attention of {self._called} has a window to both sides, which a long trace does not keep")
            mask, bias = options.pop("mask", None), options.pop("bias", None)
            if bias is not None:
                mask = _as_mask(bias, self._called) if mask is None else mask & _as_mask(bias, self._called)
            if mask is not None:
                of_mask = _as_window(mask, batch, count, seen, self._called)
                if not causal and left is None:
                    causal, left = of_mask
                elif of_mask != (count == 1, None):
                    raise ValueError(f"the attention of {self._called} has a mask beside its order, which a long trace does not keep")
            elif piece.keys[0] > 0 and left is None:
                left = seen - 1
            elif count == 1:
                causal = True  # The last query may see all keys either way.
            if refused := set(options) - {"scale", "softcap"}:
                raise ValueError(f"the attention of {self._called} has {', '.join(sorted(refused))}, which a long trace does not keep")
            described.append((bool(causal), left, options.get("scale"), options.get("softcap")))
        # Windows show only where they hide something.
        windows = {one[1] for one in described} - {None}
        if len({(one[0], *one[2:]) for one in described}) > 1 or len(windows) > 1:
            raise ValueError(f"the calls of {self._called} saw their keys by different rules, which a long trace does not keep")
        causal, _, scale, softcap = described[0]
        return query, key[batch], {"causal": causal, "left": next(iter(windows), None), "scale": scale, "softcap": softcap}


def _filled(options: dict[str, Any], keys: int) -> int:
    """How many keys are there: up to the last one that the last query sees, as a static cache has room for more."""
    shown, bias = options.get("mask"), options.get("bias")
    if shown is None and bias is not None:
        shown = ~_hides(bias[..., -1:, :])
    if shown is None or shown.ndim < 2 or shown.shape[-1] != keys:
        return keys
    seen = shown[..., -1, :].reshape(-1, keys).bool().any(0).nonzero()
    return int(seen[-1]) + 1 if len(seen) else keys


def _was_written(x: Tensor) -> bool:
    """Whether numbers were written into a tensor after it was made, as into the tensors of static caches; True where PyTorch does not count that."""
    return x.is_inference() or x._version > 0


def _row_of(query: Any, seen: tuple[int, int], options: dict[str, Any], first: int, row: int) -> _Piece:
    """One query of a call, with the keys that it may see; copied, so that the others can be forgotten."""
    count, keys = query.shape[2], seen[1] - seen[0]
    options = dict(options)
    own = row + (0 if options.pop("alignment", None) == "upper-left" else keys - count)
    left, right = options.pop("window", None) or (None, None)
    right = 0 if options.pop("causal", False) else right
    end = keys if right is None else min(max(own + 1 + right, 0), keys)
    start = 0 if left is None else min(max(own - left, 0), end)
    for name in ("mask", "bias"):
        x = options.get(name)
        if x is not None:
            x = x[..., row : row + 1, :] if x.shape[-2] > 1 else x
            options[name] = (x[..., start:end] if x.shape[-1] > 1 else x).clone()
    return _Piece(query[:, :, row : row + 1].clone(), (seen[0] + start, seen[0] + end), options, first + row)


def _as_mask(bias: Any, name: str) -> Any:
    """A bias that only hides keys as a mask, True where a key may be seen.

    Raises ValueError for any other.
    """
    hidden = _hides(bias)
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
    axis = {4: 1, 3: 0, 1: 0}.get(getattr(x, "ndim", None))
    if axis is None or x.shape[axis] == 1:
        return x
    import torch

    return x.index_select(axis, torch.tensor(heads, device=x.device))


def _of_entry(x: Any, batch: int) -> Any:
    """The mask or bias of one entry of the batch, in CPU memory."""
    x = x[batch : batch + 1] if x.ndim == 4 and x.shape[0] > 1 else x
    if not x.dtype.is_floating_point:
        return x.cpu().bool()
    return on_cpu(x).masked_fill(_hides(x).cpu(), -np.inf)


def _hides(bias: Any) -> Any:
    """Where a bias hides a key: there models write the lowest number of a type, which may be a narrower one than the bias has."""
    import torch

    return bias <= max(torch.finfo(of).min for of in (bias.dtype, torch.bfloat16)) / 2


def on_cpu(x: Any) -> Any:
    return x.detach().float().cpu()
