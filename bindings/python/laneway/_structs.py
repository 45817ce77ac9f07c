"""The structs of ``laneway.h``, field for field. ``tests/test_native.py`` compares every size and offset with a C compiler's."""

from __future__ import annotations

import ctypes
import struct
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

LogCallback = CFUNCTYPE(None, c_void_p, c_int32, c_char_p, c_char_p)
Drop = CFUNCTYPE(None, c_void_p)
MediumRead = CFUNCTYPE(c_int32, c_void_p, c_uint32, c_void_p, c_size_t)
MediumWrite = CFUNCTYPE(c_int32, c_void_p, c_uint32, c_void_p, c_size_t)
MediumSlot = CFUNCTYPE(c_void_p, c_void_p, c_uint32)
MediumReserve = CFUNCTYPE(c_int32, c_void_p, c_uint32)
MediumShare = CFUNCTYPE(c_int32, c_void_p)
MediumUnlink = CFUNCTYPE(c_int32, c_void_p)


class TensorSpec(ctypes.Structure):
    """``lw_tensor_spec``"""

    _fields_ = [("name", c_char_p), ("shape", POINTER(c_int64)), ("ndim", c_int32), ("dtype", c_int32)]


class Tensor(ctypes.Structure):
    """``lw_tensor``"""

    _fields_ = [
        ("data", c_void_p),
        ("shape", POINTER(c_int64)),
        ("name", c_char_p),
        ("nbytes", c_uint64),
        ("ndim", c_int32),
        ("dtype", c_int32),
        ("device_type", c_int32),
        ("device_id", c_int32),
    ]


class Endpoints(ctypes.Structure):
    """``lw_endpoints``"""

    _fields_ = [("frontend", c_char_p), ("backend", c_char_p), ("control", c_char_p), ("control_pub", c_char_p)]


class BrokerOptions(ctypes.Structure):
    """``lw_broker_options``"""

    _fields_ = [("struct_size", c_size_t), ("endpoints", Endpoints), ("exit_when_idle_ms", c_uint64)]


class MediumTable(ctypes.Structure):
    """``lw_medium_table``"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("user", c_void_p),
        ("drop", Drop),
        ("kind", c_char_p),
        ("buf_name", c_char_p),
        ("slot_count", c_uint32),
        ("reserved", c_uint32),
        ("slot_stride", c_size_t),
        ("read", MediumRead),
        ("write", MediumWrite),
        ("slot", MediumSlot),
        ("reserve", MediumReserve),
        ("share", MediumShare),
        ("unlink", MediumUnlink),
    ]


Attach = CFUNCTYPE(c_int32, c_void_p, c_char_p, c_int32, c_uint32, c_size_t, POINTER(MediumTable))


class AttachTable(ctypes.Structure):
    """``lw_attach_table``"""

    _fields_ = [("struct_size", c_size_t), ("user", c_void_p), ("drop", Drop), ("kind", c_char_p), ("attach", Attach)]


class StudentOptions(ctypes.Structure):
    """``lw_student_options``"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("endpoints", Endpoints),
        ("group", c_char_p),
        ("layout", c_void_p),
        ("medium", c_void_p),
        ("seed", c_uint64),
        ("rank", c_uint32),
        ("role", c_int32),
        ("data_worker", c_uint32),
        ("data_workers", c_uint32),
        ("slot_count", c_uint32),
        ("prefetch", c_uint32),
        ("max_workers", c_uint32),
        ("max_batch", c_uint32),
        ("max_attempts", c_uint32),
        ("spin_us", c_uint32),
        ("arrival_order", c_int32),
        ("embedded_broker", c_int32),
        ("input", c_void_p),
    ]


class Sample(ctypes.Structure):
    """``lw_sample``"""

    _fields_ = [
        ("data", c_void_p),
        ("nbytes", c_uint64),
        ("lane", c_uint64),
        ("step", c_uint64),
        ("seed", c_uint64),
        ("generation", c_uint64),
        ("position", c_uint64),
        ("serial", c_uint64),
        ("slot", c_uint32),
        ("flags", c_uint32),
    ]


