"""Handles that go with an object, without a line of Python.

A ``__del__`` is Python, and so is ``weakref.finalize``: Python handles its signals there, and drops what they raise, so a Ctrl-C that came just then would be
lost. A weak reference may have a C function as its callback, which cannot be interrupted.

Of objects that the garbage collector finds together, it calls first the callbacks of weak references, then finalizers, and then it takes the objects apart, in
any order, while other threads run: what a handle calls, a user's function say, may come first. So a handle with callbacks is abandoned in the first step, from when on it
calls nothing, and freed in the last: finalizers find it closed (``with Loader(…)`` in a generator that is part of a cycle). Nothing is waited for, since whoever drops an
object may hold a lock that a function wants; what still runs finds what it needs by itself (``_callbacks.py``).
"""

from __future__ import annotations

import ctypes
import operator
import os
import weakref
from typing import Any

import numpy as np


class _Call(weakref.ref):  # type: ignore[type-arg]
    """Calls a function of the library with a handle: ctypes takes the reference, which is the callback's argument, for the handle."""

    __slots__ = ("_as_parameter_",)
    _as_parameter_: Any


# By the object's id, so that a reference which has done its work makes room when the place in memory is used again: a reference that dies first calls nobody.
_kept: dict[int, _Call] = {}
# Handles of a forked child's copies are the parent's business.
os.register_at_fork(after_in_child=_kept.clear)


def close_with(close: Any, handle: Any, owner: Any) -> None:
    """Calls ``close(handle)``, a function of the library that takes a handle alone, when ``owner`` dies, on whichever thread, or is found to be garbage; not at
    the interpreter's end. The handle must live as long as the owner (:func:`free_with` frees it after that), or else :func:`forget` comes first.
    """
    reference = _Call(owner, close)
    reference._as_parameter_ = handle
    _kept[id(owner)] = reference


def forget(owner: Any) -> None:
    """Takes back what :func:`close_with` was told of ``owner``, whose handle is not to live as long."""
    _kept.pop(id(owner), None)


def free_with(free: Any, handle: Any) -> Any:
    """An object whose death, on whichever thread, calls ``free(handle)``, a function of the library that takes a handle alone; not at the interpreter's end.

    Whatever has the handle holds it, and alone. It is an array, of which the garbage collector knows nothing, so that it dies with what holds it and not before
    finalizers have run. By then what the handle calls may be gone: one with callbacks needs :func:`close_with`.
    """
    owned = np.empty(0, np.uint8)
    close_with(free, handle, owned)
    return owned


class _Pointer:
    """How a finalizer of :func:`finalizer` gets its argument."""

    from_param = operator.attrgetter("_reference")


_method = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(("PyInstanceMethod_New", ctypes.pythonapi))


def finalizer(function: Any) -> Any:
    """A ``__del__`` that calls ``function``, a ctypes function of its own, with the object's attribute ``_reference``: None, or bytes that the C function reads. For objects
    of which there are many; what others of the same garbage hold may be finalized before.
    """
    function.restype, function.argtypes = None, [_Pointer]
    return _method(function)
