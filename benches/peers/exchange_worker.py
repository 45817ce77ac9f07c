"""A Laneway worker for the benchmarks. Whatever it does, every byte of a sample becomes the same constant.

``--make fill``       fill_fn writes the constant into the tensors in place
``--make copy``       fill_fn copies a source array into the tensors in place
``--make generator``  generator_fn returns one constant ``bytes``, which the library copies into place
``--make sleep``      as generator, after sleeping 5 ms
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from harness.serve import CONSTANT, end_with_parent

from laneway import BatchConfig, Task, TensorSpec, Worker

SLEEP_S = 0.005


def main() -> None:
    end_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--make", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--spin-us", type=int)
    options = parser.parse_args()
    constant, source = bytes([CONSTANT]) * options.bytes, np.full(options.bytes, CONSTANT, np.uint8)

    def fill(tasks: list[Task]) -> None:
        for task in tasks:
            task["x"].fill(CONSTANT)

    def copy(tasks: list[Task]) -> None:
        for task in tasks:
            np.copyto(task["x"], source)

    def generate(model_id: str, model_cfg: dict | None) -> bytes:
        return constant

    def sleep(model_id: str, model_cfg: dict | None) -> bytes:
        time.sleep(SLEEP_S)
        return constant

    if options.make in ("generator", "sleep"):
        function = {"generator": generate, "sleep": sleep}[options.make]
        worker = Worker(function, slot_size=options.bytes, spin_us=options.spin_us)
    else:
        config = BatchConfig([TensorSpec("x", (options.bytes,), "uint8")])
        function = {"fill": fill, "copy": copy}[options.make]
        worker = Worker(
            fill_fn=function, batch_config=config, batch_size=options.batch, framework="numpy", spin_us=options.spin_us
        )
    worker.run()


if __name__ == "__main__":
    main()
