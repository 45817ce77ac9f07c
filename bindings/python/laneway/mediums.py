"""Where payload bytes live: mediums of one's own, and named shared memory.

A medium has numbered slots of equal size. The student creates and owns it; workers attach to it by its ``buf_name`` and
write; the student reads. Which slot holds what, and whose turn it is, stays in the library's own segment, so every medium has
the same tickets, fences and recovery, and none needs a lock.

``medium=`` of a :class:`~laneway.StudentClient` takes ``None`` or ``"shm"`` (anonymous shared memory, the default: nothing
to clean up, direct views), ``"cuda"`` (a GPU's memory, which workers of the same host write directly), ``"file:/path"`` (a mapped
file), or an object of this module. For a medium of one's own the
worker is told its class: ``Worker(..., medium=FileMedium)``.
"""

from __future__ import annotations

import io
import os
import weakref
from abc import ABC, abstractmethod
from typing import Any, Protocol, runtime_checkable

from ._shared_file import SharedFile


@runtime_checkable
class Medium(Protocol):
    """What the exchange asks of a medium. :class:`MediumBase` gives all but the first six a working default."""

    @property
    def buf_name(self) -> str:
        """What a worker needs to find it: a path, an address."""
        ...

    @property
    def slot_count(self) -> int:
        """Number of slots."""
        ...

    @property
    def slot_stride(self) -> int:
        """Bytes of one slot."""
        ...

    def read_slot_tensors(self, slot_id: int) -> bytes | bytearray | memoryview:
        """The bytes of a slot, as written; what follows a shorter sample does not matter. Student's side."""
        ...

    def close(self) -> None:
        """Lets go of it. Called once, when nobody reads or writes it any more."""
        ...

    def unlink(self) -> None:
        """Removes what would outlive the process. Called by the student only."""
        ...

    def write_slot(self, slot_id: int, data: bytes) -> None:
        """Writes ``data`` at the beginning of a slot, visible to the student on return. Worker's side."""
        ...

    @classmethod
    def attach(cls, buf_name: str) -> Medium:
        """Opens the medium that a student made. Worker's side."""
        ...


