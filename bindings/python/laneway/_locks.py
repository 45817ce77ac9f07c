"""A lock that a forked child finds open, whoever of the parent's threads held it."""

from __future__ import annotations

import os
import threading
import weakref


class ProcessLock:
    """A ``threading.Lock`` for ``with``; in a forked child it starts anew, since the thread that held it is not there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Forgets who holds it."""
        self._lock = threading.Lock()


_all: weakref.WeakSet[ProcessLock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in list(_all):
        lock.renew()


os.register_at_fork(after_in_child=_renew_all)
