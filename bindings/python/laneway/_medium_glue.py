"""Mediums written in Python, as the tables of functions that the C API takes.

The callbacks find their medium by a number, run on whichever thread the library calls them, and never raise: a failure is
a code and a text, which the library puts into its own error.
"""

from __future__ import annotations

import ctypes
import inspect
import itertools
import logging
import os
import traceback
from collections.abc import Callable, Iterable
from ctypes import c_void_p
from dataclasses import dataclass
from typing import Any

from . import _native, _structs
from .mediums import Medium, MediumBase, check_slot

_log = logging.getLogger("laneway.mediums")

_FAILED = 1

_numbers = itertools.count(1)
_lent: dict[int, Any] = {}
"""What the library uses now, by number: mediums, and mediums' classes."""


@dataclass(frozen=True)
class Cuda:
    """What a student wants of CUDA."""

    device: int = 0
    fallback: str | None = None
    pin_memory: bool = False


def check_cuda(medium: object, device: object, fallback: object, pin_memory: object) -> Cuda:
    """The options of a student that concern CUDA, or an error that says which does not fit the medium."""
    if pin_memory not in (True, False):
        raise TypeError(f"pin_memory is {pin_memory!r}; expected True or False")
    if pin_memory and medium not in (None, "shm"):
        raise ValueError(f"pin_memory=True page-locks medium='shm'; medium is {medium!r}")
    if isinstance(device, bool) or (device is not None and not isinstance(device, int)) or (isinstance(device, int) and device < 0):
        raise ValueError(f"device is {device!r}; expected a CUDA device's number in this process, from 0")
    if fallback not in (None, "shm"):
        raise ValueError(f"fallback is {fallback!r}; expected None (an error without CUDA) or 'shm'")
    if medium != "cuda" and not pin_memory and (device is not None or fallback is not None):
        what = "device" if device is not None else "fallback"
        raise ValueError(f"{what} is for medium='cuda' and for pin_memory=True; medium is {medium!r}")
    return Cuda(device or 0, fallback, bool(pin_memory))


def open_medium(medium: str | Medium | None, cuda: Cuda) -> int:
    """The handle of an ``lw_medium``, for the caller to free.

    Args:
        medium: ``None`` or ``"shm"``, ``"cuda"``, ``"file:/path"``, or an object with the methods of :class:`~laneway.mediums.Medium`.
        cuda: checked with it.
    """
    lib = _native.lib()
    out = c_void_p()
    fallback = _structs.FALLBACK_NONE if cuda.fallback is None else _structs.FALLBACK_SHM
    if medium == "cuda":
        _native.check(lib.lw_medium_cuda(cuda.device, fallback, ctypes.byref(out)))
    elif cuda.pin_memory:
        _native.check(lib.lw_medium_shm_pinned(cuda.device, fallback, ctypes.byref(out)))
    elif medium is None or medium == "shm":
        _native.check(lib.lw_medium_shm(ctypes.byref(out)))
    elif isinstance(medium, str):
        path = medium.removeprefix("file:")
        if path == medium or not os.path.isabs(path):
            raise ValueError(f"medium is {medium!r}; expected 'shm', 'cuda', 'file:/absolute/path', or a Medium object")
        _native.check(lib.lw_medium_file(path.encode(), ctypes.byref(out)))
    else:
        check_medium(medium)
        table = _structs.MediumTable()
        number = _fill(table, medium)
        table.kind, table.buf_name = medium_kind(type(medium)).encode(), medium.buf_name.encode()
        table.slot_count, table.slot_stride = medium.slot_count, medium.slot_stride
        try:
            _native.check(lib.lw_medium_custom(ctypes.byref(table), ctypes.byref(out)))
        except BaseException:
            del _lent[number]
            raise
    assert out.value is not None
    return out.value


class AttachTables:
    """The worker's side: one table for each class of medium. ``drop`` of each runs when the worker is freed."""

    def __init__(self, mediums: Iterable[Any]) -> None:
        self._tables = [_attach_table(medium if isinstance(medium, type) else type(medium)) for medium in mediums]
        self.count = len(self._tables)
        pointers = [ctypes.pointer(table) for table in self._tables]
        self.array = (ctypes.POINTER(_structs.AttachTable) * max(1, self.count))(*pointers)

    def forget(self) -> None:
        """To be called where the worker could not be opened: the library then drops nothing."""
        for table in self._tables:
            _lent.pop(table.user, None)


