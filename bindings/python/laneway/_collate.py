"""From samples of different lengths to one batch: padding, lengths and masks. What ``BatchConfig.collate`` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from . import _dtypes
from ._ragged import name_of

if TYPE_CHECKING:
    from .batch_config import BatchConfig, TensorSpec

_CPU = 1
"""``kDLCPU``."""

PadTo = Literal["longest", "max"] | int | Mapping[str, Literal["longest", "max"] | int]


def collate(config: BatchConfig, samples: Sequence[Mapping[str, Any]], padding: Any, pad_to: PadTo, masks: bool) -> dict[str, Any]:
    """See ``BatchConfig.collate``."""
    if not samples:
        raise ValueError("collate: there are no samples; expected at least one")
    # Where the samples' tensors are, there is the batch.
    device = next((value.device for value in samples[0].values() if _dtypes.is_tensor(value)), None)
    for name, value in samples[0].items():
        if not _dtypes.is_tensor(value) and hasattr(value, "__dlpack_device__") and value.__dlpack_device__()[0] != _CPU:
            raise TypeError(f"collate: '{name}' is {value}, which only its device can copy: use framework=\"torch\", or collate what sample.read() gives")
    lengths = {name: [] for name in config.dims}  # type: dict[str, list[int]]
    for number, sample in enumerate(samples):
        for name, length in _lengths_of(config, sample, number).items():
            lengths[name].append(length)
    sizes = {name: _size(name, found, config.dims[name], pad_to) for name, found in lengths.items()}
    batch = {spec.name: _stack(spec, [s[spec.name] for s in samples], sizes, _padding(config, padding, spec.name), device) for spec in config.specs}
    for extra in samples[0]:
        if extra not in batch:  # tags of the dataset
            batch[extra] = _as(np.asarray([sample[extra] for sample in samples]), device)
    for name, found in lengths.items():
        count = np.asarray(found, np.int64)
        batch[f"{name}_lengths"] = _as(count, device)
        if masks:
            batch[f"{name}_mask"] = _as(np.arange(sizes[name]) < count[:, None], device)
    return batch


def _lengths_of(config: BatchConfig, sample: Mapping[str, Any], number: int) -> dict[str, int]:
    lengths: dict[str, int] = {}
    for spec in config.specs:
        if spec.name not in sample:
            raise ValueError(f"collate: sample {number} has no tensor '{spec.name}'")
        shape = tuple(sample[spec.name].shape)
        if not spec.admits(shape):
            raise ValueError(f"collate: '{spec.name}' of sample {number} has shape {shape}; expected {spec.shape}")
        for size, length in zip(spec.shape, shape, strict=True):
            name = name_of(size)
            if name is not None and lengths.setdefault(name, length) != length:
                raise ValueError(f"collate: sample {number} has two lengths of dimension '{name}': {lengths[name]} and {length}")
    return lengths


def _size(name: str, found: list[int], most: int, pad_to: PadTo) -> int:
    wish = pad_to.get(name, "longest") if isinstance(pad_to, Mapping) else pad_to
    if wish == "longest":
        return max(found)
    if wish == "max":
        return most
    if isinstance(wish, int) and not isinstance(wish, bool) and wish >= 1:
        return -(-max(found) // wish) * wish
    raise ValueError(f"collate: pad_to is {pad_to!r}; expected 'longest', 'max', a number that sizes are to be a multiple of, or one of them for each dimension")


def _padding(config: BatchConfig, padding: Any, name: str) -> Any:
    if not isinstance(padding, Mapping):
        return padding
    for known in padding:
        config.get_spec(known)  # a KeyError that says which there are
    return padding.get(name, 0)


def _stack(spec: TensorSpec, values: list[Any], sizes: Mapping[str, int], padding: Any, device: Any) -> Any:
    shape = tuple(size if isinstance(size, int) else sizes[str(name_of(size))] for size in spec.shape)
    if device is not None:
        torch = _dtypes.require_torch("collate")
        shape = (len(values), *shape)
        if spec.is_ragged:
            batch = torch.full(shape, padding, dtype=spec.torch_dtype, device=device)
        else:
            batch = torch.empty(shape, dtype=spec.torch_dtype, device=device)
    else:
        batch = np.full((len(values), *shape), padding, spec.numpy_dtype) if spec.is_ragged else np.empty((len(values), *shape), spec.numpy_dtype)
    for row, value in enumerate(values):
        batch[(row, *(slice(0, n) for n in value.shape))] = value
    return batch


def _as(array: np.ndarray, device: Any) -> Any:
    return array if device is None else _dtypes.require_torch("collate").from_numpy(array).to(device)
