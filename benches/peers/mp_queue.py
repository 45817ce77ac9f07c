"""multiprocessing.Queue: another process puts one constant ``bytes`` for each sample, which the queue pickles; read here as a NumPy array."""

from __future__ import annotations

import argparse
import multiprocessing
import os
from typing import Any

import numpy as np
from harness.serve import CONSTANT, end_with_parent, serve, touch


def work(queue: Any, nbytes: int) -> None:
    end_with_parent()
    constant = bytes([CONSTANT]) * nbytes
    while True:
        queue.put(constant)


def main() -> None:
    end_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    options = parser.parse_args()
    context = multiprocessing.get_context("fork")
    queue = context.Queue(options.slots)
    worker = context.Process(target=work, args=(queue, options.bytes), daemon=True)
    worker.start()

    def take() -> int:
        touch(np.frombuffer(queue.get(), np.uint8))
        return 1

    take()
    serve({"student": os.getpid(), "worker": worker.pid}, take, ahead=options.slots)
    worker.kill()
    os._exit(0)  # the queue's feeder would wait for a reader


if __name__ == "__main__":
    main()
