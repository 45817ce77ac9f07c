"""What ``test_standin_cuda.py`` runs in processes of its own, in front of whose driver the STAND-IN of ``tests/standin_cuda`` is found.

``python standin_peers.py NAME``: one of the functions below.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from laneway import BatchConfig, DeviceTensor, DistillIterableDataset, StudentClient, TensorSpec, Worker, setup_logging
from laneway.errors import Forked, LanewayError, NotFound, TaskError, Unsupported

from peers import LENGTHS, RAGGED, ragged_sample

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))

CONFIG = BatchConfig([TensorSpec("x", (1024,), "float32"), TensorSpec("n", (), "int64")])


def expected(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(1024, dtype=np.float32)


def teacher() -> None:
    """Fills tensors on the student's device in place, as code without torch does."""
    from gpu_driver import Gpu

    gpu = Gpu()
    kept = []  # what is being copied must stay until it is

    def fill(tasks: list) -> None:
        kept.clear()
        for task in tasks:
            assert isinstance(task["x"], DeviceTensor) and task["x"].__dlpack_device__() == (2, task["x"].device)
            kept.append((expected(task.seed), np.array(task.step)))
            gpu.upload(task["x"].pointer, kept[-1][0])
            gpu.upload(task["n"].pointer, kept[-1][1])
        # Nothing to wait for here: the library does, before it publishes.

    _run(Worker(fill_fn=fill, batch_config=CONFIG, batch_size=2, framework="numpy", device="student"))


def ragged_teacher() -> None:
    """Fills tensors of different lengths on the student's device, and says how long they are once all is queued."""
    from gpu_driver import Gpu

    gpu = Gpu()
    kept = []  # what is being copied must stay until it is

    def fill(tasks: list) -> None:
        kept.clear()
        for task in tasks:
            sample = ragged_sample(task.step)
            assert set(task.tensors) == {"tag"}, "whatever has no length yet has no shape"
            with pytest.raises(ValueError, match=r"'ids' has shape .* no length yet: call task.set_length\(seq=…\)"):
                task["ids"]
            for wrong, message in (({"seq": 8}, "expected 0 to 7"), ({"k": 1}, "no ragged dimension is called 'k'; there are: seq")):
                with pytest.raises(ValueError, match=message):
                    task.set_length(**wrong)
            with pytest.raises(TypeError, match="only its device can write"):
                task["tag"] = np.array(0)
            with pytest.raises(ValueError, match=r"'ids' has shape \(8, 4\)"):
                task["ids"] = np.zeros((8, 4), np.int32)
            # A tensor begins where it does, however long it is.
            views = task.set_length(seq=7)
            noise = np.full((7, 4), -1, np.int32)
            kept.append(noise)
            gpu.upload(views["ids"].pointer, noise)
            for name, value in sample.items():
                kept.append(value)
                gpu.upload(views[name].pointer, value)
            shapes = {name: tensor.shape for name, tensor in task.set_length(seq=len(sample["ids"])).items()}
            assert shapes == {name: value.shape for name, value in sample.items()}, shapes

    _run(Worker(fill_fn=fill, batch_config=RAGGED, batch_size=2, framework="numpy", device="student"))


def ragged_stranger() -> None:
    """A teacher that knows nothing of devices: it fills arrays of the host as for any student."""
    def fill(tasks: list) -> None:
        for task in tasks:
            for name, value in ragged_sample(task.step).items():
                task[name] = value

    _run(Worker(fill_fn=fill, batch_config=RAGGED, framework="numpy"))


def ragged_generator() -> None:
    """One that returns the bytes of a sample on the student's device."""
    _run(Worker(fill_fn=lambda tasks: [RAGGED.encode(**ragged_sample(t.step)) for t in tasks], batch_config=RAGGED, framework="numpy", device="student"))


def stranger() -> None:
    """A teacher that knows nothing of devices: it returns bytes."""
    _run(Worker(lambda model, cfg: CONFIG.encode(x=np.full(1024, 7, np.float32), n=np.array(7)), CONFIG.nbytes()))


def torch_teacher() -> None:
    """One that wants torch tensors of the device, from a torch that has none."""
    _run(Worker(fill_fn=lambda tasks: None, batch_config=CONFIG, framework="torch", device="student"))


def _run(worker: Worker) -> None:
    setup_logging("INFO")
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.run()


def client(config: BatchConfig = CONFIG, **options: object) -> StudentClient:
    made = StudentClient(0, 4, config, medium="cuda", device=0, max_workers=2, max_batch=2, **{"framework": "numpy", **options})
    made.set_model("m")
    return made


