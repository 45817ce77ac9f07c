"""The bound: one thread copies a source array into the slots of a ring of shared memory, each in turn, and looks at each as a student does.
The ring is mapped and written once before, so that no page is new."""

from __future__ import annotations

import argparse
import mmap
import os

import numpy as np
from harness.serve import CONSTANT, end_with_parent, serve, touch


def main() -> None:
    end_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    options = parser.parse_args()
    stride = -(-options.bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    fd = os.memfd_create("ring")
    os.ftruncate(fd, stride * options.slots)
    ring = np.frombuffer(mmap.mmap(fd, stride * options.slots), np.uint8).reshape(options.slots, stride)
    ring.fill(0)
    slots = [slot[: options.bytes] for slot in ring]
    source = np.full(options.bytes, CONSTANT, np.uint8)

    def take() -> int:
        for slot in slots:
            np.copyto(slot, source)
            touch(slot)
        return len(slots)

    take()
    serve({"student": os.getpid()}, take)


if __name__ == "__main__":
    main()
