"""The inside of a measured process: the student's side of a peer, which takes samples when it is told to and says what that cost.

One line of JSON in, one line out, on stdin and stdout:

    {"seconds": 0.4} or {"samples": 10000}    →    {"samples", "wall_s", "cpu_s": {role: seconds}, "p50_us", "p99_us", "peak_kib"}
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CONSTANT = 7
"""What every byte of every sample is, in all peers."""


def process_cpu(pid: int) -> float:
    """CPU seconds that a process has used so far, all threads together, exact to the nanosecond.

    The clock of another process is numbered as ``clock_getcpuclockid`` does it: the inverted pid above three bits of kind.
    """
    return time.clock_gettime((~pid << 3) | 2)


def peak_kib() -> int:
    """The most memory that this process has had so far, KiB."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))


def children() -> dict[str, int]:
    """Pids of all that this process has started, and of what those have."""
    found: dict[str, int] = {}
    todo = [os.getpid()]
    while todo:
        for thread in Path(f"/proc/{todo.pop()}/task").iterdir():
            for pid in map(int, (thread / "children").read_text().split()):
                found[f"child {pid}"] = pid
                todo.append(pid)
    return found


def touch(sample: np.ndarray) -> None:
    """What a student does with a sample in every peer: looks at its first and its last byte."""
    if sample[0] != CONSTANT or sample[-1] != CONSTANT:
        raise AssertionError(f"a sample begins with {sample[0]} and ends with {sample[-1]}; expected {CONSTANT}")


def end_with_parent() -> None:
    """Has the kernel end this process when the one that started it dies, however that happens."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


def serve(
    pids: dict[str, int],
    take: Callable[[], int],
    give_back: Callable[[], object] | None = None,
    ahead: int = 0,
    state: Callable[[], dict[str, Any]] = dict,
    between: bool = False,
) -> None:
    """Says that it is ready, then obeys until stdin ends.

    Args:
        pids: every process that takes part, by role.
        take: asks for at least one sample, takes and touches it, and returns how many it took. Its duration is what p50 and p99 are of.
        ahead: most samples that may lie ready before a window begins. So many are taken first and not counted.
        give_back: what is to be done with the samples afterwards. It counts for the rate and for CPU, not for p50 and p99.
        state: what else there is to tell, answered to ``{"state": true}``.
        between: whether CPU counts from the end of the window before, for those that make far more ahead than could be taken first.
    """
    say({"pids": pids})
    last = {role: process_cpu(pid) for role, pid in pids.items()} if between else None
    for line in sys.stdin:
        command = json.loads(line)
        if "state" in command:
            say(state())
            continue
        answer = _window(pids, take, give_back, ahead, command)
        if last is not None:
            now = {role: process_cpu(pid) for role, pid in pids.items()}
            answer["cpu_s"], last = {role: now[role] - last[role] for role in pids}, now
        say(answer | {"peak_kib": peak_kib()})


def _window(
    pids: dict[str, int], take: Callable[[], int], give_back: Callable[[], object] | None, ahead: int, command: dict[str, float]
) -> dict[str, Any]:
    while ahead > 0:
        ahead -= take()
        if give_back is not None:
            give_back()
    clock = time.perf_counter_ns
    most = command.get("samples", float("inf"))
    durations: list[int] = []
    samples = 0
    cpu = {role: -process_cpu(pid) for role, pid in pids.items()}
    start = now = clock()
    end = start + int(command.get("seconds", 1e9) * 1e9)
    while now < end and samples < most:
        samples += take()
        taken = clock()
        durations.append(taken - now)
        if give_back is not None:
            give_back()
            taken = clock()
        now = taken
    wall = now - start
    for role, pid in pids.items():
        cpu[role] += process_cpu(pid)
    p50, p99 = np.percentile(durations, (50, 99)) / 1e3
    return {"samples": samples, "wall_s": wall / 1e9, "cpu_s": cpu, "p50_us": p50, "p99_us": p99}


def say(message: dict[str, Any]) -> None:
    """One line to whoever measures."""
    print(json.dumps(message), flush=True)


def wait_until(condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    """Waits for something that comes soon, or says what did not."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not come within {seconds:.0f} s")
        time.sleep(0.01)


