"""One request, one sample, nothing ahead: how long from asking to having looked at it."""

from __future__ import annotations

from harness.plan import Plan, times
from harness.report import Aim, Row, lines, raw
from harness.session import Peer

KIB, MIB = 1 << 10, 1 << 20
SIZES = {4 * KIB: "4 KiB", 64 * KIB: "64 KiB", MIB: "1 MiB"}
SPINS, SLEEPS, PIPE, SOFTS = "laneway: adaptive spin", "laneway: sleeps (spin_us=0)", "multiprocessing.Pipe", "softs 0.1.2, client"


def peers(nbytes: int) -> list[Peer]:
    # A window of two slots: the sample that is made and the one before it, so that it stays in the cache, as a pipe's buffer does.
    exchange = {"bytes": nbytes, "slots": 2, "batch": 1, "take": "one"}
    return [
        Peer(SPINS, "exchange", exchange),
        Peer(PIPE, "mp_pipe", {"bytes": nbytes}),
        Peer(SLEEPS, "exchange", {**exchange, "spin-us": 0}),
        Peer(SOFTS, "softs_exchange", {"bytes": nbytes, "take": "one"}),
    ]


def measure(plan: Plan) -> list[Row]:
    return [_measure(plan, nbytes) for nbytes in SIZES]


def _measure(plan: Plan, nbytes: int) -> Row:
    title = f"{SIZES[nbytes]}, request → sample, one outstanding"
    plan.begin(title)
    results = plan.interleave(peers(nbytes))
    row = Row(title, lines(results, round_trip=True), raw=raw(results))
    for line in row.lines:
        value = times(results, line.title, PIPE, "p50s")
        if value is not None:
            line.figures["p50 / Pipe's"] = value
    spins = times(results, SPINS, PIPE, "p50s")
    if nbytes == 4 * KIB:
        row.aims = [
            Aim.at_most("p50 of a Pipe's, with adaptive spin", spins, 0.5),
            Aim.at_most("p50 of a Pipe's, sleeping", times(results, SLEEPS, PIPE, "p50s"), 1.2),
        ]
    if nbytes == MIB:
        row.aims = [Aim.at_most("p50 of a Pipe's, in place", spins, 0.2)]
    return row
