"""The part of the package that is written in Rust."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__version__: str

Single = NDArray[np.float32]
Numbers = NDArray[np.float32] | NDArray[np.uint16]
Along = list[tuple[str, int | None, bool]] | int

def dot_forward(query: Numbers, key: Numbers, value: Numbers, options: dict[str, Any], dtype: str) -> tuple[Numbers, Single]: ...
def dot_backward(
    query: Numbers,
    key: Numbers,
    value: Numbers,
    output: Numbers,
    lse: Single,
    d_output: Numbers,
    options: dict[str, Any],
    dtype: str,
    of_bias: bool,
) -> tuple[list[Single], Single | None, Single | None]: ...
def dot_observe(
    query: Single,
    key: Single,
    lse: Single,
    options: dict[str, Any],
    *,
    rows: list[int] | None = None,
    entropy: bool = False,
    column_sums: bool = False,
    top: int | None = None,
) -> dict[str, NDArray[Any]]: ...
def dot_pool(
    query: Single,
    key: Single,
    lse: Single,
    options: dict[str, Any],
    queries: tuple[int, int],
    keys: tuple[int, int],
    cells: tuple[int, int],
    kind: str,
) -> Single: ...
def additive_forward(arguments: Any) -> tuple[Single, Single]: ...
def additive_backward(
    arguments: Any, weights: Single, d_context: Single, d_weights: Single | None
) -> tuple[list[Single], Single | None]: ...
def bleu(hypotheses: list[str], references: list[list[str]], lowercase: bool) -> tuple[float, str]: ...
def chrf(hypotheses: list[str], references: list[list[str]], word_order: int, lowercase: bool) -> tuple[float, str]: ...
def open_model(name: str) -> Model: ...
def read_traces(path: str) -> list[Trace]: ...
def write_traces(path: str, all: list[Trace]) -> None: ...
def traces_page(all: list[Trace], title: str) -> str: ...
def serve_traces(all: list[Trace], port: int) -> Served: ...

class Trace:
    """What a model looked at on the way to one output."""

    def __init__(self, model: str = "", source: str = "", target: str = "") -> None: ...
    def __len__(self) -> int: ...
    @property
    def model(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def target(self) -> str: ...
    def add(
        self, kind: str, layer: int, queries: Along, keys: Along, weights: Single, *, normalized: bool = True, name: str | None = None
    ) -> None:
        """Adds a map `[heads, queries, keys]`; `kind` is one of encoder.self, decoder.self, decoder.cross, self, attention, and gives the map
        its name if there is none.

        Tokens are `(text, number of its word or None, whether it is special)`, or a number of positions without texts.
        Raises TypeError for an argument of another type, such as weights that are no array of float32, and ValueError for weights of another
        shape, negative ones, and rows that do not sum to 1 (with `normalized`).
        """

    def map(self, index: int) -> dict[str, Any]:
        """`name`, `layer`, `heads`, `queries`, `keys` and `weights [heads, queries, keys]` of a map."""

    def report(self) -> list[str]:
        """What stands out, in words, a line each."""

    def svg(self, index: int, head: int | None = None) -> str:
        """One head of a map as SVG, or the mean of all."""

    def png(self, index: int, head: int | None = None) -> bytes:
        """As `svg`, as the bytes of a PNG file."""

    def __getstate__(self) -> bytes: ...
    def __setstate__(self, state: bytes) -> None: ...

class Model:
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    def translate(self, texts: list[str], beam: int | None, prefix: str) -> list[str]: ...
    def generate(self, prompt: str, writing: Any) -> tuple[str, str]: ...
    def caption(self, image: str | NDArray[np.uint8], beam: int | None) -> tuple[str, Trace]: ...
    def look(self, text: str, target: str | None) -> Trace: ...

class LongFile:
    """A file that keeps queries and keys of a long text: for each layer its heads, one after the other; it appears when it is finished."""

    def __init__(self, path: str, model: str, source: str, tokens: Along, layers: list[Any]) -> None: ...
    def head(
        self,
        layer: int,
        head: int,
        query: Single,
        key: Single,
        *,
        scale: float | None,
        softcap: float | None,
        causal: bool,
        left: int | None,
    ) -> None: ...
    def finish(self) -> None: ...

class Served:
    url: str
    def stop(self) -> None: ...