class WorkerOptions(ctypes.Structure):
    """``lw_worker_options``"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("endpoints", Endpoints),
        ("layout", c_void_p),
        ("attach", POINTER(POINTER(AttachTable))),
        ("attach_count", c_size_t),
        ("slot_size", c_uint64),
        ("worker_id", c_int64),
        ("batch_size", c_uint32),
        ("spin_us", c_uint32),
        ("device", c_int32),
        ("reserved", c_uint32),
    ]


class Task(ctypes.Structure):
    """``lw_task``; its text pointers are plain addresses, since the texts have lengths and may hold NULs."""

    _fields_ = [
        ("data", c_void_p),
        ("capacity", c_uint64),
        ("id", c_uint64),
        ("lane", c_uint64),
        ("step", c_uint64),
        ("seed", c_uint64),
        ("generation", c_uint64),
        ("model_id", c_void_p),
        ("model_id_len", c_size_t),
        ("model_config", c_void_p),
        ("model_config_len", c_size_t),
        ("layout", c_void_p),
        ("attempt", c_uint32),
        ("flags", c_uint32),
    ]


Progress = CFUNCTYPE(c_int32, c_void_p, c_char_p, c_uint64, c_uint64)
Map = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_size_t, c_void_p)
Filter = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_size_t)


class FunctionTable(ctypes.Structure):
    """``lw_function_table``"""

    _fields_ = [("struct_size", c_size_t), ("user", c_void_p), ("drop", Drop), ("name", c_char_p), ("map", Map), ("filter", Filter)]


class Piece(ctypes.Structure):
    """``lw_piece``"""

    _fields_ = [
        ("number", c_uint64),
        ("document", c_uint64),
        ("dataset", c_uint32),
        ("lane", c_uint32),
        ("start", c_uint32),
        ("length", c_uint32),
        ("tokens", c_void_p),
    ]


OperatorOpen = CFUNCTYPE(c_int32, c_void_p, c_uint32, POINTER(c_void_p))
OperatorClose = CFUNCTYPE(None, c_void_p, c_void_p)
OperatorPush = CFUNCTYPE(c_int32, c_void_p, c_void_p, POINTER(Piece), c_void_p)
OperatorFlush = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p)
OperatorSave = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p, POINTER(c_void_p), POINTER(c_size_t))
OperatorLoad = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p, c_size_t, POINTER(Piece), c_size_t, c_void_p)


class OperatorTable(ctypes.Structure):
    """``lw_operator_table``"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("user", c_void_p),
        ("drop", Drop),
        ("name", c_char_p),
        ("open", OperatorOpen),
        ("close", OperatorClose),
        ("push", OperatorPush),
        ("flush", OperatorFlush),
        ("save", OperatorSave),
        ("load", OperatorLoad),
    ]


class GenerateOptions(ctypes.Structure):
    """``lw_generate_options``"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("endpoints", Endpoints),
        ("group", c_char_p),
        ("connect_ms", c_uint64),
        ("window", c_uint32),
        ("max_workers", c_uint32),
        ("max_attempts", c_uint32),
        ("spin_us", c_uint32),
        ("embedded_broker", c_int32),
        ("rows_only", c_int32),
    ]


class Ticket(ctypes.Structure):
    """``lw_ticket``"""

    _fields_ = [("lane", c_uint64), ("step", c_uint64)]


class LoaderOptions(ctypes.Structure):
    """``lw_loader_options``"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("rank", c_uint32),
        ("ranks", c_uint32),
        ("microbatch_size", c_uint64),
        ("uneven", c_int32),
        ("threads", c_uint32),
        ("prefetch", c_uint64),
        ("cache_dir", c_char_p),
        ("memory_budget", c_uint64),
        ("task_bytes", c_uint64),
        ("functions", POINTER(POINTER(FunctionTable))),
        ("function_count", c_size_t),
        ("progress", Progress),
        ("progress_user", c_void_p),
        ("operators", POINTER(POINTER(OperatorTable))),
        ("operator_count", c_size_t),
        ("generate", POINTER(GenerateOptions)),
    ]


