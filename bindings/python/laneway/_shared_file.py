"""A named file in ``/dev/shm`` with slots and a trailer that says what it is: the ground of ``SharedMemoryManager``."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import mmap
import os
import re
import secrets
import struct
import weakref

from .errors import Corrupt, InUse, IoError, NoMemory, NotFound

DIRECTORY = "/dev/shm"

# lw_<owner's pid>_<owner's start time>_<8 digits>: `laneway clean` removes those whose owner is dead. At most 31
# characters, which is what macOS allows.
_NAME = re.compile(r"lw_([0-9a-f]{1,8})_([0-9a-f]{1,12})_([0-9a-f]{8})")

# At the end of the file, after the slots: magic, slot_count, slot_stride.
_TRAILER = struct.Struct("<16sQQ")
_MAGIC = b"laneway slots 1\0"
_ALIGN = 64


class SharedFile:
    """Use :meth:`create` or :meth:`attach`."""

    def __init__(self, name: str, run_id: str, fd: int, slot_count: int, slot_stride: int, owned: bool) -> None:
        self.name, self.run_id = name, run_id
        self.slot_count, self.slot_stride = slot_count, slot_stride
        self.owned = owned
        self._map: mmap.mmap | None = mmap.mmap(fd, slot_count * slot_stride + _TRAILER.size)
        # Only the creating process removes the name: a forked child's copy of this object must not.
        self._remove = weakref.finalize(self, _remove, name, os.getpid()) if owned else None

    @classmethod
    def create(cls, slot_count: int, slot_stride: int, run_id: str | None) -> SharedFile:
        """Makes, reserves and owns a new file."""
        if run_id is not None and (living := _living(run_id)):
            raise InUse(f"run_id {run_id!r} is in use by process {_owner(living[0])[0]} ({DIRECTORY}/{living[0]})")
        pid = os.getpid()
        name = f"lw_{pid:x}_{_start_time(pid):x}_{secrets.token_hex(4) if run_id is None else _digest(run_id)}"
        path = os.path.join(DIRECTORY, name)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(path, flags, 0o600)
        except FileExistsError:
            raise InUse(f"this process has a shared memory {run_id!r} already; close and unlink it first") from None
        try:
            _reserve(fd, slot_count * slot_stride + _TRAILER.size, path)
            os.pwrite(fd, _TRAILER.pack(_MAGIC, slot_count, slot_stride), slot_count * slot_stride)
            return cls(name, name if run_id is None else run_id, fd, slot_count, slot_stride, owned=True)
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(fd)

    @classmethod
    def attach(cls, run_id: str, expected: tuple[int, int] | None = None) -> SharedFile:
        """Opens a file that another process made, with the slot count and stride expected, or its own."""
        names = [run_id] if _NAME.fullmatch(run_id) else _living(run_id)
        if len(names) > 1:
            raise InUse(f"run_id {run_id!r} is ambiguous: {', '.join(names)}; pass one of these names instead")
        path = os.path.join(DIRECTORY, names[0]) if names else ""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW) if names else -1
        except FileNotFoundError:
            fd = -1
        except OSError as error:
            raise IoError(f"cannot open {path}: {error.strerror}") from error
        if fd < 0:
            raise NotFound(f"no shared memory with run_id {run_id!r} in {DIRECTORY}: has its creator ended?")
        try:
            count, stride = _geometry(fd, path)
            if expected is not None and expected != (count, stride):
                slots, size = expected
                raise Corrupt(f"{path} has {count} slots of {stride} bytes; expected {slots} slots of {size}")
            return cls(names[0], run_id, fd, count, stride, owned=False)
        finally:
            os.close(fd)

    def slot(self, slot_id: int) -> memoryview:
        """The slot's memory, writable. It keeps the mapping alive."""
        start = slot_id * self.slot_stride
        return memoryview(self._mapping())[start : start + self.slot_stride]

    def address(self, slot_id: int) -> int | None:
        """The slot's address, or None where it is not aligned."""
        if self.slot_stride % _ALIGN:
            return None
        # A ctypes object on the buffer is an export: it pins the mapping for as long as it lives.
        if not hasattr(self, "_pin"):
            self._pin = ctypes.c_char.from_buffer(self._mapping())
        return ctypes.addressof(self._pin) + slot_id * self.slot_stride

    def close(self) -> None:
        """Unmaps, now or when the last view dies."""
        mapping, self._map = self._map, None
        self.__dict__.pop("_pin", None)
        if mapping is not None:
            # Views hold the mmap object, which unmaps when they are gone.
            with contextlib.suppress(BufferError):
                mapping.close()

    def unlink(self) -> None:
        """Removes the name."""
        if self._remove is None:
            raise IoError(f"{DIRECTORY}/{self.name} belongs to the process that created it, which removes it")
        self._remove()

    def _mapping(self) -> mmap.mmap:
        if self._map is None:
            raise ValueError(f"the shared memory {self.name} is closed")
        return self._map


def _digest(run_id: str) -> str:
    return hashlib.sha256(run_id.encode()).hexdigest()[:8]


def _living(run_id: str) -> list[str]:
    """Names of files of that run_id whose owner lives."""
    digest = _digest(run_id)
    names = (name for name in os.listdir(DIRECTORY) if name.endswith(digest) and _NAME.fullmatch(name))
    return sorted(name for name in names if _start_time(_owner(name)[0]) == _owner(name)[1])


def _owner(name: str) -> tuple[int, int]:
    found = _NAME.fullmatch(name)
    assert found is not None
    return int(found[1], 16), int(found[2], 16)


def _start_time(pid: int) -> int:
    """Field 22 of /proc/<pid>/stat: with the pid it names a process for as long as the machine is up. -1 if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return -1


def _reserve(fd: int, nbytes: int, path: str) -> None:
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        room = os.fstatvfs(fd)
        have = room.f_bavail * room.f_frsize
        raise NoMemory(
            f"cannot reserve shared memory {path}: need {nbytes} bytes, {DIRECTORY} has {have} free ({error.strerror}); "
            f"use fewer or smaller slots, or make {DIRECTORY} larger"
        ) from error


def _geometry(fd: int, path: str) -> tuple[int, int]:
    info = os.fstat(fd)
    if info.st_uid != os.geteuid():
        raise Corrupt(f"{path} belongs to user {info.st_uid}, not to this one ({os.geteuid()})")
    trailer = os.pread(fd, _TRAILER.size, max(0, info.st_size - _TRAILER.size))
    if len(trailer) == _TRAILER.size:
        magic, count, stride = _TRAILER.unpack(trailer)
        if magic == _MAGIC and count * stride + _TRAILER.size == info.st_size:
            return count, stride
    raise Corrupt(f"{path} was not made by SharedMemoryManager, or was cut: {info.st_size} bytes without its trailer")


def _remove(name: str, pid: int) -> None:
    if os.getpid() == pid:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(DIRECTORY, name))
