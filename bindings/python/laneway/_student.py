"""An open ``lw_student``, and the leases by which tensors keep their slot. ``student.py`` and ``dataset.py`` are built on it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import logging
import os
import struct
import weakref
from collections.abc import Callable, Iterator
from ctypes import c_size_t, c_uint64, c_void_p
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import _device, _dtypes, _native, _owned, _structs
from ._endpoints import Endpoints
from ._functions import _interrupts, come_again, raise_interrupt
from ._medium_glue import Cuda, check_medium, open_medium
from ._process import STUDENTS, Living, at_exit, forks
from .batch_config import BatchConfig
from .errors import Forked, Status
from .mediums import Medium

_log = logging.getLogger("laneway.student")

_SAMPLE_SIZE = _structs.SAMPLE.size
_MOST_AT_ONCE = 4096
_SLICE_NS, _monotonic_ns = _native.SLICE_NS, _native.monotonic_ns


@dataclass(frozen=True)
class Options:
    """How a student is opened: ``lw_student_options`` with Python's types."""

    batch_config: BatchConfig
    slot_count: int
    rank: int = 0
    endpoints: Endpoints = field(default_factory=Endpoints)
    group: str | None = None
    medium: str | Medium | None = None
    cuda: Cuda = field(default_factory=Cuda)
    dataset: bool = False
    data_worker: int = 0
    data_workers: int = 0
    prefetch: int = 0
    max_attempts: int = 3
    max_workers: int = 8
    max_batch: int = 8
    seed: int = 0
    embedded_broker: bool = False
    spin_us: int = _structs.SPIN_ADAPTIVE
    input_config: BatchConfig | None = None


@functools.cache
def finalizer() -> Any:
    """The ``__del__`` of what has a reference to a sample, as the bytes of an ``lw_held`` in ``_reference``."""
    return _owned.finalizer(_native.lib()["lw_held_release"])


@functools.cache
def _lease_type(nbytes: int) -> Any:
    """The class of leases for samples of that size: one reference to a slot, as a buffer of the sample's bytes.

    Arrays made on a lease keep it alive, and the slot is free once it dies. A ctypes array over given memory is the one buffer
    that pure Python can put a destructor on.
    """

    class Lease(ctypes.c_ubyte * nbytes):  # type: ignore[misc]
        __slots__ = ("_reference", "owner")

        owner: OpenStudent
        _reference: bytes | None
        __del__ = finalizer()

    return Lease


def _place(size: int) -> tuple[Any, c_size_t, Any]:
    """Where ``lw_student_next`` puts so many bytes of samples and their count, and a reference to the count."""
    count = c_size_t()
    return ctypes.create_string_buffer(size), count, ctypes.byref(count)


class DeviceLease:
    """One reference to a sample on a device; tensors keep it, and the slot is free once it has died and the device is done reading."""

    __slots__ = ("_raw", "_student", "stream")

    def __init__(self, student: OpenStudent, raw: bytes) -> None:
        self._student, self._raw = student, raw
        self.stream: int | None = None

    # In Python, since torch is asked for the stream: a Ctrl-C that comes in here is lost.
    def __del__(self) -> None:
        self._student.release_quietly(self._raw, self.stream)


