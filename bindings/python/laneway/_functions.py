"""Python functions on a document's text, called by the library's threads."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import _native, _structs
from ._callbacks import borrow, lend


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
        """As an ``lw_function_table``, which keeps what is called."""
        table = _structs.FunctionTable()
        _native.lib().lw_function_table_init(ctypes.byref(table))
        table.name = self.name.encode()
        if self.map is not None:
            table.callee, table.map = _mapping(self.map), _map
        if self.filter is not None:
            table.callee, table.filter = _filtering(self.filter), _filter
        table.user = lend(table.callee)
        return table


@_structs.Map
def _map(user: int | None, text: int, length: int, out: int) -> int:
    callee = borrow(user)
    return gone() if callee is None else callee(text, length, out)


@_structs.Filter
def _filter(user: int | None, text: int, length: int) -> int:
    callee = borrow(user)
    return gone() if callee is None else callee(text, length)


def gone() -> int:
    """For a call that comes when its callee is garbage: it fails, and nobody asks why."""
    text = b"it is gone, and its loader with it"
    _native.lib().lw_set_last_error(text, len(text))
    return -1


def _mapping(function: Callable[[str], str]) -> Callable[..., int]:
    append = _native.lib().lw_text_append

    def call(text: int, length: int, out: int) -> int:
        return _called(lambda: put(function(ctypes.string_at(text, length).decode()), out))

    def put(made: Any, out: int) -> int:
        if not isinstance(made, str):
            raise TypeError(f"it returned a {type(made).__name__}; expected a str")
        encoded = made.encode()
        _native.check(append(out, encoded, len(encoded)))
        return 0

    return call


def _filtering(function: Callable[[str], Any]) -> Callable[..., int]:
    def call(text: int, length: int) -> int:
        return _called(lambda: 1 if function(ctypes.string_at(text, length).decode()) else 0)

    return call


def _called(work: Callable[[], int]) -> int:
    """What ``work()`` returns, which runs the user's function; -1 if it raises, and the library is told."""
    global _inside
    if interrupted():
        return -1
    main = _on_main()
    try:
        # Between these two a Ctrl-C is raised, and nowhere else: nothing may be raised but in here.
        if main:
            _inside = True
        answer = work()
        if main:
            _inside = False
        return answer
    except BaseException as error:
        if main:
            _inside = False
        _tell(error)
        return -1


# A Ctrl-C that came while the library was called by the main thread, and calls functions there, as loaders without threads do. Until it is raised, functions fail.
_interrupts: list[KeyboardInterrupt] = []

# Whether a user's function runs on the main thread, out of which an exception finds its way.
_inside = False


def interrupted() -> bool:
    """Whether there is one that is still to be raised on this thread."""
    return bool(_interrupts) and _on_main()


def take_interrupt() -> KeyboardInterrupt | None:
    """The Ctrl-C that came on this thread, once."""
    if not interrupted():
        return None
    try:
        interrupt = _interrupts.pop()
    except IndexError:  # raised in the meantime, see raise_soon()
        return None
    _interrupts.clear()
    return interrupt


def raise_interrupt() -> None:
    """Raises the Ctrl-C that is still to be raised on this thread, if there is one: before a call, when nothing is lost by it."""
    interrupt = take_interrupt()
    if interrupt is not None:
        try:
            raise interrupt
        finally:
            del interrupt  # or its traceback would hold this frame, and this frame it


def raise_soon() -> None:
    """For a call whose result the caller must get, though a Ctrl-C came meanwhile: it comes again, when the caller has had time to look at the result, unless the
    next call raises it first."""
    # No threading.Thread, whose start waits, so that a second Ctrl-C would be raised there.
    _thread.start_new_thread(_again, (list(_interrupts),))


def come_again() -> None:
    """Where a Ctrl-C was raised, and must not be: in a finalizer, out of which no exception finds its way, or at the end of a call whose result the caller must get."""
    _interrupts.append(KeyboardInterrupt())
    raise_soon()


def _again(interrupts: list[KeyboardInterrupt]) -> None:
    time.sleep(0.05)
    for interrupt in interrupts:
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return  # to a handler of the user's it would be a second one; the next call raises it
        try:
            _interrupts.remove(interrupt)
        except ValueError:  # raised in the meantime
            continue
        # A signal, and not interrupt_main(), for which a thread that sleeps does not wake.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@contextlib.contextmanager
def interrupts_wait() -> Any:
    """Around a call of the library that may call functions on this thread. ctypes drops an exception that is raised on the way to a function or back, and the
    library would take what it finds for the answer; so a Ctrl-C is raised inside of functions only, and otherwise kept."""
    here = _on_main() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if here:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        if here:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(_number: int, _frame: Any) -> None:
    if _inside:
        raise KeyboardInterrupt
    _interrupts.append(KeyboardInterrupt())


def _on_main() -> bool:
    return threading.get_ident() == threading.main_thread().ident


@contextlib.contextmanager
def _failures() -> Any:
    """Tells the library of an exception, which it passes on as the text of its error."""
    try:
        yield
    except BaseException as error:
        _tell(error)


def _tell(error: BaseException) -> None:
    if isinstance(error, KeyboardInterrupt) and _on_main():
        _interrupts.append(error)
    # From the user's first line on.
    place = error.__traceback__
    while place is not None and place.tb_frame.f_globals.get("__name__", "").startswith("laneway."):
        place = place.tb_next
    text = "".join(traceback.format_exception(type(error), error, place)).strip().encode("utf-8", "replace")
    _native.lib().lw_set_last_error(text, len(text))
