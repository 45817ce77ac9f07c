"""What goes wrong, as exceptions: one class a status of the C API, each also a kind of the builtin that fits.

``except laneway.LanewayError`` catches all of them, ``except TimeoutError`` also catches a :class:`Timeout`. The message says
what was wrong, where, what was expected and what to do; ``.status`` is the number of ``lw_status``.
"""

from __future__ import annotations

import enum
import re


class Status(enum.IntEnum):
    """The numbers of ``lw_status`` in ``laneway.h``: never changed, never reused."""

    OK = 0
    INVALID_ARGUMENT = 1001
    TIMEOUT = 1002
    INTERRUPTED = 1003
    FORKED = 1004
    PEER_DEAD = 1005
    CLOSED = 1006
    PANIC = 1007
    ABI_MISMATCH = 1008
    NO_MEMORY = 1009
    IO = 1010
    REFUSED = 1011
    LAYOUT_MISMATCH = 1012
    TASK_FAILED = 1013
    CORRUPT = 1014
    UNSUPPORTED = 1015
    IN_USE = 1016
    NOT_LEADER = 1017
    STALE = 1018
    NOT_FOUND = 1019
    DATA = 1020


class LanewayError(Exception):
    """Base of every error of the library."""

    status: int = 0
    """The number of ``lw_status``, comparable with :class:`Status`."""


class InvalidArgument(LanewayError, ValueError):
    """An argument is wrong."""

    status = Status.INVALID_ARGUMENT


class Timeout(LanewayError, TimeoutError):
    """The deadline passed first. Nothing was lost: call again."""

    status = Status.TIMEOUT


class Interrupted(LanewayError, InterruptedError):
    """``cancel()`` asked the wait to end."""

    status = Status.INTERRUPTED


class Forked(LanewayError, RuntimeError):
    """The object was made by another process, and this one is its forked child: make a new one here."""

    status = Status.FORKED


class PeerDead(LanewayError, ConnectionError):
    """The process on the other side has died."""

    status = Status.PEER_DEAD


class Closed(LanewayError, RuntimeError):
    """The object was closed or stopped."""

    status = Status.CLOSED


class Panic(LanewayError, RuntimeError):
    """A fault inside the library was caught at its border; please report it."""

    status = Status.PANIC


class AbiMismatch(LanewayError, RuntimeError):
    """This package and the library, or two processes, are of versions that do not go together."""

    status = Status.ABI_MISMATCH


class NoMemory(LanewayError, MemoryError):
    """Not enough memory or room on the file system; the message says need and have."""

    status = Status.NO_MEMORY


class IoError(LanewayError, OSError):
    """The operating system refused."""

    status = Status.IO


class Refused(LanewayError, ConnectionRefusedError):
    """The broker or the student refused a registration."""

    status = Status.REFUSED


class LayoutMismatch(LanewayError, ValueError):
    """Two sides disagree about the tensors of a sample."""

    status = Status.LAYOUT_MISMATCH


class TaskError(LanewayError, RuntimeError):
    """A ticket failed as often as ``max_attempts`` allows; the next request goes on with the ticket after it.

    Attributes:
        lane, step: the ticket, where the library's message names it.
        attempts: how often it was tried.
        text: what the worker said, usually its traceback.
    """

    status = Status.TASK_FAILED

    lane: int | None
    step: int | None
    attempts: int | None
    text: str

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        found = _FAILED_TICKET.match(message)
        self.lane, self.step, self.attempts = (int(n) for n in found.groups()) if found else (None, None, None)
        self.text = message[found.end() :] if found else message


class Corrupt(LanewayError, RuntimeError):
    """A segment, file or message is foreign, truncated or damaged."""

    status = Status.CORRUPT


class Unsupported(LanewayError, NotImplementedError):
    """This build or this machine cannot do it."""

    status = Status.UNSUPPORTED


class InUse(LanewayError, RuntimeError):
    """Somebody living owns this name already."""

    status = Status.IN_USE


class NotLeader(LanewayError, PermissionError):
    """Only the leader (rank 0) may do this."""

    status = Status.NOT_LEADER


class Stale(LanewayError, RuntimeError):
    """The task is no longer wanted: its generation was raised, or another worker was first."""

    status = Status.STALE


class NotFound(LanewayError, LookupError):
    """The named thing does not exist."""

    status = Status.NOT_FOUND


class DataError(LanewayError, ValueError):
    """Data is wrong (a document, a file, a recipe); the message names file and line."""

    status = Status.DATA


def from_status(status: int, message: str) -> LanewayError:
    """The exception for a status and its message."""
    kind = _BY_STATUS.get(status)
    if kind is not None:
        return kind(message)
    error = LanewayError(f"{message} (status {status})")
    error.status = status
    return error


# How the library words it.
_FAILED_TICKET = re.compile(r"ticket \(lane (\d+), step (\d+)\) failed after (\d+) attempts?: ")

_BY_STATUS: dict[int, type[LanewayError]] = {int(kind.status): kind for kind in LanewayError.__subclasses__()}
