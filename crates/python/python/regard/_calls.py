"""What the arguments of a call of attention, a module's name and its tokens say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._layer import Attention


def problem_of(given: dict[str, Any], implementation: str) -> str:
    """Why the weights of a call do not follow from queries, keys and mask; empty if they do."""
    import torch

    mask = given.get("attention_mask")
    if mask is not None and not isinstance(mask, torch.Tensor):
        return f"its mask is a {type(mask).__name__}, no tensor: use attn_implementation='sdpa'"
    if given.get("sinks") is not None:
        return "it has a sink for each query"
    # Implementations that have pages of their own are named so; SDPA is told where they are.
    if implementation.startswith("paged|") or given.get("read_index") is not None or given.get("block_table") is not None:
        return "its keys are in the pages of continuous batching"
    if "flash" in implementation:
        places = given.get("position_ids")
        packed = mask is None and places is not None and places.ndim == 2 and places.shape[0] == 1
        # A text begins at each position that is the least.
        packed = packed and bool((places.diff() < 0).any() | ((places == places.min()).sum() > 1))
        if packed or given.get("cu_seq_lens_q") is not None or given.get("cu_seq_lens_k") is not None:
            return "its texts are packed into one: use attn_implementation='sdpa'"
    return ""


def read_by_cache(arguments: tuple[Any, ...], named: dict[str, Any]) -> int:
    """How many tokens the cache among the arguments of a model has read; 0 where there is none, or it counts none (of recurrent layers alone)."""
    cache = next((x for x in (*arguments, *named.values()) if hasattr(x, "get_seq_length")), None)
    try:
        return 0 if cache is None else int(cache.get_seq_length())
    except ValueError:
        return 0


def masks_of(mask: Any, queries: int, keys: int | None = None, bias: Any = None) -> dict[str, Any]:
    found = {}
    if mask is not None and mask.dtype.is_floating_point:
        bias = mask if bias is None else bias + mask
    elif mask is not None:
        # A mask may have room for keys that are not there yet.
        found["mask"] = mask[..., -queries:, : keys or mask.shape[-1]] if mask.ndim == 4 else mask
    if bias is not None:
        found["bias"] = bias[..., : keys or bias.shape[-1]]
    return found


def numbered(name: str, turn: int) -> str:
    """The entry of a module's nth layer, where it serves several."""
    return name if turn == 1 else f"{name} ({turn})"


def kind_of(name: str, causal: bool, encoder_decoder: bool) -> str:
    parts = name.lower()
    if any(mark in parts for mark in ("cross", "encoder_attn", "encdecattention", "multihead_attn")):
        return "decoder.cross"
    if encoder_decoder:
        return "decoder.self" if "decoder" in parts else "encoder.self"
    return "decoder.self" if causal else "encoder.self"


def sides(added: list[tuple[Attention, Any, Any]]) -> tuple[Any, Any]:
    source = next((keys for one, _, keys in added if one.kind != "decoder.self"), None)
    target = next((queries for one, queries, _ in added if one.kind.startswith("decoder") and (source is not None)), None)
    return (added[0][2] if source is None else source), target


def texts_of(tokenizer: Any, ids: list[int]) -> list[tuple[str, int | None, bool]]:
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
