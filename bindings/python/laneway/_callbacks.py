"""What the library calls in Python.

Of each kind there is one C function, which lives as long as its module; its ``user`` is a number by which it finds what it is to call. A ctypes function of its own
for each would be memory that goes with its owner, and a thread may be about to jump there: nobody can wait for a thread that waits for the GIL.

The numbers hold nothing. What the garbage collector takes apart cannot be found any more, and what was found is held by the call.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from typing import Any

_numbers = itertools.count(1)
_lent: dict[int, weakref.ref[Any]] = {}


def lend(callee: Any) -> int:
    """A number by which :func:`borrow` finds it while it lives."""
    number = next(_numbers)
    # In C, so that no signal is handled in it.
    _lent[number] = weakref.ref(callee, functools.partial(_lent.pop, number))
    return number


def borrow(number: int | None) -> Any:
    """What was lent under that number; None if it lives no more."""
    reference = _lent.get(number or 0)
    return None if reference is None else reference()
