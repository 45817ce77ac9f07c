"""One run: its workers and ranks, each a process of its own, started, watched, and some workers killed on the way.

All are forked from this process, which has read the teacher's weights once and runs no thread, so none has to read them again.
"""

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import laneway
from distill.events import EventReader, Events
from distill.student import Student
from distill.teacher import Teacher
from elastic.ranks import PATIENCE_SECONDS, RunFailure, output, print_to, process_group, tail

from .train import START_BLOCKS, Run, train
from .worker import work


class Models:
    """The teacher and the untrained student, read once for all."""

    def __init__(self) -> None:
        self.teacher, self.student = Teacher(), Student(START_BLOCKS)


class Worker:
    """A worker that may be killed, with what its log has said so far."""

    def __init__(self, number: int, run: Run, models: Models) -> None:
        self.log = run.folder / f"worker-{number}.jsonl"
        self.process = _start(run.folder / f"worker-{number}.log", work, models.teacher, run.data, self.log, run.other_answer_at)
        self._reader, self._busy = EventReader(self.log), False

    @property
    def is_busy(self) -> bool:
        """Whether it holds tickets, as far as its log has said."""
        for event in self._reader.new():
            self._busy = event["kind"] == "take"
        return self._busy

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@contextlib.contextmanager
def broker(log: Path) -> Iterator[None]:
    """One broker for all runs; each run is a group of its own."""
    process = _start(log, lambda: laneway.Broker().run())
    try:
        yield
    finally:
        process.kill()
        process.join()


def play(run: Run, models: Models, on_step: Callable[[], None]) -> None:
    """Start all, call `on_step` for every step, kill whom the run says, and return when all ranks are done; nothing is left behind, whatever happens."""
    run.folder.mkdir(parents=True)
    workers = [Worker(number, run, models) for number in range(run.workers)]
    ranks = [_start(output(run.folder, rank), _rank, run, rank, models.student) for rank in range(run.ranks)]
    try:
        _watch(run, models, workers, ranks, on_step)
    finally:
        for process in (*ranks, *(worker.process for worker in workers)):
            process.kill()
            process.join()


def _watch(run: Run, models: Models, workers: list[Worker], ranks: list[BaseProcess], on_step: Callable[[], None]) -> None:
    log, notes = EventReader(run.folder / "rank-0.jsonl"), Events(run.folder / "cast.jsonl")
    deadline, steps, killed, counted = time.monotonic() + PATIENCE_SECONDS, run.first, set[int](), 0
    running = True
    while running:
        time.sleep(0.01)
        running = any(rank.is_alive() for rank in ranks)  # asked before the last look at the log
        for event in log.new():
            if event["kind"] == "step":
                deadline, steps = time.monotonic() + PATIENCE_SECONDS, event["step"] + 1
                on_step()
        if counted < len(run.kills) and steps >= run.kills[counted]:
            victim = next((n for n, worker in enumerate(workers) if n not in killed and worker.is_busy), None)
            if victim is not None:
                workers[victim].kill()
                killed.add(victim)
                if workers[victim].is_busy:  # else it was done just then, and another one is to die
                    notes.write("kill", worker=victim)
                    counted += 1
                workers.append(Worker(len(workers), run, models))
        for number, rank in enumerate(ranks):
            if rank.exitcode:
                raise RunFailure(f"rank {number} of {run.name} ended with status {rank.exitcode}. The end of its output:\n{tail(output(run.folder, number))}")
        for number, worker in enumerate(workers):
            if worker.process.exitcode is not None and number not in killed:
                raise RunFailure(f"worker {number} of {run.name} ended by itself: see {worker.log.with_suffix('.log')}")
        if time.monotonic() > deadline:
            raise RunFailure(f"{run.name} took no step for {PATIENCE_SECONDS:.0f} s: see {output(run.folder, 0)}")


def _start(log: Path, target: Callable[..., None], *args: object) -> BaseProcess:
    """A forked process whose output goes to `log`."""
    process = multiprocessing.get_context("fork").Process(target=_live, args=(log, target, *args), daemon=True)
    process.start()
    return process


def _live(log: Path, target: Callable[..., None], *args: object) -> None:
    print_to(log)
    target(*args)


def _rank(run: Run, rank: int, student: Student) -> None:
    """The whole life of a rank's process."""
    import torch

    torch.manual_seed(0)
    with process_group(run.folder, rank, run.ranks):
        train(run, rank, student)
