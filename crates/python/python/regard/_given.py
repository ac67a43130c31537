"""Arguments of Python's own types: each is checked here and by its name, before what is written in Rust reads it."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


def or_none(read: Callable[[str, Any], T], name: str, x: Any) -> T | None:
    """What `read` makes of an argument that may be left out."""
    return None if x is None else read(name, x)


def flag(name: str, x: Any) -> bool:
    """True or False.

    Raises TypeError for anything else.
    """
    if not isinstance(x, (bool, np.bool_)):
        raise TypeError(f"`{name}` is {x!r}, expected True or False")
    return bool(x)


def one_of(name: str, x: Any, choices: Sequence[str]) -> str:
    """One of some words.

    Raises TypeError for what is no text, and ValueError for another word.
    """
    if text_of(name, x) not in choices:
        raise ValueError(f"`{name}` is {x!r}, expected one of {', '.join(choices)}")
    return x


def integer(name: str, x: Any) -> int:
    """One whole number.

    Raises TypeError for anything else.
    """
    try:
        number = None if isinstance(x, bool) else operator.index(x)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"`{name}` is a {type(x).__name__}, expected a whole number")
    return number


def whole(name: str, x: Any, least: int = 0, most: int = 2**32 - 1) -> int:
    """One whole number.

    Raises TypeError for anything else, and ValueError for one outside of `least` to `most`.
    """
    number = integer(name, x)
    if not least <= number <= most:
        raise ValueError(f"`{name}` is {number}, expected {least} to {most}")
    return number


def place(name: str, x: Any, count: int, there: str) -> int:
    """Which of `count` things, counted from 0; `there` says what there is.

    Raises TypeError for what is no whole number, and IndexError for one below 0 or above the last.
    """
    number = integer(name, x)
    if not 0 <= number < count:
        raise IndexError(f"`{name}` is {number}, and {there}, counted from 0")
    return number


def number(name: str, x: Any) -> float:
    """One number.

    Raises TypeError for anything else.
    """
    try:
        return float(None if isinstance(x, (str, bytes, bytearray)) else x)
    except (OverflowError, RuntimeError, TypeError, ValueError):
        raise TypeError(f"`{name}` is a {type(x).__name__}, expected a number") from None


def wholes(name: str, x: Any) -> list[int]:
    """A list of whole numbers.

    Raises TypeError for anything else.
    """
    if not isinstance(x, Iterable) or isinstance(x, (str, bytes)):
        raise TypeError(f"`{name}` is {x!r}, expected a list of whole numbers, such as [{x}]")
    try:
        return [operator.index(number) for number in x]
    except TypeError:
        raise TypeError(f"`{name}` is {x!r}, expected a list of whole numbers") from None


def text_of(name: str, x: Any) -> str:
    """A text.

    Raises TypeError for anything else, and ValueError for one that UTF-8 cannot hold.
    """
    if not isinstance(x, str):
        raise TypeError(f"`{name}` is a {type(x).__name__}, expected a text")
    try:
        x.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"`{name}` has half of a surrogate pair, {x[error.start]!r} at position {error.start}: expected a text that UTF-8 can hold") from None
    return x


def list_of_texts(name: str, texts: Any) -> list[str]:
    """A list of texts; a text alone would be taken for its letters."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise TypeError(f"`{name}` is {'one text' if isinstance(texts, str) else f'a {type(texts).__name__}'}, expected a list of texts")
    return [text_of(f"{name}[{at}]", text) for at, text in enumerate(texts)]


def path_of(name: str, x: Any) -> str:
    """The path of a file or folder, as a text.

    Raises TypeError for anything else, and ValueError for one that no file can have.
    """
    path = os.fspath(x) if isinstance(x, (str, os.PathLike)) else None
    if not isinstance(path, str):
        raise TypeError(f"`{name}` is a {type(x).__name__}, expected a text or a pathlib.Path")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ValueError(f"`{name}` is {path!r}, which no file can be called") from None
    return path
