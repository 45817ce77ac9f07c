"""The driver's calls that a teacher or a trainer without torch needs, for ``gpu_check.py`` and the tests on the stand-in driver."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np


class IpcHandle(ctypes.Structure):
    """``CUipcMemHandle``."""

    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


class Gpu:
    """The driver's calls that a teacher or a trainer without torch needs, on device 0 of this process."""

    def __init__(self, device: int = 0) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", ctypes.c_uint(0))
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(device))
        self.call("cuCtxPushCurrent_v2", context)
        self.stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(self.stream), ctypes.c_uint(1))
        self.device = device

    def call(self, name: str, *args: Any) -> None:
        code = getattr(self.cuda, name)(*args)
        if code:
            raise RuntimeError(f"{name}: error {code}")

    def name(self) -> str:
        text = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", text, ctypes.c_int(127), ctypes.c_int(self.device))
        return text.value.decode()

    def count(self) -> int:
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def uuid(self, device: int | None = None) -> str:
        """As ``CUDA_VISIBLE_DEVICES`` takes it."""
        raw = (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetUuid_v2", raw, ctypes.c_int(self.device if device is None else device))
        h = bytes(raw).hex()
        kind = "MIG" if " MIG " in self.name() else "GPU"
        return f"{kind}-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"

    def free_bytes(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def alloc(self, size: int) -> int:
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        return at.value

    def fill(self, at: int, value: int, size: int) -> None:
        self.call("cuMemsetD8Async", ctypes.c_uint64(at), ctypes.c_ubyte(value), ctypes.c_size_t(size), self.stream)

    def upload(self, at: int, array: np.ndarray) -> None:
        self.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(at), ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes), self.stream)

    def copy(self, to: int, source: int, size: int) -> None:
        self.call("cuMemcpyDtoDAsync_v2", ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(size), self.stream)

    def synchronize(self) -> None:
        self.call("cuStreamSynchronize", self.stream)

    def download(self, array: np.ndarray, at: int) -> None:
        self.call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(array.ctypes.data), ctypes.c_uint64(at), ctypes.c_size_t(array.nbytes), self.stream)

    def driver_version(self) -> int:
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        return version.value

    def export(self, at: int) -> bytes:
        """What another process opens the allocation at ``at`` by."""
        handle = IpcHandle()
        self.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(at))
        return bytes(handle.bytes)

    def open(self, handle: bytes) -> int:
        """The address of another process's allocation."""
        at = ctypes.c_uint64()
        self.call("cuIpcOpenMemHandle_v2", ctypes.byref(at), IpcHandle.from_buffer_copy(handle), ctypes.c_uint(1))
        return at.value
