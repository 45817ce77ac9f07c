"""What one sample holds: named tensors of known shape and dtype, and where each lies in the sample's bytes.

>>> config = BatchConfig([TensorSpec("x", (3, 224, 224), "float32"), TensorSpec("y", (1000,), "float32")])
>>> config.nbytes()
606112

A dimension may have its own length in every sample, up to a maximum: it is *ragged*, and written as a name and that maximum.

>>> top = BatchConfig([TensorSpec("ids", ["seq<=2048"], "int32", min=0, max=50256), TensorSpec("logits", ["seq<=2048", 64], "float16", finite=True)])
>>> top.dims
{'seq': 2048}

Every tensor starts at a multiple of 64 bytes; the tail is not padded. The C library lays samples out in the same way, and
a student and a worker whose layouts differ are never introduced to each other.
"""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np

from . import _dtypes
from ._collate import PadTo, collate
from ._dtypes import Framework
from ._ragged import Shapes, Size, canonical, most_of

TENSOR_ALIGN = 64
"""Each tensor of a sample starts at a multiple of this many bytes."""

MAX_DIMENSIONS = 32
"""Most dimensions that a tensor may have."""

_MAX_BYTES = 2**63 - 1
_PADDING = bytes(TENSOR_ALIGN)


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a sample.

    Args:
        name: unique within its :class:`BatchConfig`, not empty.
        shape: sizes of the dimensions, outermost first; ``()`` is a scalar, a size may be 0. A size may be a name and a maximum,
            ``"seq<=2048"``: each sample has its own length then, the same in all tensors that have a dimension of that name.
        dtype: ``float64``, ``float32``, ``float16``, ``bfloat16``, ``int64``, ``int32``, ``int16``, ``int8``, ``uint8`` or
            ``bool``; a torch or NumPy dtype of one of these is taken by its name.
        finite: every value must be finite (float types). A worker's sample that holds another one fails its task, with tensor, index and value.
        min, max: the least and the greatest value allowed (integer types); for token ids 0 and the vocabulary less one.

    Raises:
        ValueError: an unknown dtype (with the nearest known one), a negative size, too many dimensions, a size overflow, a limit
            that the dtype cannot have.
        TypeError: a name or a size of the wrong type.
    """

    name: str
    shape: tuple[Size, ...]
    dtype: str
    finite: bool = False
    min: int | None = None
    max: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"tensor name {self.name!r} is a {type(self.name).__name__}; expected a str")
        if not self.name or "\0" in self.name:
            raise ValueError(f"tensor name {self.name!r} must not be empty or hold a NUL character")
        shape = _shape(self.name, self.shape)
        dtype = _dtypes.dtype_name(self.dtype)
        if dtype not in _dtypes.NUMBERS:
            raise ValueError(f"tensor '{self.name}': unknown dtype {self.dtype!r}{_suggest(dtype, _dtypes.NUMBERS)}")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", dtype)
        self._check_limits()
        if self.nbytes > _MAX_BYTES:
            raise ValueError(f"tensor '{self.name}': shape {shape} of {dtype} takes more than 2**63 - 1 bytes")

    def _check_limits(self) -> None:
        if not isinstance(self.finite, bool):
            raise TypeError(f"tensor '{self.name}': finite is {self.finite!r}; expected True or False")
        if self.finite and "float" not in self.dtype:
            raise ValueError(f"tensor '{self.name}': finite is for float types, and its dtype is {self.dtype}")
        for limit in (self.min, self.max):
            if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
                raise TypeError(f"tensor '{self.name}': min and max must be ints; got {limit!r}")
        if self.min is None and self.max is None:
            return
        if "int" not in self.dtype:
            raise ValueError(f"tensor '{self.name}': min and max are for integer types, and its dtype is {self.dtype}")
        info = np.iinfo(self.dtype)
        least, most = int(info.min) if self.min is None else self.min, int(info.max) if self.max is None else self.max
        if not info.min <= least <= most <= info.max:
            raise ValueError(f"tensor '{self.name}': min {least} to max {most} is no range of {self.dtype}, {info.min} to {info.max}")

    @property
    def is_ragged(self) -> bool:
        """Whether a dimension has its own length in every sample."""
        return any(isinstance(size, str) for size in self.shape)

    @property
    def max_shape(self) -> tuple[int, ...]:
        """The shape with each ragged dimension at its maximum."""
        return tuple(map(most_of, self.shape))

    def admits(self, shape: Sequence[int]) -> bool:
        """Whether the tensor may have that shape in a sample."""
        if len(shape) != len(self.shape):
            return False
        return all(n <= most_of(size) if isinstance(size, str) else n == size for n, size in zip(shape, self.shape, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's place; a ragged one uses less of it in samples in which it is shorter."""
        return math.prod(self.max_shape) * _dtypes.storage_dtype(self.dtype).itemsize

    @property
    def torch_dtype(self) -> Any:
        """The ``torch.dtype``; an ImportError where torch is not installed."""
        return getattr(_dtypes.require_torch("TensorSpec.torch_dtype"), self.dtype)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The NumPy dtype; bfloat16 is that of ``ml_dtypes`` where installed, else uint16 (the raw bits)."""
        return _dtypes.numpy_dtype(self.dtype)

    def to_dict(self) -> dict[str, Any]:
        """``{"name", "shape", "dtype"}`` and the limits that are set, as :meth:`BatchConfig.from_dict` reads it."""
        limits = {"finite": self.finite or None, "min": self.min, "max": self.max}
        return {"name": self.name, "shape": list(self.shape), "dtype": self.dtype, **{k: v for k, v in limits.items() if v is not None}}


class BatchConfig:
    """The layout of one sample, and how tensors become its bytes and come back.

    Immutable, hashable, picklable; may be used from several threads. Works as a Hydra ``_target_``.

    Args:
        specs: :class:`TensorSpec` objects, ``{"name", "shape", "dtype"}`` mappings, which may have ``finite``, ``min`` and ``max``, or
            OmegaConf nodes of such.

    Raises:
        ValueError: no tensor, a repeated name, an unknown or missing field, or whatever :class:`TensorSpec` refuses.
    """

    def __init__(self, specs: Iterable[TensorSpec | Mapping[str, Any]]) -> None:
        if isinstance(specs, (str, bytes, Mapping)) or not isinstance(specs, Iterable):
            raise TypeError(f"specs is a {type(specs).__name__}; expected a list of TensorSpec or of name/shape/dtype mappings")
        self._specs = tuple(_spec(i, spec) for i, spec in enumerate(specs))
        if not self._specs:
            raise ValueError("a BatchConfig needs at least one tensor")
        self._index: dict[str, int] = {}
        offsets = []
        end = 0
        for i, spec in enumerate(self._specs):
            if spec.name in self._index:
                raise ValueError(f"tensor '{spec.name}' appears twice in the BatchConfig")
            self._index[spec.name] = i
            start = -(-end // TENSOR_ALIGN) * TENSOR_ALIGN
            offsets.append(start)
            end = start + spec.nbytes
        if end > _MAX_BYTES:
            raise ValueError("the sample takes more than 2**63 - 1 bytes")
        self._offsets = tuple(offsets)
        self._shapes = Shapes(self._specs, end, TENSOR_ALIGN)
        self._nbytes = self._shapes.end

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> BatchConfig:
        """From ``{"specs": [{"name", "shape", "dtype"}, …]}``; a Hydra ``_target_`` beside ``specs`` is ignored.

        Raises:
            ValueError: a field that is missing or not known, with the nearest known one.
        """
        if not isinstance(config, Mapping):
            raise TypeError(f"config is a {type(config).__name__}; expected a mapping with the key 'specs'")
        _check_fields("BatchConfig", config, required=("specs",), allowed=("specs", "_target_"))
        return cls(config["specs"])

    @classmethod
    def from_yaml(cls, path: str | PathLike[str]) -> BatchConfig:
        """From a YAML file that holds what :meth:`from_dict` reads, at its top or under the key ``batch_config``.

        Raises:
            ImportError: PyYAML is not installed.
            ValueError: not YAML, or not what was expected; names the file.
        """
        try:
            import yaml  # type: ignore[import-untyped,unused-ignore]
        except ImportError as error:
            raise ImportError("BatchConfig.from_yaml needs PyYAML: pip install pyyaml") from error
        with open(path, encoding="utf-8") as file:
            try:
                config = yaml.safe_load(file)
            except yaml.YAMLError as error:
                raise ValueError(f"{path}: not valid YAML: {error}") from error
        if isinstance(config, Mapping) and "specs" not in config and isinstance(config.get("batch_config"), Mapping):
            config = config["batch_config"]
        try:
            return cls.from_dict(config)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """The form that :meth:`from_dict` reads; also the C API's JSON form."""
        return {"specs": [spec.to_dict() for spec in self._specs]}

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The tensors, in order."""
        return self._specs

    @property
    def offsets(self) -> tuple[int, ...]:
        """The byte at which each tensor starts."""
        return self._offsets

    @property
    def dims(self) -> dict[str, int]:
        """The ragged dimensions, with their greatest lengths; empty where every sample has the same shapes."""
        return dict(self._shapes.maxima)

    @property
    def tensor_names(self) -> list[str]:
        """The names, in order."""
        return [spec.name for spec in self._specs]

    def get_spec(self, name: str) -> TensorSpec:
        """The tensor of that name, or a KeyError that lists those there are."""
        return self._specs[self._find(name)]

    def nbytes(self) -> int:
        """Bytes of one sample."""
        return self._nbytes

    def encode(self, **tensors: Any) -> bytes:
        """The sample's bytes, copied once.

        Args:
            tensors: each tensor by its name: a torch tensor (any device) or a NumPy array of exactly the shape and dtype of its
                spec, where a ragged dimension may have any length up to its maximum. For bfloat16, NumPy arrays are those of ``ml_dtypes`` or uint16 (the raw bits).

        Raises:
            ValueError: a name that is missing or unknown, a shape or dtype that differs: says which and what was expected.
            TypeError: a value that is neither.
        """
        self._check_names(tensors)
        pieces: list[Any] = []
        end = 0
        lengths: dict[str, int] = {}
        for i, (spec, offset) in enumerate(zip(self._specs, self._offsets, strict=True)):
            if offset > end:
                pieces.append(_padding(offset - end))
            array = _storage(spec, tensors[spec.name])
            self._shapes.learn(i, spec.name, array.shape, lengths)
            pieces.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
            end = offset + array.nbytes
        if self._shapes.count:
            tail = bytearray(self._nbytes - end)
            table = memoryview(tail)[self._shapes.start - end :]
            self._shapes.write(table, lengths)
            pieces.append(tail)
        return b"".join(pieces)

    def decode(self, data: Any, framework: Framework = "auto") -> dict[str, Any]:
        """The tensors of a sample, by name, each in its true shape.

        A writable buffer (``bytearray``, a slot) is viewed: the tensors share its memory and keep it alive. Read-only data
        (``bytes``) is viewed by NumPy (read-only arrays) and copied once for torch, which knows no read-only tensors.

        Args:
            data: exactly :meth:`nbytes` bytes.
            framework: ``"torch"``, ``"numpy"``, or ``"auto"``: torch where it can be imported.

        Raises:
            ValueError: the wrong number of bytes, with both numbers; lengths that are not set or beyond their maximum.
        """
        as_torch = _dtypes.use_torch(framework)
        buffer = self._buffer(data, as_torch)
        lengths = self._lengths(buffer)
        return {spec.name: _dtypes.viewer(spec.dtype, as_torch)(self._array(buffer, i, lengths)) for i, spec in enumerate(self._specs)}

    def decode_single(self, data: Any, name: str, framework: Framework = "auto") -> Any:
        """The tensor of that name, as :meth:`decode` gives it; nothing else is touched."""
        index = self._find(name)
        as_torch = _dtypes.use_torch(framework)
        spec, start = self._specs[index], self._offsets[index]
        buffer = self._buffer(data, False)
        shape = self._shapes.shape(index, spec.shape, self._lengths(buffer))
        piece = memoryview(buffer).cast("B")[start : start + spec.nbytes]
        if as_torch and piece.readonly:
            piece = memoryview(bytearray(piece))
        array = np.ndarray(shape, _dtypes.storage_dtype(spec.dtype), piece)
        return _dtypes.viewer(spec.dtype, as_torch)(array)

    def lengths(self, data: Any) -> dict[str, int]:
        """The lengths of the ragged dimensions in a sample, by name.

        Raises:
            ValueError: as :meth:`decode`.
        """
        return self._lengths(self._buffer(data, False))

    def collate(
        self, samples: Sequence[Mapping[str, Any]], *, padding: Any = 0, pad_to: PadTo = "longest", masks: bool = True
    ) -> dict[str, Any]:
        """One batch from samples as :meth:`decode` gives them: a ``collate_fn`` for samples of different lengths.

        Each tensor is stacked along a new first dimension. Ragged dimensions are padded behind, and for each, ``seq`` say, the batch also has
        ``seq_lengths``, int64 of shape (samples,), and ``seq_mask``, bool of shape (samples, padded length), True where there is data. Whatever else the
        samples hold, tags for example, is stacked as it is.

        The default padding is finite: a softmax over padded logits is no NaN, and a loss that is multiplied by the mask has zero gradients there.

        Args:
            samples: at least one; torch tensors or NumPy arrays.
            padding: the value of padded elements, or one for each tensor by its name (0 for those not named).
            pad_to: ``"longest"``: the longest sample of the batch; ``"max"``: the maximum, so that all batches have one shape, as
                ``torch.compile`` likes it; a number: the longest, rounded up to its multiple; or one of these for each dimension by its name.
            masks: whether ``…_mask`` is wanted.

        Raises:
            ValueError: no samples, a missing tensor, a shape that does not fit, with the sample's number.
        """
        return collate(self, samples, padding, pad_to, masks)

    def set_lengths(self, buffer: Any, lengths: Mapping[str, int]) -> None:
        """Writes lengths of ragged dimensions into a sample that is being made. What :meth:`laneway.Task.set_length` does."""
        self._shapes.set(buffer, lengths)

    def check_lengths(self, lengths: Mapping[str, int]) -> None:
        """A ValueError that says which of these lengths of ragged dimensions cannot be a sample's."""
        self._shapes.check(lengths)

    def lengths_with(self, lengths: Mapping[str, int], name: str, shape: tuple[int, ...]) -> dict[str, int]:
        """The lengths of a sample that is being made, once a tensor of that shape is in it, too; a ValueError if it does not fit, or another tensor has set one otherwise."""
        index = self._find(name)
        if not self._specs[index].admits(shape):
            raise ValueError(f"'{name}' has shape {shape}; expected {self._specs[index].shape}")
        known = dict(lengths)
        self._shapes.learn(index, name, shape, known)
        return known

    def place(self, buffer: Any, name: str, value: Any) -> dict[str, int]:
        """Copies one tensor into a sample that is being made, as :meth:`encode` checks it, and returns the lengths that it gave the sample.

        Raises:
            ValueError, TypeError: as :meth:`encode`; also a length that another tensor has set otherwise.
        """
        index = self._find(name)
        array = _storage(self._specs[index], value)
        lengths = self._shapes.known(buffer)
        before = dict(lengths)
        self._shapes.learn(index, name, array.shape, lengths)
        self._shapes.set(buffer, {dim: length for dim, length in lengths.items() if dim not in before})
        np.ndarray(array.shape, array.dtype, buffer, self._offsets[index])[...] = array
        return lengths

    def views(self, buffer: Any, as_torch: bool) -> dict[str, Any]:
        """Views of the tensors of a sample that is being made: of those whose lengths are set."""
        lengths = self._shapes.known(buffer)
        names = {i: {dim for dim, _ in axes if dim is not None} for i, (_, axes) in self._shapes.tensors.items()}
        ready = [i for i in range(len(self._specs)) if names.get(i, set()) <= lengths.keys()]
        return {self._specs[i].name: _dtypes.viewer(self._specs[i].dtype, as_torch)(self._array(buffer, i, lengths)) for i in ready}

    def _lengths(self, buffer: Any) -> dict[str, int]:
        return self._shapes.lengths(buffer) if self._shapes.count else {}

    def _find(self, name: str) -> int:
        try:
            return self._index[name]
        except KeyError:
            raise KeyError(f"no tensor '{name}' in this BatchConfig{_suggest(name, self._index)}") from None

    def _check_names(self, tensors: Mapping[str, Any]) -> None:
        if tensors.keys() == self._index.keys():
            return
        for name in tensors:
            if name not in self._index:
                raise ValueError(f"encode: unknown tensor '{name}'{_suggest(name, self._index)}")
        missing = [name for name in self._index if name not in tensors]
        raise ValueError(f"encode: missing tensor{'s' * (len(missing) > 1)} {', '.join(map(repr, missing))}")

    def _buffer(self, data: Any, writable: bool) -> Any:
        view = memoryview(data)
        if view.nbytes != self._nbytes:
            raise ValueError(f"decode: got {view.nbytes} bytes; a sample of this BatchConfig has {self._nbytes}")
        if not view.c_contiguous:
            raise ValueError("decode: the buffer is not contiguous")
        return bytearray(view) if writable and view.readonly else data

    def _array(self, buffer: Any, index: int, lengths: Mapping[str, int]) -> np.ndarray:
        spec = self._specs[index]
        return np.ndarray(self._shapes.shape(index, spec.shape, lengths), _dtypes.storage_dtype(spec.dtype), buffer, self._offsets[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BatchConfig) and self._specs == other._specs

    def __hash__(self) -> int:
        return hash(self._specs)

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchConfig, (self._specs,)

    def __repr__(self) -> str:
        return f"BatchConfig([{', '.join(map(repr, self._specs))}])"


def _suggest(word: str, known: Iterable[str]) -> str:
    """``; did you mean …`` and the list of what is known."""
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ";"
    return f"{hint} known: {', '.join(names)}"


def _check_fields(what: str, fields: Mapping[Any, Any], required: Sequence[str], allowed: Sequence[str]) -> None:
    for key in fields:
        if key not in allowed:
            raise ValueError(f"{what}: unknown field {key!r}{_suggest(str(key), allowed)}")
    for key in required:
        if key not in fields:
            raise ValueError(f"{what}: the field '{key}' is missing; expected {', '.join(required)}")


def _spec(index: int, spec: object) -> TensorSpec:
    if isinstance(spec, TensorSpec):
        return spec
    # OmegaConf's DictConfig and Hydra's instantiated nodes are mappings too.
    if isinstance(spec, Mapping):
        fields, limits = ("name", "shape", "dtype"), ("finite", "min", "max")
        _check_fields(f"specs[{index}]", spec, required=fields, allowed=(*fields, *limits, "_target_"))
        return TensorSpec(spec["name"], spec["shape"], spec["dtype"], **{limit: spec[limit] for limit in limits if limit in spec})
    raise TypeError(f"specs[{index}] is a {type(spec).__name__}; expected a TensorSpec or a mapping with name, shape and dtype")


def _padding(count: int) -> bytes:
    return _PADDING[:count] if count <= len(_PADDING) else bytes(count)


def _shape(name: str, shape: object) -> tuple[Size, ...]:
    if isinstance(shape, (str, bytes)) or not isinstance(shape, Iterable):
        raise TypeError(f"tensor '{name}': shape {shape!r} is not a sequence of ints; a vector of n is (n,)")
    sizes: list[Size] = []
    for size in shape:
        if isinstance(size, str):
            try:
                sizes.append(canonical(size))
            except ValueError as error:
                raise ValueError(f"tensor '{name}': {error}") from None
            continue
        if isinstance(size, bool) or not hasattr(size, "__index__"):
            raise TypeError(f"tensor '{name}': shape {tuple(shape)!r} holds {size!r}; expected ints, or text such as 'seq<=2048'")
        sizes.append(operator.index(size))
    if any(isinstance(size, int) and size < 0 for size in sizes):
        raise ValueError(f"tensor '{name}': shape {tuple(sizes)} holds a negative size")
    if len(sizes) > MAX_DIMENSIONS:
        raise ValueError(f"tensor '{name}' has {len(sizes)} dimensions; at most {MAX_DIMENSIONS} are allowed")
    return tuple(sizes)


def _storage(spec: TensorSpec, value: Any) -> np.ndarray:
    """The value as an array of the spec's storage dtype, without a copy where it lies in host memory; or what is wrong."""
    if _dtypes.is_tensor(value):
        torch = _dtypes.require_torch("a tensor")
        value = value.detach()
        _check_tensor(spec, tuple(value.shape), _dtypes.dtype_name(value.dtype))
        if value.device.type != "cpu":
            value = value.cpu()
        if spec.dtype == "bfloat16":
            value = value.contiguous().view(torch.int16)
        return np.asarray(value.numpy(force=True)).view(_dtypes.storage_dtype(spec.dtype))
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        dtype = array.dtype.name
        if spec.dtype == "bfloat16" and array.dtype == np.uint16:
            dtype = "bfloat16"
        _check_tensor(spec, array.shape, dtype)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        return np.ascontiguousarray(array).reshape(array.shape).view(_dtypes.storage_dtype(spec.dtype))
    raise TypeError(f"encode: '{spec.name}' is a {type(value).__name__}; expected a torch tensor or a NumPy array")


def _check_tensor(spec: TensorSpec, shape: tuple[int, ...], dtype: str) -> None:
    if not spec.admits(shape):
        raise ValueError(f"encode: '{spec.name}' has shape {shape}; expected {spec.shape}")
    if dtype != spec.dtype:
        raise ValueError(f"encode: '{spec.name}' has dtype {dtype}; expected {spec.dtype} (convert it, for example with .to())")
