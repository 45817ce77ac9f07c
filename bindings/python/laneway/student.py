"""The student's side for one process: sets the model, asks for samples one by one, and reads them in place."""

from __future__ import annotations

import contextlib
import json
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from . import _dtypes, _native, _structs
from ._dtypes import Framework
from ._endpoints import Endpoints
from ._functions import come_again
from ._medium_glue import check_cuda
from ._owned import close_with, forget
from ._process import ProcessLock
from ._student import DeviceLease, OpenStudent, Options, finalizer, find_open
from .batch_config import BatchConfig
from .errors import Closed, Unsupported
from .mediums import Medium

_CONNECT_S = 10.0
_SWITCH_S = 30.0
_NEVER, _monotonic_ns = _native.NEVER, _native.monotonic_ns


class SampleRef:
    """One sample that this student holds: its ticket, and views of its tensors.

    The slot is used again once the sample was released *and* its last view is gone: a tensor kept past ``release()``, past
    ``client.close()`` or past this object stays readable, and only costs a slot. A sample whose reference is dropped
    without ``release()`` is released then.

    Attributes:
        lane, step: the ticket: this is sample ``step`` of stream ``lane``.
        seed: what the worker was given to make it from, a hash of run seed, lane and step.
        generation: the model that it was made by, as :meth:`StudentClient.set_model` returned it.
        slot_id: the slot that it lies in.
        copied: whether it is a copy outside the slots, because holding one more slot would have stopped the others.
        on_device: whether it lies on a CUDA device.
    """

    __slots__ = (
        "__weakref__",
        "_address",
        "_as_torch",
        "_lease",
        "_owner",
        "_raw",
        "_reference",
        "_released",
        "_tensors",
        "copied",
        "generation",
        "lane",
        "on_device",
        "seed",
        "slot_id",
        "step",
    )

    def __init__(self, owner: OpenStudent, raw: bytes, as_torch: bool) -> None:
        self._owner, self._raw, self._as_torch = owner, raw, as_torch
        # Given back at the end of this object, by a ``__del__`` in C (see ``StudentClient._open``), unless that was done or a lease has it; once it is whole.
        self._reference: bytes | None = None
        self._lease: Any = None
        self._tensors: dict[str, Any] | None = None
        self._released = False
        (self._address, _, self.lane, self.step, self.seed, self.generation, _, _, self.slot_id, flags) = _structs.SAMPLE.unpack(raw)
        self.copied = bool(flags & _structs.SAMPLE_COPIED)
        self.on_device = bool(flags & _structs.ON_DEVICE)

    @property
    def data(self) -> Any:
        """All bytes of the sample, as a writable buffer that shares the slot's memory; :meth:`BatchConfig.decode` takes it.
        Writing to it, or to a tensor, changes what this process reads and nothing else. A sample on a device has none: use
        :attr:`tensors`, or :meth:`read`."""
        if self.on_device:
            raise Unsupported(f"{self} lies on a CUDA device, where no buffer reaches: use sample.tensors, or sample.read() for a copy")
        return self._hold()

    def _hold(self) -> Any:
        if self._lease is None:
            self._check_held()
            self._lease = DeviceLease(self._owner, self._raw) if self.on_device else self._owner.lease(self._raw, self._address)
            self._reference = None
        return self._lease

    def _check_held(self) -> None:
        if self._released:
            raise Closed(f"the sample (lane {self.lane}, step {self.step}) was released; read it before")

    def read(self) -> bytes:
        """A copy of all bytes of the sample, wherever it lies; :meth:`BatchConfig.decode` takes it."""
        self._check_held()
        return self._owner.read(self._raw)

    @property
    def tensors(self) -> dict[str, Any]:
        """The tensors by name: torch tensors, or NumPy arrays (see ``framework`` of the client), sharing the slot's memory. On a device, torch
        tensors of that device, or :class:`~laneway.DeviceTensor` objects, which any library that knows DLPack takes."""
        tensors = self._tensors
        if tensors is None:
            held = self._hold()
            if self.on_device:
                tensors = self._owner.device_tensors(held, self._raw, self._as_torch)
            else:
                tensors = self._owner.tensors(held, self._as_torch)
            self._tensors = tensors
        return tensors

    def __getitem__(self, name: str) -> Any:
        return (self._tensors or self.tensors)[name]

    def release(self, stream: int | None = None) -> None:
        """Gives the slot back as soon as no view of it is left. May be called twice.

        On a device, work that was queued before may still read it: the slot is used again once all of that on ``stream`` (the number of a
        ``cudaStream_t``) is done, and this does not wait. None is torch's current stream; without torch, all that this process has queued on the device.
        """
        if self._released:
            return
        if self._lease is None:
            self._owner.release(self._raw, self.on_device, stream)
        elif stream is not None and self.on_device:
            self._lease.stream = stream
        self._released = True
        self._tensors = self._lease = self._reference = None

    def __enter__(self) -> SampleRef:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"SampleRef(lane={self.lane}, step={self.step}, generation={self.generation}, slot_id={self.slot_id})"


