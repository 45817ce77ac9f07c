"""multiprocessing.Pipe, bare: a short request there, the sample's bytes back (``send_bytes``, no pickling), one outstanding."""

from __future__ import annotations

import argparse
import multiprocessing
import os
from typing import Any

import numpy as np
from harness.serve import CONSTANT, end_with_parent, serve, touch


def work(pipe: Any, nbytes: int) -> None:
    end_with_parent()
    constant = bytes([CONSTANT]) * nbytes
    while True:
        pipe.recv_bytes()
        pipe.send_bytes(constant)


def main() -> None:
    end_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, required=True)
    options = parser.parse_args()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    worker = context.Process(target=work, args=(theirs, options.bytes), daemon=True)
    worker.start()

    def take() -> int:
        ours.send_bytes(b"next")
        touch(np.frombuffer(ours.recv_bytes(), np.uint8))
        return 1

    serve({"student": os.getpid(), "worker": worker.pid}, take)
    worker.kill()


if __name__ == "__main__":
    main()
