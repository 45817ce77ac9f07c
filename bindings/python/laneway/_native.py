"""The C library: where it is found, what it exports, and how a status becomes an exception.

It is loaded at the first call that needs it, so that layouts can be written and read without it. Every call releases the GIL.
"""

from __future__ import annotations

import _thread
import ctypes
import functools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from . import _structs as s
from ._owned import free_with
from .errors import AbiMismatch, Status, from_status

ABI_VERSION = 1
"""``LW_ABI_VERSION`` of the header that this package speaks."""

SLICE_NS = 100_000_000
"""Longest single wait inside the library: between two, Python handles its signals."""

NEVER = 2**63 - 1

_PATIENCE_NS = 2_000_000_000

_log = logging.getLogger("laneway")

monotonic_ns = time.monotonic_ns  # CLOCK_MONOTONIC: the clock of the library's deadlines

_status, _handle, _out, _len = c_int32, c_void_p, POINTER(c_void_p), POINTER(c_size_t)

# What each function takes, and what it returns; the version is asked first. Handles and buffers are void pointers: they take ints, arrays, byref() and bytes.
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "lw_abi_version": (c_uint32, []),
    "lw_version": (c_char_p, []),
    "lw_last_error": (c_char_p, []),
    "lw_set_last_error": (None, [c_char_p, c_size_t]),
    "lw_log_set_level": (_status, [c_int32]),
    "lw_log_set_callback": (_status, [s.LogCallback, c_void_p, s.Drop]),
    "lw_layout_from_json": (_status, [c_char_p, c_size_t, _out]),
    "lw_layout_to_json": (_status, [_handle, c_char_p, c_size_t, _len]),
    "lw_layout_nbytes": (c_uint64, [_handle]),
    "lw_layout_count": (c_size_t, [_handle]),
    "lw_layout_tensor": (_status, [_handle, c_size_t, POINTER(s.Tensor), POINTER(c_uint64)]),
    "lw_layout_free": (None, [_handle]),
    "lw_broker_options_init": (None, [POINTER(s.BrokerOptions)]),
    "lw_broker_open": (_status, [POINTER(s.BrokerOptions), _out]),
    "lw_broker_run": (_status, [_handle]),
    "lw_broker_stop": (None, [_handle]),
    "lw_broker_stats": (_status, [_handle, c_char_p, c_size_t, _len]),
    "lw_broker_free": (None, [_handle]),
    "lw_medium_table_init": (None, [POINTER(s.MediumTable)]),
    "lw_attach_table_init": (None, [POINTER(s.AttachTable)]),
    "lw_medium_shm": (_status, [_out]),
    "lw_medium_shm_pinned": (_status, [c_int32, c_int32, _out]),
    "lw_medium_cuda": (_status, [c_int32, c_int32, _out]),
    "lw_medium_file": (_status, [c_char_p, _out]),
    "lw_medium_custom": (_status, [POINTER(s.MediumTable), _out]),
    "lw_medium_free": (None, [_handle]),
    "lw_student_options_init": (None, [POINTER(s.StudentOptions)]),
    "lw_student_open": (_status, [POINTER(s.StudentOptions), c_int64, _out]),
    "lw_student_set_model": (
        _status,
        [_handle, c_char_p, c_size_t, c_char_p, c_size_t, c_int64, POINTER(c_uint64)],
    ),
    "lw_student_give": (_status, [_handle, c_char_p, c_size_t, c_size_t]),
    "lw_student_next": (_status, [_handle, c_int64, c_void_p, c_size_t, _len]),
    "lw_student_release": (_status, [_handle, c_void_p, c_size_t, c_void_p]),
    "lw_held_release": (None, [_handle]),
    "lw_student_read": (_status, [_handle, c_void_p, c_void_p, c_size_t]),
    "lw_student_tensor": (_status, [_handle, c_void_p, c_size_t, POINTER(s.Tensor)]),
    "lw_student_dlpack": (_status, [_handle, c_void_p, c_size_t, _out]),
    "lw_student_generation": (c_uint64, [_handle]),
    "lw_student_cursor": (c_uint64, [_handle]),
    "lw_student_rewind": (_status, [_handle, c_uint64]),
    "lw_student_registration": (_status, [_handle, c_char_p, c_size_t, _len]),
    "lw_student_stats": (_status, [_handle, c_char_p, c_size_t, _len]),
    "lw_student_close": (None, [_handle]),
    "lw_student_free": (None, [_handle]),
    "lw_worker_options_init": (None, [POINTER(s.WorkerOptions)]),
    "lw_worker_open": (_status, [POINTER(s.WorkerOptions), c_int64, _out]),
    "lw_worker_take": (_status, [_handle, c_int64, c_void_p, c_size_t, _len]),
    "lw_worker_input": (_status, [_handle, c_void_p, c_size_t, POINTER(s.Tensor)]),
    "lw_worker_input_layout": (_handle, [_handle, c_void_p]),
    "lw_worker_commit": (_status, [_handle, c_void_p, c_void_p, c_size_t, c_void_p, POINTER(c_uint32)]),
    "lw_worker_tensor": (_status, [_handle, c_void_p, c_size_t, POINTER(s.Tensor)]),
    "lw_worker_dlpack": (_status, [_handle, c_void_p, c_size_t, _out]),
    "lw_worker_set_length": (_status, [_handle, c_void_p, c_char_p, c_uint64]),
    "lw_worker_write": (_status, [_handle, c_void_p, c_void_p, c_size_t]),
    "lw_worker_fail": (_status, [_handle, c_void_p, c_char_p, c_size_t]),
    "lw_worker_generation": (c_uint64, [_handle]),
    "lw_worker_model": (_status, [_handle, c_char_p, c_size_t, _len]),
    "lw_worker_stats": (_status, [_handle, c_char_p, c_size_t, _len]),
    "lw_worker_stop": (None, [_handle]),
    "lw_worker_free": (None, [_handle]),
    "lw_dataset_options_init": (None, [POINTER(s.DatasetOptions)]),
    "lw_dataset_open": (_status, [POINTER(s.DatasetOptions), _out]),
    "lw_dataset_documents": (c_uint64, [_handle]),
    "lw_dataset_shard_count": (c_size_t, [_handle]),
    "lw_dataset_shard": (_status, [_handle, c_size_t, POINTER(s.Shard)]),
    "lw_dataset_groups": (_status, [_handle, c_void_p, c_size_t, _len]),
    "lw_dataset_locate": (_status, [_handle, c_uint64, POINTER(s.Location)]),
    "lw_dataset_read": (_status, [_handle, c_uint64, c_char_p, c_size_t, _len, POINTER(c_char_p)]),
    "lw_dataset_free": (None, [_handle]),
    "lw_recipe_load": (_status, [c_char_p, _out]),
    "lw_recipe_parse": (_status, [c_char_p, c_size_t, c_char_p, _out]),
    "lw_recipe_to_toml": (_status, [_handle, c_char_p, c_size_t, _len]),
    "lw_recipe_fields": (_status, [_handle, c_char_p, c_size_t, _len]),
    "lw_recipe_fingerprint": (c_uint64, [_handle]),
    "lw_recipe_difference": (_status, [_handle, _handle, c_char_p, c_size_t, _len]),
    "lw_recipe_free": (None, [_handle]),
    "lw_batch_describe": (_status, [_handle, POINTER(s.BatchInfo)]),
    "lw_batch_layout": (_handle, [_handle]),
    "lw_batch_tensor": (_status, [_handle, c_char_p, POINTER(s.Tensor)]),
    "lw_batch_rows": (_status, [_handle, c_void_p, c_size_t, _len]),
    "lw_batch_segments": (_status, [_handle, c_void_p, c_size_t, _len]),
    "lw_batch_row_hashes": (_status, [_handle, c_void_p, c_size_t, _len]),
    "lw_batch_global_hash": (c_uint64, [c_void_p, c_size_t]),
    "lw_batch_release": (None, [_handle]),
    "lw_generate_options_init": (None, [POINTER(s.GenerateOptions)]),
    "lw_function_table_init": (None, [POINTER(s.FunctionTable)]),
    "lw_text_append": (_status, [c_void_p, c_char_p, c_size_t]),
    "lw_operator_table_init": (None, [POINTER(s.OperatorTable)]),
    "lw_pieces_emit": (_status, [c_void_p, c_uint64, c_uint32, c_uint32]),
    "lw_pieces_hold": (_status, [c_void_p, c_uint64]),
    "lw_pieces_release": (_status, [c_void_p, c_uint64]),
    "lw_pieces_get": (_status, [c_void_p, c_uint64, POINTER(s.Piece)]),
    "lw_loader_options_init": (None, [POINTER(s.LoaderOptions)]),
    "lw_loader_open": (_status, [_handle, POINTER(s.LoaderOptions), _out]),
    "lw_loader_next": (_status, [_handle, c_int64, _out]),
    "lw_loader_save_json": (_status, [_handle, c_char_p, c_size_t, _len]),
    "lw_loader_load": (_status, [_handle, POINTER(s.State), c_size_t]),
    "lw_loader_seek": (_status, [_handle, c_uint64]),
    "lw_loader_set_mixture": (_status, [_handle, POINTER(c_double), c_size_t, c_uint64]),
    "lw_loader_set_model": (_status, [_handle, c_char_p, c_size_t, c_char_p, c_size_t, c_uint64]),
    "lw_loader_steps": (_status, [_handle, POINTER(c_uint64)]),
    "lw_loader_step": (_status, [_handle, POINTER(c_uint64)]),
    "lw_loader_recipe": (_handle, [_handle]),
    "lw_loader_dataset": (_handle, [_handle, c_size_t]),
    "lw_loader_info": (_status, [_handle, c_char_p, c_size_t, _len]),
    "lw_loader_explain": (_status, [_handle, c_char_p, c_size_t, _len]),
    "lw_loader_stats": (_status, [_handle, c_char_p, c_size_t, _len]),
    "lw_loader_decode": (_status, [_handle, POINTER(c_int64), c_size_t, c_char_p, c_size_t, _len]),
    "lw_loader_cancel": (None, [_handle]),
    "lw_loader_close": (None, [_handle]),
    "lw_loader_free": (None, [_handle]),
    "lw_metrics_snapshot": (_status, [c_char_p, c_size_t, _len]),
    "lw_metrics_text": (_status, [c_char_p, c_size_t, _len]),
    "lw_metrics_serve": (_status, [c_char_p, _out]),
    "lw_metrics_server_port": (c_uint16, [_handle]),
    "lw_metrics_server_free": (None, [_handle]),
    "lw_rows_open": (_status, [_handle, POINTER(s.LoaderOptions), _out]),
    "lw_rows_get": (_status, [_handle, POINTER(s.Ticket), c_size_t, c_int64, _out]),
    "lw_rows_of_tasks": (_status, [_handle, _handle, c_void_p, c_size_t, c_int64, _out]),
    "lw_rows_dataset": (_handle, [_handle, c_size_t]),
    "lw_rows_cancel": (None, [_handle]),
    "lw_rows_close": (None, [_handle]),
    "lw_rows_free": (None, [_handle]),
    "lw_connect_options_init": (None, [POINTER(s.ConnectOptions)]),
    "lw_loader_abandon": (None, [_handle]),
    "lw_loader_join": (_status, [_handle, c_int64]),
    "lw_rows_abandon": (None, [_handle]),
    "lw_callbacks_end": (_status, [c_int64]),
    "lw_loader_connect": (_status, [_handle, POINTER(s.ConnectOptions), _out]),
    "lw_server_options_init": (None, [POINTER(s.ServerOptions)]),
    "lw_server_start": (_status, [_handle, POINTER(s.ServerOptions), _out]),
    "lw_server_wait": (_status, [_handle, c_int64]),
    "lw_server_stats": (_status, [_handle, c_char_p, c_size_t, _len]),
    "lw_server_stop": (None, [_handle]),
    "lw_server_free": (None, [_handle]),
}


