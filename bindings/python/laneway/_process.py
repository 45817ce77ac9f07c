"""What a process's beginning (a fork) and end mean for the package's objects."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any


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
    for objects in _endings:
        for obj, ending in list(objects.items()):
            with contextlib.suppress(Exception):
                ending(obj)
