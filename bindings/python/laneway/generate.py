"""How a loader reaches the teachers of a recipe that has a ``[generate]``."""

from __future__ import annotations

from dataclasses import dataclass, field

from . import _native, _structs
from ._endpoints import Endpoints
from .student import check_count, check_spin


@dataclass(frozen=True)
class GenerateOptions:
    """Where a :class:`~laneway.Loader` finds the workers that make a sample for each of its rows. None of it changes a byte.

    The loader is a student of the group, one a rank, and registers when its first batch is asked for.

    Args:
        frontend_endpoint, control_endpoint, control_pub_endpoint: the broker's addresses; None is the default.
        group: separates jobs on one broker, as for a :class:`~laneway.StudentClient`; no other student of the group may have this rank.
        window: samples in flight and held together; None: those of the steps made ahead, as far as they fit into 1 GiB.
        max_workers: workers that can be attached at once.
        max_attempts: how often a row is tried, when workers fail or die, before :class:`~laneway.TaskError` is raised.
        connect_timeout_s: how long the broker may take to answer at first.
        broker: ``"embedded"`` starts a ``laneway broker`` process unless one answers.
        spin_us: microseconds to look before sleeping when nothing is there; None: what pays on this machine.
    """

    frontend_endpoint: str | None = None
    control_endpoint: str | None = None
    control_pub_endpoint: str | None = None
    group: str | None = field(default=None, kw_only=True)
    window: int | None = field(default=None, kw_only=True)
    max_workers: int = field(default=8, kw_only=True)
    max_attempts: int = field(default=3, kw_only=True)
    connect_timeout_s: float = field(default=10.0, kw_only=True)
    broker: str | None = field(default=None, kw_only=True)
    spin_us: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.broker not in (None, "embedded"):
            raise ValueError(f"broker is {self.broker!r}; expected None (one runs already) or 'embedded'")
        if self.window is not None:
            check_count("window", self.window, 1)
        check_count("max_workers", self.max_workers, 1)
        check_count("max_attempts", self.max_attempts, 1)
        self.to_c()

    def to_c(self) -> _structs.GenerateOptions:
        """The struct; it keeps the strings alive."""
        c = _structs.GenerateOptions()
        _native.lib().lw_generate_options_init(c)
        c.endpoints = Endpoints(self.frontend_endpoint, None, self.control_endpoint, self.control_pub_endpoint).to_c()
        c.group = _native.bytes_or_none(self.group)
        c.window = self.window or 0
        c.max_workers, c.max_attempts = self.max_workers, self.max_attempts
        c.connect_ms = max(0, int(self.connect_timeout_s * 1e3))
        c.embedded_broker = self.broker == "embedded"
        c.spin_us = check_spin(self.spin_us)
        return c

    def words(self) -> list[str]:
        """What tells ``laneway serve`` the same; nothing for what is as it would be anyway."""
        plain, words = GenerateOptions(), []
        for name, option in _OPTIONS.items():
            value = getattr(self, name)
            if value != getattr(plain, name):
                words.append(option if name == "broker" else f"{option}={value}")
        return words


_OPTIONS = {
    "frontend_endpoint": "--frontend",
    "control_endpoint": "--control",
    "control_pub_endpoint": "--control-pub",
    "group": "--group",
    "window": "--window",
    "max_workers": "--max-workers",
    "max_attempts": "--max-attempts",
    "connect_timeout_s": "--connect-timeout",
    "broker": "--embedded-broker",
    "spin_us": "--spin-us",
}
"""Of each field the option of ``laneway serve`` that says the same."""


def rows_only() -> _structs.GenerateOptions:
    """The struct that says that nobody is asked."""
    c = _structs.GenerateOptions()
    _native.lib().lw_generate_options_init(c)
    c.rows_only = 1
    return c
