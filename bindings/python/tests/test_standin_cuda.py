"""The cuda medium in Python, against a STAND-IN for NVIDIA's driver (``tests/standin_cuda``): right calls in the right order, and what is said where one is refused.
Nothing here is about a real GPU; ``make gpu-check`` is."""

import json
import os
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
        ("samples_on_the_device_have_lengths_of_their_own", "ragged_teacher"),
        ("samples_on_the_device_have_lengths_of_their_own", "ragged_stranger"),
        ("samples_on_the_device_have_lengths_of_their_own", "ragged_generator"),
        ("dlpack_shares_the_tensor_and_keeps_its_slot", "teacher"),
        ("a_dataset_yields_tensors_of_the_device", "teacher"),
        ("bytes_of_a_generator_arrive", "stranger"),
        ("torch_without_cuda_says_so", "stranger"),
        ("torch_without_cuda_fails_the_task_and_says_so", "torch_teacher"),
        ("a_forked_child_is_told_to_spawn", None),
        ("a_worker_whose_context_is_lost_ends_with_the_reason", None),
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


def test_the_gpu_check_runs_on_the_stand_in_from_a_clean_checkout_and_says_that_it_is_one(stand_in, tmp_path):
    """As on a machine that cannot build: what is tracked, and what `--pack` makes."""
    clean = tmp_path / "clean"
    tracked = subprocess.run(["git", "ls-files", "-z", "scripts", "bindings/python/laneway", "tests/standin_cuda"], cwd=ROOT, capture_output=True, check=True)
    for name in tracked.stdout.decode().split("\0")[:-1]:
        (clean / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, clean / name)
    missing = gpu_check(clean, "--stand-in")
    assert missing.returncode == 2 and "--pack" in missing.stderr, missing.stderr
    packed = gpu_check(ROOT, "--pack")
    assert packed.returncode == 0 and "build/gpu_check/liblaneway.so" in packed.stdout, packed.stdout + packed.stderr
    shutil.copytree(ROOT / "build" / "gpu_check", clean / "build" / "gpu_check")
    out = tmp_path / "found.json"
    run = gpu_check(clean, "--stand-in", "--out", out)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.startswith("STAND-IN DRIVER, NO GPU")
    found = json.loads(out.read_text())
    outcomes = {name: step["passed"] for name, step in found["steps"].items()}
    assert found["stand_in"] is True and len(outcomes) == 15 and outcomes.pop("to_device") is None and all(outcomes.values()), outcomes
    seen = found["steps"]["permuted_devices"]["worker_sees"].split(",")
    assert len(seen) == 2 and seen == sorted(seen, reverse=True), seen
    assert found["steps"]["overlap"]["most_pending"] >= 2
    assert found["steps"]["death_and_context"]["written_after_pidfd"] == 0
    keys = {key for step in found["steps"].values() for key in step}
    assert not any(word in key for key in keys for word in ("_us", "_ms", "gb_per_s", "ratio")), "no rate is claimed"


def test_steps_of_the_gpu_check_that_fail_stop_no_other(stand_in, tmp_path):
    """Here by a device that is lost after some copies, and by memory that cannot be opened."""
    out = tmp_path / "found.json"
    args = ("--stand-in", "--out", out, "--only", "correctness", "pinned_slots", "permuted_devices")
    for faults, failed in (("lost=5,slow=1", {"correctness", "pinned_slots", "permuted_devices"}), ("open", {"correctness", "permuted_devices"})):
        run = gpu_check(ROOT, *args, STANDIN_CUDA_FAULTS=faults)
        steps = json.loads(out.read_text())["steps"]
        assert run.returncode == 1 and {name for name, step in steps.items() if not step["passed"]} == failed, run.stdout + run.stderr
        assert all(step.get("error") for name, step in steps.items() if name in failed)
    # Whatever was left of its time when it began.
    run = gpu_check(ROOT, *args, "--budget", "6")
    steps = json.loads(out.read_text())["steps"]
    assert run.returncode == 1 and len(steps) == 3 and steps["permuted_devices"]["error"] == "no time was left for it", run.stdout


def gpu_check(root, *args, **env):
    command = [sys.executable, root / "scripts" / "gpu_check.py", *map(str, args)]
    kept = {key: value for key, value in os.environ.items() if key not in ("LANEWAY_LIBRARY", "LANEWAY_BIN", "CUDA_VISIBLE_DEVICES", "STANDIN_CUDA_FAULTS")}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env={**kept, **env}, cwd=root)


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
