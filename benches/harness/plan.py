"""How much is measured, and what the rows are told by the command line."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

from harness.session import Peer, Result, interleave, ratio


@dataclass
class Plan:
    """Rounds of interleaved windows, each of ``seconds``; and where the progress is shown."""

    rounds: int
    seconds: float
    row: str = ""
    start: float = field(default_factory=time.monotonic)

    def interleave(self, peers: list[Peer]) -> dict[str, Result]:
        """Measures the peers of a row in turn."""
        return interleave(peers, self.rounds, self.seconds, self.progress)

    def progress(self, what: str) -> None:
        """One line that is written over, on a terminal; one for each row elsewhere."""
        if sys.stderr.isatty():
            print(f"\r\x1b[K{time.monotonic() - self.start:4.0f} s  {self.row}: {what}"[:150], end="", file=sys.stderr, flush=True)

    def begin(self, row: str) -> None:
        """A new row."""
        self.row = row
        if not sys.stderr.isatty():
            print(f"{time.monotonic() - self.start:4.0f} s  {row}", file=sys.stderr, flush=True)

    def done(self) -> None:
        """Takes the progress line away."""
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def times(results: dict[str, Result], ours: str, theirs: str, what: str = "rates") -> float | None:
    """Ours divided by theirs, by ``rates``, ``cpus`` or ``p50s``; None where one is missing."""
    a, b = results[ours], results[theirs]
    if a.failure is not None or b.failure is not None:
        return None
    return ratio(getattr(a, what)(), getattr(b, what)())
