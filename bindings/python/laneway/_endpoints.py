"""The broker's addresses, as the Python classes take them."""

from __future__ import annotations

from dataclasses import dataclass

from . import _structs
from ._native import bytes_or_none


@dataclass(frozen=True)
class Endpoints:
    """ZeroMQ addresses (``ipc:///path``, ``tcp://host:port``); None is the default: a socket in ``$LANEWAY_DIR``, which is
    ``/tmp/laneway-<uid>`` unless set."""

    frontend: str | None = None
    backend: str | None = None
    control: str | None = None
    control_pub: str | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is None:
                continue
            if not isinstance(value, str):
                raise TypeError(f"{name}_endpoint is a {type(value).__name__}; expected a str such as 'ipc:///run/x.sock'")
            if "://" not in value or "\0" in value:
                raise ValueError(f"{name}_endpoint is {value!r}; expected an address such as 'ipc:///run/x.sock'")

    def to_c(self) -> _structs.Endpoints:
        """The struct; it keeps the strings alive."""
        return _structs.Endpoints(
            bytes_or_none(self.frontend),
            bytes_or_none(self.backend),
            bytes_or_none(self.control),
            bytes_or_none(self.control_pub),
        )

    def where(self, name: str) -> str:
        """For messages: the address, or where the default lies."""
        return getattr(self, name) or f"the default {name} endpoint"
