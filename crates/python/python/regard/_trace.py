"""Traces on disk and in a browser."""

from __future__ import annotations

import html
import os
import webbrowser
from collections.abc import Iterable

from . import _regard
from ._given import path_of, whole
from ._regard import Trace


def read_traces(path: str | os.PathLike[str]) -> list[Trace]:
    """The traces of a file, such as `regard translate --trace` writes.

    Raises ValueError for a file that is none.
    """
    return _regard.read_traces(path_of("path", path))


def write_traces(path: str | os.PathLike[str], traces: Trace | Iterable[Trace]) -> None:
    """Writes traces to a file, which `regard view`, `regard serve` and `read_traces` open. It appears whole or not at all."""
    _regard.write_traces(path_of("path", path), _list(traces))


class Viewer:
    """The viewer, running on a thread of this process until `stop()`, or the end of a `with` block. In a notebook it shows itself."""

    def __init__(self, traces: list[Trace], port: int) -> None:
        self._traces = traces
        self._served = _regard.serve_traces(traces, whole("port", port, most=2**16 - 1))

    @property
    def url(self) -> str:
        """The address of the page; only this machine can open it."""
        return self._served.url

    def stop(self) -> None:
        """Ends it."""
        self._served.stop()

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _repr_html_(self) -> str:
        # A page of its own: the one that is served refuses to be in a frame.
        return frame(_regard.traces_page(self._traces, "regard"), 760)

    def __repr__(self) -> str:
        return f"<regard.Viewer at {self.url}>"


def serve(traces: Trace | Iterable[Trace], *, port: int = 0, open_browser: bool = False) -> Viewer:
    """Opens the viewer with these traces, at an address that only this machine reaches; port 0 is any free one.

    Raises ValueError for a port that is none or is taken.
    """
    viewer = Viewer(_list(traces), port)
    if open_browser:
        webbrowser.open(viewer.url)
    return viewer


def _list(traces: Trace | Iterable[Trace]) -> list[Trace]:
    if isinstance(traces, Trace):
        return [traces]
    if not isinstance(traces, Iterable):
        raise TypeError(f"`traces` is a {type(traces).__name__}, expected a trace or a list of traces")
    found = list(traces)
    for at, one in enumerate(found):
        if not isinstance(one, Trace):
            raise TypeError(f"`traces[{at}]` is a {type(one).__name__}, expected a trace")
    return found


def frame(page: str, height: int) -> str:
    """A page in a notebook, which keeps it apart from the others."""
    return f'<iframe srcdoc="{html.escape(page)}" style="width:100%;height:{height}px;border:0" sandbox="allow-scripts allow-downloads"></iframe>'