class GenerationValue:
    """The group's generation as a shared value: what a ``multiprocessing.Value`` is to the published design.

    Picklable under every start method. It also carries the group, the run's seed and the broker's addresses, so that a dataset
    finds the rest.
    """

    def __init__(self, endpoints: Endpoints, group: str | None, seed: int, client: StudentClient | None = None) -> None:
        self.endpoints, self.seed = endpoints, seed
        self._group = group
        self._client = None if client is None else weakref.ref(client)

    @property
    def group(self) -> str | None:
        """The group; None, which means what the environment says, until the client has registered."""
        student = self._own()
        return self._group if student is None else student.registration["group"]

    @property
    def value(self) -> int:
        """How often ``set_model`` was called in this group, by any process.

        Raises:
            Closed: this process has no open student of the group to learn it from.
        """
        # The client's works in a forked child too: the word is in shared memory.
        student = self._own() or find_open(self.group, self.endpoints)
        if student is None:
            raise Closed("no student of this group is open in this process: iterate the dataset, or call client.hello(), first")
        return student.generation

    def _own(self) -> OpenStudent | None:
        client = None if self._client is None else self._client()
        return None if client is None else client._student

    def get_lock(self) -> contextlib.AbstractContextManager[Any]:
        """A context manager, for code written for ``multiprocessing.Value``; reading needs no lock."""
        return threading.RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return GenerationValue, (self.endpoints, self.group, self.seed)

    def __repr__(self) -> str:
        return f"GenerationValue(group={self.group!r})"


