"""A node loader's server in a process of one's own: for recipes that name functions; ``laneway serve`` is the same for all others."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Iterable, Mapping
from ctypes import c_void_p
from typing import Any

from . import _native, _structs
from ._functions import Function
from ._open_loader import ProgressFn, Tuning, _Watch, loader_options
from ._operators import Operator
from ._process import LOADERS, ProcessLock, at_exit
from .errors import Forked, Status
from .generate import GenerateOptions
from .loader import _as_functions, _as_generate, _as_operators
from .recipe import Recipe
from .student import check_count

# Servers are theirs who connect: one that nobody has a name for goes on, and what its threads call stays.
_serving: set[Server] = set()


class Server:
    """Makes the batches of all ranks of this node, for :class:`~laneway.NodeLoader` s in other processes (or in this one).

    Args:
        recipe: as in :class:`~laneway.Loader`.
        name: what it is called; one of a name runs at a time in ``$LANEWAY_DIR``.
        ranks: data-parallel ranks in all; None: as the first peer says.
        local_ranks: those of this node, among which the threads are shared out; None: all.
        peers: processes that read each rank: its first batches are kept until so many have come.
        slots: batches that lie ready for the slowest peer of a rank, 1 to 32.
        threads, prefetch, cache_dir, memory_budget, task_bytes, functions, operators, generate, progress: as in :class:`~laneway.Loader`.

    Any thread may call any method.
    """

    def __init__(
        self,
        recipe: Recipe | Mapping[str, Any] | str | os.PathLike[str],
        *,
        name: str = "default",
        ranks: int | None = None,
        local_ranks: int | None = None,
        peers: int = 1,
        slots: int = 3,
        threads: int | None = None,
        prefetch: int = 1,
        cache_dir: str | os.PathLike[str] | None = None,
        memory_budget: int = 256 << 20,
        task_bytes: int = 32 << 10,
        functions: Iterable[Function] | Mapping[str, Callable[[str], str]] = (),
        operators: Iterable[Operator] = (),
        generate: GenerateOptions | bool = True,
        progress: ProgressFn | bool | str | None = "auto",
    ) -> None:
        self.recipe, self.name = Recipe.of(recipe), name
        self._ranks = 0 if ranks is None else check_count("ranks", ranks, 1)
        self._local_ranks = 0 if local_ranks is None else check_count("local_ranks", local_ranks, 1)
        self._peers, self._slots = check_count("peers", peers, 1, 64), check_count("slots", slots, 1, 32)
        self._tuning = Tuning(
            microbatch_size=0,
            uneven=False,
            threads=None if threads is None else check_count("threads", threads, 0, 4096),
            prefetch=check_count("prefetch", prefetch, 0),
            cache_dir=None if cache_dir is None else os.fspath(cache_dir),
            memory_budget=check_count("memory_budget", memory_budget, 0, 2**63 - 1),
            task_bytes=check_count("task_bytes", task_bytes, 1, 2**31),
            generate=_as_generate(generate),
        )
        self._functions, self._operators = _as_functions(functions), _as_operators(operators)
        self._watch = _Watch(progress)
        self._lock = ProcessLock()
        self._handle: int | None = None
        self._owned: Any = None
        self._kept: tuple[Any, ...] = ()
        self._pid = 0

    def start(self) -> None:
        """Serves on threads of the library until :meth:`stop`, or the interpreter's end. Opens the data first; does nothing if it serves.

        Raises:
            InUse: a living server has this name.
            InvalidArgument, DataError: what is wrong with the recipe or the data.
        """
        with self._lock:
            if self._handle is not None and self._pid == os.getpid():
                return
            lib = _native.lib()
            functions, operators = [f.table() for f in self._functions], [o.table() for o in self._operators]
            tables = loader_options(self._tuning, functions, operators, self._watch)
            c = _structs.ServerOptions()
            lib.lw_server_options_init(ctypes.byref(c))
            c.name, c.loader, c.ranks, c.local_ranks = self.name.encode(), ctypes.pointer(tables), self._ranks, self._local_ranks
            c.peers, c.slots = self._peers, self._slots

            def open_(_deadline: int) -> tuple[int, Any]:
                out = c_void_p()
                _native.check(lib.lw_server_start(self.recipe._handle, ctypes.byref(c), ctypes.byref(out)))
                return _native.owned(out.value, lib.lw_server_free)

            try:
                self._handle, self._owned = _native.interruptibly(open_, 1e9)
            except BaseException:
                self._watch.stopped = True
                if (failure := self._watch.take_failure()) is not None:
                    raise failure from None
                raise
            self._kept, self._pid = (functions, operators), os.getpid()
            _serving.add(self)
            at_exit(LOADERS, self, Server.stop)

    def run(self) -> None:
        """Serves until :meth:`stop` is called, Ctrl-C, or ``laneway stop --node NAME``."""
        self.start()
        try:
            while self._handle is not None:
                status = _native.lib().lw_server_wait(self._handle, _native.monotonic_ns() + _native.SLICE_NS)
                if status != Status.TIMEOUT:
                    _native.check(status)
                    break
        except KeyboardInterrupt:
            pass
        finally:
            self.stop()

    def stop(self) -> None:
        """Ends it. Loaders that read from it wait for another of its name; batches that they hold stay readable. May be called twice."""
        with self._lock:
            self._handle = None
            self._owned = None  # which frees it, but not in a forked child
            _serving.discard(self)

    @property
    def stats(self) -> dict[str, Any]:
        """``name``, ``pid``, ``ranks``, ``peers`` (their processes), and in ``feeds``, for each rank that somebody has asked for, ``rank``, ``step`` (of the
        next batch to be made), ``batches`` (made), ``peers`` and ``awaited``. Empty while it does not serve."""
        with self._lock:
            if self._handle is None:
                return {}
            if self._pid != os.getpid():
                raise Forked("this server serves in the parent process; ask there")
            return json.loads(_native.text(_native.lib().lw_server_stats, self._handle))  # type: ignore[no-any-return]

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"Server(name={self.name!r}, recipe={self.recipe.fingerprint:016x})"