class Managed(ctypes.Structure):
    """``DLManagedTensorVersioned`` of dlpack.h."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("flags", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
    ]


def pointer_of(capsule: object) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(capsule, b"dltensor_versioned")


def samples_are_tensors_of_the_device() -> None:
    with client(prefetch=2) as student:
        for step in range(20):
            with student.request_sample(30_000) as sample:
                assert sample.on_device and sample.step == step
                x = sample["x"]
                assert isinstance(x, DeviceTensor) and (x.shape, x.dtype, x.device) == ((1024,), "float32", 0)
                got = CONFIG.decode(sample.read(), framework="numpy")
                assert (got["x"] == expected(sample.seed)).all() and got["n"] == step
        sample = student.request_sample(30_000)
        with pytest.raises(Unsupported, match=r"lies on a CUDA device.*sample.read"):
            sample.data  # noqa: B018
        # Those before it are free once no tensor of them is left and the device is done with them.
        del x
        wait_until(lambda: student.stats["held"] == 1)
        sample.release(stream=1)
        wait_until(lambda: student.stats["held"] == 0)


def samples_on_the_device_have_lengths_of_their_own() -> None:
    with client(RAGGED, prefetch=2) as student:
        held = []
        for step in range(12):
            sample = student.request_sample(60_000)
            want = ragged_sample(step)
            assert sample.on_device and sample.step == step
            assert {name: tensor.shape for name, tensor in sample.tensors.items()} == {name: value.shape for name, value in want.items()}
            data = sample.read()
            assert RAGGED.lengths(data) == {"seq": len(want["ids"])}
            got = RAGGED.decode(data, framework="numpy")
            assert (got["ids"] == want["ids"]).all() and (got["logits"].view(np.uint16) == want["logits"]).all() and got["tag"] == step
            # What is left of the tensors' places is zero, as in host memory.
            for offset, spec, value in zip(RAGGED.offsets, RAGGED.specs, want.values(), strict=True):
                assert not any(data[offset + value.nbytes : offset + spec.nbytes])
            capsule = sample["logits"].__dlpack__(max_version=(1, 0))
            managed = Managed.from_address(pointer_of(capsule))
            assert (managed.device_type, managed.ndim, managed.shape[0], managed.shape[1]) == (2, 2, len(want["ids"]), 4)
            del capsule
            held.append(sample)  # more than there are slots: the later ones are copies, with lengths all the same
        assert held[-1].copied
        with pytest.raises(TypeError, match=r"collate: 'ids' is DeviceTensor.*framework"):
            RAGGED.collate([sample.tensors for sample in held])
        batch = RAGGED.collate([RAGGED.decode(sample.read(), framework="numpy") for sample in held[:4]])
        assert batch["seq_lengths"].tolist() == list(LENGTHS)


def dlpack_shares_the_tensor_and_keeps_its_slot() -> None:
    with client() as student:
        sample = student.request_sample(30_000)
        x = sample["x"]
        for stream in (None, -1, 1, 2, 77):
            capsule = x.__dlpack__(stream=stream, max_version=(1, 0))
            managed = Managed.from_address(pointer_of(capsule))
            assert (managed.major, managed.device_type, managed.device_id, managed.data) == (1, 2, 0, x.pointer)
            assert (managed.ndim, managed.shape[0], managed.code, managed.bits) == (1, 1024, 2, 32)
            assert managed.flags == 1, "not to be written"
            del capsule
        with pytest.raises(ValueError, match="stream is 0"):
            x.__dlpack__(stream=0, max_version=(1, 0))
        for wrong in ({}, {"max_version": (0, 8)}, {"max_version": (1, 0), "copy": True}, {"max_version": (1, 0), "dl_device": (1, 0)}):
            with pytest.raises(BufferError):
                x.__dlpack__(**wrong)
        # Who took it keeps the slot, whatever becomes of the sample.
        capsule = x.__dlpack__(max_version=(1, 0))
        del x
        sample.release()
        del sample
        time.sleep(0.2)
        assert student.stats["held"] == 1
        del capsule
        wait_until(lambda: student.stats["held"] == 0)


def a_dataset_yields_tensors_of_the_device() -> None:
    with client() as student:
        dataset = DistillIterableDataset(0, student.generation_value, 4, CONFIG, medium="cuda", device=0, framework="numpy", tags=True, max_workers=2)
        for step, sample in zip(range(10), dataset, strict=False):
            assert isinstance(sample["x"], DeviceTensor) and sample["_step"] == step
        dataset.close()


def bytes_of_a_generator_arrive() -> None:
    with client() as student:
        for _ in range(10):
            with student.request_sample(30_000) as sample:
                got = CONFIG.decode(sample.read(), framework="numpy")
                assert sample.on_device and (got["x"] == 7).all() and got["n"] == 7


def torch_without_cuda_says_so() -> None:
    with client(framework="torch") as student:
        with student.request_sample(30_000) as sample, pytest.raises(Unsupported, match=r"this torch .* has no CUDA here.*DeviceTensor"):
            sample["x"]  # noqa: B018


def torch_without_cuda_fails_the_task_and_says_so() -> None:
    with client() as student, pytest.raises(TaskError, match="has no CUDA here"):
        student.request_sample(30_000)


def a_forked_child_is_told_to_spawn() -> None:
    with client():
        pid = os.fork()
        if pid == 0:
            try:
                client(group="another")
            except Forked as error:
                os._exit(0 if "spawn" in str(error) else 2)
            except BaseException:
                os._exit(3)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def a_worker_whose_context_is_lost_ends_with_the_reason() -> None:
    os.environ["STANDIN_CUDA_FAULTS"] = "lost=1"
    asked = threading.Event()

    def ask() -> None:
        with client() as student:
            asked.set()
            with contextlib.suppress(TaskError):
                student.request_sample(500)

    asking = threading.Thread(target=ask)
    asking.start()
    asked.wait()
    with pytest.raises(LanewayError, match="CUDA context is lost"):
        Worker(lambda model, cfg: bytes(CONFIG.nbytes()), CONFIG.nbytes()).run()
    asking.join()


def a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(NotFound, match=r"device=7.*2 CUDA device"):
        StudentClient(0, 4, CONFIG, medium="cuda", device=7).hello()


def page_locked_slots_are_views_of_the_host() -> None:
    with StudentClient(0, 4, CONFIG, pin_memory=True, device=1, framework="numpy", max_workers=2) as student:
        student.set_model("m")
        with student.request_sample(30_000) as sample:
            assert not sample.on_device and (sample["x"] == 7).all()


def wait_until(condition: object) -> None:
    from conftest import wait_until as wait

    wait(condition, "what was to come")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
