"""An open ``lw_loader``: what ``loader.py`` is built on."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import threading
from collections.abc import Callable
from ctypes import c_char_p, c_double, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _native, _structs
from ._callbacks import borrow, lend
from ._functions import Function, come_again, interrupted, interrupts_wait, raise_interrupt, raise_soon, take_interrupt
from ._operators import Operator
from ._owned import close_with
from ._process import LOADERS, at_exit, forks
from .batch import Arrival, Batch, _Native
from .errors import Forked, Status, Timeout
from .generate import GenerateOptions, rows_only
from .recipe import Recipe

ProgressFn = Callable[[str, int, int], object]

_FOR_EVER_S = 1e9


@dataclass(frozen=True)
class Tuning:
    """What may change speed and memory but no byte."""

    microbatch_size: int
    uneven: bool
    threads: int | None
    prefetch: int
    cache_dir: str | None
    memory_budget: int
    task_bytes: int
    generate: GenerateOptions | bool


class OpenLoader:
    """An open loader of this process. Any thread may call any method."""

    def __init__(
        self,
        recipe: Recipe | None,
        rank: int,
        ranks: int,
        tuning: Tuning,
        functions: list[Function],
        operators: list[Operator],
        progress: ProgressFn | bool | str | None,
    ) -> None:
        self.pid, self._forks = os.getpid(), forks()
        self._watch = _Watch(progress)
        # What the library calls; it must not keep this object.
        self._tables = [f.table() for f in functions]
        self._operators = [o.table() for o in operators]
        self._lib = _native.lib()
        self._next = self._lib.lw_loader_next
        self._handle = 0
        self._handle, self._owned = self._patiently(lambda: _native.owned(self._make(recipe, rank, ranks, tuning), self._lib.lw_loader_free))
        close_with(self._lib.lw_loader_abandon, self._handle, self)
        self._info = json.loads(self.text("lw_loader_info"))
        self._counted = not self._info["finite"]
        self._firsts: list[np.ndarray] | None = None
        at_exit(LOADERS, self, OpenLoader.abandon)

    def _make(self, recipe: Recipe | None, rank: int, ranks: int, tuning: Tuning) -> int:
        assert recipe is not None
        c = loader_options(tuning, self._tables, self._operators, self._watch)
        c.rank, c.ranks, c.uneven, c.microbatch_size = rank, ranks, tuning.uneven, tuning.microbatch_size
        out = c_void_p()
        _native.check(self._lib.lw_loader_open(recipe._handle, ctypes.byref(c), ctypes.byref(out)))
        assert out.value is not None
        return out.value

    @property
    def recipe(self) -> Recipe:
        """The loader's recipe."""
        return Recipe(_native.text(self._lib.lw_recipe_to_toml, self._lib.lw_loader_recipe(self._handle)))

    def next(self, as_torch: bool, deadline: int = _native.NEVER) -> Batch | None:
        """The next batch; None after the last."""
        raise_interrupt()
        if not self._counted:
            _ = self.steps  # which takes as long as it takes, and can be interrupted
        arrival = Arrival()
        try:
            return self._batch(arrival, as_torch) if self.wait(arrival, deadline) else None
        except KeyboardInterrupt:
            # Python raises it when the library's call returns: a batch that came with it is the caller's all the same, or nobody would get it.
            if not arrival.out.value:
                raise
            come_again()
            return self._batch(arrival, as_torch)

    def wait(self, arrival: Arrival, deadline: int) -> bool:
        """Whether there is another batch, which then lies there."""
        out = ctypes.byref(arrival.out)
        while True:
            slice_end = _native.monotonic_ns() + _native.SLICE_NS
            status = self._next(self._handle, slice_end if slice_end < deadline else deadline, out)
            if not status:  # Status.OK
                return arrival.out.value is not None
            if status != Status.INTERRUPTED and (status != Status.TIMEOUT or _native.monotonic_ns() >= deadline):
                raise self._error(status)

    def _batch(self, arrival: Arrival, as_torch: bool) -> Batch:
        if self._firsts is None:
            self._firsts = first_documents(self._lib.lw_loader_dataset, self._handle)
        return Batch(_Native(arrival), as_torch, self._firsts)

    @property
    def dataset_names(self) -> list[str]:
        """In the recipe's order."""
        return [d["name"] for d in self._info["datasets"]]

    def text(self, function: str) -> str:
        """What a function of that name writes."""
        return _native.text(getattr(self._lib, function), self._handle)

    def move(self, target: list[bytes] | int) -> None:
        """Goes to the start of a step, or to saved states."""
        if isinstance(target, int):
            step = target
            self._patiently(lambda: self._checked(self._lib.lw_loader_seek(self._handle, step)))
            return
        states = (_structs.State * len(target))(*[_structs.State(text, len(text)) for text in target])
        self._patiently(lambda: self._checked(self._lib.lw_loader_load(self._handle, states, len(target))))

    def set_mixture(self, weights: list[float], from_step: int) -> None:
        """As ``lw_loader_set_mixture``."""
        values = (c_double * len(weights))(*weights)
        _native.check(self._lib.lw_loader_set_mixture(self._handle, values, len(weights), from_step))

    def set_model(self, model_id: str, model_cfg: str | None, from_step: int) -> None:
        """As ``lw_loader_set_model``."""
        name, cfg = model_id.encode(), None if model_cfg is None else model_cfg.encode()
        _native.check(self._lib.lw_loader_set_model(self._handle, name, len(name), cfg, 0 if cfg is None else len(cfg), from_step))

    @property
    def step(self) -> int:
        """The step of the next batch."""
        return self._number(self._lib.lw_loader_step)

    @property
    def steps(self) -> int | None:
        """How many steps there are; None without an end."""
        steps = self._patiently(lambda: self._number(self._lib.lw_loader_steps))
        self._counted = True
        return None if steps == _structs.ENDLESS else steps

    def _number(self, function: Any) -> int:
        number = c_uint64()
        _native.check(function(self._handle, ctypes.byref(number)))
        return number.value

    def locate(self, dataset: int, document: int) -> str:
        """File and line."""
        handle = self._dataset(dataset)
        location, shard = _structs.Location(), _structs.Shard()
        _native.check(self._lib.lw_dataset_locate(handle, document, ctypes.byref(location)))
        _native.check(self._lib.lw_dataset_shard(handle, location.shard, ctypes.byref(shard)))
        return f"{shard.path.decode('utf-8', 'replace')} {'row' if location.is_row else 'line'} {location.number}"

    def read(self, dataset: int, document: int) -> str:
        """The text of a document."""
        skipped = c_char_p()
        handle = self._dataset(dataset)
        return _sized_text(lambda b, n, length: self._lib.lw_dataset_read(handle, document, b, n, length, ctypes.byref(skipped)))

    def _dataset(self, index: int) -> int:
        handle = self._lib.lw_loader_dataset(self._handle, index) if 0 <= index < len(self.dataset_names) else None
        if handle is None:
            raise IndexError(f"dataset {index}; the recipe has {len(self.dataset_names)}: {', '.join(self.dataset_names)}")
        return handle  # type: ignore[no-any-return]

    def decode(self, ids: np.ndarray) -> str:
        """The text of token ids."""
        pointer = ids.ctypes.data_as(ctypes.POINTER(c_int64))
        return _sized_text(lambda b, n, length: self._lib.lw_loader_decode(self._handle, pointer, len(ids), b, n, length))

    def close(self) -> None:
        """Ends its threads, and waits for the user's functions that run; a Ctrl-C ends the wait. May be called twice."""
        self.abandon()
        while self.pid == os.getpid() and self._lib.lw_loader_join(self._handle, _native.monotonic_ns() + _native.SLICE_NS) == Status.TIMEOUT:
            pass

    def abandon(self) -> None:
        """As :meth:`close`, and waits for nobody."""
        self._watch.stopped = True
        if self.pid == os.getpid():
            self._lib.lw_loader_abandon(self._handle)

    def check_process(self) -> None:
        """A Forked error in a child of the process that opened it."""
        if self._forks != forks():
            raise Forked(
                f"this loader was opened by process {self.pid}, and this is its forked child {os.getpid()}: make a Loader here, or fork before its first use"
            )

    def _patiently(self, work: Callable[[], Any]) -> Any:
        """What ``work()`` returns, which may have to index or to count first; done on a thread of its own, so that Ctrl-C is noticed at once."""
        done = False

        def ask(_deadline: int) -> Any:
            nonlocal done
            try:
                return work()
            finally:
                done = True
                self._watch.stopped = False

        try:
            return _native.interruptibly(ask, _FOR_EVER_S)
        except BaseException:
            if not done:
                # It ends soon, but not before the user's functions that run now; later calls queue up behind it.
                self._watch.stopped = True
                if self._handle:
                    self._lib.lw_loader_cancel(self._handle)
                if done:  # meanwhile
                    self._watch.stopped = False
            if (failure := self._watch.take_failure()) is not None:
                raise failure from None
            raise

    def _checked(self, status: int) -> int:
        _native.check(status)
        return 0

    def _error(self, status: int) -> BaseException:
        return self._watch.take_failure() or _native.error(status)


