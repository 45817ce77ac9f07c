"""Handles that go with an object, without a line of Python.

A ``__del__`` is Python, and so is ``weakref.finalize``: Python handles its signals there, and drops what they raise, so a Ctrl-C that came just then would be
lost. A weak reference may have a C function as its callback, which cannot be interrupted.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

import numpy as np


class _Free(weakref.ref):  # type: ignore[type-arg]
    """Calls a function of the library with a handle: ctypes takes the reference, which is the callback's argument, for the handle."""

    __slots__ = ("_as_parameter_",)
    _as_parameter_: Any


# By the object's id, so that a reference which has done its work makes room when the place in memory is used again: a reference that dies first calls nobody.
_kept: dict[int, _Free] = {}
# Handles of a forked child's copies are the parent's business.
os.register_at_fork(after_in_child=_kept.clear)


def free_with(free: Any, handle: Any) -> Any:
    """An object whose death, on whichever thread, calls ``free(handle)``, a function of the library that takes a handle alone; not at the interpreter's end.

    Whatever has the handle holds it, and alone. It is an array, of which the garbage collector knows nothing: of objects that it collects together it calls
    the callbacks of weak references first and finalizers after, and these may still use the handle (``with Loader(…)`` in a generator that is part of a cycle).
    """
    owned = np.empty(0, np.uint8)
    reference = _Free(owned, free)
    reference._as_parameter_ = handle
    _kept[id(owned)] = reference
    return owned
