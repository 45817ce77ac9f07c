"""Laneway's exchange: a student here, a ``laneway broker``, and workers of ``exchange_worker.py``, each a process of its own.

``--take client``   StudentClient.next_samples(16), each sample read as a NumPy view and released
``--take dataset``  iteration of a DistillIterableDataset, whose tensors are torch's
``--take one``      StudentClient.request_sample without prefetch: one sample outstanding
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.machine import laneway_program
from harness.serve import end_with_parent, serve, touch, wait_until

from laneway import BatchConfig, DistillIterableDataset, SampleRef, StudentClient, TensorSpec

AT_ONCE = 16


def main() -> None:
    end_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--make", default="fill")
    parser.add_argument("--take", default="client")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--spin-us", type=int)
    options = parser.parse_args()

    broker = subprocess.Popen([laneway_program(), "broker"], stdout=sys.stderr, preexec_fn=end_with_parent)
    wait_until(Path(os.environ["LANEWAY_DIR"], "frontend.sock").exists, "the broker")
    spin = [] if options.spin_us is None else ["--spin-us", str(options.spin_us)]
    words = ["--bytes", str(options.bytes), "--make", options.make, "--batch", str(options.batch), *spin]
    command = [sys.executable, "-m", "peers.exchange_worker", *words]
    workers = [subprocess.Popen(command, stdout=sys.stderr) for _ in range(options.workers)]
    pids = {"student": os.getpid(), "broker": broker.pid, **{f"worker {i}": w.pid for i, w in enumerate(workers)}}

    config = BatchConfig([TensorSpec("x", (options.bytes,), "uint8")])
    prefetch = 0 if options.take == "one" else options.slots - 1
    client = StudentClient(0, options.slots, config, prefetch=prefetch, framework="numpy", spin_us=options.spin_us)
    client.set_model("constant")
    take, give_back, stats = taker(options, client, config)
    take()
    if give_back is not None:
        give_back()
    wait_until(lambda: stats()["workers"] == options.workers, "the workers")
    serve(pids, take, give_back, ahead=prefetch, state=stats)
    client.close()
    for process in [*workers, broker]:
        process.terminate()


def taker(options: Any, client: StudentClient, config: BatchConfig) -> tuple[Callable[[], int], Callable[[], None] | None, Callable[[], dict[str, Any]]]:
    """What takes samples, what gives them back afterwards, and what tells the library's counters for them."""
    held: list[SampleRef] = []

    def many() -> int:
        samples = client.next_samples(AT_ONCE, timeout_ms=30_000)
        for sample in samples:
            touch(sample["x"])
            sample.release()
        return len(samples)

    def one() -> int:
        sample = client.request_sample(timeout_ms=30_000)
        touch(sample["x"])
        held.append(sample)
        return 1

    def release() -> None:
        held.pop().release()

    if options.take == "client":
        return many, None, lambda: client.stats
    if options.take == "one":
        return one, release, lambda: client.stats

    dataset = DistillIterableDataset(0, client.generation_value, options.slots, config, spin_us=options.spin_us)
    samples = iter(dataset)

    def from_dataset() -> int:
        for _ in range(AT_ONCE):
            touch(next(samples)["x"].numpy())
        return AT_ONCE

    return from_dataset, None, lambda: dataset.stats


if __name__ == "__main__":
    main()
