"""The worker's side: makes samples, a teacher model's outputs for example, and writes them where the student reads them."""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from . import _structs
from ._dtypes import Framework
from ._endpoints import Endpoints
from ._process import ProcessLock
from ._worker_loop import Task, WorkerLoop, WorkerOptions
from ._functions import Function
from ._operators import Operator
from .batch_config import BatchConfig
from .errors import Timeout
from .mediums import Medium
from .recipe import Recipe
from .rows import Rows
from .student import check_config, check_count, check_spin

__all__ = ["Task", "Worker"]

_log = logging.getLogger("laneway.worker")

_CONNECT_S = 10.0

GeneratorFn = Callable[[str, "dict[str, Any] | None"], "bytes | bytearray | memoryview"]
FillFn = Callable[["list[Task]"], "Sequence[bytes | bytearray | memoryview] | None"]


class Worker:
    """Makes samples, in one of two ways.

    ``Worker(generator_fn, slot_size)``: the function gets a model's id and config and returns the bytes of one sample. They are
    copied into the student's memory once.

    ``Worker(fill_fn=…, batch_config=…, batch_size=N)``: the function gets a list of up to N :class:`Task`, all of one model, and
    writes their tensors in place: one forward pass for N samples and no copy. It may instead return one ``bytes`` a task.

    When the function raises, or returns what does not fit, the whole traceback goes to the log and, if no other attempt
    succeeds, to the student. A batch that raises is tried again one task at a time, so that one bad ticket costs its neighbours nothing.

    Args:
        generator_fn: ``(model_id, model_cfg) -> bytes`` of exactly ``slot_size``.
        slot_size: bytes of a sample; left out where ``batch_config`` says it.
        backend_endpoint, control_pub_endpoint: the broker's addresses; None is the default.
        worker_id: a number for logs and statistics; None is the process id.
        medium: classes (or one) of mediums of one's own that it can write; ``shm``, ``cuda`` and ``file`` it always can.
        fill_fn: ``(tasks) -> None``, or one ``bytes`` for each task.
        batch_config: the tensors of a sample; students with other ones are refused by name of what differs. None: those of ``recipe``'s
            ``[generate]``.
        batch_size: most tasks at once. Of one student it takes as many as its ``max_batch`` allows, 8 by default.
        framework: what ``task["x"]`` is: ``"torch"``, ``"numpy"``, or ``"auto"``: torch where it can be imported.
        spin_us: microseconds to look before sleeping when nothing is there; None: what pays on this machine.
        recipe: what :class:`~laneway.Rows` takes: from it the worker makes the rows that tickets name, :attr:`Task.rows`, so that only tickets travel.
        functions, operators, cache_dir: of that recipe, as for :class:`~laneway.Loader`.
        device: where samples are made for students whose medium is ``"cuda"``. None: in host memory, from where the library copies them up, so that every
            function works as it is. ``"student"``: on the student's device, in its memory, without a copy; ``task["x"]`` is then a tensor
            of that device. A number: on that CUDA device of this process, from where they are copied if it is another one.
    """

    def __init__(
        self,
        generator_fn: GeneratorFn | None = None,
        slot_size: int | None = None,
        backend_endpoint: str | None = None,
        control_pub_endpoint: str | None = None,
        worker_id: int | None = None,
        medium: type | Medium | Sequence[type | Medium] | str | None = None,
        *,
        fill_fn: FillFn | None = None,
        batch_config: BatchConfig | None = None,
        batch_size: int = 1,
        framework: Framework = "auto",
        spin_us: int | None = None,
        recipe: Recipe | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        functions: Iterable[Function] | Mapping[str, Callable[[str], str]] = (),
        operators: Iterable[Operator] = (),
        cache_dir: str | os.PathLike[str] | None = None,
        device: int | str | None = None,
    ) -> None:
        if (generator_fn is None) == (fill_fn is None):
            raise TypeError("pass either generator_fn or fill_fn")
        function = fill_fn if generator_fn is None else generator_fn
        if not callable(function):
            raise TypeError(f"{'fill_fn' if generator_fn is None else 'generator_fn'} is {function!r}; expected a function")
        open_rows = None
        if recipe is not None:
            if fill_fn is None:
                raise TypeError("recipe needs fill_fn: a generator_fn does not see tickets")
            read = Recipe.of(recipe)
            open_rows = functools.partial(Rows, read, functions=functions, operators=operators, cache_dir=cache_dir, framework=framework)
            batch_config = read.taught_config() if batch_config is None else batch_config
        if fill_fn is not None and batch_config is None:
            raise TypeError("fill_fn needs batch_config, which says what tensors there are")
        if fill_fn is None and batch_size != 1:
            raise ValueError("batch_size needs fill_fn: a generator_fn makes one sample at a time")
        config = None if batch_config is None else check_config(batch_config)
        self._options = WorkerOptions(
            generator_fn=generator_fn,
            fill_fn=fill_fn,
            config=config,
            slot_size=_slot_size(slot_size, config),
            batch_size=check_count("batch_size", batch_size, 1, 4096),
            worker_id=None if worker_id is None else check_count("worker_id", worker_id, 0, 2**63 - 1),
            endpoints=Endpoints(None, backend_endpoint, None, control_pub_endpoint),
            mediums=_medium_classes(medium),
            device=_device_number(device),
            framework=framework,
            spin_us=check_spin(spin_us),
            open_rows=open_rows,
        )
        self._lock = ProcessLock()
        self._loop: WorkerLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False

    def hello(self, timeout_s: float = _CONNECT_S) -> dict[str, Any]:
        """Registers at the broker, or does nothing if this was done; waits up to ``timeout_s`` seconds for it.

        Returns:
            ``worker_id``, ``slot_size`` (bytes), ``batch_size``, ``pid``.

        Raises:
            Timeout: no broker answered; names the endpoint.
            Refused: the broker's reason.
        """
        self._open(timeout_s)
        pid = os.getpid()
        return {
            "worker_id": pid if self._options.worker_id is None else self._options.worker_id,
            "slot_size": self._options.slot_size,
            "batch_size": self._options.batch_size,
            "pid": pid,
        }

    def run(self) -> None:
        """Makes samples until :meth:`stop` is called, the leader stops all workers, or Ctrl-C; then it takes leave and returns.

        Waits for a broker for as long as there is none, and for a model until one is set; goes on when the broker is restarted.
        """
        self._stopping = False
        try:
            self._serve()
        except KeyboardInterrupt:
            _log.info("worker: stopped by Ctrl-C")
        finally:
            self._close()

    def start(self) -> None:
        """Does what :meth:`run` does on a background thread, and returns once it is registered. Does nothing if it runs."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._stopping = False
        self._open(_CONNECT_S)

        def serve() -> None:
            try:
                self._serve()
            except Exception:  # a thread's error is seen by nobody unless it is logged
                _log.exception("worker: ended by an error")
            finally:
                self._close()

        self._thread = threading.Thread(target=serve, name="laneway-worker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Takes nothing more, finishes the tasks in hand, and takes leave. From another thread or from the function itself."""
        self._stopping = True
        loop, thread = self._loop, self._thread
        if loop is not None:
            loop.stop()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
            self._thread = None
        elif thread is None and loop is not None and not loop.serving:
            self._close()

    @property
    def generation(self) -> int:
        """The number of the newest model that this worker knows; 0 before the first."""
        loop = self._loop
        return 0 if loop is None else loop.generation

    @property
    def model_id(self) -> str | None:
        """The id of the newest model that this worker knows; None before the first."""
        loop = self._loop
        return None if loop is None else loop.model_id

    @property
    def stats(self) -> dict[str, Any]:
        """What the library counts for this worker; empty before it is registered."""
        loop = self._loop
        return {} if loop is None else loop.stats

    def _open(self, timeout_s: float) -> WorkerLoop:
        with self._lock:
            if self._loop is None or self._loop.pid != os.getpid():
                self._loop = WorkerLoop(self._options, timeout_s)
            return self._loop

    def _serve(self) -> None:
        waited = False
        while not self._stopping:
            try:
                loop = self._open(1.0)
                break
            except Timeout as error:
                if not waited:
                    _log.warning("worker: %s; waiting for it", error)
                waited = True
        else:
            return
        loop.serve(lambda: self._stopping)

    def _close(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.free()

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.stop()


def _slot_size(slot_size: int | None, config: BatchConfig | None) -> int:
    if slot_size is None:
        if config is None:
            raise TypeError("slot_size is missing: how many bytes generator_fn returns (config.nbytes())")
        return config.nbytes()
    size = check_count("slot_size", slot_size, 1, 2**62)
    if config is not None and size != config.nbytes():
        raise ValueError(f"slot_size is {size}; batch_config has {config.nbytes()} bytes")
    return size


def _device_number(device: int | str | None) -> int:
    """The library's number for where samples are made."""
    if device is None:
        return _structs.MAKE_IN_HOST_MEMORY
    if device == "student":
        return _structs.MAKE_ON_STUDENTS_DEVICE
    if isinstance(device, str):
        raise ValueError(f"device is {device!r}; expected None, 'student', or a CUDA device's number in this process")
    return check_count("device", device, 0)


def _medium_classes(medium: Any) -> tuple[Any, ...]:
    if medium is None:
        return ()
    given = tuple(medium) if isinstance(medium, (list, tuple)) else (medium,)
    # The built-in ones need no mention, but naming them as for a student is no mistake.
    return tuple(m for m in given if not (isinstance(m, str) and (m in ("shm", "cuda") or m.startswith("file"))))
