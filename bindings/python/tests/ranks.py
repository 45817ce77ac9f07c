"""Ranks of a training run, as processes of their own over gloo, for the tests.

They are forked from a server that has imported torch, and what test files named with :func:`preload`, once for all, so they start quickly.
"""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

LIMIT_S = 240
_modules = ["torch.distributed", "laneway"]


def preload(*modules: str) -> None:
    """Names modules that ranks import; a test file does so when it is imported."""
    _modules.extend(modules)


@functools.cache
def _server() -> Any:
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_modules)
    return context


def memory_of(tensor: Any) -> list[int] | None:
    """Which file's memory a tensor lies in, and where in it: the same in all processes that read it without a copy. None in memory of this process alone."""
    address = tensor.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, _, inode = line.split()[:5]
        start, end = (int(number, 16) for number in span.split("-"))
        if start <= address < end:
            return None if inode == "0" else [int(inode), int(offset, 16) + address - start]
    raise AssertionError(f"nothing is mapped at {address:#x}")


def run_ranks(function: Callable[..., Any], ranks: int, folder: Path, *arguments: Any) -> list[Any]:
    """Calls ``function(rank, ranks, *arguments)`` in each of the processes, in a process group; gives what they returned, through JSON."""
    folder.mkdir(parents=True)
    processes = [_server().Process(target=_rank, args=(function, rank, ranks, folder, arguments)) for rank in range(ranks)]
    try:
        for process in processes:
            process.start()
        end = time.monotonic() + LIMIT_S
        for process in processes:
            process.join(max(0, end - time.monotonic()))
    finally:
        late = [rank for rank, process in enumerate(processes) if process.exitcode is None]
        for process in processes:
            with contextlib.suppress(AssertionError):
                process.kill()
                process.join()
    logs = "\n".join(f"--- rank {rank}\n{(folder / f'{rank}.log').read_text()[-3000:]}" for rank in range(ranks))
    assert not late, f"ranks {late} of {ranks} did not end within {LIMIT_S} s\n{logs}"
    assert not any(process.exitcode for process in processes), logs
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def _rank(function: Callable[..., Any], rank: int, ranks: int, folder: Path, arguments: tuple[Any, ...]) -> None:
    with open(folder / f"{rank}.log", "w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(GLOO_SOCKET_IFNAME="lo", RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks))
    dist.init_process_group("gloo", f"file://{folder / 'meeting'}", rank=rank, world_size=ranks, timeout=timedelta(seconds=LIMIT_S))
    try:
        result = function(rank, ranks, *arguments)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    (folder / f"{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
