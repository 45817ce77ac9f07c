"""8 MiB samples, each copied by the worker from a source array into the student's memory, against the copying alone."""

from __future__ import annotations

from harness.plan import Plan, times
from harness.report import Aim, Row, lines, raw
from harness.session import Peer

NBYTES = 8 << 20
SLOTS = 8
OURS, MEMCPY = "laneway: fill_fn copies in place", "memcpy"


def measure(plan: Plan) -> list[Row]:
    title = "8 MiB, filled in place from a source array"
    plan.begin(title)
    # The worker takes one task at once and the library reserves eight slots for it: both rings have as many slots.
    results = plan.interleave([
        Peer(OURS, "exchange", {"bytes": NBYTES, "slots": SLOTS, "make": "copy", "batch": 1}),
        Peer(MEMCPY, "memcpy", {"bytes": NBYTES, "slots": SLOTS + 8}),
    ])  # fmt: skip
    row = Row(title, lines(results), raw=raw(results))
    for line in row.lines:
        if "samples/s" in line.figures:
            line.figures["GB/s"] = line.figures["samples/s"] * NBYTES / 1e9
    row.aims = [Aim.at_least("samples/s of memcpy", times(results, OURS, MEMCPY), 0.9)]
    return [row]
