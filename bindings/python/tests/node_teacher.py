"""A teacher of a node loader's rows, as a process: ``node_teacher.py RECIPE``. What it makes follows from the tokens and the model alone."""

from __future__ import annotations

import sys

import numpy as np

from laneway import Task, Worker


def fill(tasks: list[Task]) -> None:
    rows = tasks[0].rows
    for i, task in enumerate(tasks):
        task["scaled"][:] = rows.input_ids[i].astype(np.float32) * task.model_cfg["scale"]
        task["sum"][...] = int(rows.input_ids[i].sum()) + task.step


if __name__ == "__main__":
    Worker(fill_fn=fill, recipe=sys.argv[1], batch_size=2, framework="numpy").run()