class OpenStudent:
    """A registered student of this process. Any thread may call any method; waits queue up behind each other."""

    def __init__(self, options: Options, timeout_s: float) -> None:
        self.options = options
        self.config = options.batch_config
        self.pid = os.getpid()
        self._forks = forks()
        self._cuda = options.medium == "cuda"
        lib = _native.lib()
        # Who uses it, where that is one object: without it, it is closed.
        self.user: weakref.ref[Any] | None = None
        # Freed once no lease is left: each has this object.
        self._handle, self._owned = _open(options, timeout_s)
        # In front of the bytes of an lw_sample they make an lw_held.
        self.head = struct.pack("@P", self._handle)
        self._next, self._release = lib.lw_student_next, lib.lw_student_release
        self._places: list[tuple[Any, c_size_t, Any]] = []
        self._lease = _lease_type(self.config.nbytes())
        self._plans: dict[bool, list[tuple[Any, ...]]] = {}
        self._ragged = bool(self.config.dims)
        self.registration: dict[str, Any] = json.loads(_native.text(lib.lw_student_registration, self._handle))
        self.lane: int = self.registration["lane"]
        _open_students.add(self)
        at_exit(STUDENTS, self, OpenStudent.close)

    def give(self, inputs: list[bytes]) -> None:
        """The inputs of the next tickets."""
        config = self.options.input_config
        assert config is not None
        _native.check(_native.lib().lw_student_give(self._handle, b"".join(inputs), config.nbytes(), len(inputs)))

    def take(self, n: int, deadline: int) -> list[bytes]:
        """At least one and at most ``n`` samples, each as the bytes of an ``lw_sample``, or an empty list at the deadline.

        Each is one reference, which the caller owns. ``deadline`` is absolute, on ``time.monotonic_ns``.
        """
        if _interrupts:
            raise_interrupt()
        n = min(n, _MOST_AT_ONCE)
        size = n * _SAMPLE_SIZE
        try:
            place = self._places.pop()  # another thread may have taken the last one
        except IndexError:
            place = _place(size)
        if len(place[0]) < size:
            place = _place(size)
        buffer, count, count_ref = place
        count.value = 0
        # Every microsecond here is one of each request: no enum, no system call, no second look at the clock unless there is need.
        end = _monotonic_ns() + _SLICE_NS
        try:
            status = self._next(self._handle, end if end < deadline else deadline, buffer, n, count_ref)
            if status:
                self._wait(status, place, n, deadline)
            return self._taken(place)
        except KeyboardInterrupt:
            # Python raises it when the call returns, or soon after: what came with it is the caller's all the same.
            if not count.value:
                raise
            come_again()
            return self._taken(place)

    def _taken(self, place: tuple[Any, c_size_t, Any]) -> list[bytes]:
        buffer, count, _ = place
        raw = buffer[: count.value * _SAMPLE_SIZE]
        samples = [raw[at : at + _SAMPLE_SIZE] for at in range(0, len(raw), _SAMPLE_SIZE)]
        self._places.append(place)  # last: from here on another thread may write there
        return samples

    def take_one(self, deadline: int) -> bytes | None:
        """The next sample, as :meth:`take` gives them, or None at the deadline."""
        if _interrupts:
            raise_interrupt()
        try:
            place = self._places.pop()
        except IndexError:
            place = _place(_SAMPLE_SIZE)
        buffer, count, count_ref = place
        count.value = 0
        end = _monotonic_ns() + _SLICE_NS
        raw: bytes | None = None
        try:
            status = self._next(self._handle, end if end < deadline else deadline, buffer, 1, count_ref)
            raw = None if status and not self._wait(status, place, 1, deadline) else buffer[:_SAMPLE_SIZE]
            self._places.append(place)
        except KeyboardInterrupt:
            if raw is None:
                if not count.value:
                    raise
                raw = buffer[:_SAMPLE_SIZE]
            come_again()
        return raw

    def _wait(self, status: int, place: tuple[Any, c_size_t, Any], n: int, deadline: int) -> bool:
        """Goes on after a ``lw_student_next`` that ended with ``status``, slice by slice; False at the deadline."""
        while status:
            now = _monotonic_ns()
            if status == Status.TIMEOUT:
                if now >= deadline:
                    return False
            elif status != Status.INTERRUPTED:  # a signal: Python has handled it by now
                self.check_process()
                raise _native.error(status)
            status = self._next(self._handle, min(now + _SLICE_NS, deadline), place[0], n, place[2])
        return True

    def lease(self, raw: bytes, address: int) -> Any:
        """The sample's bytes as a buffer; it takes over the caller's reference."""
        lease = self._lease.from_address(address)
        lease.owner = self
        lease._reference = self.head + raw
        return lease

    def is_on_device(self, raw: bytes) -> bool:
        """Whether a sample lies on a device."""
        return self._cuda and bool(_structs.SAMPLE.unpack(raw)[9] & _structs.ON_DEVICE)

    def read(self, raw: bytes) -> bytes:
        """A copy of a sample's bytes, wherever it lies."""
        size = self.config.nbytes()
        out = ctypes.create_string_buffer(size)
        _native.check(_native.lib().lw_student_read(self._handle, raw, out, size))
        return out.raw

    def device_tensors(self, lease: DeviceLease, raw: bytes, as_torch: bool) -> dict[str, Any]:
        """Tensors of a sample on a device by name, which keep the lease."""
        return _device.student_tensors(self._handle, raw, self.config, as_torch, lease)

    def views(self, raw: bytes, as_torch: bool) -> dict[str, Any]:
        """The tensors of a sample by name, wherever it lies; they take over the caller's reference."""
        if self.is_on_device(raw):
            return self.device_tensors(DeviceLease(self, raw), raw, as_torch)
        return self.tensors(self.lease(raw, _structs.SAMPLE.unpack(raw)[0]), as_torch)

    def tensors(self, lease: Any, as_torch: bool) -> dict[str, Any]:
        """Views of the sample by name, which keep the lease."""
        if self._ragged:
            return self.config.decode(lease, "torch" if as_torch else "numpy")
        try:
            plan = self._plans[as_torch]
        except KeyError:
            plan = self._plans[as_torch] = view_plan(self.config, as_torch)
        return make_views(plan, lease)

    def release(self, raw: bytes, on_device: bool, stream: int | None) -> None:
        """Gives a sample's reference back. On a device, its slot is used again once what is queued on ``stream`` is done; None: on the current one."""
        if on_device and stream is None:
            stream = self._stream(raw)
        status = self._release(self._handle, raw, 1, stream)
        if status:
            raise _native.error(status)

    def release_quietly(self, raw: bytes, stream: int | None) -> None:
        """As :meth:`release`, for the finalizer of a sample on a device: in a forked child, which never had the reference, nothing happens."""
        if stream is None and self._forks == forks():
            stream = self._stream(raw)
        self._release(self._handle, raw, 1, stream)

    def _stream(self, raw: bytes) -> int | None:
        if not self.is_on_device(raw):
            return None
        return _device.current_stream(self.options.cuda.device)

    def set_model(self, model_id: str, config: str | None, timeout_s: float) -> int:
        """Raises the generation; returns the new one."""
        self.check_process()
        identity, blob = model_id.encode(), _native.bytes_or_none(config)
        set_model = _native.lib().lw_student_set_model

        def ask(deadline: int) -> int:
            generation = c_uint64()
            size = len(blob or b"")
            _native.check(set_model(self._handle, identity, len(identity), blob, size, deadline, ctypes.byref(generation)))
            return generation.value

        return _native.interruptibly(ask, timeout_s)

    @property
    def generation(self) -> int:
        """The group's generation now."""
        return _native.lib().lw_student_generation(self._handle)  # type: ignore[no-any-return]

    @property
    def cursor(self) -> int:
        """The step of the next sample."""
        return _native.lib().lw_student_cursor(self._handle)  # type: ignore[no-any-return]

    def rewind(self, step: int) -> None:
        """Counts the samples from ``step`` on as not taken: their tickets are made again, by the model that is set."""
        self.check_process()
        _native.check(_native.lib().lw_student_rewind(self._handle, step))

    @property
    def stats(self) -> dict[str, Any]:
        """The library's counters."""
        self.check_process()
        return json.loads(_native.text(_native.lib().lw_student_stats, self._handle))  # type: ignore[no-any-return]

    def close(self) -> None:
        """Takes leave of the broker. Samples that are held stay readable. May be called twice."""
        _open_students.discard(self)
        if self.pid == os.getpid():
            _native.lib().lw_student_close(self._handle)

    def check_process(self) -> None:
        """A Forked error in a child of the process that opened it."""
        if self._forks != forks():
            raise Forked(f"this student was opened by process {self.pid}, and this is its forked child {os.getpid()}: open one here")


