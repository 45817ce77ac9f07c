"""A ``DataLoader`` whose batches never mix models and never skip a sample when the model is switched; and batches on their way to a GPU."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import torch
import torch.utils.data

from . import _native, _structs
from ._functions import come_again
from ._student import OpenStudent
from .dataset import TAGS, DistillIterableDataset, wait_for_sample
from .errors import Timeout

__all__ = ["DataLoader", "ToDevice", "to_device", "topk_kl"]

_log = logging.getLogger("laneway.torch")

_HARMLESS = {
    "persistent_workers",
    "prefetch_factor",
    "multiprocessing_context",
    "pin_memory_device",
    "in_order",
    "drop_last",
}
_MEANINGLESS = {
    "shuffle": "the order is that of the tickets",
    "sampler": "the order is that of the tickets",
    "batch_sampler": "the order is that of the tickets",
    "worker_init_fn": "there are no worker processes",
    "generator": "randomness comes from each ticket's seed",
}


class DataLoader(torch.utils.data.DataLoader):  # type: ignore[type-arg]
    """As torch's ``DataLoader`` for a :class:`~laneway.DistillIterableDataset`, but exact when ``set_model`` is called.

    A batch holds samples of one model only, and when ``set_model`` has returned, no batch of an older one is handed out by any rank.
    Nothing is skipped: what was collected for a batch when the model changed is dropped, and its tickets are made again.

    **How.** There are no worker processes and no queue of batches. Samples are made by Laneway's workers anyway, and fetched ahead
    by the segments' windows (``slot_count`` of the dataset); all that is left to do is one copy of each sample into its batch, which
    happens when the batch is asked for, straight into pinned memory if ``pin_memory`` is set. So there is no queue that could hold something stale,
    and the cursors count what the trainer took: a new epoch, or a new process, goes on exactly there.

    ``num_workers=W`` keeps its meaning for the numbering: the rank owns ``max(1, W)`` lanes, ``rank·W … rank·W + W − 1``, each with
    a window of its own, and batch ``i`` comes from lane ``i mod W``, as with torch's loader.

    Args:
        dataset: a :class:`~laneway.DistillIterableDataset`.
        batch_size: samples in a batch; None yields single samples, as views of shared memory.
        num_workers: lanes, as said above.
        collate_fn: from a list of samples to a batch; None stacks each tensor, or, where dimensions are ragged, pads as
            :meth:`~laneway.BatchConfig.collate` does (``functools.partial(config.collate, pad_to="max")`` pads otherwise).
        pin_memory: batches lie in page-locked memory, where there is a CUDA device.
        timeout: seconds to wait for a batch before :class:`~laneway.errors.Timeout` is raised (nothing is lost: ask again); 0
            waits for ever.
        options: ``persistent_workers``, ``prefetch_factor``, ``multiprocessing_context``, ``pin_memory_device``, ``in_order`` and
            ``drop_last`` are accepted, for code that moves between loaders, and change nothing: there are no processes, order is
            always kept, and an infinite dataset has no last batch. Whatever else would have to change the data is an error.
    """

    def __init__(
        self,
        dataset: DistillIterableDataset,
        batch_size: int | None = 1,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        timeout: float = 0,
        **options: Any,
    ) -> None:
        if not isinstance(dataset, DistillIterableDataset):
            raise TypeError(f"dataset is a {type(dataset).__name__}; expected a DistillIterableDataset (others: torch's DataLoader)")
        for name, value in options.items():
            if name in _MEANINGLESS and value:
                raise TypeError(f"{name}={value!r} cannot be honoured: {_MEANINGLESS[name]}")
            if name not in _MEANINGLESS and name not in _HARMLESS:
                raise TypeError(f"unknown option '{name}'")
        if num_workers < 0:
            raise ValueError(f"num_workers is {num_workers}; expected 0 or more")
        super().__init__(dataset, batch_size=batch_size, collate_fn=collate_fn, pin_memory=pin_memory, timeout=timeout)
        self.num_workers = num_workers
        self._stacks = collate_fn is None

    def __iter__(self) -> Any:
        return _Batches(self)


class _Batches:
    """One pass over the loader: one student a lane, and the batch that is being filled."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._dataset = cast(DistillIterableDataset, loader.dataset)
        self._workers = loader.num_workers
        self._students: list[OpenStudent] = []
        self._batch: _Batch | None = None
        try:
            for worker in range(max(1, self._workers)):
                self._students.append(self._dataset.acquire(worker, self._workers))
        except BaseException:
            self.close()
            raise
        cursors = [student.cursor for student in self._students]
        self._turn = cursors.index(min(cursors))
        self._pin = loader.pin_memory and torch.cuda.is_available()

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        student = self._students[self._turn]
        size = self._loader.batch_size
        deadline = _native.monotonic_ns() + int(self._loader.timeout * 1e9) if self._loader.timeout else _native.NEVER
        following = (self._turn + 1) % len(self._students)
        batch = self._one(student, deadline) if size is None else self._fill(student, size, deadline)
        self._turn = following
        return batch

    def _one(self, student: OpenStudent, deadline: int) -> Any:
        raw = _wait(student, deadline)
        try:
            return self._dataset.unpack(student, raw, as_torch=True)
        except BaseException:  # a Ctrl-C, say
            student.rewind(_structs.SAMPLE.unpack(raw)[3])
            raise

    def _fill(self, student: OpenStudent, size: int, deadline: int) -> Any:
        # A batch that an error or a timeout has interrupted is gone on with, so that none of its samples is lost.
        batch = self._batch or self._new_batch(student, size)
        self._batch = batch
        while batch.missing:
            raw, taken = _wait(student, deadline), batch.taken
            try:
                batch.add(raw)
            except BaseException:  # a Ctrl-C, say
                if batch.taken == taken:
                    student.rewind(_structs.SAMPLE.unpack(raw)[3])
                raise
            if batch.mixed or (not batch.missing and student.generation != batch.generation):
                _log.debug("loader: lane %d: the model changed; steps from %d are made again", student.lane, batch.first_step)
                student.rewind(batch.first_step)
                batch = self._batch = self._new_batch(student, size)
        made = batch.result(self._loader.collate_fn)
        self._batch = None  # not before: what fails there, or is interrupted, is tried again
        return made

    def _new_batch(self, student: OpenStudent, size: int) -> _Batch:
        return _Batch(self._dataset, student, size, self._loader._stacks, self._pin)

    def close(self) -> None:
        """Gives back what a half-filled batch has taken, and closes the lanes."""
        batch, self._batch = self._batch, None
        if batch is not None and batch.taken:
            self._students[self._turn].rewind(batch.first_step)
        while self._students:
            self._students.pop()
            self._dataset.give_up(len(self._students), self._workers)

    # In Python, since it is more than one call: a Ctrl-C that comes in here comes again.
    def __del__(self) -> None:
        try:
            self.close()
        except KeyboardInterrupt:
            come_again()
            self.close()
        except Exception as error:
            _log.debug("loader: at its end: %s", error)


