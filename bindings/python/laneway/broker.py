"""The broker: introduces students and workers to each other, and never touches a sample.

``python -c "from laneway import Broker; Broker().run()"`` and the ``laneway broker`` program are the same thing.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import threading
from ctypes import c_void_p
from typing import Any

from . import _native, _structs
from ._endpoints import Endpoints
from ._process import BROKERS, ProcessLock, at_exit
from .errors import Forked

_log = logging.getLogger("laneway.broker")


class BrokerStats(dict[str, Any]):
    """What the broker counts, as a mapping whose keys are attributes too: ``stats.workers`` is ``stats["workers"]``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no statistic '{name}'; there are {', '.join(self)}") from None


class Broker:
    """A broker in this process.

    Args:
        frontend_endpoint: where students register.
        backend_endpoint: where workers register.
        control_endpoint: where the leader sets the model.
        control_pub_endpoint: where switches and stops are announced.
            Each is a ZeroMQ address; None is the default (a socket in ``$LANEWAY_DIR``).

    Any thread may call any method.
    """

    def __init__(
        self,
        frontend_endpoint: str | None = None,
        backend_endpoint: str | None = None,
        control_endpoint: str | None = None,
        control_pub_endpoint: str | None = None,
    ) -> None:
        self._endpoints = Endpoints(frontend_endpoint, backend_endpoint, control_endpoint, control_pub_endpoint)
        self._lock = ProcessLock()
        self._handle: int | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Serves until :meth:`stop` is called, or Ctrl-C: then it removes its sockets and returns.

        Raises:
            InUse: a living broker has these endpoints; the message names its process.
        """
        try:
            self.start()
            while (thread := self._thread) is not None and thread.is_alive():
                thread.join(0.1)
        except KeyboardInterrupt:
            _log.info("broker: stopped by Ctrl-C")
        finally:
            self.stop()
        if self._failure is not None:
            raise self._failure

    def start(self) -> None:
        """Serves on a background thread until :meth:`stop`. Returns once it can be reached; does nothing if it serves.

        Raises:
            InUse: a living broker has these endpoints; the message names its process.
        """
        with self._lock:
            if self._thread is not None and self._pid == os.getpid():
                return
            lib = _native.lib()
            options = _structs.BrokerOptions()
            lib.lw_broker_options_init(ctypes.byref(options))
            options.endpoints = self._endpoints.to_c()
            handle = c_void_p()
            _native.check(lib.lw_broker_open(ctypes.byref(options), ctypes.byref(handle)))
            self._handle, self._pid, self._failure = handle.value, os.getpid(), None
            self._thread = threading.Thread(target=self._serve, args=(handle.value,), name="laneway-broker", daemon=True)
            self._thread.start()
            at_exit(BROKERS, self, Broker.stop)

    def _serve(self, handle: int) -> None:
        try:
            _native.check(_native.lib().lw_broker_run(handle))
        except Exception as error:
            self._failure = error
            _log.error("broker: ended: %s", error)

    def stop(self) -> None:
        """Stops serving and removes the sockets. Students and workers go on with open tickets and look for a new broker."""
        with self._lock:
            handle, thread = self._handle, self._thread
            self._handle = self._thread = None
            if handle is None or thread is None or self._pid != os.getpid():
                return
            lib = _native.lib()
            lib.lw_broker_stop(handle)
            thread.join()
            lib.lw_broker_free(handle)

    @property
    def stats(self) -> BrokerStats:
        """Students, workers, messages by kind, refused messages and more, now. Empty while the broker does not serve."""
        with self._lock:
            if self._handle is None:
                return BrokerStats()
            if self._pid != os.getpid():
                raise Forked("this broker serves in the parent process; ask there, or with `laneway top`")
            return BrokerStats(json.loads(_native.text(_native.lib().lw_broker_stats, self._handle)))

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.stop()
