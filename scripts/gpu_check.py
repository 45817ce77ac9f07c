#!/usr/bin/env python3
"""What only a GPU can show of the cuda medium, in under five minutes: ``make gpu-check``.

Needs a built library and program (``cargo build --release``, here or carried along), Python with NumPy, and an NVIDIA driver; nothing is downloaded. torch is used
for the distillation step where it has CUDA. Prints a table and writes ``gpu_check.json``; the exit status is 1 if a check failed.

``--stand-in`` runs the same checks, fewer times, against the stand-in driver of ``tests/standin_cuda``. That shows that this script works, and nothing about a GPU: no
rate and no time is reported.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bindings" / "python"))

import numpy as np  # noqa: E402

from laneway import BatchConfig, StudentClient, TensorSpec, Worker, setup_logging  # noqa: E402

MIB = 1 << 20


class Gpu:
    """The driver's calls that a teacher or a trainer without torch needs, on device 0 of this process."""

    def __init__(self, device: int = 0) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", ctypes.c_uint(0))
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(device))
        self.call("cuCtxPushCurrent_v2", context)
        self.stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(self.stream), ctypes.c_uint(1))
        self.device = device

    def call(self, name: str, *args: Any) -> None:
        code = getattr(self.cuda, name)(*args)
        if code:
            raise RuntimeError(f"{name}: error {code}")

    def name(self) -> str:
        text = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", text, ctypes.c_int(127), ctypes.c_int(self.device))
        return text.value.decode()

    def count(self) -> int:
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def uuid(self) -> str:
        raw = (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetUuid_v2", raw, ctypes.c_int(self.device))
        h = bytes(raw).hex()
        return f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"

    def free_bytes(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def alloc(self, size: int) -> int:
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        return at.value

    def fill(self, at: int, value: int, size: int) -> None:
        self.call("cuMemsetD8Async", ctypes.c_uint64(at), ctypes.c_ubyte(value), ctypes.c_size_t(size), self.stream)

    def upload(self, at: int, array: np.ndarray) -> None:
        self.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(at), ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes), self.stream)

    def copy(self, to: int, source: int, size: int) -> None:
        self.call("cuMemcpyDtoDAsync_v2", ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(size), self.stream)

    def synchronize(self) -> None:
        self.call("cuStreamSynchronize", self.stream)


def config(floats: int) -> BatchConfig:
    return BatchConfig([TensorSpec("x", (floats,), "float32")])


def random_data(seed: int, floats: int) -> np.ndarray:
    """What the ticket of that seed holds."""
    return np.random.default_rng(seed).random(floats, dtype=np.float32)


# Teachers: processes of their own.


def teach(kind: str, floats: int, report: str | None) -> None:
    setup_logging("WARNING")
    gpu: Gpu | None = None
    source = 0
    times: list[float] = []

    def fill(tasks: list[Any]) -> None:
        nonlocal gpu, source
        for task in tasks:
            out = task["x"]
            if gpu is None:
                gpu = Gpu(out.device)
                source = gpu.alloc(floats * 4) if kind == "copy" else 0
            if kind == "random":
                # Poisoned first: what is not written is seen.
                gpu.fill(out.pointer, 0xFF, floats * 4)
                data = random_data(task.seed, floats)
                gpu.upload(out.pointer, data)
            elif kind == "copy":
                start = time.perf_counter()
                gpu.copy(out.pointer, source, floats * 4)
                gpu.synchronize()
                times.append(time.perf_counter() - start)
            elif kind == "hang":
                for i in itertools.count():
                    gpu.fill(out.pointer, 0xEE, floats * 4)
                    if report and i == 1000:
                        Path(report).write_text("in mid-copy, until killed")
            elif kind == "teacher":
                gpu.upload(out.pointer, lesson(task.seed, floats))
            gpu.synchronize()

    worker = Worker(fill_fn=fill, batch_config=config(floats), framework="numpy", device="student")
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    try:
        worker.hello(20)
        worker.run()
    finally:
        if report and kind == "copy" and gpu is not None:
            Path(report).write_text(json.dumps({"into_slots": statistics.median(times), "own": own_copy(gpu, source, floats * 4)}))