class _Batch:
    """Samples of one lane on their way into a batch; each is copied into its row at once, so that its slot is free again."""

    def __init__(self, dataset: DistillIterableDataset, student: OpenStudent, size: int, stack: bool, pin: bool) -> None:
        self._dataset, self._student, self._size = dataset, student, size
        self.first_step = student.cursor
        self.generation = -1
        self.mixed = False
        self.taken = 0
        self._samples: list[dict[str, Any]] = []
        self._rows: dict[str, torch.Tensor] | None = None
        self._pads = stack and bool(dataset.batch_config.dims)
        self._pin = pin
        if stack and not self._pads:
            self._rows = {}

    @property
    def missing(self) -> int:
        return self._size - self.taken

    def add(self, raw: bytes) -> None:
        generation = _structs.SAMPLE.unpack(raw)[5]
        if self.taken == 0:
            self.generation = generation
        self.mixed = self.mixed or generation != self.generation
        sample = self._dataset.unpack(self._student, raw, as_torch=True)
        if self._pads:
            # Copied at once, so that the slot is free again.
            self._samples.append({name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in sample.items()})
        elif self._rows is None:
            self._samples.append(sample)
        else:
            if self.taken == 0:
                self._make_rows(sample)
            for name, value in sample.items():
                self._rows[name][self.taken] = value
        self.taken += 1

    def _make_rows(self, sample: dict[str, Any]) -> None:
        """Room for the batch, where its first sample lies: in host memory, or on a device."""
        assert self._rows is not None
        for spec in self._dataset.batch_config.specs:
            device = sample[spec.name].device
            pin = self._pin and device.type == "cpu"
            shape = (self._size, *spec.shape)
            self._rows[spec.name] = torch.empty(shape, dtype=spec.torch_dtype, device=device, pin_memory=pin)
        if self._dataset.tags:
            self._rows.update({name: torch.empty(self._size, dtype=torch.int64) for name in TAGS})

    def result(self, collate: Callable[[list[Any]], Any]) -> Any:
        if self._pads:
            batch = self._dataset.batch_config.collate(self._samples)
            return {name: value.pin_memory() for name, value in batch.items()} if self._pin else batch
        return collate(self._samples) if self._rows is None else self._rows