class StudentClient:
    """A student: owns the memory that samples arrive in.

    It registers at the first call that needs the broker (:meth:`hello` does only that), and asks workers for samples only when
    it is asked for some. Any thread may call any method. In a forked child every call raises :class:`~laneway.errors.Forked`.

    Args:
        student_rank: which trainer of the group this is; rank 0 leads: it alone may set the model.
        slot_count: samples in flight and held at once.
        batch_config: the tensors of a sample.
        frontend_endpoint, control_endpoint, control_pub_endpoint: the broker's addresses; None is the default.
        medium: where samples lie: None or ``"shm"``, ``"cuda"`` (a GPU's memory), ``"file:/path"``, or a :class:`~laneway.mediums.Medium`.
        device: for ``"cuda"`` and ``pin_memory``: the CUDA device's number in this process; None is 0.
        fallback: what is done where CUDA is not to be had: None is an error that says why, ``"shm"`` shared memory, said in the log. With
            ``"cuda"``, ``"shm"`` also lets workers in that cannot open the device's memory; they go through the host's.
        pin_memory: page-locks ``"shm"``, so that copies to the GPU run beside everything else (``tensor.to(device, non_blocking=True)``).
        group: separates jobs on one broker; None is torchrun's run id, else its master's address and port, else ``"default"``.
        prefetch: tickets opened ahead of the one that is waited for.
        max_workers, max_batch: workers that can be attached at once, and tasks that each may take at once; address space for
            them is set aside, and a worker beyond it is refused, with both numbers.
        max_attempts: how often a ticket is tried, when workers fail or die, before :class:`~laneway.TaskError` is raised.
        seed: the run's seed, from which, with lane and step, each ticket's seed is made.
        broker: ``"embedded"`` starts a ``laneway broker`` process unless one answers; it ends after its last student and worker.
        framework: ``"torch"``, ``"numpy"``, or ``"auto"``: torch where it can be imported.
        spin_us: microseconds to look before sleeping when nothing is there; None: what pays on this machine.
        input_config: the tensors that each ticket carries for its worker (``task.inputs``), given by :meth:`give`; None: tickets carry none.
    """

    def __init__(
        self,
        student_rank: int,
        slot_count: int,
        batch_config: BatchConfig,
        frontend_endpoint: str | None = None,
        control_endpoint: str | None = None,
        control_pub_endpoint: str | None = None,
        medium: str | Medium | None = None,
        *,
        group: str | None = None,
        prefetch: int = 0,
        max_workers: int = 8,
        max_batch: int = 8,
        max_attempts: int = 3,
        seed: int = 0,
        broker: str | None = None,
        framework: Framework = "auto",
        spin_us: int | None = None,
        input_config: BatchConfig | None = None,
        device: int | None = None,
        fallback: str | None = None,
        pin_memory: bool = False,
    ) -> None:
        if broker not in (None, "embedded"):
            raise ValueError(f"broker is {broker!r}; expected None (one runs already) or 'embedded'")
        self._options = Options(
            batch_config=check_config(batch_config),
            slot_count=check_count("slot_count", slot_count, 1),
            rank=check_count("student_rank", student_rank, 0),
            endpoints=Endpoints(frontend_endpoint, None, control_endpoint, control_pub_endpoint),
            group=group,
            medium=medium,
            cuda=check_cuda(medium, device, fallback, pin_memory),
            prefetch=check_count("prefetch", prefetch, 0),
            max_workers=check_count("max_workers", max_workers, 1),
            max_batch=check_count("max_batch", max_batch, 1),
            max_attempts=check_count("max_attempts", max_attempts, 1),
            seed=check_count("seed", seed, 0, 2**64 - 1),
            embedded_broker=broker == "embedded",
            spin_us=check_spin(spin_us),
            input_config=None if input_config is None else check_config(input_config),
        )
        self._framework: Framework = framework
        self._as_torch = False
        self._lock = ProcessLock()
        self._student: OpenStudent | None = None
        self._closed = False
        self._held: dict[int, weakref.ref[SampleRef]] = {}
        self.generation_value = GenerationValue(self._options.endpoints, group, seed, self)

    def hello(self, timeout_s: float = _CONNECT_S) -> dict[str, Any]:
        """Registers at the broker, or does nothing if this was done; waits up to ``timeout_s`` seconds for it.

        Returns:
            What was agreed: ``student_rank``, ``group``, ``lane``, ``generation``, ``slot_count``, ``slot_size`` (bytes), ``pid``,
            and the broker's ``host`` and ``session``.

        Raises:
            Timeout: no broker answered; names the endpoint.
            InUse: a living process has this rank in this group.
            Refused, LayoutMismatch: the broker's reason.
        """
        student = self._open(timeout_s)
        return {
            "student_rank": self._options.rank,
            **student.registration,
            "generation": student.generation,
            "slot_count": self._options.slot_count,
            "slot_size": student.config.nbytes(),
            "pid": student.pid,
        }

    def set_model(self, model_id: str, model_cfg: Mapping[str, Any] | None = None, timeout_s: float = _SWITCH_S) -> int:
        """Chooses what workers make from now on, for every rank of the group.

        When it returns, no rank is handed a sample of an older model, and tickets that were not handed out yet are made anew.

        Args:
            model_id: any text, of any length.
            model_cfg: anything that JSON can carry, or an OmegaConf node; workers get an equal ``dict``.

        Returns:
            The new generation.

        Raises:
            Timeout: no broker took it within ``timeout_s`` seconds; nothing has changed.
            NotLeader: this is not rank 0.
            TypeError, ValueError: the config cannot be carried by JSON.
        """
        if not isinstance(model_id, str):
            raise TypeError(f"model_id is a {type(model_id).__name__}; expected a str")
        return self._open().set_model(model_id, to_json(model_cfg), timeout_s)

    def give(self, *inputs: Mapping[str, Any] | bytes) -> None:
        """Gives the inputs of the next tickets, in their order: for each its tensors by name, or their bytes as ``input_config.encode`` gives them.

        A ticket is opened once its input was given, so give as many ahead as samples are wanted in flight. They are copied. A ticket that is made
        again keeps its input.

        Raises:
            ValueError: they do not fit ``input_config``; names the tensor.
        """
        config = self._options.input_config
        if config is None:
            raise ValueError("this StudentClient has no input_config: its tickets carry no inputs")
        data = [bytes(i) if isinstance(i, (bytes, bytearray, memoryview)) else bytes(config.encode(**i)) for i in inputs]
        for n, one in enumerate(data):
            if len(one) != config.nbytes():
                raise ValueError(f"input {n} has {len(one)} bytes; input_config has {config.nbytes()}")
        self._open().give(data)

    def request_sample(self, timeout_ms: float | None = 1000) -> SampleRef | None:
        """The next sample, or None if it is not there within ``timeout_ms`` (None: waits for ever).

        Nothing is lost by a timeout: the ticket stays open, and the next call gets it.

        Raises:
            TaskError: this ticket failed ``max_attempts`` times; carries the worker's text. The next call goes on behind it.
        """
        student = self._student or self._open()
        raw = student.take_one(_NEVER if timeout_ms is None else _monotonic_ns() + int(timeout_ms * 1e6))
        try:
            return None if raw is None else self._sample(student, raw)
        except KeyboardInterrupt:  # the sample is here, and is handed out
            assert raw is not None
            come_again()
            return self._sample(student, raw)

    def next_samples(self, n: int, timeout_ms: float | None = 1000) -> list[SampleRef]:
        """The next sample and those that are ready behind it, ``n`` at most; an empty list after ``timeout_ms``."""
        check_count("n", n, 1)
        student = self._student or self._open()
        deadline = _NEVER if timeout_ms is None else _monotonic_ns() + int(timeout_ms * 1e6)
        raws, samples = student.take(n, deadline), []
        try:
            for raw in raws:
                samples.append(self._sample(student, raw))
        except KeyboardInterrupt:
            come_again()
            samples += [self._sample(student, raw) for raw in raws[len(samples) :]]
        return samples

    def _sample(self, student: OpenStudent, raw: bytes) -> SampleRef:
        sample = SampleRef(student, raw, self._as_torch)
        self._held[sample.slot_id] = weakref.ref(sample)
        # Last: from here on the reference goes with it, and Python looks for signals no more before the caller has it.
        sample._reference = student.head + raw
        return sample

    def release_slot(self, slot_id: int) -> None:
        """Gives a sample's slot back, as :meth:`SampleRef.release` does.

        Raises:
            ValueError: this student has handed out no sample in that slot.
        """
        try:
            sample = self._held[slot_id]()
        except KeyError:
            raise ValueError(f"slot {slot_id} was not handed out; samples lie in slots {sorted(self._held)}") from None
        if sample is not None:
            sample.release()

    def start_sub_listener(self) -> None:
        """Makes sure that this rank follows the leader's ``set_model``. Registering is all that takes: the generation is one word of
        memory that all ranks of a host share, so there is no listener that could lag."""
        self._open()

    @property
    def generation(self) -> int:
        """The group's generation now; 0 before the first ``set_model``."""
        return self._open().generation

    @property
    def stats(self) -> dict[str, Any]:
        """What the library counts for this student."""
        return self._open().stats

    def close(self) -> None:
        """Cancels what is queued and takes leave. Tensors that are held stay readable. May be called twice."""
        with self._lock:
            forget(self)
            student, self._student, self._closed = self._student, None, True
        if student is not None:
            student.close()

    def _open(self, timeout_s: float = _CONNECT_S) -> OpenStudent:
        with self._lock:
            if self._closed:
                raise Closed("this StudentClient was closed; make a new one")
            if self._student is None:
                self._as_torch = _dtypes.use_torch(self._framework)
                SampleRef.__del__ = finalizer()  # type: ignore[attr-defined]
                student = OpenStudent(self._options, timeout_s)
                # It takes leave when nobody has the client any more; samples that are held keep the memory alone.
                student.user = weakref.ref(self)
                close_with(_native.lib().lw_student_close, student._handle, self)
                self._student = student
            self._student.check_process()
            return self._student

    def __enter__(self) -> StudentClient:
        self.hello()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


