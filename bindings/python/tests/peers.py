"""Workers for the tests, in a process of their own. What they make says which ticket and model it was made for.

``python peers.py fill [N]``, ``generate``, ``slow SECONDS``, ``raise``, ``wrong-size``, …
"""

from __future__ import annotations

import sys
import time

import numpy as np

from laneway import BatchConfig, Task, TensorSpec, Worker, setup_logging

CONFIG = BatchConfig([TensorSpec("ticket", (4,), "int64"), TensorSpec("x", (1024,), "float32")])


# A teacher's top-k logits of texts of different lengths.
RAGGED = BatchConfig(
    [
        TensorSpec("ids", ["seq<=7", 4], "int32", min=0, max=49),
        TensorSpec("logits", ["seq<=7", 4], "bfloat16", finite=True),
        TensorSpec("tag", (), "int64"),
    ]
)
LENGTHS = (0, 1, 7, 3)


def ragged_sample(step: int) -> dict[str, np.ndarray]:
    """The tensors of that step; bfloat16 as its bits."""
    n = LENGTHS[step % len(LENGTHS)]
    ids = (np.arange(n * 4, dtype=np.int32).reshape(n, 4) + step) % 50
    logits = np.linspace(-3, 3, n * 4, dtype=np.float32).reshape(n, 4) + step
    return {"ids": ids, "logits": (logits.view(np.uint32) >> 16).astype(np.uint16), "tag": np.array(step)}


def ragged(tasks: list[Task]) -> list[bytes] | None:
    """In place after ``set_length``, by assignment, or as bytes."""
    task = tasks[0]
    sample = ragged_sample(task.step)
    how = sys.argv[2]
    if how == "bytes":
        return [RAGGED.encode(**sample)]
    if how == "forget":
        return None
    if how == "assign":
        for name, value in sample.items():
            task[name] = value
        return None
    views = task.set_length(seq=len(sample["ids"]))
    for name, value in sample.items():
        assert views[name].shape == value.shape
        views[name].view(value.dtype)[...] = value
    if how == "bad" and task.step == 2:
        {0: views["ids"], 1: views["logits"].view(np.uint16), 2: views["logits"].view(np.uint16)}[task.attempt][3, 2] = (50, 0x7FC0, 0xFF80)[task.attempt]
    return None


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
    if kind == "ragged":
        Worker(fill_fn=ragged, batch_config=RAGGED, framework="numpy").run()
        return
    functions = {"fill": fill, "slow": slow, "raise": raises, "wrong-count": wrong_count}
    batch = int(sys.argv[2]) if kind == "fill" and len(sys.argv) > 2 else 4
    Worker(fill_fn=functions[kind], batch_config=CONFIG, batch_size=batch, framework="numpy").run()


if __name__ == "__main__":
    main()
