"""One worker, one student, prefetch on: samples a second and CPU for each, beside everything else that could do the job."""

from __future__ import annotations

from harness.plan import Plan, times
from harness.report import Aim, Row, lines, raw
from harness.session import Peer

KIB, MIB = 1 << 10, 1 << 20
SIZES = {4 * KIB: "4 KiB", 64 * KIB: "64 KiB", MIB: "1 MiB", 8 * MIB: "8 MiB"}
SLOTS = {4 * KIB: 64, 64 * KIB: 64, MIB: 16, 8 * MIB: 8}
"""Samples in flight and held at once, for each peer that can have more than one: a window that hides the wake-ups, within memory that a cache may hold."""

BATCH = 8
OURS, DATASET, GENERATOR = "laneway: fill_fn, client", "laneway: fill_fn, dataset", "laneway: generator_fn, client"
SOFTS, QUEUE, LOADER, MEMCPY = "softs 0.1.2, dataset", "multiprocessing.Queue", "torch DataLoader, 2 workers", "memcpy"


def peers(nbytes: int) -> list[Peer]:
    slots = SLOTS[nbytes]
    exchange = {"bytes": nbytes, "slots": slots, "batch": BATCH}
    return [
        Peer(OURS, "exchange", exchange),
        Peer(SOFTS, "softs_exchange", {"bytes": nbytes, "slots": slots}),
        Peer(QUEUE, "mp_queue", {"bytes": nbytes, "slots": slots}),
        Peer(LOADER, "loader", {"bytes": nbytes, "batch": max(2, min(32, 16 * MIB // nbytes))}),
        Peer(MEMCPY, "memcpy", {"bytes": nbytes, "slots": slots + BATCH}),
        Peer(DATASET, "exchange", {**exchange, "take": "dataset"}),
        Peer(GENERATOR, "exchange", {**exchange, "make": "generator"}),
    ]


def measure(plan: Plan) -> list[Row]:
    return [_measure(plan, nbytes) for nbytes in SIZES]


def _measure(plan: Plan, nbytes: int) -> Row:
    title = f"{SIZES[nbytes]}, one worker, one student, prefetch on"
    plan.begin(title)
    results = plan.interleave(peers(nbytes))
    row = Row(title, lines(results), raw=raw(results))
    for line in row.lines:
        value = times(results, OURS, line.title)
        if value is not None:
            line.figures["laneway is"] = value
    if nbytes == 4 * KIB:
        row.aims = [
            Aim.at_least("samples/s of softs", times(results, OURS, SOFTS), 30),
            Aim.at_least("samples/s of multiprocessing.Queue", times(results, OURS, QUEUE), 1.5),
            Aim.at_most("CPU per sample of multiprocessing.Queue", times(results, OURS, QUEUE, "cpus"), 1),
        ]
    return row