def _wait(student: OpenStudent, deadline: int) -> bytes:
    if deadline == _native.NEVER:
        raw = wait_for_sample(student, None)
        assert raw is not None
        return raw
    raw = student.take_one(deadline)
    if raw is None:
        raise Timeout(f"no sample of lane {student.lane} within the loader's timeout: is a worker running, and a model set?")
    return raw


def topk_kl(
    student_logits: torch.Tensor,
    teacher_logits: torch.Tensor,
    teacher_ids: torch.Tensor,
    mask: torch.Tensor,
    k_mask: torch.Tensor | None = None,
    temperature: float = 1.0,
) -> torch.Tensor:
    """Kullback-Leibler divergence from a teacher's top-k distribution to the student's, averaged over the positions that there are.

    The teacher's distribution is the softmax over its k logits. What padding holds makes no difference, to the value or to any gradient, as long as it is
    finite; without a single position the loss is 0, with zero gradients.

    Args:
        student_logits: (..., V), any float dtype; computed in float32.
        teacher_logits: (..., K), finite, as :meth:`~laneway.BatchConfig.collate` pads it.
        teacher_ids: (..., K), integers below V: whose logits they are.
        mask: (...), bool: the positions that count, ``batch["seq_mask"]``.
        k_mask: (..., K) or broadcastable to it, bool: which of the k there are, where k is ragged too.
        temperature: of both distributions; the loss is multiplied by its square, as usual.

    Returns:
        A scalar, float32.
    """
    teacher = teacher_logits.float() / temperature
    if k_mask is not None:
        teacher = teacher.masked_fill(~k_mask, torch.finfo(torch.float32).min)
    log_p = torch.log_softmax(teacher, -1)
    log_q = torch.log_softmax(student_logits.float() / temperature, -1).gather(-1, teacher_ids.long())
    terms = log_p.exp() * (log_p - log_q)
    if k_mask is not None:
        terms = terms.masked_fill(~k_mask, 0)
    per_position = terms.sum(-1).masked_fill(~mask, 0)
    return per_position.sum() / mask.sum().clamp(min=1) * temperature**2


