"""ctypes and ``laneway.h`` agree: every struct's size and offsets, every function's arguments, every number."""

import ctypes
import gc
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from laneway import BatchConfig, TensorSpec, _dtypes, _native, _structs
from laneway._owned import free_with
from laneway._student import c_layout
from laneway.errors import AbiMismatch, InvalidArgument, Status

HEADER = Path(os.environ.get("LANEWAY_HEADER", Path(__file__).parents[3] / "include" / "laneway.h"))
STRUCTS = {
    "lw_tensor_spec": _structs.TensorSpec,
    "lw_tensor": _structs.Tensor,
    "lw_endpoints": _structs.Endpoints,
    "lw_broker_options": _structs.BrokerOptions,
    "lw_medium_table": _structs.MediumTable,
    "lw_attach_table": _structs.AttachTable,
    "lw_student_options": _structs.StudentOptions,
    "lw_sample": _structs.Sample,
    "lw_worker_options": _structs.WorkerOptions,
    "lw_task": _structs.Task,
    "lw_function_table": _structs.FunctionTable,
    "lw_piece": _structs.Piece,
    "lw_operator_table": _structs.OperatorTable,
    "lw_loader_options": _structs.LoaderOptions,
    "lw_connect_options": _structs.ConnectOptions,
    "lw_server_options": _structs.ServerOptions,
    "lw_state": _structs.State,
    "lw_batch_info": _structs.BatchInfo,
    "lw_row": _structs.Row,
    "lw_segment": _structs.Segment,
    "lw_dataset_options": _structs.DatasetOptions,
    "lw_shard": _structs.Shard,
    "lw_group": _structs.Group,
    "lw_location": _structs.Location,
}


@pytest.fixture(scope="module")
def c_says(tmp_path_factory):
    """What a C compiler says of the header: {"lw_task": {"": 104, "data": 0, …}, …}"""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    lines = ['#include "laneway.h"', "#include <stddef.h>", "#include <stdio.h>", "int main(void) {"]
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name}  %zu\\n", sizeof({name}));')
        for field, *_ in struct._fields_:
            lines.append(f'printf("{name} {field} %zu\\n", offsetof({name}, {field}));')
    folder = tmp_path_factory.mktemp("c")
    (folder / "sizes.c").write_text("\n".join([*lines, "return 0; }"]))
    subprocess.run([compiler, "-I", HEADER.parent, "-o", folder / "sizes", folder / "sizes.c"], check=True)
    said: dict[str, dict[str, int]] = {}
    for line in subprocess.run([folder / "sizes"], check=True, capture_output=True, text=True).stdout.splitlines():
        name, field, number = line.split(" ")
        said.setdefault(name, {})[field] = int(number)
    return said


@pytest.mark.parametrize("name", STRUCTS)
def test_a_struct_is_the_compilers(name, c_says):
    struct = STRUCTS[name]
    ours = {"": ctypes.sizeof(struct)} | {field: getattr(struct, field).offset for field, *_ in struct._fields_}
    assert ours == c_says[name]


def test_values_read_with_struct_have_their_size():
    assert _structs.SAMPLE.size == ctypes.sizeof(_structs.Sample)
    assert _structs.TASK.size == ctypes.sizeof(_structs.Task)


def header_functions() -> dict[str, int]:
    """Name and number of parameters of each function of the header."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", HEADER.read_text(), flags=re.S)
    text = re.sub(r"\(\*\w*\)\s*\([^()]*\)", "function", text)  # callbacks among the parameters
    found = re.findall(r"\b(lw_\w+)\s*\(([^()]*)\)\s*;", text)
    return {name: 0 if args.strip() in ("", "void") else args.count(",") + 1 for name, args in found}


def test_every_function_is_in_the_header_with_as_many_parameters():
    declared = header_functions()
    assert len(declared) > 40
    for name, (_, takes) in _native._PROTOTYPES.items():
        assert declared.get(name) == len(takes), name


def test_numbers_are_the_headers():
    text = HEADER.read_text()
    for status in Status:
        assert re.search(rf"\bLW_{status.name} = {status.value}\b", text), status
    for name, number in _dtypes.NUMBERS.items():
        assert re.search(rf"\bLW_(DTYPE_)?{name.upper()} = {number}\b", text), name
    assert f"LW_ABI_VERSION {_native.ABI_VERSION}" in text


@pytest.mark.parametrize(
    "config",
    [
        BatchConfig([TensorSpec("x", (3, 224, 224), "float32"), TensorSpec("y", (1000,), "float32")]),
        BatchConfig([TensorSpec(f"t{i}", (i, 3), dtype) for i, dtype in enumerate(_dtypes.NUMBERS)]),
        BatchConfig([TensorSpec("scalar", (), "bool"), TensorSpec("café", (7,), "bfloat16")]),
    ],
)
def test_the_library_lays_samples_out_in_the_same_way(config):
    lib = _native.lib()
    with c_layout(config) as layout:
        assert lib.lw_layout_nbytes(layout) == config.nbytes()
        assert lib.lw_layout_count(layout) == len(config.specs)
        tensor, offset = _structs.Tensor(), ctypes.c_uint64()
        for i, spec in enumerate(config.specs):
            _native.check(lib.lw_layout_tensor(layout, i, ctypes.byref(tensor), ctypes.byref(offset)))
            assert (tensor.name.decode(), tensor.nbytes, offset.value) == (spec.name, spec.nbytes, config.offsets[i])
            assert tuple(tensor.shape[: tensor.ndim]) == spec.shape and tensor.dtype == _dtypes.NUMBERS[spec.dtype]
        assert json.loads(_native.text(lib.lw_layout_to_json, layout)) == config.to_dict()


def test_an_error_carries_status_and_message():
    out = ctypes.c_void_p()
    with pytest.raises(InvalidArgument, match="layout"):
        _native.check(_native.lib().lw_layout_from_json(b"{", 1, ctypes.byref(out)))


def run(code: str, **env: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **env}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)


def test_a_library_that_is_not_there_is_said_with_its_path():
    done = run("from laneway import _native; _native.lib()", LANEWAY_LIBRARY="/nowhere/liblaneway.so")
    assert "ImportError: LANEWAY_LIBRARY names /nowhere/liblaneway.so, which is not a file" in done.stderr


def test_a_library_of_another_version_is_refused(tmp_path):
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    for number, body, words in [
        (1, "unsigned lw_abi_version(void) { return 99; }", "speaks ABI 99, this package 1"),
        (2, "unsigned lw_abi_version(void) { return 1; }", "lacks lw_version: it is not the library of this package"),
    ]:
        source, library = tmp_path / f"{number}.c", tmp_path / f"{number}.so"
        source.write_text(body)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
        done = run("from laneway import _native; _native.lib()", LANEWAY_LIBRARY=str(library))
        assert AbiMismatch.__name__ in done.stderr and words in done.stderr


def test_a_handle_goes_after_the_finalizers_of_those_that_are_collected_with_its_owner():
    happened = []
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda handle: happened.append(handle))

    class Owner:
        def __init__(self):
            self.owned = free_with(free, 7)
            self.used = self.uses()
            next(self.used)

        def uses(self):
            try:
                yield self
            finally:
                happened.append("last use")

    Owner()
    assert happened == [], "it is part of a cycle"
    gc.collect()
    assert happened == ["last use", 7]
    owned = free_with(free, 8)
    del owned
    assert happened[2:] == [8]