class MediumBase(ABC):
    """Base for a medium of one's own: say where the slots are and how one is read.

    The defaults of :meth:`write_slot` and :meth:`attach` are right for every medium whose ``buf_name`` is the path of a file
    with slot ``i`` at byte ``i * slot_stride``; others override both.

    Methods may be called on any thread, for different slots at once, never at once for the same slot. An exception in one
    fails that task, or the registration, with its text.
    """

    @property
    @abstractmethod
    def buf_name(self) -> str:
        """What a worker needs to find it: a path, an address."""

    @property
    @abstractmethod
    def slot_count(self) -> int:
        """Number of slots: those of the student and those that workers fill meanwhile."""

    @property
    @abstractmethod
    def slot_stride(self) -> int:
        """Bytes of one slot, at least a sample's."""

    @abstractmethod
    def read_slot_tensors(self, slot_id: int) -> bytes | bytearray | memoryview:
        """The bytes of a slot."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of it."""

    @abstractmethod
    def unlink(self) -> None:
        """Removes what would outlive the process."""

    @classmethod
    def medium_kind(cls) -> str:
        """The name by which students and workers find out that they mean the same medium: by default the class's."""
        return cls.__name__[:31]

    def write_slot(self, slot_id: int, data: bytes) -> None:
        """Writes ``data`` into the file named ``buf_name`` at byte ``slot_id * slot_stride``.

        Raises:
            ValueError: no such slot, or more bytes than a slot has, with both numbers.
        """
        check_slot(self, slot_id, len(data))
        fd = self.__dict__.get("_write_fd")
        if fd is None:
            fd = os.open(self.buf_name, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            self.__dict__["_write_fd"] = fd
            weakref.finalize(self, os.close, fd)
        at, rest = slot_id * self.slot_stride, memoryview(data)
        while rest:
            written = os.pwrite(fd, rest, at)
            at, rest = at + written, rest[written:]

    @classmethod
    def attach(cls, buf_name: str, slot_count: int = 0, slot_stride: int = 0) -> MediumBase:
        """Opens the file named ``buf_name``. The exchange passes the student's geometry to an ``attach`` that takes three
        arguments, as this one does; an override may take ``buf_name`` alone."""
        return _AttachedFile(buf_name, slot_count, slot_stride)

    def drop_read_ahead(self) -> None:
        """Called by the exchange before each read, since a worker in another process may have written the slot.

        The default makes Python file objects among the attributes forget what they have read ahead: a buffered file of
        Python's answers a seek within its buffer from that buffer, which may be older than the slot's bytes.
        """
        for value in vars(self).values():
            if isinstance(value, (io.BufferedRandom, io.BufferedReader)) and not value.closed:
                value.seek(0, io.SEEK_END)


class _AttachedFile(MediumBase):
    """The worker's side of any file-like medium."""

    def __init__(self, path: str, slot_count: int, slot_stride: int) -> None:
        self._path, self._slot_count, self._slot_stride = path, slot_count, slot_stride

    @property
    def buf_name(self) -> str:
        return self._path

    @property
    def slot_count(self) -> int:
        return self._slot_count

    @property
    def slot_stride(self) -> int:
        return self._slot_stride

    def read_slot_tensors(self, slot_id: int) -> bytes:
        check_slot(self, slot_id, 0)
        with open(self._path, "rb", buffering=0) as file:
            return os.pread(file.fileno(), self._slot_stride, slot_id * self._slot_stride)

    def close(self) -> None:
        pass

    def unlink(self) -> None:
        raise RuntimeError(f"{self._path} belongs to the student, which removes it")


class SharedMemoryManager(MediumBase):
    """Named shared memory: a file in ``/dev/shm`` that processes which were never introduced can find by its name.

    The exchange's default needs no name and is the better choice; this is for programs that pass slots around by themselves.
    Room is reserved when it is made, so a full ``/dev/shm`` is an error here and not a fault in mid-run.

    Args:
        slot_count: number of slots, at least 1.
        slot_stride: bytes of one slot. Where it is a multiple of 64, the exchange reads and writes the memory directly.
        read_only: ``True`` creates and owns (a student, which only reads); ``False`` attaches to what another process
            created (a worker, which writes).
        run_id: which one. A creator may choose it (any text) or leave it out; :attr:`run_id` says what to hand to workers.

    Raises:
        NoMemory: not enough room; says need and have.
        NotFound: nobody living has created that ``run_id``.
        InUse: somebody living has created that ``run_id`` already.
        Corrupt: the file is not what :class:`SharedMemoryManager` makes, or has another geometry (both are said).
    """

    def __init__(self, slot_count: int, slot_stride: int, read_only: bool, run_id: str | None = None) -> None:
        for name, value in (("slot_count", slot_count), ("slot_stride", slot_stride)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}; expected an int of at least 1")
        if read_only:
            self._file = SharedFile.create(slot_count, slot_stride, run_id)
        else:
            if run_id is None:
                raise ValueError("run_id is missing: to attach (read_only=False), pass the run_id that the creator shows")
            self._file = SharedFile.attach(run_id, (slot_count, slot_stride))

    @classmethod
    def attach(cls, buf_name: str) -> SharedMemoryManager:  # type: ignore[override]
        """Attaches by name; the geometry is the file's own."""
        medium = cls.__new__(cls)
        medium._file = SharedFile.attach(buf_name)
        return medium

    @property
    def run_id(self) -> str:
        """What a worker passes as ``run_id``."""
        return self._file.run_id

    @property
    def buf_name(self) -> str:
        """The file's name in ``/dev/shm``: at most 31 characters."""
        return self._file.name

    @property
    def slot_count(self) -> int:
        return self._file.slot_count

    @property
    def slot_stride(self) -> int:
        return self._file.slot_stride

    def read_slot_tensors(self, slot_id: int) -> memoryview:
        """The slot's memory, not a copy: it changes when the slot is written again, and stays readable after ``close``."""
        check_slot(self, slot_id, 0)
        return self._file.slot(slot_id).toreadonly()

    def write_slot(self, slot_id: int, data: bytes) -> None:
        check_slot(self, slot_id, len(data))
        self._file.slot(slot_id)[: len(data)] = data

    def slot_address(self, slot_id: int) -> int | None:
        """Where the slot lies in this process, or None where it is not 64-byte aligned. Valid until ``close``."""
        check_slot(self, slot_id, 0)
        return self._file.address(slot_id)

    def close(self) -> None:
        """Unmaps the memory once no view of it is left. May be called twice."""
        self._file.close()

    def unlink(self) -> None:
        """Removes the name; only the creating process may. May be called twice."""
        self._file.unlink()

    def __enter__(self) -> SharedMemoryManager:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()
        if self._file.owned:
            self.unlink()


def check_slot(medium: Medium | MediumBase, slot_id: int, nbytes: int) -> None:
    """A ValueError unless the medium has that slot and it holds that many bytes."""
    if not 0 <= slot_id < medium.slot_count:
        raise ValueError(f"slot {slot_id} does not exist; {medium.buf_name} has slots 0 to {medium.slot_count - 1}")
    if nbytes > medium.slot_stride:
        raise ValueError(f"{nbytes} bytes do not fit slot {slot_id} of {medium.buf_name}, which has {medium.slot_stride}")
