"""The steps of ``gpu_check.py``, and the teachers that they start. Each step runs in a process of its own and gives what it found, or raises."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gpu_driver import Gpu

from laneway import BatchConfig, StudentClient, TensorSpec, Worker, setup_logging

MIB = 1 << 20
SCRIPT = Path(__file__).with_name("gpu_check.py")


class Skipped(Exception):
    """The step needs something that is not here."""


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


def torch_with_cuda() -> Any:
    """torch, if it is here and has CUDA."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


# Teachers: processes of their own.


def teach(kind: str, floats: int, report: Path | None) -> None:
    """Serves samples until SIGTERM; then writes its numbers to ``report``."""
    if kind == "intruder":
        return intrude(floats, report)
    setup_logging("WARNING")
    gpu: Gpu | None = None
    source = 0
    found: dict[str, Any] = {}
    pending: list[int] = []

    def fill(tasks: list[Any]) -> None:
        nonlocal gpu, source
        for task in tasks:
            # Where a tensor begins does not depend on its length.
            out = task.set_length(n=floats)["x"] if kind == "ragged" else task["x"]
            if kind == "busy":
                # Slower than the loop around it by far: an unrelated product first, then the sample.
                torch = torch_with_cuda()
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
                source = gpu.alloc(floats * 4) if kind in ("copy", "quick") else 0
            if kind == "quick":
                gpu.copy(out.pointer, source, floats * 4)
                continue  # the library waits for it
            if kind == "random":
                # Poisoned first: what is not written is seen.
                gpu.fill(out.pointer, 0xFF, floats * 4)
                data = random_data(task.seed, floats)
                gpu.upload(out.pointer, data)
            elif kind == "ragged":
                # All of it poisoned, in front of the data and behind; how long it is is said last.
                gpu.fill(out.pointer, 0xFF, floats * 4)
                n = random_length(task.seed, floats)
                data = random_data(task.seed, n)
                if n:
                    gpu.upload(out.pointer, data)
                task.set_length(n=n)
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

    batch_config = (ragged_config if kind == "ragged" else config)(floats)
    worker = Worker(fill_fn=fill, batch_config=batch_config, framework="torch" if kind == "busy" else "numpy", device="student")

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
        if report and kind in ("copy", "quick", "busy"):
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


def intrude(size: int, told: Path | None) -> None:
    """Opens the memory whose handle is read from standard input, and writes to it without end."""
    gpu = Gpu(0)
    at = gpu.open(bytes.fromhex(sys.stdin.readline().strip()))
    for i in itertools.count():
        gpu.fill(at, 0xEE, size)
        if told and i == 1000:
            told.write_text("writing, until killed")


