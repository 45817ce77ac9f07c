"""What a process's beginning (a fork) and end mean for the package's objects."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from . import _native


class ProcessLock:
    """A ``threading.Lock`` for ``with``; in a forked child it starts anew, since the thread that held it is not there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Forgets who holds it."""
        self._lock = threading.Lock()


_locks: weakref.WeakSet[ProcessLock] = weakref.WeakSet()


def _renew_locks() -> None:
    for lock in list(_locks):
        lock.renew()


os.register_at_fork(after_in_child=_renew_locks)

_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def forks() -> int:
    """How many forks lie between this process and the one that imported the package: tells a child without a system call."""
    return _forks


# In this order: who makes samples, who asks for them, who introduced them, who makes batches, and who tells of it.
WORKERS, STUDENTS, BROKERS, LOADERS, LOGS = range(5)

_endings: list[weakref.WeakKeyDictionary[Any, Callable[[Any], None]]] = [weakref.WeakKeyDictionary() for _ in range(5)]


def at_exit(order: int, obj: Any, ending: Callable[[Any], None]) -> None:
    """Calls ``ending(obj)`` when the interpreter ends, if the object still lives.

    The library's threads must be out of Python by then: a thread that asks a finished interpreter for the GIL never returns.
    """
    _endings[order][obj] = ending


@atexit.register
def _end() -> None:
    steps = _steps()
    while True:
        try:
            for step in steps:
                with contextlib.suppress(Exception):
                    step()
            return
        except KeyboardInterrupt:
            # What was begun ends by itself. Whoever does not want to wait for that ends the process.
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, signal.SIG_DFL)


def _steps() -> Iterator[Callable[[], None]]:
    # A list, not a generator, which an exception would end.
    steps = [functools.partial(ending, obj) for objects in _endings for obj, ending in list(objects.items())]
    # Twice, should a Ctrl-C end the first: this one must not be left out.
    return iter([*steps, _native.end_callbacks, _native.end_callbacks])
