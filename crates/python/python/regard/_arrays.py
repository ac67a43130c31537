"""numpy arrays and PyTorch tensors in the form that the kernels read."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

HALVES = ("bfloat16", "float16")

NUMBERS = ("float", "bfloat", "int", "uint")
"""How the names of types of numbers begin."""


def is_tensor(x: Any) -> bool:
    """Whether `x` is a PyTorch tensor; PyTorch is not loaded for that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def type_of(x: Any) -> str:
    """The name of the type of its numbers: of an array and a tensor the same."""
    return str(x.dtype).removeprefix("torch.") if is_tensor(x) else x.dtype.name


def dtype_of(name: str, x: Any) -> str:
    """`float32`, `bfloat16` or `float16`.

    Raises TypeError for any other type.
    """
    dtype = type_of(x)
    if dtype not in ("float32", *HALVES):
        raise TypeError(f"`{name}` is of {dtype}, expected float32, bfloat16 or float16")
    return dtype


def given(name: str, x: Any) -> Any:
    """`x` as an array, or the tensor that it is, in CPU memory and with this machine's order of bytes.

    Raises TypeError for what is no array, and ValueError for a tensor of another device.
    """
    if is_tensor(x):
        import torch

        if x.is_nested:
            raise TypeError(f"`{name}` is a nested tensor, expected a dense one: pass torch.nested.to_padded_tensor({name}, 0.0), and `lengths` or a mask")
        if x.device.type != "cpu":
            raise ValueError(f"`{name}` is on {x.device}; the kernels read CPU memory: pass {name}.cpu()")
        if x.layout is not torch.strided:
            raise TypeError(f"`{name}` is a {x.layout} tensor, expected a dense one: pass {name}.to_dense()")
        x = x.detach()
        return x.resolve_neg() if x.is_neg() else x
    if isinstance(x, np.ndarray):
        pass
    elif hasattr(x, "__dlpack__"):
        try:
            x = np.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"`{name}` cannot be read where it is, in CPU memory: {error}") from error
    elif isinstance(x, (list, tuple, int, float)):
        try:
            x = np.asarray(x)
        except (OverflowError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"`{name}` is no array: {error}") from error
        # Python's numbers have no precision of their own.
        x = x.astype(np.float32) if x.dtype == np.float64 else x
    else:
        raise TypeError(f"`{name}` is a {type(x).__name__}, expected a numpy array or a PyTorch tensor")
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))


def as_numpy(x: Any) -> np.ndarray:
    """The numbers of what `given` gave where they are; half precision as its bits."""
    if is_tensor(x):
        import torch

        return (x.view(torch.uint16) if type_of(x) in HALVES else x).numpy()
    return x.view(np.uint16) if type_of(x) in HALVES else x


def single(x: Any) -> np.ndarray:
    """The numbers of what `given` gave as float32."""
    return x.float().numpy() if is_tensor(x) else x.astype(np.float32, copy=False)


def readable(x: np.ndarray) -> np.ndarray:
    """`x` itself if a kernel can read it where it is, else a copy: the numbers of a row must follow each other."""
    plain = x.flags.aligned and all(stride >= 0 for stride in x.strides)
    if plain and (x.ndim == 0 or x.shape[-1] <= 1 or x.strides[-1] == x.itemsize):
        return x
    return np.ascontiguousarray(x)


def numbers(name: str, x: Any, dtype: str | None = None) -> np.ndarray:
    """Numbers of float32, or of the query's type `dtype`, as a kernel reads them.

    Raises TypeError for another type.
    """
    x = given(name, x)
    found = type_of(x)
    if found != (dtype or "float32"):
        raise TypeError(f"`{name}` is of {found}, expected {f'{dtype} as the query' if dtype else 'float32'}")
    return readable(as_numpy(x))


def of_axes(name: str, x: Any, **sizes: int | None) -> Any:
    """`x` as `given` gives it, with axes of these names and sizes, None being any. The first one may be left out where its size is 1.

    Raises ValueError for another shape: in one list, in which a kernel reads the numbers, two axes of another order would be two of this one.
    """
    x = given(name, x)
    expected = list(sizes.values())
    left_out = len(x.shape) == len(expected) - 1 and expected[0] in (1, None)
    found = [1, *x.shape] if left_out else list(x.shape)
    fits = len(found) == len(expected) and all(size in (None, of) for size, of in zip(expected, found))
    if not fits and 0 not in x.shape:  # An empty list has one axis, and its length is the kernel's to check.
        axes = ", ".join(axis if size is None else f"{axis} = {size}" for axis, size in sizes.items())
        raise ValueError(f"`{name}` has the shape {list(x.shape)}, expected [{axes}]")
    return x


def integers(name: str, x: Any) -> list[int]:
    """Whole numbers of at least 0, in one list."""
    x = given(name, x)
    if 0 in x.shape:
        return []  # An empty list has no type.
    if not type_of(x).startswith(("int", "uint")):
        raise TypeError(f"`{name}` is of {type_of(x)}, expected whole numbers")
    found = as_numpy(x)
    if found.min() < 0 or found.max() >= 2**32:
        raise ValueError(f"`{name}` holds a number outside of 0 to 2^32 - 1")
    return found.reshape(-1).tolist()


def floats(name: str, x: Any) -> np.ndarray:
    """Numbers in one list, copied, as an array of float32."""
    x = given(name, x)
    if not type_of(x).startswith(NUMBERS):
        raise TypeError(f"`{name}` is of {type_of(x)}, expected numbers")
    return np.array(single(x), order="C").reshape(-1)


def drawn(name: str, x: Any) -> np.ndarray:
    """Numbers or booleans of any array, or tensor (in half precision and with gradients, too), as float32.

    Raises TypeError for anything else.
    """
    x = given(name, np.asarray(x) if hasattr(x, "__array__") and not is_tensor(x) else x)
    if not type_of(x).startswith((*NUMBERS, "bool")):
        raise TypeError(f"`{name}` is of {type_of(x)}, expected numbers")
    return single(x)


def four_axes(name: str, x: np.ndarray) -> np.ndarray:
    """`x` as `[batch or 1, heads or 1, queries or 1, keys or 1]`: axes in front that are missing count as 1."""
    if x.ndim > 4:
        raise ValueError(f"`{name}` has the shape {x.shape}, expected at most four axes: [batch, heads, queries, keys]")
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def seen(name: str, x: Any) -> np.ndarray:
    """A mask, True where a key may be seen, as bytes of four axes."""
    x = given(name, x)
    if type_of(x) != "bool":
        raise TypeError(f"`{name}` is of {type_of(x)}, expected booleans, True where a key may be seen; what is added to scores is `bias`")
    return readable(four_axes(name, as_numpy(x)).view(np.uint8))
