"""Element types and how NumPy and torch spell them; the one place that looks for torch.

torch is imported on first need, never by ``import laneway``: a worker that fills samples with NumPy does not pay for it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

Framework = Literal["auto", "torch", "numpy"]
"""Which arrays a reader gets: ``"auto"`` is torch where it can be imported, else NumPy."""

NUMBERS: dict[str, int] = {
    "float64": 1,
    "float32": 2,
    "float16": 3,
    "bfloat16": 4,
    "int64": 5,
    "int32": 6,
    "int16": 7,
    "int8": 8,
    "uint8": 9,
    "bool": 10,
}
"""The dtypes of a layout, and their numbers in the C API (``lw_dtype``)."""

# What the bytes look like to NumPy. It has no bfloat16 of its own: bits cross as 16-bit words.
_STORAGE: dict[str, np.dtype[Any]] = {name: np.dtype("uint16" if name == "bfloat16" else name) for name in NUMBERS}


@functools.cache
def torch_or_none() -> Any:
    """The ``torch`` module, or None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    return torch


def require_torch(what: str) -> Any:
    """The ``torch`` module, or an ImportError that says what wanted it."""
    torch = torch_or_none()
    if torch is None:
        raise ImportError(f"{what} needs PyTorch, which is not installed here: pip install torch")
    return torch


@functools.cache
def bfloat16_or_none() -> np.dtype[Any] | None:
    """The ``bfloat16`` of the ``ml_dtypes`` package, or None where that is not installed."""
    try:
        import ml_dtypes  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def storage_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of the bytes; bfloat16 is uint16."""
    return _STORAGE[name]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype that a reader gets; bfloat16 is that of ``ml_dtypes`` where installed, else uint16 (the raw bits)."""
    if name == "bfloat16":
        return bfloat16_or_none() or _STORAGE[name]
    return _STORAGE[name]


def dtype_name(dtype: object) -> str:
    """The name of a dtype given as a string, a NumPy or a torch dtype (``torch.bfloat16`` is ``"bfloat16"``)."""
    if isinstance(dtype, str):
        return dtype.removeprefix("torch.")
    text = str(dtype)
    if text.startswith("torch."):
        return text.removeprefix("torch.")
    try:
        return str(np.dtype(dtype).name)  # type: ignore[call-overload]
    except TypeError:
        return text


def is_tensor(value: object) -> bool:
    """Whether the value is a torch tensor. Does not import torch: if nobody has, there is no tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def use_torch(framework: Framework) -> bool:
    """Whether that choice means torch tensors here."""
    if framework == "numpy":
        return False
    if framework == "torch":
        require_torch('framework="torch"')
        return True
    if framework == "auto":
        return torch_or_none() is not None
    raise ValueError(f'framework is {framework!r}; expected "auto", "torch" or "numpy"')


@functools.cache
def viewer(name: str, as_torch: bool) -> Callable[[np.ndarray], Any]:
    """A function from an array of :func:`storage_dtype` to what the reader gets, sharing its memory."""
    if as_torch:
        torch = require_torch("a torch view")
        from_numpy = torch.from_numpy
        if name == "bfloat16":
            # torch reads int16 on every version, uint16 only on new ones
            return lambda array: from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return from_numpy  # type: ignore[no-any-return]
    if name == "bfloat16" and (bfloat16 := bfloat16_or_none()) is not None:
        return lambda array: array.view(bfloat16)
    return as_it_is


def as_it_is(array: np.ndarray) -> Any:
    """The :func:`viewer` of those that look at the array itself."""
    return array
