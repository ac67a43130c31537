"""Attention, seen: fused CPU kernels, and what models of transformers and PyTorch look at.

>>> import numpy as np, regard
>>> q = k = v = np.random.default_rng(0).standard_normal((1, 2, 5, 8), dtype=np.float32)
>>> regard.attention(q, k, v, causal=True).shape
(1, 2, 5, 8)

``regard.attention`` and ``regard.additive_attention`` take numpy arrays or PyTorch tensors (with gradients) in CPU memory.
``regard.record(model)`` keeps what a PyTorch model attends to while it runs with its own fast attention.
``regard.load(name)`` opens a model that translates, writes on, describes images or is looked at.
"""

from ._attention import Observed, additive_attention, attention, observe
from ._models import Caption, Model, Written, load
from ._plot import plot
from ._recorder import Recorder, record
from ._regard import Trace, __version__
from ._scores import Evaluation, Score, bleu, chrf, evaluate
from ._trace import Viewer, read_traces, serve, write_traces

__all__ = [
    "Caption",
    "Evaluation",
    "Model",
    "Observed",
    "Recorder",
    "Score",
    "Trace",
    "Viewer",
    "Written",
    "__version__",
    "additive_attention",
    "attention",
    "bleu",
    "chrf",
    "evaluate",
    "load",
    "observe",
    "plot",
    "read_traces",
    "record",
    "serve",
    "write_traces",
]
