"""The library's messages in Python's ``logging``, under the logger ``"laneway"``."""

from __future__ import annotations

import logging
import os
from typing import Any

from . import _native, _structs
from ._process import LOGS, at_exit

LOGGER = logging.getLogger("laneway")

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_LEVELS = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARNING": 30, "WARN": 30, "ERROR": 40, "CRITICAL": 50, "OFF": 100}


class _Registration:
    """The callback that the library has, which Python must keep, and the process that gave it."""

    def __init__(self) -> None:
        self.callback = _structs.LogCallback(_receive)
        self.pid = os.getpid()
        _native.check(_native.lib().lw_log_set_callback(self.callback, None, _structs.Drop()))
        at_exit(LOGS, self, _Registration.end)

    def end(self) -> None:
        """Returns when no message is on its way any more; in a forked child the library calls nothing anyway."""
        if self.pid == os.getpid():
            _native.lib().lw_log_set_callback(_structs.LogCallback(), None, _structs.Drop())


_registered: _Registration | None = None


def setup_logging(level: int | str = "INFO") -> None:
    """Shows the messages of this package and of the library at ``level`` and above.

    They go to the logger ``"laneway"``; if neither it nor the root logger has a handler, they are printed on standard error.
    May be called again to change the level, and in a forked child.

    Args:
        level: a number of ``logging``, or a name: DEBUG, INFO, WARNING, ERROR, CRITICAL (any case), also TRACE and OFF.

    Raises:
        ValueError: no such level.
        TypeError: neither int nor str.
    """
    number = _level(level)
    LOGGER.setLevel(number)
    if not LOGGER.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(_FORMAT))
        LOGGER.addHandler(handler)
    _native.lib().lw_log_set_level(number)
    global _registered
    if _registered is None or _registered.pid != os.getpid():
        _registered = _Registration()


def _level(level: int | str) -> int:
    if isinstance(level, str):
        try:
            return _LEVELS[level.upper()]
        except KeyError:
            raise ValueError(f"level is {level!r}; expected one of {', '.join(_LEVELS)}, or a number") from None
    if isinstance(level, int) and not isinstance(level, bool):
        return level
    raise TypeError(f"level is a {type(level).__name__}; expected an int or a str")


def _receive(_user: int | None, level: int, target: bytes, message: bytes) -> None:
    try:
        name = target.decode("utf-8", "replace").replace("::", ".")
        logging.getLogger(name).log(level, "%s", message.decode("utf-8", "replace"))
    except Exception:
        if logging.lastResort is not None:
            logging.lastResort.handleError(logging.makeLogRecord({"msg": message}))
