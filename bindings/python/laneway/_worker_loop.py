"""The loop of a worker: takes tasks from the library, has the user's function make them, commits or fails them."""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_size_t, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _device, _dtypes, _native, _ragged, _structs
from ._dtypes import Framework
from ._endpoints import Endpoints
from ._medium_glue import AttachTables
from ._process import WORKERS, at_exit
from ._student import c_layout, make_views, view_plan
from .batch import Batch
from .batch_config import BatchConfig
from .errors import Corrupt, InvalidArgument, NotFound, Status
from .rows import Rows

_log = logging.getLogger("laneway.worker")

_TASK = _structs.TASK
_TASK_SIZE = _TASK.size
_MOST_TEXT = 16 * 1024
_NAMES = {number: name for name, number in _dtypes.NUMBERS.items()}
_PATIENCE_S = 2.0
_MOST_VIEWS = 4096
"""Slots whose views are kept: more than the slots of eight students; beyond that they are made again."""


@dataclass(frozen=True)
class WorkerOptions:
    """What a ``Worker`` was made with, checked."""

    generator_fn: Callable[..., Any] | None
    fill_fn: Callable[..., Any] | None
    config: BatchConfig | None
    slot_size: int
    batch_size: int
    worker_id: int | None
    endpoints: Endpoints
    mediums: tuple[Any, ...]
    device: int
    framework: Framework
    spin_us: int
    open_rows: Callable[[], Rows] | None = None


class Task:
    """One sample to be made. ``task["x"]`` is the tensor ``x``, in the student's memory: what is written there is the sample.

    Where the student's memory is a GPU's and the worker has a ``device``, so is the tensor: a torch tensor of that device, or a :class:`~laneway.DeviceTensor`. The sample
    is published once what is queued on torch's current stream when the function returns is done; the next tasks are begun meanwhile. Without torch, all that is queued on
    the device is waited for.

    Valid until the function that got it returns; a view that is kept longer looks at memory that belongs to others by then.
    What the memory holds at first is undefined.

    ``task["x"] = array`` copies a whole tensor, of any framework, and checks its shape and dtype. Where dimensions are ragged this gives the sample its
    lengths; or :meth:`set_length` does, before or after the tensors are written. A sample whose lengths were not set fails its task. Where the tensors are on a
    device, so is what is copied, and the lengths are set at once: nothing waits for the device.

    Attributes:
        lane, step: which sample it is: number ``step`` of stream ``lane``.
        seed: what randomness should come from, so that another worker could make the same sample again.
        model_id, model_cfg: the model, as the leader's ``set_model`` was given it; not to be changed.
        generation: the model's number.
        attempt: how many tries of this ticket have failed before: 0 for the first.
        tensors: writable views by name; ragged ones once their lengths are set.
    """

    __slots__ = (
        "_address",
        "_index",
        "_inputs",
        "_lengths",
        "_loop",
        "_raw",
        "attempt",
        "generation",
        "lane",
        "model_cfg",
        "model_id",
        "seed",
        "step",
        "tensors",
    )

    lane: int
    step: int
    seed: int
    generation: int
    attempt: int
    model_id: str
    model_cfg: dict[str, Any] | None
    tensors: dict[str, Any]
    # None on a device: then the task's own bytes, by which the library knows it, and the lengths that it was given.
    _address: int | None
    _raw: bytes
    _lengths: dict[str, int]
    _loop: WorkerLoop

    _inputs: Inputs
    _index: int

    def __getitem__(self, name: str) -> Any:
        try:
            return self.tensors[name]
        except KeyError:
            spec = self._loop.config.get_spec(name)  # or a KeyError that says which there are
        missing = ", ".join(f"{dim}=…" for dim in map(_ragged.name_of, spec.shape) if dim is not None)
        raise ValueError(f"'{name}' has shape {spec.shape}, and no length yet: call task.set_length({missing}), or assign task[{name!r}] = array")

    def __setitem__(self, name: str, value: Any) -> None:
        if self._address is None:
            self._loop.set_lengths(self, self._loop.config.lengths_with(self._lengths, name, tuple(value.shape)))
            target = self[name]
            if isinstance(target, _device.DeviceTensor):
                raise TypeError(f"task[{name!r}] is {target}, which only its device can write: copy to its pointer, or give it to a library that takes DLPack")
            target.copy_(value)
            return
        config, buffer = self._loop.config, self._loop.buffer(self._address)
        lengths = config.place(buffer, name, value)
        if lengths:
            self.tensors = self._loop.views_of_lengths(self._address)

    def set_length(self, **lengths: int) -> dict[str, Any]:
        """Sets the lengths of ragged dimensions, ``set_length(seq=17)``, and returns :attr:`tensors`: views of the true shapes, to be written. What was written
        before stays: a tensor is row-major in its true shape.

        Raises:
            ValueError: a dimension that is not known, or a length beyond its maximum.
        """
        if self._address is None:
            self._loop.set_lengths(self, lengths)
            return self.tensors
        self._loop.config.set_lengths(self._loop.buffer(self._address), lengths)
        self.tensors = self._loop.views_of_lengths(self._address)
        return self.tensors

    @property
    def inputs(self) -> dict[str, Any]:
        """What the ticket carries, by name: the student's ``input_config``, or a row's ``input_ids``, ``positions`` and ``segment_ids`` (a recipe's
        ``input = "tokens"``). Not to be written, and gone when the function returns. Empty if it carries nothing."""
        return self._inputs.carried(self._index)

    @property
    def rows(self) -> Batch:
        """The rows that the tickets of all tasks of this call name, in the tasks' order, made from ``Worker(recipe=…)``: one forward pass takes
        ``tasks[0].rows.input_ids``. Not to be written. The same object for each of the tasks.

        Raises:
            InvalidArgument: the worker has no recipe.
            Refused: the student's rows are of another recipe or other data; names what differs.
        """
        return self._inputs.batch()

    @property
    def row(self) -> dict[str, Any]:
        """This task's row of :attr:`rows`: ``input_ids``, ``labels``, ``positions``, ``segment_ids`` and ``loss_mask`` by name, each ``row_length`` long."""
        rows = self.rows
        return {name: rows[name][self._index] for name in ("input_ids", "labels", "positions", "segment_ids", "loss_mask")}

    def __repr__(self) -> str:
        return f"Task(lane={self.lane}, step={self.step}, model_id={self.model_id!r}, attempt={self.attempt})"


