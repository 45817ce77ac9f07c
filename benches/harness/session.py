"""The outside of a measured process: starts it, has it take samples, and ends it with all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.machine import ROOT

BENCHES = ROOT / "benches"

START_S = 180.0


class PeerFailed(Exception):
    """A peer could not be started or did not answer; says what it wrote."""


@dataclass
class Peer:
    """What is to be measured: a module of ``peers/`` and its arguments."""

    title: str
    module: str
    args: dict[str, Any] = field(default_factory=dict)
    window: dict[str, float] | None = None
    """What a window is, if not so many seconds: of those that work in bursts, some whole ones."""

    rounds: int | None = None
    """Measured in the first so many rounds only."""

    missing: str | None = None
    """Why it cannot be started."""


@dataclass
class Result:
    """A peer's windows, one a round."""

    title: str
    windows: list[dict[str, Any]] = field(default_factory=list)
    failure: str | None = None

    def rates(self) -> list[float]:
        return [w["samples"] / w["wall_s"] for w in self.windows]

    def cpus(self) -> list[float]:
        """CPU microseconds for each sample, all processes together."""
        return [sum(w["cpu_s"].values()) * 1e6 / w["samples"] for w in self.windows]

    def p50s(self) -> list[float]:
        return [w["p50_us"] for w in self.windows]

    @property
    def rate(self) -> float:
        return statistics.median(self.rates())

    @property
    def cpu(self) -> float:
        return statistics.median(self.cpus())

    @property
    def p50(self) -> float:
        return statistics.median(self.p50s())

    @property
    def p99(self) -> float:
        return statistics.median(w["p99_us"] for w in self.windows)

    def cpu_by_role(self) -> dict[str, float]:
        roles = self.windows[0]["cpu_s"]
        return {role: statistics.median(w["cpu_s"][role] * 1e6 / w["samples"] for w in self.windows) for role in roles}


class Session:
    """A running peer."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.folder = Path(tempfile.mkdtemp(prefix="lw-bench-"))
        self.log = self.folder / "log"
        words = [w for key, value in peer.args.items() for w in (f"--{key}", str(value))]
        env = {**os.environ, "LANEWAY_DIR": str(self.folder / "sockets"), "PYTHONPATH": os.pathsep.join(python_path())}
        env.update(OMP_NUM_THREADS="1", LANEWAY_BENCH_DIR=str(self.folder))
        (self.folder / "sockets").mkdir(mode=0o700)
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"peers.{peer.module}", *words],
                cwd=self.folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._line = b""
        try:
            self.pids: dict[str, int] = self._answer(START_S)["pids"]
        except BaseException:
            self.close()
            raise

    def measure(self, **command: float) -> dict[str, Any]:
        """One window: ``seconds=…`` or ``samples=…``."""
        return self.ask(command, command.get("seconds", 0) + 180)

    def ask(self, command: dict[str, Any], timeout_s: float = 60.0) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._failure("ended") from None
        return self._answer(timeout_s)

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._line:
                if not selector.select(timeout_s):
                    raise self._failure(f"did not answer within {timeout_s:.0f} s")
                data = os.read(self.process.stdout.fileno(), 1 << 16)
                if not data:
                    raise self._failure("ended")
                self._line += data
        line, _, self._line = self._line.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failure(self, what: str) -> PeerFailed:
        text = self.log.read_text(errors="replace").strip().splitlines()
        return PeerFailed(f"{self.peer.title}: {what}\n" + "\n".join(text[-12:]))

    def close(self) -> None:
        """Ends the peer and everything in its process group, and removes its folder."""
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def python_path() -> list[str]:
    """Where measured processes find the peers and, unless an installed one is to be measured, this checkout's bindings."""
    given = os.environ.get("PYTHONPATH")
    installed = os.environ.get("LANEWAY_BENCH_INSTALLED") == "1"
    return [str(BENCHES), *([] if installed else [str(ROOT / "bindings" / "python")]), *([given] if given else [])]


@contextlib.contextmanager
def running(peers: Sequence[Peer]) -> Iterator[list[Session | Result]]:
    """The peers, started; a failed one is a Result that says why."""
    with contextlib.ExitStack() as stack:
        started: list[Session | Result] = []
        for peer in peers:
            if peer.missing is not None:
                started.append(Result(peer.title, failure=peer.missing))
                continue
            try:
                session = Session(peer)
            except PeerFailed as failure:
                started.append(Result(peer.title, failure=str(failure)))
            else:
                stack.callback(session.close)
                started.append(session)
        yield started


def interleave(peers: Sequence[Peer], rounds: int, seconds: float, progress: Any) -> dict[str, Result]:
    """Measures all peers in turn, ``rounds`` times over, so that what disturbs the machine disturbs them all. By title."""
    results = {peer.title: Result(peer.title) for peer in peers}
    with running(peers) as sessions:
        for number in range(rounds + 1):
            for session in sessions:
                if isinstance(session, Result):
                    results[session.title] = session
                    continue
                result = results[session.peer.title]
                if result.failure is not None or number > (session.peer.rounds or rounds):
                    continue
                progress(f"{session.peer.title}, {f'round {number} of {rounds}' if number else 'warming up'}")
                try:
                    # The first is not counted: caches, allocators and adaptive waits find their place.
                    window = session.measure(**(session.peer.window or {"seconds": seconds if number else seconds / 2}))
                except PeerFailed as failure:
                    result.failure = str(failure)
                    continue
                if number:
                    result.windows.append(window)
    return results


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the ratios of the rounds that both were measured in: drift of the machine between rounds cancels."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=False))
