"""Mediums written in Python, under the exchange: the same promises whatever holds the bytes."""

import gc
import os

import numpy as np
import pytest
from conftest import wait_until
from own_mediums import BrokenMedium, FileMedium, RefusingMedium
from peers import CONFIG, expected

from laneway import StudentClient, TaskError, errors
from laneway.mediums import MediumBase, SharedMemoryManager

STRIDE = CONFIG.nbytes() + -CONFIG.nbytes() % 64


def worker(house, expression):
    code = f"""if True:
        import sys
        from laneway import *
        from laneway.mediums import *
        import peers
        from own_mediums import *
        setup_logging("INFO")
        Worker(fill_fn=peers.fill, batch_config=peers.CONFIG, batch_size=2, medium={expression}, framework="numpy").run()"""
    return house.python("-c", code)


@pytest.fixture(params=["shm", "file", "published", "named", "named-unaligned"])
def medium(request, tmp_path):
    return {
        "shm": lambda: ("shm", None),
        "file": lambda: (f"file:{tmp_path}/slots", None),
        "published": lambda: (FileMedium(80, CONFIG.nbytes(), str(tmp_path / "slots")), "FileMedium"),
        "named": lambda: (SharedMemoryManager(80, STRIDE, read_only=True), "SharedMemoryManager"),
        "named-unaligned": lambda: (SharedMemoryManager(80, CONFIG.nbytes() + 3, read_only=True), "[SharedMemoryManager]"),
    }[request.param]()


def test_every_medium_keeps_the_same_promises(house, medium, tmp_path):
    medium, kind = medium
    worker(house, kind)
    worker(house, kind)
    with StudentClient(0, 8, CONFIG, prefetch=8, medium=medium, framework="numpy", max_attempts=100) as client:
        step = 0
        for generation in (1, 2, 3):
            client.set_model(f"m{generation}")
            kept = None
            for _ in range(50):
                sample = client.request_sample(timeout_ms=60_000)
                assert sample.step == step and sample.generation == generation
                assert np.array_equal(sample["x"], expected(0, step, generation))
                kept = kept or (sample["x"], step)
                step += 1
                sample.release()
            assert np.array_equal(kept[0], expected(0, kept[1], generation))
            house.processes[-1].kill()
            worker(house, kind)
    del client, sample, kept
    gc.collect()
    wait_until(lambda: not os.listdir(tmp_path), "the file's end")
    assert not any(name.startswith(f"lw_{os.getpid():x}_") for name in os.listdir("/dev/shm"))


def test_a_small_medium_is_shared_out(house, tmp_path):
    medium = FileMedium(16, CONFIG.nbytes(), str(tmp_path / "slots"))
    worker(house, "FileMedium")
    with StudentClient(0, 16, CONFIG, prefetch=16, medium=medium, framework="numpy") as client:
        client.set_model("m")
        for step in range(50):
            sample = client.request_sample(timeout_ms=60_000)
            assert sample.step == step and np.array_equal(sample["x"], expected(0, step, 1))
            sample.release()


def test_a_medium_of_one_slot_or_too_small_a_stride_is_refused(house, tmp_path):
    with pytest.raises(ValueError, match="1 slot; expected at least 2"):
        StudentClient(0, 4, CONFIG, medium=FileMedium(1, CONFIG.nbytes(), str(tmp_path / "a"))).hello()
    with pytest.raises(ValueError, match=str(CONFIG.nbytes())):
        StudentClient(0, 4, CONFIG, medium=FileMedium(80, 100, str(tmp_path / "b"))).hello()


def test_a_worker_that_does_not_know_the_medium_is_refused_and_told(house, tmp_path):
    other = worker(house, None)
    medium = FileMedium(80, CONFIG.nbytes(), str(tmp_path / "slots"))
    with StudentClient(0, 8, CONFIG, medium=medium) as client:
        client.set_model("m")
        assert client.request_sample(timeout_ms=1500) is None
        wait_until(lambda: "FileMedium" in other.log.read_text(), "the reason in the worker's log")


def test_an_exception_while_reading_reaches_the_student(house, tmp_path):
    worker(house, "BrokenMedium")
    medium = BrokenMedium(80, CONFIG.nbytes(), str(tmp_path / "slots"))
    with StudentClient(0, 8, CONFIG, medium=medium, max_attempts=1) as client:
        client.set_model("m")
        with pytest.raises(TaskError, match="the disk is on fire"):
            client.request_sample(timeout_ms=60_000)


def test_an_exception_while_attaching_reaches_the_workers_log(house, tmp_path):
    refusing = worker(house, "RefusingMedium")
    medium = RefusingMedium(80, CONFIG.nbytes(), str(tmp_path / "slots"))
    with StudentClient(0, 8, CONFIG, medium=medium) as client:
        client.set_model("m")
        assert client.request_sample(timeout_ms=1000) is None
        wait_until(lambda: "is locked away" in refusing.log.read_text(), "the reason in the worker's log")


def test_what_is_no_medium_is_refused(folder):
    with pytest.raises(TypeError, match="dict is no Medium: it lacks buf_name"):
        StudentClient(0, 4, CONFIG, medium={}).hello()
    assert issubclass(errors.TaskError, RuntimeError) and issubclass(SharedMemoryManager, MediumBase)
