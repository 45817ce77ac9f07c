"""The processes that the steps of ``gpu_check.py`` start: teachers, a student, an intruder; and what they and the steps agree on."""

from __future__ import annotations

import itertools
import json
import signal
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from gpu_driver import Gpu

from laneway import BatchConfig, StudentClient, TensorSpec, Worker, setup_logging

MIB = 1 << 20
BUSY = 256 * MIB
"""Bytes that a teacher writes again and again, to be slow."""
WRITING_S = 0.2
"""For how long a slow teacher writes to each sample: by far the most of its time."""


def writing(report: Path) -> Path:
    """The file that is there while a slow teacher with that report writes to a student's memory."""
    return report.with_name(report.name + "-writing")


def config(floats: int) -> BatchConfig:
    return BatchConfig([TensorSpec("x", (floats,), "float32")])


def ragged_config(floats: int) -> BatchConfig:
    """Samples of up to so many."""
    return BatchConfig([TensorSpec("x", (f"n<={floats}",), "float32")])


def random_length(seed: int, floats: int) -> int:
    """How many the ticket of that seed holds: from none to all."""
    return seed % (floats + 1)


def random_data(seed: int, floats: int) -> np.ndarray:
    """What the ticket of that seed holds."""
    return np.random.default_rng(seed).random(floats, dtype=np.float32)


