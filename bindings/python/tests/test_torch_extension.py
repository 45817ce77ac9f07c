"""A C++ extension on torch's stable ABI: what its operator returns views a slot, and the slot is given back when the last view dies."""

import gc
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from peers import CONFIG, expected

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]
PREFIX = Path(os.environ.get("LANEWAY_PREFIX", ROOT / "build" / "prefix"))


def missing(what: str) -> None:
    """A skip that is said aloud, and a failure where everything must be there."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="module")
def extension(tmp_path_factory):
    """The example extension, built against the installed package and loaded."""
    if shutil.which("cmake") is None:
        missing("cmake is needed to build the extension")
    if not (PREFIX / "lib" / "cmake" / "laneway").is_dir():
        missing(f"the C package is not installed in {PREFIX}: run `make test`, or set LANEWAY_PREFIX")
    build = tmp_path_factory.mktemp("extension")
    source = ROOT / "examples" / "cpp" / "torch_extension"
    options = [f"-DCMAKE_PREFIX_PATH={PREFIX}", f"-DPython3_EXECUTABLE={sys.executable}"]
    for command in (["cmake", "-S", source, "-B", build, *options], ["cmake", "--build", build]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
    torch.ops.load_library(str(build / "liblaneway_example.so"))
    return torch.ops.laneway_example


@pytest.fixture
def student(extension, house):
    """A student with a window of two samples and room for two that are held; workers fill it."""
    house.worker("fill")
    number = extension.open(json.dumps(CONFIG.to_dict()), 4, 2)
    extension.set_model(number, "teacher")
    yield number
    extension.close(number)


def held(extension, student) -> int:
    gc.collect()
    return json.loads(extension.stats(student))["held"]


def test_tensors_hold_the_samples_bytes(extension, student):
    for step in range(100):
        ticket, x = extension.next(student, 20.0)
        assert ticket.dtype == torch.int64 and x.dtype == torch.float32 and x.shape == (1024,)
        assert ticket[:3].tolist() == [0, step, 1]
        assert torch.equal(x, torch.from_numpy(expected(0, step, 1)))


def test_a_slot_is_given_back_when_its_last_view_dies(extension, student):
    ticket, x = extension.next(student, 20.0)
    assert held(extension, student) == 1
    tail = x[1000:].view(3, 8)
    del x
    assert held(extension, student) == 1, "a slice views the slot as well"
    del ticket
    assert held(extension, student) == 1
    wanted = torch.from_numpy(expected(0, 0, 1))[1000:].view(3, 8)
    for _ in range(20):
        extension.next(student, 20.0)
    assert torch.equal(tail, wanted), "the slot was used again while it was viewed"
    del tail
    assert held(extension, student) == 0


def test_a_tensor_outlives_its_student(extension, student):
    _, x = extension.next(student, 20.0)
    extension.close(student)
    with pytest.raises(RuntimeError, match=f"student {student} is not open"):
        extension.next(student, 1.0)
    assert torch.equal(x, torch.from_numpy(expected(0, 0, 1)))


def test_no_copy_is_made(extension, student):
    pointers = {extension.next(student, 20.0)[1].data_ptr() for _ in range(200)}
    assert len(pointers) <= 4 + 8 * 8, "samples lie in the segment's slots"
    assert json.loads(extension.stats(student))["copied"] == 0


def test_errors_carry_the_librarys_words(extension, house):
    with pytest.raises(RuntimeError, match="'x'.*float99|float99"):
        extension.open('{"specs": [{"name": "x", "shape": [1], "dtype": "float99"}]}', 4, 0)
