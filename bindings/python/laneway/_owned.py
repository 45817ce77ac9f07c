"""Handles that go with an object, without a line of Python.

A ``__del__`` is Python, and so is ``weakref.finalize``: Python handles its signals there, and drops what they raise, so a Ctrl-C that came just then would be
lost. A weak reference may have a C function as its callback, which cannot be interrupted. It is called before anything that the object holds goes.
"""

from __future__ import annotations

import os
import weakref
from typing import Any


class _Free(weakref.ref):  # type: ignore[type-arg]
    """Calls a function of the library with a handle: ctypes takes the reference, which is the callback's argument, for the handle."""

    __slots__ = ("_as_parameter_",)
    _as_parameter_: Any


# By the object's id, so that a reference which has done its work makes room when the place in memory is used again: a reference that dies first calls nobody.
_kept: dict[int, _Free] = {}
# Handles of a forked child's copies are the parent's business.
os.register_at_fork(after_in_child=_kept.clear)


def free_with(obj: Any, free: Any, handle: Any) -> None:
    """Calls ``free(handle)``, a function of the library that takes a handle alone, when ``obj`` dies, on whichever thread that is; not at the interpreter's end."""
    reference = _Free(obj, free)
    reference._as_parameter_ = handle
    _kept[id(obj)] = reference
