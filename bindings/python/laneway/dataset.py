"""An infinite torch dataset of samples that workers make while the trainer trains."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from . import _dtypes, _native, _structs
from ._dtypes import Framework
from ._endpoints import Endpoints
from ._medium_glue import check_cuda
from ._process import ProcessLock
from ._student import OpenStudent, Options
from .batch_config import BatchConfig
from .errors import InUse, Timeout
from .student import GenerationValue, check_config, check_count, check_spin

if TYPE_CHECKING:
    from torch.utils.data import IterableDataset

    _Base = IterableDataset[dict[str, Any]]
else:
    # A DataLoader asks for this very base class; without torch there is no DataLoader either.
    _torch = _dtypes.torch_or_none()
    _Base = _torch.utils.data.IterableDataset if _torch is not None else object

_log = logging.getLogger("laneway.dataset")

# Longer than the library waits for a process of the same name that may be dying (1.5 s).
_ATTEMPT_S = 2.0
_LONGEST_DELAY_S = 1.0
_LOOK_AROUND_NS = 1_000_000_000
_HINT_S = 30.0

TAGS = ("_lane", "_step", "_generation")
"""What ``tags=True`` adds to each sample, as ints."""


class DistillIterableDataset(_Base):
    """Yields ``dict[str, Tensor]`` without end: one sample each, in ticket order, of the model that is set.

    Each process that iterates it is a student of its own, with its own memory, window and lane: lane =
    ``student_rank · max(1, num_workers) + worker``. It registers when it is first iterated, so the dataset may be made before
    the broker runs, and pickled or forked into the workers of a ``DataLoader``. Up to ``slot_count`` samples are asked for
    ahead.

    The tensors are views of shared memory; a sample's slot is used again when its last tensor dies. Where a ``DataLoader``
    collates more samples than there are slots, those beyond are copies (counted in :attr:`stats`), and nothing stalls.

    A new iterator goes on after the last sample that was handed out. torch's own ``DataLoader`` holds batches in its queues
    which a switch of the model cannot take back: see ``tags``, or use :class:`laneway.torch.DataLoader`, which can.

    Args:
        student_rank: which trainer of the group this is.
        generation_value: ``client.generation_value``; it says the group and where the broker is.
        slot_count: samples in flight and held at once, in each process.
        batch_config: the tensors of a sample.
        frontend_endpoint: the broker's address; None is that of ``generation_value``, else the default.
        max_retries: how often the first contact with the broker is tried. A slow teacher or a broker that restarts later is
            waited for without limit.
        retry_delay: seconds to wait before the second try; doubled for each one after, up to a second.
        medium: None or ``"shm"``, ``"cuda"``, ``"file:/path"`` (``{lane}`` in it is replaced, needed where several processes iterate), or
            a function from a lane to a :class:`~laneway.mediums.Medium`.
        max_workers, max_batch: as for :class:`~laneway.StudentClient`.
        max_attempts: how often a ticket is tried before :class:`~laneway.TaskError` is raised.
        seed: the run's seed; None is that of the client which ``generation_value`` came from, else 0.
        tags: adds ``_lane``, ``_step`` and ``_generation`` (ints) to each sample.
        framework: ``"torch"``, ``"numpy"``, or ``"auto"``: torch where it can be imported.
        spin_us, device, fallback, pin_memory: as for :class:`~laneway.StudentClient`.
    """

    def __init__(
        self,
        student_rank: int,
        generation_value: GenerationValue | Any,
        slot_count: int,
        batch_config: BatchConfig,
        frontend_endpoint: str | None = None,
        max_retries: int = 10,
        retry_delay: float = 0.01,
        *,
        medium: str | Callable[[int], Any] | None = None,
        max_workers: int = 8,
        max_batch: int = 8,
        max_attempts: int = 3,
        seed: int | None = None,
        tags: bool = False,
        framework: Framework = "auto",
        spin_us: int | None = None,
        device: int | None = None,
        fallback: str | None = None,
        pin_memory: bool = False,
    ) -> None:
        shared = generation_value if isinstance(generation_value, GenerationValue) else None
        endpoints = Endpoints() if shared is None else shared.endpoints
        if frontend_endpoint is not None:
            endpoints = replace(endpoints, frontend=frontend_endpoint)
        config = check_config(batch_config)
        if tags and (clash := set(TAGS) & set(config.tensor_names)):
            raise ValueError(f"tags=True adds {', '.join(TAGS)}; batch_config has {', '.join(sorted(clash))} already")
        if retry_delay < 0:
            raise ValueError(f"retry_delay is {retry_delay}; expected seconds, 0 or more")
        self._options = Options(
            batch_config=config,
            slot_count=check_count("slot_count", slot_count, 1),
            rank=check_count("student_rank", student_rank, 0),
            endpoints=endpoints,
            group=None if shared is None else shared.group,
            dataset=True,
            cuda=check_cuda(medium, device, fallback, pin_memory),
            prefetch=slot_count,
            spin_us=check_spin(spin_us),
            max_workers=check_count("max_workers", max_workers, 1),
            max_batch=check_count("max_batch", max_batch, 1),
            max_attempts=check_count("max_attempts", max_attempts, 1),
            seed=check_count("seed", (shared.seed if shared else 0) if seed is None else seed, 0, 2**64 - 1),
        )
        self.generation_value = generation_value
        self._medium = medium
        self._max_retries = check_count("max_retries", max_retries, 0)
        self._retry_delay = float(retry_delay)
        self._tags = tags
        self._framework: Framework = framework
        self._reset()

    def _reset(self) -> None:
        self._lock = ProcessLock()
        # Per (process, worker, workers): the student, and how many iterators use it.
        self._open: dict[tuple[int, int, int], tuple[OpenStudent, int]] = {}

    @property
    def batch_config(self) -> BatchConfig:
        """The tensors of a sample."""
        return self._options.batch_config

    @property
    def tags(self) -> bool:
        """Whether samples carry their ticket and generation."""
        return self._tags

    @property
    def stats(self) -> dict[str, Any]:
        """What the library counts for the student that this process iterates; empty if it iterates none."""
        with self._lock:
            students = [student for key, (student, _) in self._open.items() if key[0] == os.getpid()]
        return students[0].stats if students else {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker, workers = _data_worker()
        parent = os.getppid() if workers else None
        as_torch = _dtypes.use_torch(self._framework)
        student = self.acquire(worker, workers)
        try:
            while (raw := wait_for_sample(student, parent)) is not None:
                yield self.unpack(student, raw, as_torch)
        finally:
            self.give_up(worker, workers)

    def unpack(self, student: OpenStudent, raw: bytes, as_torch: bool) -> dict[str, Any]:
        """The tensors of a sample, as views that keep its slot."""
        _, _, lane, step, _, generation, *_ = _structs.SAMPLE.unpack(raw)
        tensors = student.views(raw, as_torch)
        if self._tags:
            tensors.update(zip(TAGS, (lane, step, generation), strict=True))
        return tensors

    def acquire(self, worker: int, workers: int) -> OpenStudent:
        """This process's student for worker ``worker`` of ``workers``, opened if need be; :meth:`give_up` follows.

        Raises:
            Timeout: no broker answered ``max_retries`` times.
            InUse: another living process iterates this lane.
        """
        key = (os.getpid(), worker, workers)
        with self._lock:
            if key in self._open:
                student, users = self._open[key]
            else:
                student, users = self._connect(worker, workers), 0
            self._open[key] = student, users + 1
        return student

    def give_up(self, worker: int, workers: int) -> None:
        """Closes the student when its last iterator ends. Tensors that are held stay readable."""
        key = (os.getpid(), worker, workers)
        with self._lock:
            if key not in self._open:
                return
            student, users = self._open.pop(key)
            if users > 1:
                self._open[key] = student, users - 1
                return
        student.close()

    def close(self) -> None:
        """Closes what this process has open; its iterators end with an error. Iterating anew opens again."""
        with self._lock:
            mine = [key for key in self._open if key[0] == os.getpid()]
            students = [self._open.pop(key)[0] for key in mine]
        for student in students:
            student.close()

    def _connect(self, worker: int, workers: int) -> OpenStudent:
        options = replace(self._options, data_worker=worker, data_workers=workers)
        lane = options.rank * max(1, workers) + worker
        delay = self._retry_delay
        tries = 0
        while True:
            try:
                return OpenStudent(replace(options, medium=self._medium_for(lane, workers)), _ATTEMPT_S)
            except InUse as error:
                raise InUse(f"{error}. {_IN_USE}") from error
            except Timeout as error:
                tries += 1
                if tries > self._max_retries:
                    raise Timeout(f"{error} (tried {tries} times)") from error
                _log.debug("dataset: lane %d: try %d: %s", lane, tries, error)
            time.sleep(delay)
            delay = min(2 * delay, max(_LONGEST_DELAY_S, self._retry_delay))

    def _medium_for(self, lane: int, workers: int) -> Any:
        medium = self._medium
        if isinstance(medium, str):
            if medium.startswith("file:") and workers > 1 and "{lane}" not in medium:
                raise ValueError(
                    f"medium is {medium!r}, and {workers} processes iterate: each needs a file of its own; put {{lane}} into the path"
                )
            return medium.replace("{lane}", str(lane))
        return medium if medium is None else medium(lane)

    def __getstate__(self) -> dict[str, Any]:
        # What is open stays with this process.
        return {key: value for key, value in self.__dict__.items() if key not in ("_lock", "_open")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()


_IN_USE = "If that process iterates this very dataset, end the iteration, or call dataset.close() there"


def wait_for_sample(student: OpenStudent, parent: int | None) -> bytes | None:
    """The next sample, however long it takes, or None once the parent process is gone, for whom it would be.

    Says in the log what may be missing when nothing comes for long.
    """
    hint_at = _native.monotonic_ns() + int(_HINT_S * 1e9)
    while True:
        now = _native.monotonic_ns()
        raw = student.take_one(now + _LOOK_AROUND_NS)
        if raw is not None:
            return raw
        if parent is not None and os.getppid() != parent:
            _log.warning("dataset: the trainer is gone; this data worker ends")
            return None
        if now > hint_at:
            generation = student.generation
            what = (
                "no model is set (client.set_model)" if generation == 0 else f"model generation {generation} is set; is a worker running?"
            )
            _log.warning("dataset: lane %d: no sample for %.0f s: %s", student.lane, _HINT_S, what)
            hint_at = now + int(_HINT_S * 1e9)


def _data_worker() -> tuple[int, int]:
    """Which worker of a DataLoader this process is, and of how many; (0, 0) outside of one."""
    torch = _dtypes.torch_or_none()
    info = None if torch is None else torch.utils.data.get_worker_info()
    return (0, 0) if info is None else (info.id, info.num_workers)