class InlineLoader(OpenLoader):
    """The same, of a loader without threads, in whose :meth:`next` the user's functions run, and a Ctrl-C ends them."""

    def next(self, as_torch: bool, deadline: int = _native.NEVER) -> Batch | None:
        if not self._counted:
            _ = self.steps
        while not interrupted():
            arrival = Arrival()
            try:
                with interrupts_wait():
                    there = self.wait(arrival, min(deadline, _native.monotonic_ns() + _native.SLICE_NS))
                    batch = self._batch(arrival, as_torch) if there else None
                if batch is None and interrupted():
                    break
                if interrupted():
                    raise_soon()
                return batch
            except Timeout:
                if _native.monotonic_ns() >= deadline:
                    raise
            except Exception:
                if not interrupted():
                    raise
        interrupt = take_interrupt()
        assert interrupt is not None
        # What the functions left undone has failed; from the same place anew it has not.
        with contextlib.suppress(Exception):
            self.move([self.text("lw_loader_save_json").encode()])
        try:
            raise interrupt
        finally:
            del interrupt  # or its traceback would hold this frame, and this frame it


def loader_options(tuning: Tuning, functions: list[Any], operators: list[Any], watch: _Watch) -> _structs.LoaderOptions:
    """What ``lw_loader_open`` and ``lw_server_start`` have in common; the tables must live as long as it."""
    c = _structs.LoaderOptions()
    _native.lib().lw_loader_options_init(ctypes.byref(c))
    c.prefetch = tuning.prefetch
    c.threads = _structs.THREADS_ALL if tuning.threads is None else tuning.threads
    c.cache_dir = None if tuning.cache_dir is None else os.fsencode(tuning.cache_dir)
    c.memory_budget, c.task_bytes = tuning.memory_budget, tuning.task_bytes
    c.functions = (ctypes.POINTER(_structs.FunctionTable) * max(1, len(functions)))(*[ctypes.pointer(t) for t in functions])
    c.operators = (ctypes.POINTER(_structs.OperatorTable) * max(1, len(operators)))(*[ctypes.pointer(t) for t in operators])
    c.function_count, c.operator_count = len(functions), len(operators)
    c.progress, c.progress_user = _told, watch.number
    if tuning.generate is not True:
        c.generate = ctypes.pointer(tuning.generate.to_c() if isinstance(tuning.generate, GenerateOptions) else rows_only())
    return c


