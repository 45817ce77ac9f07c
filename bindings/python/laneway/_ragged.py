"""Dimensions that each sample has its own length of: ``"seq<=2048"`` in a shape.

The true shapes travel with the sample. Behind its last tensor, at a multiple of 64 bytes, lie the sizes of each ragged tensor, in order, as
little-endian 64-bit integers; the tensors themselves lie at their usual offsets, row-major in their true shape. (Where the tensors are on a device, the library
keeps the sizes beside them, in host memory, and puts them there when the sample is read.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

Size = int | str
"""An element of a shape: a number, or a name and a maximum, ``"seq<=2048"``."""

UNSET = -1
"""What stands where a length was not set yet."""

_DIM = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*<=\s*([0-9]+)\s*")


def parse(text: str) -> tuple[str, int]:
    """Name and maximum of ``"seq<=2048"``; a ValueError says what was expected."""
    match = _DIM.fullmatch(text)
    if match is None or not 1 <= int(match[2]) < 2**63:
        raise ValueError(f"dimension {text!r}: expected a number, or a name and a maximum of at least 1: 'seq<=2048'")
    return match[1], int(match[2])


def canonical(text: str) -> str:
    """The one way in which that dimension is written."""
    name, most = parse(text)
    return f"{name}<={most}"


def name_of(size: Size) -> str | None:
    """The name of a ragged dimension, None of a fixed one."""
    return parse(size)[0] if isinstance(size, str) else None


def most_of(size: Size) -> int:
    """The size, or the greatest one."""
    return parse(size)[1] if isinstance(size, str) else size


class Shapes:
    """Where the true shapes of a config's ragged tensors lie, and what may stand there."""

    def __init__(self, specs: Iterable[Any], tensors_end: int, align: int) -> None:
        self.maxima: dict[str, int] = {}
        """The ragged dimensions and their greatest lengths."""
        self.start = -(-tensors_end // align) * align
        # Per tensor: its place among the sizes and, per axis, the name or None and the greatest size.
        self.tensors: dict[int, tuple[int, tuple[tuple[str | None, int], ...]]] = {}
        self.count = 0
        for i, spec in enumerate(specs):
            axes = tuple((name_of(size), most_of(size)) for size in spec.shape)
            for name, most in axes:
                if name is not None and self.maxima.setdefault(name, most) != most:
                    raise ValueError(f"tensor '{spec.name}': '{name}<={most}' is '{name}<={self.maxima[name]}' elsewhere; expected one maximum")
            if spec.is_ragged:
                self.tensors[i] = self.count, axes
                self.count += len(axes)
        self.end = self.start + 8 * self.count if self.count else tensors_end

    def table(self, buffer: Any) -> np.ndarray:
        """The sizes in a sample, writable where the buffer is."""
        return np.ndarray((self.count,), "<i8", buffer, self.start)

    def write(self, table: Any, lengths: Mapping[str, int]) -> None:
        """Fills the bytes of the sizes for a sample with these lengths."""
        sizes = [most if name is None else lengths[name] for _, axes in self.tensors.values() for name, most in axes]
        np.ndarray((self.count,), "<i8", table)[:] = sizes

    def check(self, lengths: Mapping[str, int]) -> None:
        """A ValueError that names a dimension that is not known, or a length that is too great."""
        for name, length in lengths.items():
            if name not in self.maxima:
                raise ValueError(f"no ragged dimension is called '{name}'; there are: {', '.join(self.maxima) or 'none'}")
            if not 0 <= length <= self.maxima[name]:
                raise ValueError(f"length {length} of dimension '{name}': expected 0 to {self.maxima[name]}")

    def set(self, buffer: Any, lengths: Mapping[str, int]) -> None:
        """Writes the lengths of dimensions, as :meth:`check` knows them."""
        self.check(lengths)
        table = self.table(buffer)
        for at, axes in self.tensors.values():
            for axis, (name, _) in enumerate(axes):
                if name in lengths:
                    table[at + axis] = lengths[name]

    def known(self, buffer: Any) -> dict[str, int]:
        """The lengths that are set already."""
        return {name: size for name, _, size in self._sizes(self.table(buffer).tolist()) if name is not None and size != UNSET} if self.count else {}

    def lengths(self, buffer: Any) -> dict[str, int]:
        """The lengths in a sample, checked; a ValueError says what is wrong with it."""
        lengths: dict[str, int] = {}
        table = self.table(buffer).tolist()
        for name, most, size in self._sizes(table):
            if size == UNSET:
                raise ValueError(f"the length of dimension '{name}' was not set")
            if not 0 <= size <= most or (name is None and size != most) or (name is not None and lengths.setdefault(name, size) != size):
                raise ValueError(f"the sample is damaged: it says that {name or 'a size'} is {size}; expected {'at most ' if name else ''}{most}")
        return lengths

    def _sizes(self, table: list[int]) -> Iterator[tuple[str | None, int, int]]:
        for at, axes in self.tensors.values():
            for axis, (name, most) in enumerate(axes):
                yield name, most, table[at + axis]

    def shape(self, index: int, fixed: tuple[Any, ...], lengths: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of a tensor in a sample with these lengths; ``fixed`` is what its spec says."""
        if index not in self.tensors:
            return fixed
        return tuple(most if name is None else lengths[name] for name, most in self.tensors[index][1])

    def learn(self, index: int, title: str, shape: tuple[int, ...], lengths: dict[str, int]) -> None:
        """Takes a tensor's lengths over from its shape, which is known to fit; a ValueError if another tensor has said otherwise."""
        if index not in self.tensors:
            return
        for (name, _), size in zip(self.tensors[index][1], shape, strict=True):
            if name is not None and lengths.setdefault(name, size) != size:
                raise ValueError(f"'{title}' has {size} for dimension '{name}', and another tensor of the sample {lengths[name]}; expected one length")