class Inputs:
    """What the tasks of one call are to be made from, looked up when it is first asked for."""

    def __init__(self, rows: Rows | None, worker: int, raw: bytes, as_torch: bool) -> None:
        self._rows, self._worker, self._raw, self._as_torch = rows, worker, raw, as_torch
        self._batch: Batch | None = None

    def carried(self, index: int) -> dict[str, Any]:
        """As :attr:`Task.inputs`."""
        lib = _native.lib()
        raw = self._raw[index * _TASK_SIZE : (index + 1) * _TASK_SIZE]
        layout = lib.lw_worker_input_layout(self._worker, raw)
        carried: dict[str, Any] = {}
        for i in range(0 if layout is None else lib.lw_layout_count(layout)):
            tensor = _structs.Tensor()
            _native.check(lib.lw_worker_input(self._worker, raw, i, ctypes.byref(tensor)))
            dtype = _NAMES[tensor.dtype]
            memory: Any = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data)
            array = np.ndarray(tuple(tensor.shape[: tensor.ndim]), _dtypes.storage_dtype(dtype), memory)
            carried[tensor.name.decode()] = _dtypes.viewer(dtype, self._as_torch)(array)
        return carried

    def batch(self) -> Batch:
        """As :attr:`Task.rows`."""
        if self._batch is None:
            if self._rows is None:
                raise InvalidArgument("this worker has no recipe to make rows from: pass Worker(recipe=…)")
            self._batch = self._rows.of_tasks(self._worker, self._raw, len(self._raw) // _TASK_SIZE)
        return self._batch


class WorkerLoop:
    """One registration of a worker at the broker, and the loop over its tasks."""

    def __init__(self, options: WorkerOptions, timeout_s: float) -> None:
        self._options = options
        self.pid = os.getpid()
        self.serving = False
        self._size = options.slot_size
        self._lw_commit = _native.lib().lw_worker_commit
        # Before anybody can give it tasks: datasets may have to be indexed.
        self._rows = None if options.open_rows is None else options.open_rows()
        self._as_torch = options.fill_fn is not None and _dtypes.use_torch(options.framework)
        self._handle: int | None
        self._handle, self._owned = _open(options, timeout_s)
        # Held while the handle is used outside the loop, so that it is not freed meanwhile; re-entrant for signal handlers.
        self._use = threading.RLock()
        self._model: tuple[bytes, bytes | None] | None = None
        self._model_at: tuple[int, int, int, int] | None = None
        self._model_texts: tuple[Any, Any] = (None, None)
        self._model_id = ""
        self._model_cfg: dict[str, Any] | None = None
        self._views: dict[int, dict[str, Any]] = {}
        self._plan: list[tuple[Any, ...]] = []
        self._as_torch = False
        self._stream: int | None = None
        self._raw_tasks: dict[int, bytes] = {}
        at_exit(WORKERS, self, WorkerLoop._end)
        if options.fill_fn is not None and options.config is not None:
            self._as_torch = _dtypes.use_torch(options.framework)
            self._plan = view_plan(options.config, self._as_torch)

    def serve(self, stopping: Callable[[], bool]) -> None:
        """Takes tasks and makes them, until stopped."""
        self.serving = True
        try:
            self._serve(stopping)
        finally:
            self.serving = False

    def _serve(self, stopping: Callable[[], bool]) -> None:
        lib = _native.lib()
        size = self._options.batch_size
        buffer, count = ctypes.create_string_buffer(size * _TASK_SIZE), c_size_t()
        take, count_ref = lib.lw_worker_take, ctypes.byref(count)
        make = self._generate if self._options.fill_fn is None else self._fill
        while not stopping():
            # Every microsecond from here to the commit is one of each sample: no enum before there is need, no copy but of the tasks.
            status = take(self._handle, _native.monotonic_ns() + _native.SLICE_NS, buffer, size, count_ref)
            if not status:
                make(buffer[: count.value * _TASK_SIZE])
            elif status == Status.CLOSED:
                return
            elif status not in (Status.TIMEOUT, Status.INTERRUPTED):
                raise _native.error(status)

    def _generate(self, raw: bytes) -> None:
        task, address = self._tasks(raw)[0]
        generate = self._options.generator_fn
        assert generate is not None
        try:
            self._write(address, generate(task.model_id, task.model_cfg), "generator_fn", task)
        except Exception:
            self._fail(raw, task, traceback.format_exc())
        else:
            self._commit(raw, 1)

    def _fill(self, raw: bytes) -> None:
        try:
            tasks = self._tasks(raw)
        except Exception:  # tensors that cannot be had here, of a device say
            text = traceback.format_exc()
            _log.error("worker: tasks could not be begun:\n%s", text)
            for at in range(0, len(raw), _TASK_SIZE):
                data = _shorten(text.encode("utf-8", "replace"))
                _native.lib().lw_worker_fail(self._handle, raw[at : at + _TASK_SIZE], data, len(data))
            return
        try:
            self._fill_and_write(tasks)
        except Exception:
            text = traceback.format_exc()
        else:
            self._commit(raw, len(tasks))
            return
        if len(tasks) == 1:
            self._fail(raw, tasks[0][0], text)
            return
        _log.warning("worker: a batch of %d tasks failed, trying them one by one:\n%s", len(tasks), text)
        for i in range(len(tasks)):
            self._fill(raw[i * _TASK_SIZE : (i + 1) * _TASK_SIZE])

    def _fill_and_write(self, tasks: list[tuple[Task, int]]) -> None:
        fill = self._options.fill_fn
        assert fill is not None
        returned = fill([task for task, _ in tasks])
        if returned is None:
            return
        if isinstance(returned, (bytes, bytearray, memoryview, dict)) or not isinstance(returned, Sequence):
            raise TypeError(f"fill_fn returned a {type(returned).__name__}; expected None (filled in place) or one bytes for each task")
        if len(returned) != len(tasks):
            raise ValueError(f"fill_fn returned {len(returned)} samples for {len(tasks)} tasks")
        for (task, address), data in zip(tasks, returned, strict=True):
            self._write(address, data, "fill_fn", task)

    def _tasks(self, raw: bytes) -> list[tuple[Task, int]]:
        tasks: list[tuple[Task, int]] = []
        self._stream = None
        self._raw_tasks.clear()
        inputs = Inputs(self._rows, self._handle or 0, raw, self._as_torch)
        for address, capacity, _, lane, step, seed, generation, id_at, id_len, config_at, config_len, _, attempt, flags in _TASK.iter_unpack(raw):
            if not tasks:
                self._learn_model((id_at, id_len, config_at, config_len))
            task = Task()
            task.lane, task.step, task.seed, task.generation, task.attempt = lane, step, seed, generation, attempt
            task.model_id, task.model_cfg = self._model_id, self._model_cfg
            task._inputs, task._index = inputs, len(tasks)
            if capacity < self._size:
                raise Corrupt(f"the slot for {task} has {capacity} bytes; this worker's samples have {self._size}")
            task._address, task._loop = address, self
            if flags & _structs.ON_DEVICE:
                task._address = None
                address = self._on_device(task, raw, len(tasks))
            else:
                views = self._views.get(address)
                task.tensors = self._make_views(address) if views is None else views
            tasks.append((task, address))
        return tasks

    def _learn_model(self, at: tuple[int, int, int, int]) -> None:
        """Reads id and config, which all tasks of a batch share, at (address, length, address, length); parses the config when it has changed."""
        if at != self._model_at:
            id_at, id_len, config_at, config_len = self._model_at = at
            config_text = (ctypes.c_char * config_len).from_address(config_at) if config_at else None
            self._model_texts = (ctypes.c_char * id_len).from_address(id_at), config_text
        # What lies there is read each time: after a switch the same address may hold another text.
        id_text, config_text = self._model_texts
        model = (id_text.raw, None if config_text is None else config_text.raw)
        if model != self._model:
            self._model_id = model[0].decode()
            self._model_cfg = None if model[1] is None else json.loads(model[1])
            self._model = model

    def _make_views(self, address: int) -> dict[str, Any]:
        # A slot's views depend on nothing but its address: one config, and the memory is the student's in any case.
        if len(self._views) >= _MOST_VIEWS:
            self._views.clear()
        views = make_views(self._plan, self.buffer(address))
        self._views[address] = views
        return views

    @property
    def config(self) -> BatchConfig:
        """The tensors of a sample; a TypeError for a worker that was made without."""
        if self._options.config is None:
            raise TypeError("this worker was made without batch_config: it knows no tensors, only bytes")
        return self._options.config

    def buffer(self, address: int) -> Any:
        """The memory of a task."""
        return (ctypes.c_ubyte * self._size).from_address(address)

    def views_of_lengths(self, address: int) -> dict[str, Any]:
        """Views of all tensors whose lengths are set."""
        return self.config.views(self.buffer(address), _dtypes.use_torch(self._options.framework))

    def set_lengths(self, task: Task, lengths: Mapping[str, int]) -> None:
        """Sets lengths of a task on a device, and its :attr:`~Task.tensors` to those whose lengths are known."""
        self.config.check_lengths(lengths)
        fresh = {name: int(length) for name, length in lengths.items() if task._lengths.get(name) != length}
        if not fresh:
            return
        assert self._handle is not None
        for name, length in fresh.items():
            _native.check(_native.lib().lw_worker_set_length(self._handle, task._raw, name.encode(), length))
        task._lengths |= fresh
        task.tensors = _device.worker_tensors(self._handle, task._raw, self.config, self._as_torch, task._lengths)

    def _on_device(self, task: Task, raw: bytes, index: int) -> int:
        """Makes the tensors of a task on a device, which keep its memory mapped and are not kept here. Returns what :meth:`_write` takes for its address."""
        own = raw[index * _TASK_SIZE : (index + 1) * _TASK_SIZE]
        assert self._handle is not None
        config = self._options.config
        with_tensors = self._options.fill_fn is not None and config is not None
        task._raw, task._lengths = own, {}
        task.tensors = _device.worker_tensors(self._handle, own, config, self._as_torch, {}) if with_tensors and config is not None else {}
        self._raw_tasks[index] = own
        return -1 - index

    def _write(self, address: int, data: Any, who: str, task: Task) -> None:
        try:
            view = memoryview(data).cast("B")
        except TypeError:
            raise TypeError(f"{who} returned a {type(data).__name__} for {task}; expected bytes, for example config.encode(...)") from None
        if view.nbytes != self._size:
            raise ValueError(f"{who} returned {view.nbytes} bytes for {task}; expected slot_size, {self._size}")
        if address < 0:  # on a device
            own = self._raw_tasks[-1 - address]
            _native.check(_native.lib().lw_worker_write(self._handle, own, view.tobytes(), view.nbytes))
            return
        memoryview((ctypes.c_char * self._size).from_address(address)).cast("B")[:] = view

    def _commit(self, raw: bytes, count: int) -> None:
        if self._raw_tasks and self._options.fill_fn is not None and self._options.config is not None and self._handle is not None:
            # Its tasks are published once what the function has queued on this stream is done.
            device = _device.device_of(self._handle, self._raw_tasks[0], self._options.config)
            self._stream = None if device is None else _device.current_stream(device)
        status = self._lw_commit(self._handle, raw, None, count, self._stream, None)
        if status == Status.TASK_FAILED:
            # What a sample does not fulfil has failed its task and was logged by the library; the others are on their way.
            _log.debug("worker: %s", _native.error(status))
        elif status and status != Status.STALE:
            raise _native.error(status)

    def _fail(self, raw: bytes, task: Task, text: str) -> None:
        _log.error("worker: %s failed:\n%s", task, text)
        data = _shorten(text.encode("utf-8", "replace"))
        status = _native.lib().lw_worker_fail(self._handle, raw, data, len(data))
        if status not in (Status.OK, Status.STALE):
            raise _native.error(status)

    def stop(self) -> None:
        """Ends the wait for tasks."""
        self._with_handle(_native.lib().lw_worker_stop, None)

    def _end(self) -> None:
        """At the interpreter's end: a loop on a daemon thread gets a moment to finish its task."""
        self.stop()
        patience = time.monotonic() + _PATIENCE_S
        while self.serving and time.monotonic() < patience:
            time.sleep(0.01)
        if not self.serving:
            self.free()

    @property
    def generation(self) -> int:
        """The number of the newest model known."""
        return int(self._with_handle(_native.lib().lw_worker_generation, 0))

    @property
    def model_id(self) -> str | None:
        """The id of the newest model known."""
        try:
            text = self._with_handle(lambda handle: _native.text(_native.lib().lw_worker_model, handle), None)
        except NotFound:
            return None
        return None if text is None else json.loads(text)["id"]

    @property
    def stats(self) -> dict[str, Any]:
        """The library's counters."""
        text = self._with_handle(lambda handle: _native.text(_native.lib().lw_worker_stats, handle), "{}")
        return json.loads(text)  # type: ignore[no-any-return]

    def _with_handle(self, function: Callable[[int], Any], otherwise: Any) -> Any:
        """What the function returns, or ``otherwise`` where there is no handle: freed, or the parent's."""
        if self.pid != os.getpid():
            return otherwise
        with self._use:
            return otherwise if self._handle is None else function(self._handle)

    def free(self) -> None:
        """Takes leave. Tasks in hand are given back, to be made by another worker."""
        if self.pid != os.getpid():
            return
        with self._use:
            self._handle = None
            self._views.clear()
            self._owned = None  # which frees it


def _shorten(text: bytes) -> bytes:
    """At most what the library keeps, from both ends: a traceback's last lines say what happened."""
    if len(text) <= _MOST_TEXT:
        return text
    gap = b"\n[...]\n"
    head = _MOST_TEXT // 8
    return text[:head] + gap + text[len(text) - (_MOST_TEXT - head - len(gap)) :]


def _open(options: WorkerOptions, timeout_s: float) -> tuple[int, Any]:
    """The handle of a worker that is registered, and what frees it."""
    lib = _native.lib()
    c = _structs.WorkerOptions()
    lib.lw_worker_options_init(ctypes.byref(c))
    c.endpoints = options.endpoints.to_c()
    c.slot_size, c.batch_size = options.slot_size, options.batch_size
    c.spin_us = options.spin_us
    c.device = options.device
    c.worker_id = -1 if options.worker_id is None else options.worker_id

    def open_it(deadline: int) -> tuple[int, Any]:
        attach = AttachTables(options.mediums)
        c.attach, c.attach_count = attach.array, attach.count
        out = c_void_p()
        try:
            with contextlib.nullcontext() if options.config is None else c_layout(options.config) as layout:
                c.layout = layout
                _native.check(lib.lw_worker_open(ctypes.byref(c), deadline, ctypes.byref(out)))
        except BaseException:
            attach.forget()
            raise
        return _native.owned(out.value, lib.lw_worker_free)

    return _native.interruptibly(open_it, timeout_s)