def die_with_parent() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Steps:
    """What the steps share; one of them is run by one object, in a process of its own."""

    def __init__(self, name: str, folder: Path, stand_in: bool) -> None:
        self.name, self.folder, self.stand_in = name, folder, stand_in
        self.gpu = Gpu(0)
        self.children: list[subprocess.Popen[bytes]] = []

    def times(self, on_gpu: int, on_stand_in: int) -> int:
        return on_stand_in if self.stand_in else on_gpu

    def teacher(self, kind: str, floats: int, report: Path | None = None, **env: str) -> subprocess.Popen[bytes]:
        args = [sys.executable, SCRIPT, "--teacher", kind, "--floats", str(floats)] + (["--report", str(report)] if report else [])
        child = subprocess.Popen(args, env={**os.environ, **env}, stdin=subprocess.PIPE, preexec_fn=die_with_parent)
        self.children.append(child)
        return child

    def student(self, floats: int, **options: Any) -> StudentClient:
        defaults: dict[str, Any] = {"slot_count": 4, "max_workers": 2, "max_batch": 1, "medium": "cuda", "device": 0, "framework": "numpy"}
        client = StudentClient(0, group=self.name, **{"batch_config": config(floats), **defaults, **options})
        client.set_model("check")
        return client

    def take(self, client: StudentClient, timeout_s: float = 30) -> Any:
        sample = client.request_sample(timeout_s * 1000)
        assert sample is not None, f"no sample within {timeout_s} s; the student's numbers: {client.stats}"
        return sample

    def end(self, child: subprocess.Popen[bytes]) -> None:
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 0, f"a teacher ended with {child.returncode}"

    def await_file(self, path: Path, meanwhile: Callable[[], Any] = lambda: time.sleep(0.01)) -> None:
        end = time.monotonic() + 30
        while not path.exists():
            meanwhile()
            assert time.monotonic() < end, "the teacher did not begin"

    def free_again(self, before: int, seconds: float = 5) -> int:
        """Bytes of the device that are missing against ``before``, once that is none or the time is over."""
        end = time.monotonic() + seconds
        while (missing := before - self.gpu.free_bytes()) > 0 and time.monotonic() < end:
            time.sleep(0.005)
        return max(0, missing)

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

    def ragged(self) -> dict[str, Any]:
        """Samples of different lengths: shapes from host memory, bytes of the device, and zeroes behind them that the library has written there."""
        floats, n = MIB // 4, self.times(100, 10)
        child = self.teacher("ragged", floats)
        torch = torch_with_cuda()
        with self.student(floats, batch_config=ragged_config(floats), prefetch=3) as client:
            for step in range(n):
                with self.take(client) as sample:
                    assert sample.on_device and sample.step == step, sample
                    wanted = random_data(sample.seed, random_length(sample.seed, floats))
                    got = np.frombuffer(sample.read(), np.float32, floats)
                    assert sample["x"].shape == wanted.shape, f"step {step}: shape {sample['x'].shape} instead of {wanted.shape}"
                    assert (got[: len(wanted)] == wanted).all() and not got[len(wanted) :].any(), f"step {step}: other bytes than the teacher wrote"
                    assert torch is None or (torch.from_dlpack(sample["x"]).cpu().numpy() == wanted).all(), f"step {step}: torch sees other numbers"
        self.end(child)
        return {"samples": n, "torch": torch is not None}

    def copy_rate(self) -> dict[str, Any]:
        size = self.times(min(1024 * MIB, self.gpu.free_bytes() // 8), MIB) // MIB * MIB
        report = self.folder / "rate"
        child = self.teacher("copy", size // 4, report)
        with self.student(size // 4, slot_count=2, max_workers=1) as client:
            for _ in range(self.times(20, 3)):
                self.take(client).release()
        self.end(child)
        found = json.loads(report.read_text())
        if self.stand_in:
            return {}
        ratio = found["own"] / found["into_slots"]
        numbers = {"bytes": size, "gb_per_s": round(size / found["into_slots"] / 1e9, 1), "own_gb_per_s": round(size / found["own"] / 1e9, 1)}
        assert ratio >= 0.9, f"a copy into a slot reaches {ratio:.2f} of one within the teacher's memory; the aim is 0.9; {numbers}"
        return {**numbers, "ratio": round(ratio, 3)}

    def latency(self) -> dict[str, Any]:
        floats = 1024
        child = self.teacher("quick", floats)
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
        report = self.folder / "opens"
        child = self.teacher("quick", floats, report)
        # The first ones make contexts and the driver's own tables, which stay.
        for _ in range(3):
            with self.student(floats) as client:
                self.take(client).release()
        before = self.gpu.free_bytes()
        end, done = time.monotonic() + self.times(60, 240), 0
        while done < n and time.monotonic() < end:
            with self.student(floats) as client:
                self.take(client).release()
            done += 1
        del client
        missing = self.free_again(before)
        self.end(child)
        found = json.loads(report.read_text())
        assert found["opens"] == found["closes"] == done + 3, f"{done + 3} students, {found['opens']} handles opened and {found['closes']} closed"
        # One leak is at least 2 MiB, the driver's unit.
        assert missing < 2 * MIB, f"{missing} bytes of device memory are gone after {done} students"
        assert done >= n // 4, f"only {done} students opened and closed in the time"
        return {"times": done, "bytes_missing": missing}

    def killed_while_mapped(self) -> dict[str, Any]:
        floats = self.times(64 * MIB, MIB // 4)
        told = self.folder / "told"
        before = self.gpu.free_bytes()
        child = self.teacher("hang", floats, told)
        with self.student(floats) as client:
            self.await_file(told, lambda: client.request_sample(10))
            child.kill()
            child.wait()
            other = self.teacher("random", floats)
            for step in range(self.times(8, 20)):
                with self.take(client) as sample:
                    assert sample.step == step
                    assert (np.frombuffer(sample.read(), np.float32) == random_data(sample.seed, floats)).all(), "the dead teacher still writes"
            deaths = client.stats["deaths"]
            assert deaths == 1, f"{deaths} deaths were counted"
        del client, sample  # which keep the memory
        self.end(other)
        missing = self.free_again(before)
        # A context takes hundreds of MiB.
        assert missing < 64 * MIB, f"{missing} bytes of device memory did not come back after a teacher was killed"
        return {"bytes_missing": missing}

    def death_and_context(self) -> dict[str, Any]:
        """Whether a killed process's kernels may still write after its pidfd has fired: what the medium takes for proof that they do not."""
        size = self.times(2048, 4) * MIB
        size = min(size, self.gpu.free_bytes() // 4 // MIB * MIB)
        before = self.gpu.free_bytes()
        at = self.gpu.alloc(size)
        with_buffer = self.gpu.free_bytes()
        rounds, late, fired, torn, largest = self.times(5, 2), 0, [], [], 0
        for turn in range(rounds):
            told = self.folder / f"intruder-{turn}"
            child = self.teacher("intruder", size, told)
            assert child.stdin is not None
            child.stdin.write(self.gpu.export(at).hex().encode() + b"\n")
            child.stdin.flush()
            self.await_file(told)
            time.sleep(0.2)  # the queue of its stream fills
            fd = os.pidfd_open(child.pid)
            start = time.perf_counter()
            child.kill()
            assert select.select([fd], [], [], 30)[0], "its pidfd did not fire within 30 s of SIGKILL"
            fired.append((time.perf_counter() - start) * 1e3)
            os.close(fd)
            # From here on the memory is taken for this process's alone.
            self.gpu.fill(at, 0x11, size)
            self.gpu.synchronize()
            seen = self.others(at, size)
            proof = time.perf_counter()
            missing = self.free_again(with_buffer)
            torn.append((time.perf_counter() - proof) * 1e3)
            largest = max(largest, missing)
            time.sleep(0.3)
            late += seen + self.others(at, size)
            child.wait()
        assert late == 0, f"{late} of the samples looked at were written after the pidfd of a killed process had fired"
        numbers = {"kills": rounds, "bytes": size, "written_after_pidfd": late, "bytes_missing": largest, "device_was_free_before": before}
        if self.stand_in:
            return numbers
        return {**numbers, "pidfd_ms": round(max(fired), 1), "memory_back_ms_after_pidfd": round(max(torn), 1)}

    def others(self, at: int, size: int) -> int:
        """How many of the memory's pages, one byte of each looked at where it is large, hold something else than 0x11."""
        step = max(MIB, size // 256 // MIB * MIB)
        found = 0
        for offset in range(0, size, step):
            block = np.empty(min(4096, size - offset), np.uint8)
            self.gpu.download(block, at + offset)
            self.gpu.synchronize()
            found += int((block != 0x11).any())
        return found

    def permuted_devices(self) -> dict[str, Any]:
        floats, count = 1024, self.gpu.count()
        # With one device there is no order; that it is found by its UUID under another way of naming it is shown all the same.
        order = ",".join(map(str, reversed(range(count)))) if count > 1 else self.gpu.uuid()
        child = self.teacher("random", floats, CUDA_VISIBLE_DEVICES=order)
        with self.student(floats) as client:
            for _ in range(10):
                with self.take(client) as sample:
                    assert (np.frombuffer(sample.read(), np.float32) == random_data(sample.seed, floats)).all()
        self.end(child)
        return {"devices": count, "worker_sees": order}

    def hidden_device(self) -> dict[str, Any]:
        """A worker that sees no device: the student says why it has none."""
        child = self.teacher("random", 1024, CUDA_VISIBLE_DEVICES="")
        with self.student(1024) as client:
            end = time.monotonic() + 20
            while not client.stats["refusals"] and time.monotonic() < end:
                client.request_sample(20)
            refusals = client.stats["refusals"]
            assert refusals and "no device" in refusals[0], f"expected the reason, found {refusals}"
        self.end(child)
        return {"said": refusals[0]}

    def pinned_slots(self) -> dict[str, Any]:
        """Copies up from page-locked slots, beside copies from memory that is not."""
        floats = self.times(16 * MIB, MIB // 4)
        child = self.teacher("host", floats)
        target = self.gpu.alloc(floats * 4)
        with self.student(floats, medium="shm", pin_memory=True, slot_count=3, max_workers=1) as client, self.take(client) as sample:
            data = np.asarray(sample["x"])
            assert (data == random_data(sample.seed, floats)).all(), "other bytes than the teacher wrote"
            rates = {}
            for name, source in (("pinned", data), ("pageable", data.copy())):
                took = []
                for _ in range(self.times(10, 2)):
                    start = time.perf_counter()
                    self.gpu.upload(target, source)
                    self.gpu.synchronize()
                    took.append(time.perf_counter() - start)
                rates[f"{name}_gb_per_s"] = round(floats * 4 / statistics.median(took) / 1e9, 1)
            back = np.empty(floats, np.float32)
            self.gpu.download(back, target)
            self.gpu.synchronize()
            assert (back == data).all(), "other bytes came back from the device"
        self.end(child)
        return {} if self.stand_in else rates

    def overlap(self) -> dict[str, Any]:
        """Commits of a torch teacher are under way while it makes the next samples; each is whole when it is seen."""
        torch = None if self.stand_in else torch_with_cuda()
        if torch is None:
            raise Skipped("needs torch with CUDA")
        floats, n = MIB, 40
        report = self.folder / "overlap"
        child = self.teacher("busy", floats, report)
        with self.student(floats, slot_count=16, prefetch=15, framework="torch") as client:
            for step in range(n):
                with self.take(client, 50) as sample:
                    x = sample["x"]
                    assert sample.step == step and bool((x == float(step)).all()), f"step {step} was seen before it was whole"
                    del x
        self.end(child)
        most = max(json.loads(report.read_text())["pending"])
        assert most >= 2, f"never more than {most} commit was under way"
        return {"samples": n, "most_pending": most}

    def to_device(self) -> dict[str, Any]:
        """`laneway.torch.to_device`: batches are whole on the trainer's stream, which is busy meanwhile."""
        torch = None if self.stand_in else torch_with_cuda()
        if torch is None:
            raise Skipped("needs torch with CUDA")
        from laneway.torch import to_device

        n, a = 60, torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16)
        sums = []
        for batch in to_device(({"x": torch.full((16 * MIB,), float(i)).pin_memory()} for i in range(n)), "cuda"):
            a = (a @ a).clamp_(0, 1)
            sums.append((batch["x"] == float(len(sums))).all())
        assert bool(torch.stack(sums).all()), "a batch was worked on before its copy was done"
        return {"batches": n}

    def distillation(self) -> dict[str, Any]:
        floats = 2048
        child = self.teacher("lesson", floats)
        torch = None if self.stand_in else torch_with_cuda()
        losses = []
        with self.student(floats, framework="torch" if torch else "numpy", prefetch=3) as client:
            step = torch_step(torch) if torch else numpy_step()
            for _ in range(100):
                with self.take(client) as sample:
                    losses.append(step(sample))
        self.end(child)
        assert losses[-1] < losses[0] / 100, f"the loss went from {losses[0]:.4f} to {losses[-1]:.4f}"
        return {"arithmetic": "torch on the device" if torch else "NumPy on the host", "loss": [round(losses[0], 4), round(losses[-1], 6)]}


def torch_step(torch: Any) -> Callable[[Any], float]:
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