class ConnectOptions(ctypes.Structure):
    """``lw_connect_options``"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("rank", c_uint32),
        ("ranks", c_uint32),
        ("microbatch_size", c_uint64),
        ("uneven", c_int32),
        ("peers", c_uint32),
        ("spin_us", c_uint32),
        ("patience_ms", c_uint32),
        ("progress", Progress),
        ("progress_user", c_void_p),
    ]


class ServerOptions(ctypes.Structure):
    """``lw_server_options``"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("loader", POINTER(LoaderOptions)),
        ("ranks", c_uint32),
        ("local_ranks", c_uint32),
        ("peers", c_uint32),
        ("slots", c_uint32),
        ("exit_when_idle_ms", c_int64),
    ]


class State(ctypes.Structure):
    """``lw_state``"""

    _fields_ = [("data", c_char_p), ("len", c_size_t)]


class BatchInfo(ctypes.Structure):
    """``lw_batch_info``"""

    _fields_ = [
        ("step", c_uint64),
        ("microbatch", c_uint64),
        ("microbatches", c_uint64),
        ("rows", c_uint64),
        ("row_length", c_uint64),
        ("segments", c_uint64),
        ("num_tokens", c_uint64),
        ("num_valid_tokens", c_uint64),
        ("max_seqlen", c_int64),
    ]


class Row(ctypes.Structure):
    """``lw_row``"""

    _fields_ = [("number", c_uint64), ("position", c_uint64), ("lane", c_uint32), ("segments", c_uint32)]


class Segment(ctypes.Structure):
    """``lw_segment``"""

    _fields_ = [
        ("document", c_uint64),
        ("dataset", c_uint32),
        ("shard", c_uint32),
        ("row", c_uint32),
        ("offset", c_uint32),
        ("start", c_uint32),
        ("length", c_uint32),
    ]


class DatasetOptions(ctypes.Structure):
    """``lw_dataset_options``"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("paths", POINTER(c_char_p)),
        ("path_count", c_size_t),
        ("format", c_char_p),
        ("text_field", c_char_p),
        ("text_unit", c_char_p),
        ("on_error", c_char_p),
        ("cache_dir", c_char_p),
        ("threads", c_uint64),
        ("memory_budget", c_uint64),
        ("progress", Progress),
        ("progress_user", c_void_p),
    ]


class Shard(ctypes.Structure):
    """``lw_shard``"""

    _fields_ = [
        ("path", c_char_p),
        ("name", c_char_p),
        ("format", c_char_p),
        ("damage", c_char_p),
        ("size", c_uint64),
        ("fingerprint", c_uint64),
        ("first_document", c_uint64),
        ("documents", c_uint64),
    ]


class Group(ctypes.Structure):
    """``lw_group``"""

    _fields_ = [("first_document", c_uint64), ("bytes", c_uint64), ("documents", c_uint32), ("shard", c_uint32)]


class Location(ctypes.Structure):
    """``lw_location``"""

    _fields_ = [("number", c_uint64), ("shard", c_uint32), ("is_row", c_int32)]


# The same bytes by `struct`, which reads a whole value in a fifth of the time of a dozen ctypes fields.
SAMPLE = struct.Struct("@8Q2I")
TASK = struct.Struct("@12Q2I")

ROLE_CLIENT, ROLE_DATASET = 0, 1
SAMPLE_COPIED = 1
ON_DEVICE = 2
FALLBACK_NONE, FALLBACK_SHM = 0, 1
MAKE_IN_HOST_MEMORY, MAKE_ON_STUDENTS_DEVICE = -1, -2
SPIN_ADAPTIVE = 0xFFFF_FFFF
THREADS_ALL = 0xFFFF_FFFF
NO_LANE = 0xFFFF_FFFF
ENDLESS = 2**64 - 1