def first_documents(dataset_of: Callable[[int, int], int | None], handle: int) -> list[np.ndarray]:
    """For each dataset, the number of each shard's first document; ``dataset_of(handle, i)`` gives the i-th."""
    lib, shard, firsts = _native.lib(), _structs.Shard(), []
    while (dataset := dataset_of(handle, len(firsts))) is not None:
        numbers = []
        for s in range(lib.lw_dataset_shard_count(dataset)):
            _native.check(lib.lw_dataset_shard(dataset, s, ctypes.byref(shard)))
            numbers.append(shard.first_document)
        firsts.append(np.array(numbers, np.int64))
    return firsts


@dataclass(frozen=True)
class Connection(Tuning):
    """Which peer of a server it is."""

    name: str
    peers: int
    spin_us: int
    patience_s: float


class OpenNodeLoader(OpenLoader):
    """The same, of a loader whose batches a server makes."""

    def _make(self, recipe: Recipe | None, rank: int, ranks: int, tuning: Tuning) -> int:
        assert isinstance(tuning, Connection)
        c = _structs.ConnectOptions()
        self._lib.lw_connect_options_init(ctypes.byref(c))
        c.rank, c.ranks, c.uneven, c.microbatch_size = rank, ranks, tuning.uneven, tuning.microbatch_size
        c.name, c.peers, c.spin_us, c.patience_ms = tuning.name.encode(), tuning.peers, tuning.spin_us, int(tuning.patience_s * 1000)
        c.progress, c.progress_user = _told, self._watch.number
        out = c_void_p()
        _native.check(self._lib.lw_loader_connect(None if recipe is None else recipe._handle, ctypes.byref(c), ctypes.byref(out)))
        assert out.value is not None
        return out.value


