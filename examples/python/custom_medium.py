"""A medium of one's own: samples lie in a plain file, read and written with ordinary calls.

    python custom_medium.py

Any medium with numbered slots can be written like this. Tickets, order and recovery are the library's: the medium only
holds bytes. (For a file on this host, ``medium="file:/path"`` is faster: it is mapped, and tensors are views of it.)
"""

import os
import subprocess
import sys
import tempfile

import torch

from laneway import BatchConfig, StudentClient, Task, TensorSpec, Worker, setup_logging
from laneway.mediums import MediumBase

config = BatchConfig([TensorSpec("x", (1000,), "float32")])


class FileMedium(MediumBase):
    """Slot ``i`` is at byte ``i * slot_stride`` of a file; so the inherited ``attach`` and ``write_slot`` do for the worker."""

    def __init__(self, slot_count: int, slot_stride: int, path: str) -> None:
        self._path, self._slot_count, self._slot_stride = path, slot_count, slot_stride
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.posix_fallocate(self._fd, 0, slot_count * slot_stride)

    @property
    def buf_name(self) -> str:
        return self._path

    @property
    def slot_count(self) -> int:
        return self._slot_count

    @property
    def slot_stride(self) -> int:
        return self._slot_stride

    def read_slot_tensors(self, slot_id: int) -> bytes:
        return os.pread(self._fd, self._slot_stride, slot_id * self._slot_stride)

    def close(self) -> None:
        os.close(self._fd)

    def unlink(self) -> None:
        os.unlink(self._path)


def fill(tasks: list[Task]) -> None:
    for task in tasks:
        task["x"].fill_(task.step)


def main() -> None:
    setup_logging("WARNING")
    if sys.argv[1:] == ["worker"]:
        # The worker is told the class; where the slots are it learns from the student.
        Worker(fill_fn=fill, batch_config=config, batch_size=4, medium=FileMedium).run()
        return
    worker = subprocess.Popen([sys.executable, __file__, "worker"])
    try:
        with tempfile.TemporaryDirectory() as folder:
            # Slots for the student's window, and for what workers are writing meanwhile.
            medium = FileMedium(slot_count=72, slot_stride=config.nbytes(), path=os.path.join(folder, "slots"))
            with StudentClient(0, slot_count=8, batch_config=config, medium=medium, prefetch=8, broker="embedded") as client:
                client.set_model("any")
                for step in range(100):
                    sample = client.request_sample(timeout_ms=10_000)
                    assert sample is not None and torch.equal(sample.tensors["x"], torch.full((1000,), float(step)))
                    sample.release()
    finally:
        worker.terminate()
        worker.wait()
    print("100 samples through a file, each right")


if __name__ == "__main__":
    main()