_open_students = Living()


def find_open(group: str | None, endpoints: Endpoints) -> OpenStudent | None:
    """A student of that group which this process has opened."""
    pid = os.getpid()
    for student in _open_students:
        options = student.options
        same_group = group in (options.group, student.registration["group"])
        used = student.user is None or student.user() is not None
        if student.pid == pid and used and same_group and options.endpoints.frontend == endpoints.frontend:
            return student
    return None


def view_plan(config: BatchConfig, as_torch: bool) -> list[tuple[Any, ...]]:
    """What :func:`make_views` needs, looked up once; of a config with ragged tensors the others."""
    viewers = [_dtypes.viewer(spec.dtype, as_torch) for spec in config.specs]
    return [
        (spec.name, spec.shape, _dtypes.storage_dtype(spec.dtype), offset, None if viewer is _dtypes.as_it_is else viewer)
        for spec, offset, viewer in zip(config.specs, config.offsets, viewers, strict=True)
        if not spec.is_ragged
    ]


def make_views(plan: list[tuple[Any, ...]], buffer: Any, ndarray: type[np.ndarray] = np.ndarray) -> dict[str, Any]:
    """The tensors that lie in the buffer, by name; each keeps it."""
    views: dict[str, Any] = {}
    for name, shape, dtype, offset, viewer in plan:
        array = ndarray(shape, dtype, buffer, offset)
        views[name] = array if viewer is None else viewer(array)
    return views


