"""A Laneway worker: answers each ticket with what the teacher says about the text that the ticket names."""

import signal
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from laneway import BatchConfig, Task, Worker

from .corpus import Corpus
from .events import Events
from .teacher import Teacher


def layer_of(model_id: str) -> int:
    """7 for "layer_7"."""
    kind, _, number = model_id.partition("_")
    if kind != "layer" or not number.isdecimal():
        raise ValueError(f"no model {model_id!r}: this worker knows 'logits' and 'layer_0', 'layer_1', …")
    return int(number)


class Answers:
    """The function that a worker calls with a list of tasks: one forward pass for all, written in place."""

    def __init__(self, teacher: Teacher, corpus: Corpus, events: Events) -> None:
        self.teacher, self.corpus, self.events = teacher, corpus, events

    def __call__(self, tasks: Sequence[Task]) -> None:
        started = time.monotonic()
        model_id, split = tasks[0].model_id, (tasks[0].model_cfg or {}).get("split", "train")
        self.events.write("take", model=model_id, lane=[task.lane for task in tasks], step=[task.step for task in tasks])
        length = tasks[0]["input_ids"].shape[0]
        windows = [self.corpus.window(task.seed, length, split) for task in tasks]
        input_ids = torch.from_numpy(np.stack(windows))
        answers = {"input_ids": input_ids, **self._ask(model_id, input_ids, tasks[0])}
        for row, task in enumerate(tasks):
            for name, answer in answers.items():
                task[name].copy_(answer[row])  # converts to the layout's dtype, straight into the student's memory
        self.events.write("made", samples=len(tasks), seconds=time.monotonic() - started)

    def _ask(self, model_id: str, input_ids: torch.Tensor, task: Task) -> dict[str, torch.Tensor]:
        if model_id == "logits":
            top, ids, rest = self.teacher.top_logits(input_ids, k=task["top_ids"].shape[-1])
            return {"top_logits": top, "top_ids": ids, "rest": rest}
        return {"hidden": self.teacher.hidden(input_ids, layer_of(model_id))}


def serve(device: torch.device, batch_config: BatchConfig, batch_size: int, log: Path) -> None:
    """Load the teacher and answer tickets until stopped by SIGTERM, Ctrl-C or the broker."""
    events = Events(log)
    answers = Answers(Teacher(device), Corpus(), events)
    worker = Worker(fill_fn=answers, batch_config=batch_config, batch_size=batch_size)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    events.write("ready")
    worker.run()
    events.write("end")
