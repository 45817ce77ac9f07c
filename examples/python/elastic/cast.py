"""The ranks of a run, each a process of its own, started and watched.

They are forked from a server that has imported torch once and does nothing else, so that eighteen processes do not take a minute to start.
"""

import contextlib
import functools
import multiprocessing
import multiprocessing.context
import os
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess

from distill.events import EventReader

from .ranks import PATIENCE_SECONDS, RunFailure, output, print_to, process_group, tail
from .train import Run


def play(run: Run, on_step: Callable[[], None]) -> None:
    """Start all ranks, call `on_step` for every step, and return when all are done; none is left behind, whatever happens."""
    run.folder.mkdir(parents=True)
    context = _server()
    ranks = [context.Process(target=_rank, args=(run, rank), name=f"rank {rank} of {run.folder.name}", daemon=True) for rank in range(run.ranks)]
    try:
        for rank in ranks:
            rank.start()
        _watch(run, ranks, on_step)
    finally:
        for rank in ranks:
            if rank.is_alive():
                rank.kill()
            with contextlib.suppress(AssertionError):  # not started
                rank.join()


@functools.cache
def _server() -> multiprocessing.context.ForkServerContext:
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # the server does not take this over by itself
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["elastic.train"])
    return context


def _watch(run: Run, ranks: list[BaseProcess], on_step: Callable[[], None]) -> None:
    log, deadline = EventReader(run.folder / "rank-0.jsonl"), time.monotonic() + PATIENCE_SECONDS
    running = True
    while running:
        time.sleep(0.05)
        running = any(rank.is_alive() for rank in ranks)  # asked before the last look at the log
        for event in log.new():
            if event["kind"] == "step":
                deadline = time.monotonic() + PATIENCE_SECONDS
                on_step()
        for number, rank in enumerate(ranks):
            if rank.exitcode:
                raise RunFailure(f"{rank.name} ended with status {rank.exitcode}. The end of its output:\n{tail(output(run.folder, number))}")
        if time.monotonic() > deadline:
            raise RunFailure(f"{run.folder.name} took no step for {PATIENCE_SECONDS:.0f} s: see {output(run.folder, 0)}")


def _rank(run: Run, rank: int) -> None:
    """The whole life of a rank's process."""
    print_to(output(run.folder, rank))
    import torch

    from .train import train

    torch.set_num_threads(1)
    with process_group(run.folder, rank, run.ranks):
        train(run, rank)
