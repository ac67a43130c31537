"""Maps on axes of matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._arrays import drawn
from ._given import list_of_texts


def plot(weights: Any, queries: Sequence[str] | None = None, keys: Sequence[str] | None = None, *, ax: Any = None, **imshow: Any) -> Any:
    """Draws a map `[queries, keys]`, or the mean of `[heads, queries, keys]`, with its tokens, and returns the axes.

    Parameters
    ----------
    weights: a map, such as `seen.weights(0, head=1)` or `trace.map(0)["weights"]`; an array, or a tensor of any precision, with gradients or without
    queries, keys: the tokens' texts; up to 60 of them are written
    ax: the axes; those of pyplot if left out
    imshow: further arguments of `ax.imshow`, such as `cmap`

    Raises
    ------
    TypeError: weights that are no numbers; queries or keys that are no lists of texts
    ValueError: weights of another number of axes, or on another device; texts of another number than there are queries or keys
    """
    if ax is None:
        from matplotlib import pyplot

        ax = pyplot.gca()
    weights = drawn("weights", weights)
    if weights.ndim == 3:
        weights = weights.mean(0)
    if weights.ndim != 2:
        raise ValueError(f"`weights` has the shape {weights.shape}, expected [queries, keys] or [heads, queries, keys]")
    ax.imshow(weights, **{"cmap": "Blues", "vmin": 0, "vmax": max(weights.max(initial=0), 1e-9), "aspect": "equal", **imshow})
    for name, texts, count, axis in (("queries", queries, weights.shape[0], ax.yaxis), ("keys", keys, weights.shape[1], ax.xaxis)):
        if texts is None:
            continue
        texts = list_of_texts(name, texts)
        if len(texts) != count:
            raise ValueError(f"`{name}` has {len(texts)} texts, expected {count}")
        if count <= 60:
            # A dollar sign would begin a formula.
            axis.set_ticks(range(count), [text.strip().replace("$", r"\$") for text in texts])
    ax.xaxis.tick_top()
    ax.tick_params(axis="x", labelrotation=60)
    return ax
