"""The part of the package that is written in Rust."""

from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

__all__ = [
    "LongFile",
    "Model",
    "Served",
    "Trace",
    "WIDEST_BEAM",
    "__version__",
    "additive_backward",
    "additive_forward",
    "bleu",
    "chrf",
    "dot_backward",
    "dot_forward",
    "dot_observe",
    "dot_pool",
    "open_model",
    "read_traces",
    "serve_traces",
    "traces_page",
    "write_traces",
]

__version__: str
WIDEST_BEAM: int
"""The widest search of translations and captions."""

_Single = NDArray[np.float32]
_Numbers = NDArray[np.float32] | NDArray[np.uint16]
_Along = list[tuple[str, int | None, bool]] | int

def dot_forward(query: _Numbers, key: _Numbers, value: _Numbers, options: dict[str, Any], dtype: str) -> tuple[_Numbers, _Single]: ...
def dot_backward(
    query: _Numbers,
    key: _Numbers,
    value: _Numbers,
    output: _Numbers,
    lse: _Single,
    d_output: _Numbers,
    options: dict[str, Any],
    dtype: str,
    of_bias: bool,
) -> tuple[list[_Single], _Single | None, _Single | None]: ...
def dot_observe(
    query: _Single,
    key: _Single,
    lse: _Single,
    options: dict[str, Any],
    *,
    rows: list[int] | None = None,
    entropy: bool = False,
    column_sums: bool = False,
    top: int | None = None,
) -> dict[str, NDArray[Any]]: ...
def dot_pool(
    query: _Single,
    key: _Single,
    lse: _Single,
    options: dict[str, Any],
    queries: tuple[int, int],
    keys: tuple[int, int],
    cells: tuple[int, int],
    kind: str,
) -> _Single: ...
def additive_forward(arguments: Any) -> tuple[_Single, _Single]: ...
def additive_backward(
    arguments: Any, weights: _Single, d_context: _Single, d_weights: _Single | None
) -> tuple[list[_Single], _Single | None]: ...
def bleu(hypotheses: list[str], references: list[list[str]], lowercase: bool) -> tuple[float, str]: ...
def chrf(hypotheses: list[str], references: list[list[str]], word_order: int, lowercase: bool) -> tuple[float, str]: ...
def open_model(name: str) -> Model: ...
def read_traces(path: str) -> list[Trace]: ...
def write_traces(path: str, all: list[Trace]) -> None: ...
def traces_page(all: list[Trace], title: str) -> str: ...
def serve_traces(all: list[Trace], port: int) -> Served: ...

@final
class Trace:
    """What a model looked at on the way to one output."""

    def __new__(cls, model: str = "", source: str = "", target: str = "") -> Self: ...
    def __len__(self) -> int: ...
    @property
    def model(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def target(self) -> str: ...
    def add(
        self, kind: str, layer: int, queries: _Along, keys: _Along, weights: _Single, *, normalized: bool = True, name: str | None = None
    ) -> None:
        """Adds a map `[heads, queries, keys]`; `kind` is one of encoder.self, decoder.self, decoder.cross, self, attention, and gives the map
        its name if there is none.

        Tokens are `(text, number of its word or None, whether it is special)`, or a number of positions without texts.
        Raises TypeError for an argument of another type, such as weights that are no array of float32, and ValueError for weights of another
        shape, negative ones, and rows that do not sum to 1 (with `normalized`).
        """

    def map(self, index: int) -> dict[str, Any]:
        """`name`, `layer`, `heads`, `queries`, `keys` and `weights [heads, queries, keys]` of a map.

        Raises IndexError for a map that there is not, also for one below 0.
        """

    def report(self) -> list[str]:
        """What stands out, in words, a line each."""

    def svg(self, index: int, head: int | None = None) -> str:
        """One head of a map as SVG, or the mean of all.

        Raises IndexError for a map or a head that there is not, also for one below 0.
        """

    def png(self, index: int, head: int | None = None) -> bytes:
        """As `svg`, as the bytes of a PNG file."""

    def __getstate__(self) -> bytes: ...
    def __setstate__(self, state: bytes) -> None: ...

@final
class Model:
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    def translate(self, texts: list[str], beam: int | None, prefix: str) -> list[str]: ...
    def generate(self, prompt: str, writing: Any) -> tuple[str, str]: ...
    def caption(self, image: str | NDArray[np.uint8], beam: int | None) -> tuple[str, Trace]: ...
    def look(self, text: str, target: str | None) -> Trace: ...

@final
class LongFile:
    """A file that keeps queries and keys of a long text: for each layer its heads, one after the other; it appears when it is finished."""

    def __new__(cls, path: str, model: str, source: str, tokens: _Along, layers: list[Any]) -> Self: ...
    def head(
        self,
        layer: int,
        head: int,
        query: _Single,
        key: _Single,
        *,
        scale: float | None,
        softcap: float | None,
        causal: bool,
        left: int | None,
    ) -> None: ...
    def finish(self) -> None: ...

@final
class Served:
    url: str
    def stop(self) -> None: ...
