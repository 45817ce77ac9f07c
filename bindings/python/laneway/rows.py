"""Rows by ticket: any row of a recipe, in any order, the same bytes as a loader's."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import c_void_p
from typing import Any

from . import _dtypes, _native, _structs
from ._dtypes import Framework
from ._functions import Function, interrupts_wait, take_interrupt
from ._open_loader import ProgressFn, Tuning, _Watch, first_documents, loader_options
from ._operators import Operator
from ._owned import close_with
from .batch import Arrival, Batch, _Native
from .errors import Forked, Status
from .loader import _as_functions, _as_operators
from .recipe import Recipe
from .student import check_count


class Rows:
    """Row ``step`` of any ``lane`` of a recipe. With it a worker makes its own inputs, so that only tickets travel; ``Worker(recipe=…)`` has one.

    Datasets and tokenizer are opened here. Each lane that was asked for runs on from where it is, so rows of a lane in rising order are
    cheapest. Any thread may call :meth:`get`; calls take turns. Not for a forked child of the process that made it.

    Args:
        recipe: the path of a TOML file, TOML text, a dict of the same keys, or a :class:`~laneway.Recipe`.
        functions, operators, cache_dir, memory_budget, task_bytes, progress, framework: as for :class:`~laneway.Loader`.
    """

    def __init__(
        self,
        recipe: Recipe | Mapping[str, Any] | str | os.PathLike[str],
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        memory_budget: int = 256 << 20,
        task_bytes: int = 32 << 10,
        functions: Iterable[Function] | Mapping[str, Callable[[str], str]] = (),
        operators: Iterable[Operator] = (),
        progress: ProgressFn | bool | str | None = "auto",
        framework: Framework = "auto",
    ) -> None:
        self.recipe = Recipe.of(recipe)
        self.pid = os.getpid()
        self._as_torch = _dtypes.use_torch(framework)
        self._lib = _native.lib()
        # What the library calls.
        self._watch = _Watch(progress)
        self._tables = [f.table() for f in _as_functions(functions)]
        self._operators = [o.table() for o in _as_operators(operators)]
        tuning = Tuning(
            microbatch_size=0,
            uneven=False,
            threads=None,
            prefetch=0,
            cache_dir=None if cache_dir is None else os.fspath(cache_dir),
            memory_budget=check_count("memory_budget", memory_budget, 0, 2**63 - 1),
            task_bytes=check_count("task_bytes", task_bytes, 1, 2**31),
            generate=False,
        )
        self._handle, self._owned = self._open(tuning)
        close_with(self._lib.lw_rows_abandon, self._handle, self)
        self._firsts = first_documents(self._lib.lw_rows_dataset, self._handle)

    def _open(self, tuning: Tuning) -> tuple[int, Any]:
        c = loader_options(tuning, self._tables, self._operators, self._watch)

        def ask(_deadline: int) -> tuple[int, Any]:
            out = c_void_p()
            _native.check(self._lib.lw_rows_open(self.recipe._handle, ctypes.byref(c), ctypes.byref(out)))
            return _native.owned(out.value, self._lib.lw_rows_free)

        try:
            return _native.interruptibly(ask, 1e9)
        except BaseException:
            self._watch.stopped = True
            if (failure := self._watch.take_failure()) is not None:
                raise failure from None
            raise

    def get(self, tickets: Sequence[tuple[int, int]]) -> Batch:
        """The rows of these tickets, each ``(lane, step)``: ``step`` counts a lane's rows in the order of delivery. One batch, in the tickets' order.

        Raises:
            InvalidArgument: a lane or a row that the recipe does not have.
            DataError: a document, a file or a function failed, and the message names it.
        """
        given = [(check_count("lane", lane, 0, 2**64 - 1), check_count("step", step, 0, 2**64 - 1)) for lane, step in tickets]
        array = (_structs.Ticket * len(given))(*given)
        return self._batch(lambda deadline, out: self._lib.lw_rows_get(self._handle, array, len(given), deadline, out))

    def of_tasks(self, worker: int, tasks: bytes, count: int) -> Batch:
        """The rows of open tasks: ``count`` ``lw_task`` of a worker's handle. For :class:`~laneway.Worker`."""
        return self._batch(lambda deadline, out: self._lib.lw_rows_of_tasks(self._handle, worker, tasks, count, deadline, out))

    def _batch(self, ask: Callable[[int, Any], int]) -> Batch:
        if self.pid != os.getpid():
            raise Forked(f"these rows were opened by process {self.pid}, and this is its forked child {os.getpid()}: make a Rows here")
        arrival = Arrival()
        while True:
            with interrupts_wait():
                status = ask(_native.monotonic_ns() + _native.SLICE_NS, ctypes.byref(arrival.out))
            if status == Status.OK:
                batch = Batch(_Native(arrival), self._as_torch, self._firsts)
                # The rows can be asked for again.
                if (interrupt := take_interrupt()) is not None:
                    raise interrupt
                return batch
            if (interrupt := take_interrupt()) is not None:
                raise interrupt
            if status not in (Status.TIMEOUT, Status.INTERRUPTED):
                raise self._watch.take_failure() or _native.error(status)

    def close(self) -> None:
        """No function is called any more, and a :meth:`get` that is going on on another thread fails once the one that it is in has returned. Batches stay. May be
        called twice."""
        self._watch.stopped = True
        if self.pid == os.getpid():
            self._lib.lw_rows_abandon(self._handle)

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Rows(recipe={self.recipe.fingerprint:016x})"
