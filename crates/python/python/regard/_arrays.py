"""numpy arrays and PyTorch tensors in the form that the kernels read."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

HALVES = ("bfloat16", "float16")


def is_tensor(x: Any) -> bool:
    """Whether `x` is a PyTorch tensor; PyTorch is not loaded for that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def dtype_of(name: str, x: Any) -> str:
    """`float32`, `bfloat16` or `float16`.

    Raises TypeError for any other type.
    """
    dtype = str(x.dtype).removeprefix("torch.")
    if dtype not in ("float32", *HALVES):
        raise TypeError(f"`{name}` is of {dtype}, expected float32, bfloat16 or float16")
    return dtype


def as_numpy(name: str, x: Any) -> np.ndarray:
    """The numbers of `x` where they are; half precision as its bits.

    Raises TypeError for what is no array, and ValueError for a tensor of another device.
    """
    if is_tensor(x):
        import torch

        if x.device.type != "cpu":
            raise ValueError(f"`{name}` is on {x.device}; the kernels read CPU memory: pass {name}.cpu()")
        if x.layout is not torch.strided:
            raise TypeError(f"`{name}` is a {x.layout} tensor, expected a dense one: pass {name}.to_dense()")
        x = x.detach()
        x = x.resolve_neg() if x.is_neg() else x
        return x.view(torch.uint16).numpy() if dtype_is_half(x) else x.numpy()
    if isinstance(x, np.ndarray):
        pass
    elif hasattr(x, "__dlpack__"):
        try:
            x = np.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"`{name}` cannot be read where it is, in CPU memory: {error}") from error
    elif isinstance(x, (list, tuple, int, float)):
        x = np.asarray(x)
    else:
        raise TypeError(f"`{name}` is a {type(x).__name__}, expected a numpy array or a PyTorch tensor")
    return x.view(np.uint16) if dtype_is_half(x) else x


def dtype_is_half(x: Any) -> bool:
    return str(x.dtype).removeprefix("torch.") in HALVES


def readable(x: np.ndarray) -> np.ndarray:
    """`x` itself if a kernel can read it where it is, else a copy: the numbers of a row must follow each other."""
    plain = x.flags.aligned and x.dtype.isnative and all(stride >= 0 for stride in x.strides)
    if plain and (x.ndim == 0 or x.shape[-1] <= 1 or x.strides[-1] == x.itemsize):
        return x
    return np.ascontiguousarray(x, dtype=x.dtype.newbyteorder("="))


def numbers(name: str, x: Any, dtype: str = "float32") -> np.ndarray:
    """Queries, keys or values of the type `dtype`, as a kernel reads them.

    Raises TypeError for another type.
    """
    if not is_tensor(x) and not isinstance(x, np.ndarray):
        x = as_numpy(name, x)
    found = dtype_of(name, x)
    if found != dtype:
        raise TypeError(f"`{name}` is of {found}, expected {dtype} as the query")
    return readable(as_numpy(name, x))


def integers(name: str, x: Any) -> list[int]:
    """Whole numbers of at least 0, in one list."""
    found = as_numpy(name, x)
    if found.dtype.kind not in "iu":
        raise TypeError(f"`{name}` is of {found.dtype}, expected whole numbers")
    if found.size and (found.min() < 0 or found.max() >= 2**32):
        raise ValueError(f"`{name}` holds a number outside of 0 to 2^32 - 1")
    return found.reshape(-1).tolist()


def floats(name: str, x: Any) -> list[float]:
    """Numbers in one list."""
    found = as_numpy(name, x)
    if found.dtype.kind not in "fiu":
        raise TypeError(f"`{name}` is of {found.dtype}, expected numbers")
    return found.astype(np.float32).reshape(-1).tolist()


def four_axes(name: str, x: np.ndarray) -> np.ndarray:
    """`x` as `[batch or 1, heads or 1, queries or 1, keys or 1]`: axes in front that are missing count as 1."""
    if x.ndim > 4:
        raise ValueError(f"`{name}` has the shape {x.shape}, expected at most four axes: [batch, heads, queries, keys]")
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def seen(name: str, x: Any) -> np.ndarray:
    """A mask, True where a key may be seen, as bytes of four axes."""
    found = as_numpy(name, x)
    if found.dtype != np.bool_:
        raise TypeError(f"`{name}` is of {found.dtype}, expected booleans, True where a key may be seen; what is added to scores is `bias`")
    return readable(four_axes(name, found).view(np.uint8))
