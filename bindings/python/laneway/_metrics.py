"""Numbers of all that this process has open, and a listener that tells them to Prometheus."""

from __future__ import annotations

import ctypes
import json
import os
from ctypes import c_void_p
from typing import Any

from . import _native


def metrics() -> dict[str, Any]:
    """The numbers of everything that this process has open: students, workers, loaders, node
    loaders' servers, brokers.

    Returns:
        ``version``, ``pid``, and the lists ``students``, ``workers``, ``loaders``, ``nodes`` and ``brokers``. An entry has what tells it from others
        (``group``, ``rank``, ``lane``, ``worker_id``, …) and ``counters``, a dict; docs/metrics.md lists every counter with its unit.
    """
    return json.loads(_native.text(_native.lib().lw_metrics_snapshot))  # type: ignore[no-any-return]


def metrics_text() -> str:
    """The same numbers in Prometheus' text format, for a web server of one's own."""
    return _native.text(_native.lib().lw_metrics_text)


def serve_metrics(port: int = 0, host: str = "127.0.0.1") -> MetricsServer:
    """Answers ``GET http://host:port/metrics`` with :func:`metrics_text`, on a thread of the library's own, until closed.

    Args:
        port: 0 takes any free one; see :attr:`MetricsServer.port`.
        host: who can connect to it can read the numbers: the default is this host only.

    Raises:
        OSError: the address is taken.
        ValueError: no such host, or not a port.
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"port is {port}; expected 0 to 65535")
    return MetricsServer(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


class MetricsServer:
    """A listener for metrics, as :func:`serve_metrics` starts it. A context manager."""

    def __init__(self, address: str) -> None:
        out = c_void_p()
        _native.check(_native.lib().lw_metrics_serve(address.encode(), ctypes.byref(out)))
        self._handle: int | None = out.value
        self._pid = os.getpid()
        self.port: int = _native.lib().lw_metrics_server_port(self._handle)
        """Where it listens."""

    def close(self) -> None:
        """Ends it. May be called twice; does nothing in a forked child."""
        handle, self._handle = self._handle, None
        if handle is not None and self._pid == os.getpid():
            _native.lib().lw_metrics_server_free(handle)

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()