def check_config(config: object) -> BatchConfig:
    """The config, or a TypeError."""
    if not isinstance(config, BatchConfig):
        raise TypeError(f"batch_config is a {type(config).__name__}; expected a BatchConfig")
    return config


def check_count(name: str, value: object, least: int, most: int = 2**31 - 1) -> int:
    """The value if it is an int in that range, else an error that says so."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r}; expected an int")
    number = value.__index__()
    if not least <= number <= most:
        raise ValueError(f"{name} is {number}; expected {least} to {most}")
    return number  # type: ignore[no-any-return]


def check_spin(spin_us: int | None) -> int:
    """The library's number for it."""
    return _structs.SPIN_ADAPTIVE if spin_us is None else check_count("spin_us", spin_us, 0)


def to_json(config: Any) -> str | None:
    """A model's configuration as the library takes it."""
    if config is None:
        return None
    if type(config).__module__.partition(".")[0] == "omegaconf":
        from omegaconf import OmegaConf

        config = OmegaConf.to_container(config, resolve=True)
    if not isinstance(config, Mapping):
        raise TypeError(f"model_cfg is a {type(config).__name__}; expected a dict or None")
    try:
        return json.dumps(dict(config), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise type(error)(f"model_cfg cannot be carried by JSON: {error}") from error