@functools.cache
def lib() -> Any:
    """The loaded library.

    Raises:
        ImportError: not found, or cannot be loaded; says where it was looked for.
        AbiMismatch: it speaks another binary interface.
    """
    path = find_library()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"cannot load the Laneway library {path}: {error}") from error
    for name, (returns, takes) in _PROTOTYPES.items():
        function = getattr(library, name, None)
        if function is None:
            raise AbiMismatch(f"{path} lacks {name}: it is not the library of this package")
        function.restype, function.argtypes = returns, takes
        if name == "lw_abi_version" and (found := function()) != ABI_VERSION:
            raise AbiMismatch(f"{path} speaks ABI {found}, this package {ABI_VERSION}: install both from one release")
    return library


def find_library() -> Path:
    """``$LANEWAY_LIBRARY``, else the one shipped in this package, else the newest build of a source checkout."""
    given = os.environ.get("LANEWAY_LIBRARY")
    if given:
        if not os.path.isfile(given):
            raise ImportError(f"LANEWAY_LIBRARY names {given}, which is not a file")
        return Path(given)
    for group in _places():
        found = sorted((p for p in group if p.is_file()), key=lambda p: p.stat().st_mtime)
        if found:
            return found[-1]
    looked = ", ".join(str(p) for group in _places() for p in group)
    raise ImportError(f"the Laneway library was not found; looked for {looked}. Set LANEWAY_LIBRARY, or build it: cargo build --release")