class _Watch:
    """What the library tells while it indexes and counts, and whether it shall go on."""

    def __init__(self, progress: ProgressFn | bool | str | None) -> None:
        self.stopped = False
        self._told = _teller(progress)
        self._failure: BaseException | None = None
        self.number = lend(self)

    def tell(self, what: bytes, done: int, total: int) -> int:
        """Called by the library's threads; ends the work if it is no longer wanted."""
        if self.stopped:
            return 1
        try:
            if self._told is not None:
                self._told(what.decode("utf-8", "replace"), done, total)
        except BaseException as error:
            self._failure = error
            return 1
        return 0

    def take_failure(self) -> BaseException | None:
        """What the user's function raised, once."""
        failure, self._failure = self._failure, None
        return failure


@_structs.Progress
def _told(user: int | None, what: bytes, done: int, total: int) -> int:
    watch = borrow(user)
    return 1 if watch is None else watch.tell(what, done, total)


def _sized_text(write: Callable[[Any, int, Any], int]) -> str:
    """What ``write(buffer, capacity, &len)`` writes."""
    length = c_size_t()
    _native.check(write(None, 0, ctypes.byref(length)))
    buffer = ctypes.create_string_buffer(length.value + 1)
    _native.check(write(buffer, length.value + 1, ctypes.byref(length)))
    return buffer.raw[: length.value].decode("utf-8", "replace")


def _teller(progress: ProgressFn | bool | str | None) -> ProgressFn | None:
    if callable(progress):
        return progress
    return _Bar() if progress is True or (progress == "auto" and sys.stderr is not None and sys.stderr.isatty()) else None


class _Bar:
    """A line on standard error, written anew when its percentage changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shown: dict[str, int] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        percent = 100 if total == 0 else min(100, done * 100 // total)
        with self._lock:
            if self._shown.get(what, -1) >= percent:
                return
            self._shown[what] = percent
            end = "\n" if percent == 100 else ""
            print(f"\rlaneway: {what} {'━' * (percent // 4):<25} {percent:3d} %", end=end, file=sys.stderr, flush=True)
