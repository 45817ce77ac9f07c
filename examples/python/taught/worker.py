"""A Laneway worker: makes the rows that its tickets name from the recipe, asks the teacher about them, and writes its answers in place."""

from pathlib import Path

import torch
from distill.events import Events
from distill.teacher import Teacher
from laneway import Task, Worker

from .corpus import TOP


def work(teacher: Teacher, data: Path, log: Path, other_answer_at: int | None = None) -> None:
    """Serve until stopped or killed. `other_answer_at` spoils one row of that step by the least there is, to see that the demonstration notices."""
    events = Events(log)

    def fill(tasks: list[Task]) -> None:
        events.write("take", lane=[task.lane for task in tasks], row=[task.step for task in tasks])
        for task, input_ids in zip(tasks, tasks[0].rows.input_ids, strict=True):
            # One row at a time: what is said of a row must not depend on which rows came with it, and sums over larger matrices may.
            answers = teacher.top_logits(input_ids[None], TOP)
            for name, answer in zip(("top_logits", "top_ids", "rest"), answers, strict=True):
                task[name].copy_(answer[0])  # converts to the layout's type, straight into the trainer's memory
            # With as many lanes as rows a step, the number of a row in its lane is that of its step.
            if (task.lane, task.step) == (0, other_answer_at):
                task["rest"][0] = torch.nextafter(task["rest"][0], torch.tensor(torch.inf))
        events.write("made", lane=[task.lane for task in tasks], row=[task.step for task in tasks])

    Worker(fill_fn=fill, recipe=data / "recipe.toml", batch_size=2, cache_dir=data / "index", framework="torch").run()