def own_copy(gpu: Gpu, source: int, size: int) -> float:
    """Seconds of a copy within the teacher's own memory, of the same size."""
    target = gpu.alloc(size)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        gpu.copy(target, source, size)
        gpu.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def lesson(seed: int, floats: int) -> np.ndarray:
    """Inputs and what a linear teacher says of them."""
    x = np.random.default_rng(seed).standard_normal(floats // 2).astype(np.float32)
    return np.concatenate([x, 3 * x + 1]).astype(np.float32)


# The checks: each gives what it found, or raises.


class Checks:
    def __init__(self, folder: Path, stand_in: bool) -> None:
        self.folder, self.stand_in = folder, stand_in
        self.gpu = Gpu(0)
        self.children: list[subprocess.Popen[bytes]] = []
        self.group = ""

    def times(self, on_gpu: int, on_stand_in: int) -> int:
        return on_stand_in if self.stand_in else on_gpu

    def teacher(self, kind: str, floats: int, report: Path | None = None, **env: str) -> subprocess.Popen[bytes]:
        args = [sys.executable, __file__, "--role", kind, "--floats", str(floats)] + (["--report", str(report)] if report else [])
        child = subprocess.Popen(args, env={**os.environ, **env})
        self.children.append(child)
        return child

    def student(self, floats: int, **options: Any) -> StudentClient:
        defaults: dict[str, Any] = {"slot_count": 4, "max_workers": 2, "max_batch": 1, "medium": "cuda", "device": 0, "framework": "numpy"}
        # A group of its own: lanes begin at step 0.
        client = StudentClient(0, batch_config=config(floats), group=self.group, **{**defaults, **options})
        client.set_model("check")
        return client

    def take(self, client: StudentClient, timeout_s: float = 60) -> Any:
        sample = client.request_sample(timeout_s * 1000)
        assert sample is not None, f"no sample within {timeout_s} s"
        return sample

    def end(self, child: subprocess.Popen[bytes]) -> None:
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0, f"a teacher ended with {child.returncode}"

    def kill_all(self) -> None:
        for child in self.children:
            child.kill()
            child.wait()
        self.children = []

    def correctness(self) -> dict[str, Any]:
        floats, n = MIB // 4, self.times(300, 20)
        child = self.teacher("random", floats)
        with self.student(floats, prefetch=3) as client:
            for step in range(n):
                with self.take(client) as sample:
                    assert sample.on_device and sample.step == step, sample
                    got = np.frombuffer(sample.read(), np.float32)
                    assert (got == random_data(sample.seed, floats)).all(), f"step {step}: other bytes than the teacher wrote"
        self.end(child)
        return {"samples": n, "bytes_each": floats * 4}

    def copy_rate(self) -> dict[str, Any]:
        size = self.times(256 * MIB, MIB)
        report = self.folder / "rate"
        child = self.teacher("copy", size // 4, report)
        with self.student(size // 4, slot_count=2, max_workers=1) as client:
            for _ in range(self.times(40, 3)):
                self.take(client).release()
        self.end(child)
        found = json.loads(report.read_text())
        if self.stand_in:
            return {}
        ratio = found["own"] / found["into_slots"]
        assert ratio >= 0.9, f"a copy into a slot reaches {ratio:.2f} of one within the teacher's memory; the aim is 0.9"
        return {"bytes": size, "gb_per_s": round(size / found["into_slots"] / 1e9, 1), "ratio": round(ratio, 3)}

    def latency(self) -> dict[str, Any]:
        floats = 1024
        child = self.teacher("copy", floats)
        took = []
        with self.student(floats) as client:
            for _ in range(self.times(2000, 20)):
                start = time.perf_counter()
                self.take(client).release()
                took.append((time.perf_counter() - start) * 1e6)
        self.end(child)
        if self.stand_in:
            return {}
        took.sort()
        return {"median_us": round(took[len(took) // 2], 1), "p99_us": round(took[len(took) * 99 // 100], 1)}

    def opens_and_closes(self) -> dict[str, Any]:
        floats, n = 1024, self.times(1000, 20)
        child = self.teacher("copy", floats)
        # The first one makes contexts, which stay.
        with self.student(floats) as client:
            self.take(client).release()
        before = self.gpu.free_bytes()
        for _ in range(n):
            with self.student(floats) as client:
                self.take(client).release()
        del client
        end = time.monotonic() + 10
        while (after := self.gpu.free_bytes()) < before and time.monotonic() < end:
            time.sleep(0.1)
        self.end(child)
        assert after >= before, f"{before - after} bytes of device memory are gone after {n} students"
        return {"times": n}

    def killed_while_mapped(self) -> dict[str, Any]:
        floats = MIB
        told = self.folder / "told"
        before = self.gpu.free_bytes()
        child = self.teacher("hang", floats, told)
        with self.student(floats) as client:
            assert client.request_sample(1) is None
            end = time.monotonic() + 30
            while not told.exists():
                client.request_sample(10)
                assert time.monotonic() < end, "the teacher did not begin"
            child.kill()
            child.wait()
            other = self.teacher("random", floats)
            for step in range(20):
                with self.take(client) as sample:
                    assert sample.step == step
                    assert (np.frombuffer(sample.read(), np.float32) == random_data(sample.seed, floats)).all(), "the dead teacher still writes"
            assert client.stats["deaths"] == 1
        del client, sample
        self.end(other)
        end = time.monotonic() + 10
        while (after := self.gpu.free_bytes()) < before and time.monotonic() < end:
            time.sleep(0.1)
        return {"bytes_not_back": max(0, before - after)}

    def permuted_devices(self) -> dict[str, Any]:
        floats, count = 1024, self.gpu.count()
        order = ",".join(map(str, reversed(range(count)))) if count > 1 else self.gpu.uuid()
        child = self.teacher("random", floats, CUDA_VISIBLE_DEVICES=order)
        with self.student(floats) as client:
            for _ in range(10):
                with self.take(client) as sample:
                    assert (np.frombuffer(sample.read(), np.float32) == random_data(sample.seed, floats)).all()
        self.end(child)
        return {"worker_sees": order}

    def distillation(self) -> dict[str, Any]:
        floats = 2048
        child = self.teacher("teacher", floats)
        with_torch = not self.stand_in and torch_has_cuda()
        losses = []
        with self.student(floats, framework="torch" if with_torch else "numpy", prefetch=3) as client:
            step = torch_step() if with_torch else numpy_step()
            for _ in range(100):
                with self.take(client) as sample:
                    losses.append(step(sample))
        self.end(child)
        assert losses[-1] < losses[0] / 100, f"the loss went from {losses[0]:.4f} to {losses[-1]:.4f}"
        return {"arithmetic": "torch on the device" if with_torch else "NumPy on the host", "loss": [round(losses[0], 4), round(losses[-1], 6)]}


def torch_has_cuda() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def torch_step() -> Callable[[Any], float]:
    import torch

    weights = torch.zeros(2, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.2)

    def step(sample: Any) -> float:
        x, y = sample["x"].chunk(2)
        loss = ((weights[0] * x + weights[1] - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss)

    return step


def numpy_step() -> Callable[[Any], float]:
    weights = np.zeros(2)

    def step(sample: Any) -> float:
        x, y = np.split(np.frombuffer(sample.read(), np.float32).astype(np.float64), 2)
        off = weights[0] * x + weights[1] - y
        weights[:] -= 0.2 * np.array([2 * (off * x).mean(), 2 * off.mean()])
        return float((off**2).mean())

    return step


CHECKS = ["correctness", "copy_rate", "latency", "opens_and_closes", "killed_while_mapped", "permuted_devices", "distillation"]


def check(stand_in: bool, out: Path, only: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="lwg-", dir="/tmp") as name:
        folder = Path(name)
        os.environ["LANEWAY_DIR"] = name
        program = os.environ.get("LANEWAY_BIN", str(ROOT / "target" / "release" / "laneway"))
        with open(folder / "broker.log", "w") as log:
            broker = subprocess.Popen([program, "broker"], stdout=log, stderr=log)
        checks = Checks(folder, stand_in)
        found: dict[str, Any] = {"stand_in": stand_in, "device": checks.gpu.name(), "machine": platform.platform(), "checks": {}}
        print("STAND-IN DRIVER, NO GPU: this shows that the script runs, and nothing else" if stand_in else f"{checks.gpu.name()}, {checks.gpu.uuid()}")
        try:
            for what in only or CHECKS:
                start = time.monotonic()
                checks.group = what
                try:
                    numbers, passed = getattr(checks, what)(), True
                except Exception as error:
                    numbers, passed = {"error": f"{type(error).__name__}: {error}"}, False
                checks.kill_all()
                found["checks"][what] = {"passed": passed, **numbers}
                text = ", ".join(f"{key} {value}" for key, value in numbers.items())
                print(f"{'ok  ' if passed else 'FAIL'}  {what.replace('_', ' '):22} {time.monotonic() - start:6.1f} s  {text}", flush=True)
        finally:
            checks.kill_all()
            broker.kill()
            broker.wait()
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"written to {out}")
    return 0 if all(c["passed"] for c in found["checks"].values()) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stand-in", action="store_true", help="against tests/standin_cuda, to see whether this script runs")
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="where the numbers go (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=[], help="some of the checks")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--floats", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--report", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role:
        teach(args.role, args.floats, args.report)
        return 0
    if args.stand_in and os.environ.get("STANDIN_CUDA_HERE") != "1":
        # The loader looks at LD_LIBRARY_PATH when a process starts.
        folder = subprocess.run([str(ROOT / "tests" / "standin_cuda" / "build.sh")], check=True, capture_output=True, text=True).stdout.strip()
        env = {**os.environ, "LD_LIBRARY_PATH": folder, "STANDIN_CUDA_HERE": "1", "STANDIN_CUDA_FAULTS": "slow=1"}
        return subprocess.run([sys.executable, __file__, *sys.argv[1:]], env=env).returncode
    return check(args.stand_in, args.out, args.only)


if __name__ == "__main__":
    sys.exit(main())