@contextlib.contextmanager
def c_layout(config: BatchConfig) -> Iterator[int]:
    """The config as an ``lw_layout``, freed at the end."""
    text = json.dumps(config.to_dict()).encode()
    out = c_void_p()
    lib = _native.lib()
    _native.check(lib.lw_layout_from_json(text, len(text), ctypes.byref(out)))
    try:
        assert out.value is not None
        yield out.value
    finally:
        lib.lw_layout_free(out)


def _open(options: Options, timeout_s: float) -> tuple[int, Any]:
    """The handle of a student that is registered, and what frees it."""
    lib = _native.lib()
    c = _structs.StudentOptions()
    lib.lw_student_options_init(ctypes.byref(c))
    c.endpoints = options.endpoints.to_c()
    c.group = _native.bytes_or_none(options.group)
    c.seed = options.seed
    c.rank, c.data_worker, c.data_workers = options.rank, options.data_worker, options.data_workers
    c.role = _structs.ROLE_DATASET if options.dataset else _structs.ROLE_CLIENT
    c.slot_count, c.max_workers, c.max_batch = _slots(options), options.max_workers, options.max_batch
    c.prefetch, c.max_attempts = options.prefetch, options.max_attempts
    c.embedded_broker = options.embedded_broker
    c.spin_us = options.spin_us

    def open_it(deadline: int) -> tuple[int, Any]:
        out = c_void_p()
        inputs = options.input_config
        with c_layout(options.batch_config) as layout, contextlib.nullcontext() if inputs is None else c_layout(inputs) as input_layout:
            medium = open_medium(options.medium, options.cuda)
            c.layout, c.medium, c.input = layout, medium, input_layout
            try:
                _native.check(lib.lw_student_open(ctypes.byref(c), deadline, ctypes.byref(out)))
            finally:
                lib.lw_medium_free(medium)
        return _native.owned(out.value, lib.lw_student_free)

    return _native.interruptibly(open_it, timeout_s)


def _slots(options: Options) -> int:
    """``slot_count``, unless the user's own medium is too small for it and one worker's batch: then half of what it has."""
    medium = options.medium
    if medium is None or isinstance(medium, str):
        return options.slot_count
    check_medium(medium)
    have = medium.slot_count
    if have < 2:
        raise ValueError(f"the medium has {have} slot; expected at least 2: one for the student and one for a worker")
    if have >= options.slot_count + options.max_batch:
        return options.slot_count
    slots = min(options.slot_count, have // 2)
    _log.info("student: of the medium's %d slots, %d are for samples in flight and held, the others for workers", have, slots)
    return slots
