"""Workers for the tests, in a process of their own. What they make says which ticket and model it was made for.

``python peers.py fill [N]``, ``generate``, ``slow SECONDS``, ``raise``, ``wrong-size``, …
"""

from __future__ import annotations

import sys
import time

import numpy as np

from laneway import BatchConfig, Task, TensorSpec, Worker, setup_logging

CONFIG = BatchConfig([TensorSpec("ticket", (4,), "int64"), TensorSpec("x", (1024,), "float32")])


def mark(task: Task) -> None:
    """The ticket, and a payload in which every word depends on it."""
    task["ticket"][:] = np.array([task.lane, task.step, task.generation, task.seed & 0x7FFF_FFFF])
    task["x"][:] = expected(task.lane, task.step, task.generation)


def expected(lane: int, step: int, generation: int) -> np.ndarray:
    """The ``x`` of a ticket."""
    return np.arange(1024, dtype=np.float32) + np.float32(lane * 7 + step * 3 + generation * 1000)


def fill(tasks: list[Task]) -> None:
    for task in tasks:
        mark(task)


def generate(model_id: str, model_cfg: dict | None) -> bytes:
    ticket = np.array([len(model_id), len(str(model_cfg)), 0, 0])
    return CONFIG.encode(ticket=ticket, x=np.zeros(1024, np.float32))


def slow(tasks: list[Task]) -> None:
    time.sleep(float(sys.argv[2]))
    fill(tasks)


def raises(tasks: list[Task]) -> None:
    if any(task.step == 2 for task in tasks):
        raise RuntimeError("step 2 is bad luck")
    fill(tasks)


def wrong_size(model_id: str, model_cfg: dict | None) -> bytes:
    return b"123"


def wrong_count(tasks: list[Task]) -> list[bytes]:
    return [bytes(CONFIG.nbytes())] * (len(tasks) + 1)


def main() -> None:
    setup_logging("INFO")
    kind = sys.argv[1]
    if kind in ("generate", "wrong-size"):
        Worker({"generate": generate, "wrong-size": wrong_size}[kind], slot_size=CONFIG.nbytes()).run()
        return
    functions = {"fill": fill, "slow": slow, "raise": raises, "wrong-count": wrong_count}
    batch = int(sys.argv[2]) if kind == "fill" and len(sys.argv) > 2 else 4
    Worker(fill_fn=functions[kind], batch_config=CONFIG, batch_size=batch, framework="numpy").run()


if __name__ == "__main__":
    main()