def _places() -> Iterator[list[Path]]:
    package = Path(__file__).resolve().parent
    yield [package / "liblaneway.so", package / "lib" / "liblaneway.so", package / "lib64" / "liblaneway.so"]
    root = package.parents[2]
    if (root / "Cargo.toml").is_file():
        target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
        yield [target / "release" / "liblaneway.so", root / "build" / "lib" / "liblaneway.so"]


def find_program() -> Path:
    """The ``laneway`` program: ``$LANEWAY_BIN``, else beside the library, in ``../bin`` of it or in the ``bin`` of this Python, else in ``PATH``."""
    given = os.environ.get("LANEWAY_BIN")
    if given:
        return Path(given)
    beside = find_library().parent
    for folder in [beside, beside.parent / "bin", Path(sys.prefix) / "bin", *map(Path, os.get_exec_path())]:
        if (folder / "laneway").is_file():
            return folder / "laneway"
    raise FileNotFoundError(f"the laneway program was not found beside {beside} or in PATH; set LANEWAY_BIN, or start it yourself")


def deadline(timeout_s: float | None) -> int:
    """The time at which a wait of so many seconds ends; None is for ever."""
    if timeout_s is None:
        return NEVER
    if not timeout_s >= 0:
        raise ValueError(f"timeout_s is {timeout_s}; expected seconds, 0 or more, or None")
    return monotonic_ns() + int(timeout_s * 1e9) if timeout_s < 1e9 else NEVER