def lesson(seed: int, floats: int) -> np.ndarray:
    """Inputs and what a linear teacher says of them."""
    x = np.random.default_rng(seed).standard_normal(floats // 2).astype(np.float32)
    return np.concatenate([x, 3 * x + 1]).astype(np.float32)


def torch_with_cuda(oldest: tuple[int, int] = (2, 9)) -> Any:
    """torch, if it is here, has CUDA, and is not older than that: those before 2.9 do not take tensors of a device."""
    try:
        import torch
    except ImportError:
        return None
    major, minor = torch.__version__.split(".")[:2]
    return torch if (int(major), int(minor)) >= oldest and torch.cuda.is_available() else None


def name_stream(gpu: Gpu) -> None:
    """Has the library find this process's stream where there is no torch: it asks what is called so, and nothing else of it."""
    stream = SimpleNamespace(cuda_stream=gpu.stream.value)
    cuda = SimpleNamespace(is_initialized=lambda: True, current_stream=lambda _device: stream)
    sys.modules["torch"] = SimpleNamespace(cuda=cuda)  # type: ignore[assignment]


def teach(kind: str, floats: int, report: Path | None, device: int | None, stand_in: bool) -> None:
    """Serves samples until SIGTERM; then writes its numbers to ``report``."""
    if kind == "intruder":
        return intrude(floats, report)
    if kind == "student":
        return take_one(floats, report)
    setup_logging("WARNING")
    gpu: Gpu | None = None
    torch = torch_with_cuda() if kind == "busy" and not stand_in else None
    source = 0
    found: dict[str, Any] = {}
    pending: list[int] = []
    # What queued copies read, which must stay until they are done.
    kept: list[np.ndarray] = []
    busy = MIB if stand_in else BUSY

    def fill(tasks: list[Any]) -> None:
        nonlocal gpu, source
        for task in tasks:
            # Where a tensor begins does not depend on its length.
            out = task.set_length(n=floats)["x"] if kind == "ragged" else task["x"]
            if torch is not None:
                # Slower than the loop around it by far: an unrelated product first, then the sample.
                a = torch.ones(8192, 8192, device=out.device, dtype=torch.bfloat16)
                for _ in range(4):
                    a = (a @ a).clamp_(0, 1)
                out.copy_(torch.full_like(out, float(task.step)) + a[0, 0].float() * 0)
                pending.append(worker.stats["pending"])
                continue
            if kind == "host":
                out[:] = random_data(task.seed, floats)
                continue
            if gpu is None:
                gpu = Gpu(out.device)
                size = floats * 4 if kind in ("copy", "quick") else busy if kind in ("busy", "ragged") else 0
                source = gpu.alloc(size) if size else 0
                if kind in ("busy", "ragged"):
                    name_stream(gpu)
            if kind == "quick":
                gpu.copy(out.pointer, source, floats * 4)
                continue  # the library waits for it
            if kind == "busy":
                for _ in range(8 if stand_in else 100):
                    gpu.fill(source, 0x55, busy)
                # Not copied from the host: a driver may wait for what is queued before it reads memory that is not page-locked.
                gpu.fill(out.pointer, task.step, floats * 4)
                pending.append(worker.stats["pending"])
                continue  # and is not waited for
            if kind == "ragged":
                # Looked at before the copy below, for which the driver may wait for all that is queued.
                pending.append(worker.stats["pending"])
                # All of it poisoned, and slowly once more behind the data, where the library's zeroes must come after it. How long it is is said last.
                gpu.fill(out.pointer, 0xFF, floats * 4)
                n = random_length(task.seed, floats)
                if n:
                    kept.append(random_data(task.seed, n))
                    gpu.upload(out.pointer, kept[-1])
                for _ in range(8 if stand_in else 100):
                    gpu.fill(source, 0x55, busy)
                if n < floats:
                    gpu.fill(out.pointer + n * 4, 0xFF, (floats - n) * 4)
                task.set_length(n=n)
                continue  # and is not waited for
            if kind == "slow" and report:
                # Waited for in between: a queue of some depth is behind what is queued.
                writing(report).touch()
                end = time.monotonic() + WRITING_S
                while time.monotonic() < end:
                    for _ in range(20):
                        gpu.fill(out.pointer, 0xEE, floats * 4)
                    gpu.synchronize()
                writing(report).unlink()
            if kind in ("random", "slow"):
                # Poisoned first: what is not written is seen.
                gpu.fill(out.pointer, 0xFF, floats * 4)
                data = random_data(task.seed, floats)
                gpu.upload(out.pointer, data)
            elif kind == "copy":
                found.setdefault("into_slots", []).append(timed_copies(gpu, out.pointer, source, floats * 4))
            elif kind == "hang":
                for i in itertools.count():
                    gpu.fill(out.pointer, 0xEE, floats * 4)
                    if report and i == 1000:
                        report.write_text("in mid-copy, until killed")
            elif kind == "lesson":
                data = lesson(task.seed, floats)  # which stays until it is copied
                gpu.upload(out.pointer, data)
            gpu.synchronize()

    framework: Any = "torch" if torch is not None else "numpy"
    batch_config = (ragged_config if kind == "ragged" else config)(floats)
    worker = Worker(fill_fn=fill, batch_config=batch_config, framework=framework, device="student" if device is None else device)

    def stop(*_: Any) -> None:
        # A worker that has ended has no numbers any more.
        stats = worker.stats
        found.update(opens=stats["device_opens"], closes=stats["device_closes"])
        worker.stop()

    signal.signal(signal.SIGTERM, stop)
    try:
        worker.hello(20)
        worker.run()
    finally:
        if report and kind in ("copy", "quick", "busy", "slow", "ragged"):
            if kind == "copy" and gpu is not None:
                target = gpu.alloc(floats * 4)
                found["own"] = statistics.median(timed_copies(gpu, target, source, floats * 4) for _ in range(10))
                found["into_slots"] = statistics.median(found["into_slots"])
            report.write_text(json.dumps({**found, "pending": pending}))


def timed_copies(gpu: Gpu, to: int, source: int, size: int, times: int = 8) -> float:
    """Seconds of one copy of several that are waited for together."""
    start = time.perf_counter()
    for _ in range(times):
        gpu.copy(to, source, size)
    gpu.synchronize()
    return (time.perf_counter() - start) / times


def take_one(floats: int, told: Path | None) -> None:
    """A student that takes samples until it is killed."""
    options: dict[str, Any] = {"slot_count": 4, "max_workers": 2, "max_batch": 1, "medium": "cuda", "device": 0, "framework": "numpy", "prefetch": 3}
    client = StudentClient(0, batch_config=config(floats), group="killed", **options)
    client.set_model("check")
    for i in itertools.count():
        sample = client.request_sample(30_000)
        if sample is not None:
            sample.release()
        if told and i == 2:
            told.write_text("taking samples, until killed")


def intrude(size: int, told: Path | None) -> None:
    """Opens the memory whose handle is read from standard input, and writes to it without end."""
    gpu = Gpu(0)
    at = gpu.open(bytes.fromhex(sys.stdin.readline().strip()))
    for i in itertools.count():
        gpu.fill(at, 0xEE, size)
        if told and i == 1000:
            told.write_text("writing, until killed")
