"""Attention, seen: fused CPU kernels, and what any transformers model looks at.

>>> import numpy as np, regard
>>> q = k = v = np.random.default_rng(0).standard_normal((1, 2, 5, 8), dtype=np.float32)
>>> regard.attention(q, k, v, causal=True).shape
(1, 2, 5, 8)

``regard.attention`` and ``regard.additive_attention`` take numpy arrays or PyTorch tensors (with gradients) in CPU memory.
``regard.record(model)`` keeps what a PyTorch model attends to while it runs with its own fast attention.
"""

from ._attention import Observed, additive_attention, attention, observe
from ._plot import plot
from ._recorder import Recorder, record
from ._regard import Trace, __version__
from ._scores import Score, bleu, chrf
from ._trace import Viewer, load, save, serve

__all__ = [
    "Observed",
    "Recorder",
    "Score",
    "Trace",
    "Viewer",
    "__version__",
    "additive_attention",
    "attention",
    "bleu",
    "chrf",
    "load",
    "observe",
    "plot",
    "record",
    "save",
    "serve",
]
