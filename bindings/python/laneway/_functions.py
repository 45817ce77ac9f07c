"""Python functions on a document's text, called by the library's threads."""

from __future__ import annotations

import contextlib
import ctypes
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import _native, _structs


@dataclass(frozen=True)
class Function:
    """A function of the user's on a document's text, before it becomes tokens.

    It runs on any thread, in any order, and again after a restore: it must be pure. The GIL lets one thread at a time run Python, so more
    threads make it no faster but on free-threaded Python.

    Attributes:
        name: as in the recipe's ``functions``: a name with a version, ``"clean 2"`` say, which its author changes whenever it would do
            anything else than before.
        map: gives the new text; or
        filter: says whether the document is kept.
    """

    name: str
    map: Callable[[str], str] | None = None
    filter: Callable[[str], bool] | None = None

    def __post_init__(self) -> None:
        if (self.map is None) == (self.filter is None):
            raise ValueError(f"function {self.name!r} has {'neither map nor filter' if self.map is None else 'both map and filter'}; give it one")

    def table(self) -> _structs.FunctionTable:
        """As an ``lw_function_table``, which keeps the callbacks."""
        table = _structs.FunctionTable()
        _native.lib().lw_function_table_init(ctypes.byref(table))
        table.name = self.name.encode()
        if self.map is not None:
            table.map = _structs.Map(_mapping(self.map))
        if self.filter is not None:
            table.filter = _structs.Filter(_filtering(self.filter))
        return table


def _mapping(function: Callable[[str], str]) -> Callable[..., int]:
    append = _native.lib().lw_text_append

    def call(_user: int | None, text: int, length: int, out: int) -> int:
        if _interrupts:
            return -1
        with _failures():
            made = function(ctypes.string_at(text, length).decode())
            if not isinstance(made, str):
                raise TypeError(f"it returned a {type(made).__name__}; expected a str")
            encoded = made.encode()
            _native.check(append(out, encoded, len(encoded)))
            return 0
        return -1

    return call


def _filtering(function: Callable[[str], Any]) -> Callable[..., int]:
    def call(_user: int | None, text: int, length: int) -> int:
        if _interrupts:
            return -1
        with _failures():
            return 1 if function(ctypes.string_at(text, length).decode()) else 0
        return -1

    return call


# A Ctrl-C that came while a function ran on the main thread, which it does in loaders without threads. Until it is raised, functions fail at once.
_interrupts: list[KeyboardInterrupt] = []


def interrupted() -> bool:
    """Whether there is one that is still to be raised."""
    return bool(_interrupts)


def take_interrupt() -> KeyboardInterrupt | None:
    """The Ctrl-C that a function was ended by, once."""
    interrupt = _interrupts[-1] if _interrupts else None
    _interrupts.clear()
    return interrupt


@contextlib.contextmanager
def _failures() -> Any:
    """Tells the library of an exception, which it passes on as the text of its error."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            _interrupts.append(error)
        text = "".join(traceback.format_exception(error)).strip().encode("utf-8", "replace")
        _native.lib().lw_set_last_error(text, len(text))
