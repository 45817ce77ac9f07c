"""Tensors that lie on a CUDA device: addresses that only the device can follow, handed on by DLPack."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_uint32, c_void_p, py_object
from typing import Any

from . import _native, _structs
from ._ragged import name_of
from .batch_config import BatchConfig, TensorSpec
from .errors import Status, Unsupported

CUDA = 2
"""``kDLCUDA``."""

_LEGACY_STREAM = 1
"""CUDA's default stream, by DLPack's and the driver's number."""

_NAME = b"dltensor_versioned"


class DeviceTensor:
    """A tensor of a sample on a CUDA device, for whatever library takes DLPack: ``torch.from_dlpack(t)``, ``cupy.from_dlpack(t)``.

    What takes it shares its memory, without a copy, and keeps it. Its bytes are complete: no stream has to wait for any other.

    Attributes:
        name, dtype: as in the :class:`~laneway.TensorSpec`.
        shape: its sizes; where dimensions are ragged, those of this sample.
        device: the CUDA device's number in this process.
        pointer: its address there.
    """

    __slots__ = ("_export", "_keeps", "device", "dtype", "name", "pointer", "shape")

    def __init__(self, spec: TensorSpec, tensor: Any, export: Callable[[], int], keeps: Any) -> None:
        self.name, self.dtype = spec.name, spec.dtype
        self.shape: tuple[int, ...] = tuple(tensor.shape[: tensor.ndim])
        self.device: int = tensor.device_id
        self.pointer: int = tensor.data or 0
        self._export, self._keeps = export, keeps

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack 1.0 capsule. Any ``stream`` will do: nothing is queued that it would have to wait for."""
        if stream == 0:
            raise ValueError("stream is 0, which DLPack leaves open for CUDA; pass 1 for the default stream, or -1")
        if max_version is None or max_version[0] < 1:
            raise BufferError(f"{self} is exported by DLPack 1.0 (torch takes that from 2.9 on); the consumer takes {max_version or 'an older one'}")
        if dl_device is not None and (int(dl_device[0]), dl_device[1]) != (CUDA, self.device):
            raise BufferError(f"{self} cannot be exported to device {tuple(dl_device)}; copy it there")
        if copy:
            raise BufferError(f"{self} is shared, not copied; copy what you get")
        return _capsule(self._export())

    def __repr__(self) -> str:
        return f"DeviceTensor({self.name!r}, shape={self.shape}, dtype={self.dtype!r}, device={self.device})"


class _Managed(ctypes.Structure):
    """``DLManagedTensorVersioned``, as far as its deleter."""

    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", CFUNCTYPE(None, c_void_p))]


# Prototypes of our own: the functions of ctypes.pythonapi are shared, and whoever sets their types sets them for everybody.
_new = ctypes.PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", ctypes.pythonapi))
_valid = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


@ctypes.PYFUNCTYPE(None, c_void_p)
def _drop(capsule: int) -> None:
    # One that was consumed has another name, and its consumer calls the deleter.
    if _valid(capsule, _NAME):
        managed = _pointer(capsule, _NAME)
        ctypes.cast(managed, POINTER(_Managed)).contents.deleter(managed)


def _capsule(managed: int) -> Any:
    return _new(managed, _NAME, ctypes.cast(_drop, c_void_p))


def student_tensors(handle: int, raw: bytes, config: BatchConfig, as_torch: bool, keeps: Any) -> dict[str, Any]:
    """The tensors of a sample on a device, by name; each keeps ``keeps``."""
    lib = _native.lib()
    return _tensors(lib.lw_student_tensor, lib.lw_student_dlpack, handle, raw, config, as_torch, keeps)


def worker_tensors(handle: int, raw: bytes, config: BatchConfig, as_torch: bool, lengths: Mapping[str, int]) -> dict[str, Any]:
    """The tensors of a task on a device, by name, to be written: of those that are ragged, the ones whose ``lengths`` are set."""
    lib = _native.lib()
    return _tensors(lib.lw_worker_tensor, lib.lw_worker_dlpack, handle, raw, config, as_torch, None, lengths)


def _tensors(
    describe: Any, export: Any, handle: int, raw: bytes, config: BatchConfig, as_torch: bool, keeps: Any, lengths: Mapping[str, int] | None = None
) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    for index, spec in enumerate(config.specs):
        if lengths is not None and spec.is_ragged and not set(map(name_of, spec.shape)) - {None} <= lengths.keys():
            continue
        tensor = _structs.Tensor()
        _native.check(describe(handle, raw, index, ctypes.byref(tensor)))

        def managed(index: int = index) -> int:
            out = c_void_p()
            _native.check(export(handle, raw, index, ctypes.byref(out)))
            assert out.value is not None
            return out.value

        made = DeviceTensor(spec, tensor, managed, keeps)
        tensors[spec.name] = _to_torch(made) if as_torch else made
    return tensors


def _to_torch(tensor: DeviceTensor) -> Any:
    import torch

    if not torch.cuda.is_available():
        raise Unsupported(
            f'{tensor} is on a CUDA device, and this torch ({torch.__version__}) has no CUDA here: use framework="numpy", which gives '
            "DeviceTensor objects for other libraries, or medium='shm'"
        )
    return torch.from_dlpack(tensor)


def device_of(handle: int, raw: bytes, config: BatchConfig) -> int | None:
    """The number of the device that a task is on; None if there is no tensor of it, since no length was set."""
    tensor = _structs.Tensor()
    describe = _native.lib().lw_worker_tensor
    found = any(describe(handle, raw, index, ctypes.byref(tensor)) == Status.OK for index in range(len(config.specs)))
    return int(tensor.device_id) if found else None


def current_stream(device: int) -> int | None:
    """The stream on which this thread's work for the device is queued: torch's current one where torch uses CUDA. None: not known, which the library takes for
    everything that is queued on the device."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.current_stream(device).cuda_stream) or _LEGACY_STREAM
