"""The cuda medium in Python, against a STAND-IN for NVIDIA's driver (``tests/standin_cuda``): right calls in the right order, and what is said where one is refused.
Nothing here is about a real GPU; ``make gpu-check`` is."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from laneway import BatchConfig, DistillIterableDataset, StudentClient, TensorSpec, Worker
from laneway.errors import Unsupported

ROOT = Path(__file__).parents[3]
CONFIG = BatchConfig([TensorSpec("x", (4,), "float32")])


@pytest.fixture(scope="session")
def stand_in():
    """The folder with the stand-in driver."""
    if shutil.which("cc") is None or not (ROOT / "tests" / "standin_cuda").is_dir():
        pytest.skip("no C compiler or no source tree: the stand-in driver cannot be built")
    script = ROOT / "tests" / "standin_cuda" / "build.sh"
    return subprocess.run([script], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def standin_house(house, stand_in):
    house.env |= {"LD_LIBRARY_PATH": stand_in, "PYTHONPATH": house.env["PYTHONPATH"] + ":" + str(Path(__file__).parent)}
    for name in ("CUDA_VISIBLE_DEVICES", "STANDIN_CUDA_FAULTS"):
        house.env.pop(name, None)
    return house


@pytest.mark.parametrize(
    ("promise", "worker"),
    [
        ("samples_are_tensors_of_the_device", "teacher"),
        ("dlpack_shares_the_tensor_and_keeps_its_slot", "teacher"),
        ("a_dataset_yields_tensors_of_the_device", "teacher"),
        ("bytes_of_a_generator_arrive", "stranger"),
        ("torch_without_cuda_says_so", "stranger"),
        ("torch_without_cuda_fails_the_task_and_says_so", "torch_teacher"),
        ("a_forked_child_is_told_to_spawn", None),
        ("a_device_that_is_not_there_is_named", None),
        ("page_locked_slots_are_views_of_the_host", "stranger"),
    ],
)
def test_on_the_stand_in(promise, worker, standin_house):
    if "torch" in promise:
        pytest.importorskip("torch")
    peers = str(Path(__file__).with_name("standin_peers.py"))
    if worker is not None:
        standin_house.python(peers, worker)
    student = standin_house.python(peers, promise)
    assert student.wait(120) == 0, student.log.read_text()


def test_the_gpu_check_runs_on_the_stand_in_and_says_that_it_is_one(stand_in, tmp_path):
    out = tmp_path / "found.json"
    run = subprocess.run([sys.executable, ROOT / "scripts" / "gpu_check.py", "--stand-in", "--out", out], capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.startswith("STAND-IN DRIVER, NO GPU")
    found = json.loads(out.read_text())
    assert found["stand_in"] is True and len(found["checks"]) == 7 and all(c["passed"] for c in found["checks"].values())
    assert not any("us" in key or "gb_per_s" in key or "ratio" in key for c in found["checks"].values() for key in c), "no rate is claimed"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"medium": "shm", "device": 0}, "device is for medium='cuda'"),
        ({"fallback": "shm"}, "fallback is for medium='cuda'"),
        ({"medium": "cuda", "fallback": "tcp"}, "fallback is 'tcp'"),
        ({"medium": "cuda", "device": -1}, "device is -1"),
        ({"medium": "cuda", "device": True}, "device is True"),
        ({"medium": "cuda", "pin_memory": True}, "page-locks medium='shm'"),
    ],
)
def test_options_that_do_not_fit_each_other_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        StudentClient(0, 4, CONFIG, **options)
    with pytest.raises(ValueError, match=message):
        DistillIterableDataset(0, None, 4, CONFIG, **options)


def test_a_workers_device_is_the_students_or_a_number():
    with pytest.raises(ValueError, match="device is 'cuda:0'; expected None, 'student'"):
        Worker(lambda m, c: b"", 16, device="cuda:0")
    with pytest.raises(ValueError, match="device is -1"):
        Worker(lambda m, c: b"", 16, device=-1)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has an NVIDIA driver")
def test_without_cuda_it_is_an_error_that_says_so_or_shared_memory_as_chosen(house):
    for options in ({"medium": "cuda"}, {"pin_memory": True}):
        with pytest.raises(Unsupported, match=r"CUDA is not to be had here.*libcuda\.so\.1"):
            StudentClient(0, 4, CONFIG, **options).hello()
        with StudentClient(0, 4, CONFIG, fallback="shm", **options) as student:
            assert student.stats["workers"] == 0
