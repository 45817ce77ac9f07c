"""What processes of ranks have in common, here and in the demonstration with teachers: where their output goes, how they meet and part, and what is told of one that failed."""

import contextlib
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

PATIENCE_SECONDS = 300.0  # without a step of a run, however slow the machine


class RunFailure(Exception):
    """A run did not come to its end; the text says what its process said last."""


def output(folder: Path, rank: int) -> Path:
    """What a rank prints."""
    return folder / f"rank-{rank}.log"


def tail(log: Path) -> str:
    """The end of what a process printed."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:]) if log.exists() else "(none)"


def print_to(log: Path) -> None:
    """From here on, this process prints to `log`."""
    with open(log, "w") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())


@contextlib.contextmanager
def process_group(folder: Path, rank: int, ranks: int) -> Iterator[None]:
    """This process as one of a run's ranks."""
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a host's name need not resolve
    meeting = f"file://{folder.resolve() / 'meeting'}"
    dist.init_process_group("gloo", meeting, rank=rank, world_size=ranks, timeout=timedelta(seconds=PATIENCE_SECONDS))
    yield
    dist.barrier()  # none leaves while another still talks to it
    dist.destroy_process_group()