def check(status: int) -> None:
    """Raises the exception of a status that is not OK, with this thread's last message."""
    if status != Status.OK:
        raise error(status)


def error(status: int) -> Exception:
    """The exception of a status, with this thread's last message."""
    return from_status(status, (lib().lw_last_error() or b"").decode("utf-8", "replace"))


def owned(handle: int | None, free: Any) -> tuple[int, Any]:
    """A handle that was opened, and what frees it when it dies (see :func:`~laneway._owned.free_with`)."""
    assert handle is not None
    return handle, free_with(free, handle)


def interruptibly(ask: Callable[[int], Any], timeout_s: float) -> Any:
    """What ``ask(deadline)`` returns, which may take as long as the broker does.

    It runs on a thread of its own, so that Ctrl-C is noticed at once; a result that comes after that dies. So a handle is returned with what frees it: on that
    thread nothing is interrupted, and there is no moment at which nobody has it.
    """
    deadline = monotonic_ns() + int(timeout_s * 1e9)
    # A lock, since an Event is Python, which a Ctrl-C leaves half done.
    running = _thread.allocate_lock()
    running.acquire()
    answer: list[Any] = []
    failure: list[BaseException] = []

    def work() -> None:
        nonlocal ask
        try:
            answer.append(ask(deadline))
        except BaseException as error:
            failure.append(error)
        finally:
            # The thread may outlive the wait a little, and the answer is not to live as long.
            del ask
            running.release()

    # No threading.Thread, of which Python keeps account with finalizers that lose a Ctrl-C.
    _thread.start_new_thread(work, ())
    while not running.acquire(timeout=SLICE_NS / 1e9):
        pass
    if failure:
        raise failure.pop()
    return answer.pop()


def end_callbacks() -> None:
    """At the interpreter's end: the library calls nothing any more, and what it called has returned when this does. A thread that came back into a finished
    interpreter would take the process along."""
    if not lib.cache_info().currsize:
        return
    told = monotonic_ns() + _PATIENCE_NS
    while lib().lw_callbacks_end(monotonic_ns() + SLICE_NS) == Status.TIMEOUT:
        if monotonic_ns() > told:
            told = NEVER
            _log.warning("at the interpreter's end: %s; waiting for them", (lib().lw_last_error() or b"").decode())


def text(function: Any, *handles: Any) -> str:
    """What a function of the form ``f(handle, buffer, capacity, &len)`` writes; it may grow between two calls."""
    length = c_size_t()
    check(function(*handles, None, 0, ctypes.byref(length)))
    while True:
        capacity = length.value + 256
        buffer = ctypes.create_string_buffer(capacity)
        check(function(*handles, buffer, capacity, ctypes.byref(length)))
        if length.value < capacity:
            return buffer.raw[: length.value].decode("utf-8", "replace")


def bytes_or_none(value: str | None) -> bytes | None:
    """UTF-8 for the library, None for its default."""
    return None if value is None else value.encode()