def to_device(batches: Iterable[Any], device: torch.device | str | int | None = None) -> ToDevice:
    """Batches on ``device``, each copied there while the trainer works on the one before.

    ::

        for batch in to_device(DataLoader(dataset, 32, pin_memory=True), "cuda"):
            loss = student(batch["x"], batch["y"])

    For a CUDA device, one batch is fetched ahead and copied on a stream of its own, with ``non_blocking=True``; from page-locked memory (``pin_memory=True`` of the
    loader, or of a :class:`~laneway.StudentClient`) that runs beside everything else. The trainer's stream waits for the copy, the trainer does not. What
    the host batch lies in is kept until the copy is done. For any other device batches are moved when they are asked for, and one that is there already is handed on as it is.

    The batch ahead has left the loader: ``set_model`` cannot take it back (see ``tags`` of the dataset), and a checkpoint must not count it:
    save :meth:`ToDevice.state_dict` instead of the loader's.

    Args:
        batches: what gives batches: tensors, or mappings, lists, tuples of them, or objects with a method ``to``. Everything else is handed on.
        device: where to; None is CUDA's current device, or the CPU where there is no CUDA.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if device.type != "cuda":
        return ToDevice(batches, lambda batch: _Staged(batch, _move(batch, device, False)), 0)
    if not torch.cuda.is_available():
        raise RuntimeError(f"to_device({str(device)!r}): torch {torch.__version__} has no CUDA device here; leave device out for the CPU")
    stream = torch.cuda.Stream(device)

    def stage(batch: Any) -> _Staged:
        with torch.cuda.stream(stream):
            staged = _OnStream(batch, _move(batch, device, True))
            staged.copied = torch.cuda.Event()
            staged.copied.record(stream)
            staged.device = device
        return staged

    return ToDevice(batches, stage, 1)


class ToDevice:
    """What :func:`to_device` returns: an iterator over batches, some of which are on their way."""

    def __init__(self, batches: Iterable[Any], stage: Callable[[Any], _Staged], ahead: int) -> None:
        self._batches, self._stage, self._ahead = batches, stage, ahead
        self._iterator: Iterator[Any] | None = None
        self._staged: list[tuple[_Staged, Any]] = []
        self._last: _Staged | None = None
        self._state: Any = None

    def __iter__(self) -> ToDevice:
        self._iterator = iter(self._batches)
        self._staged, self._last = [], None
        return self

    def __next__(self) -> Any:
        if self._iterator is None:
            iter(self)
        self._fetch(1)
        if not self._staged:
            self._done()
            raise StopIteration
        staged, state = self._staged.pop(0)
        self._state = state
        batch = staged.take()
        # The next one's copy is queued before this one is worked on.
        self._fetch(self._ahead)
        self._done()
        self._last = staged
        return batch

    def _fetch(self, count: int) -> None:
        assert self._iterator is not None
        while len(self._staged) < count:
            try:
                batch = next(self._iterator)
            except StopIteration:
                return
            self._staged.append((self._stage(batch), self._source_state()))

    def _done(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.done()

    def _source_state(self) -> Any:
        state_dict = getattr(self._batches, "state_dict", None)
        return None if state_dict is None or not self._ahead else state_dict()

    def state_dict(self) -> Any:
        """The loader's ``state_dict`` as of the batch that was handed out last, whatever was fetched ahead of it."""
        state_dict = getattr(self._batches, "state_dict", None)
        if state_dict is None:
            raise TypeError(f"{type(self._batches).__name__} has no state_dict")
        return state_dict() if self._state is None else self._state


class _Staged:
    """A batch, and what it became."""

    def __init__(self, batch: Any, moved: Any) -> None:
        self._batch, self._moved = batch, moved

    def take(self) -> Any:
        """What is handed to the trainer, for whose current stream it is ready."""
        return self._moved

    def done(self) -> None:
        """Lets go of the batch that it was made from, once nothing reads it any more."""
        self._batch = self._moved = None


class _OnStream(_Staged):
    copied: Any
    device: torch.device

    def take(self) -> Any:
        current = torch.cuda.current_stream(self.device)
        current.wait_event(self.copied)
        for tensor in _tensors(self._moved):
            if tensor.is_cuda:
                tensor.record_stream(current)
        return self._moved

    def done(self) -> None:
        self.copied.synchronize()
        super().done()


def _move(value: Any, device: torch.device, non_blocking: bool) -> Any:
    if isinstance(value, Mapping):
        return {key: _move(item, device, non_blocking) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_move(item, device, non_blocking) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_move(item, device, non_blocking) for item in value)
    to = getattr(value, "to", None)
    return value if to is None else to(device, non_blocking=non_blocking)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
