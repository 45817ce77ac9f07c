"""softs 0.1.2, the published design's descendant: a client here, its broker and one supplier, each a process of its own.

``--take dataset``  iteration of its SoftIterableDataset
``--take one``      Client.request_sample; the sample is read and decoded as its dataset does it

Both have one order outstanding. It has no prefetch, and its Client cannot be made to have one from outside: with several orders outstanding it
takes a FULFILLED message for the answer to the next order, loses that sample, and soon waits for ever.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import softs
from harness.serve import CONSTANT, end_with_parent, serve, touch, wait_until

PRODUCT = "constant"


def endpoints() -> softs.EndpointConfig:
    folder = os.environ["LANEWAY_BENCH_DIR"]
    return softs.EndpointConfig(frontend=f"ipc://{folder}/frontend", backend=f"ipc://{folder}/backend")


def main() -> None:
    end_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", default="student")
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--take", default="dataset")
    options = parser.parse_args()
    if options.role == "broker":
        softs.Broker(endpoints=endpoints()).start()
        signal.pause()
    if options.role == "supplier":
        constant = bytes([CONSTANT]) * options.bytes
        supplier = softs.Supplier(
            generator_fn=lambda product_id: constant, product_ids=[PRODUCT], endpoint=endpoints().backend,
            medium_cls=softs.ShmMedium, slot_size=options.bytes,
        )  # fmt: skip
        supplier.start()
        signal.pause()

    start = [sys.executable, "-m", "peers.softs_exchange", "--bytes", str(options.bytes), "--role"]
    broker = subprocess.Popen([*start, "broker"])
    wait_until(Path(endpoints().backend.removeprefix("ipc://")).exists, "the broker of softs")
    supplier = subprocess.Popen([*start, "supplier"])
    take = taker(options)
    take()
    serve({"student": os.getpid(), "broker": broker.pid, "worker": supplier.pid}, take)
    supplier.kill()
    broker.kill()


def taker(options: argparse.Namespace) -> Callable[[], int]:
    config = softs.BatchConfig([softs.TensorSpec("x", (options.bytes,), "uint8")])
    if options.take == "dataset":
        dataset = softs.SoftIterableDataset(PRODUCT, endpoints().frontend, config, softs.ShmMedium, num_slots=options.slots)
        samples = iter(dataset)

        def from_dataset() -> int:
            touch(next(samples)["x"].numpy())
            return 1

        return from_dataset

    client = softs.Client(endpoints().frontend, softs.ShmMedium, options.bytes, options.slots)
    client.hello()

    def one() -> int:
        while (slot := client.request_sample(PRODUCT, timeout_ms=30_000)) is None:
            pass
        touch(config.decode(client.medium.read(slot))["x"].numpy())
        client.release_slot(slot)
        return 1

    return one


if __name__ == "__main__":
    main()