def medium_kind(kind: type) -> str:
    """The name by which both sides know a class of medium."""
    return kind.medium_kind() if issubclass(kind, MediumBase) else kind.__name__[:31]


def check_medium(medium: object) -> None:
    """A TypeError that names what a medium lacks."""
    _check_methods(medium, ("buf_name", "slot_count", "slot_stride", "read_slot_tensors", "close", "unlink"))


def _check_methods(medium: object, names: tuple[str, ...]) -> None:
    missing = [name for name in names if not hasattr(medium, name)]
    if missing:
        raise TypeError(f"{type(medium).__name__} is no Medium: it lacks {', '.join(missing)} (derive from laneway.mediums.MediumBase)")


def _fill(table: Any, medium: Any) -> int:
    """Fills the functions of a table for this medium; returns its number."""
    number = next(_numbers)
    _lent[number] = medium
    _native.lib().lw_medium_table_init(ctypes.byref(table))
    table.user = number
    table.drop, table.read, table.write, table.unlink = _drop, _read, _write, _unlink
    if hasattr(medium, "slot_address"):
        table.slot = _slot
    return number


def _attach_table(kind: type) -> Any:
    _check_methods(kind, ("attach",))
    table = _structs.AttachTable()
    _native.lib().lw_attach_table_init(ctypes.byref(table))
    number = next(_numbers)
    _lent[number] = kind
    table.user, table.kind = number, medium_kind(kind).encode()
    table.drop, table.attach = _drop_class, _attach
    return table


def _guard(what: str, function: Callable[[], None]) -> int:
    try:
        function()
        return 0
    except BaseException as error:
        text = "".join(traceback.format_exception_only(error)).strip()
        _log.error("medium: %s failed:\n%s", what, traceback.format_exc())
        data = text.encode()
        _native.lib().lw_set_last_error(data, len(data))
        return _FAILED


def _memory(address: int, nbytes: int) -> memoryview:
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


def on_read(user: int, slot: int, out: int, nbytes: int) -> int:
    def read() -> None:
        medium = _lent[user]
        if isinstance(medium, MediumBase):
            medium.drop_read_ahead()
        data = memoryview(medium.read_slot_tensors(slot)).cast("B")
        if data.nbytes < nbytes:
            raise ValueError(f"read_slot_tensors({slot}) returned {data.nbytes} bytes; the sample has {nbytes}")
        _memory(out, nbytes)[:] = data[:nbytes]

    return _guard("read", read)


def on_write(user: int, slot: int, data: int, nbytes: int) -> int:
    def write() -> None:
        medium = _lent[user]
        check_slot(medium, slot, nbytes)
        medium.write_slot(slot, ctypes.string_at(data, nbytes))

    return _guard("write", write)


def on_slot(user: int, slot: int) -> int | None:
    address: int | None = None

    def find() -> None:
        nonlocal address
        address = _lent[user].slot_address(slot)

    _guard("slot", find)
    return address


def on_unlink(user: int) -> int:
    return _guard("unlink", lambda: _lent[user].unlink())


def on_drop(user: int) -> None:
    medium = _lent.pop(user, None)
    if medium is not None:
        _guard("close", medium.close)


def on_drop_class(user: int) -> None:
    _lent.pop(user, None)


def on_attach(user: int, buf_name: bytes, fd: int, slot_count: int, slot_stride: int, out: Any) -> int:
    def attach() -> None:
        kind = _lent[user]
        if fd >= 0:
            os.close(fd)  # a medium in Python is found by its name
        name = buf_name.decode()
        wants_geometry = len(inspect.signature(kind.attach).parameters) >= 3
        medium = kind.attach(name, slot_count, slot_stride) if wants_geometry else kind.attach(name)
        if medium.slot_count < slot_count or medium.slot_stride != slot_stride:
            raise ValueError(
                f"{kind.__name__}.attach({name!r}) has {medium.slot_count} slots of {medium.slot_stride} bytes; "
                f"the student has {slot_count} of {slot_stride}"
            )
        _fill(out.contents, medium)

    return _guard("attach", attach)


# The C side of them; they live as long as the module.
_read = _structs.MediumRead(on_read)
_write = _structs.MediumWrite(on_write)
_slot = _structs.MediumSlot(on_slot)
_unlink = _structs.MediumUnlink(on_unlink)
_drop = _structs.Drop(on_drop)
_drop_class = _structs.Drop(on_drop_class)
_attach = _structs.Attach(on_attach)
