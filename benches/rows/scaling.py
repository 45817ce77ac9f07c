"""A teacher that takes its time: four workers beside one."""

from __future__ import annotations

from harness.plan import Plan, times
from harness.report import Aim, Row, lines, raw
from harness.session import Peer

NBYTES = 4 << 10
ONE, FOUR = "laneway: 1 worker", "laneway: 4 workers"


def measure(plan: Plan) -> list[Row]:
    title = "4 KiB, a generator that sleeps 5 ms"
    plan.begin(title)
    exchange = {"bytes": NBYTES, "slots": 16, "make": "sleep"}
    results = plan.interleave([Peer(FOUR, "exchange", {**exchange, "workers": 4}), Peer(ONE, "exchange", exchange)])
    row = Row(title, lines(results), raw=raw(results))
    row.aims = [Aim.at_least("samples/s of 1 worker, by 4", times(results, FOUR, ONE), 3.5)]
    return [row]
