"""Lanes: what each rank of 1, 2, 4 and 8 spends for the same steps, in CPU and in bytes read, beside its start."""

from __future__ import annotations

import statistics
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.cargo import NotBuilt
from harness.corpus import corpus
from harness.plan import Plan
from harness.report import Aim, Line, Row
from rows.lanes_state import run

LANES, RANKS, TIMES = 16, (1, 2, 4, 8), 3
COPIES, STEPS = 20, 2_000


def measure(plan: Plan) -> list[Row]:
    text = corpus(plan.progress)
    title = f"lanes: what a rank spends on {STEPS:,} steps of {LANES} rows of 2048, {LANES} lanes, one thread, from Rust"
    plan.begin(title)
    row = Row(title)
    full = plan.seconds >= 0.1
    with TemporaryDirectory(prefix="lw-bench-") as name:
        recipe = text.recipe(Path(name), text.repeated(COPIES if full else 1), lanes=str(LANES), global_batch=str(LANES))
        try:
            # Makes the index.
            run("rank", recipe, 0, 1, 1)
            for turn in range(TIMES if full else 1):
                # By turns, so that what drifts during the run falls on all.
                for ranks in RANKS:
                    plan.progress(f"{ranks} ranks, {turn + 1} of {TIMES}")
                    found = [run("rank", recipe, rank, ranks, STEPS if full else 50) for rank in range(ranks)]
                    row.raw.setdefault(str(ranks), []).append(found)
        except NotBuilt as error:
            row.lines.append(Line("benches/lanes.rs", missing=str(error)))
            return [row]
    one = None
    for ranks in RANKS:
        start, work, read = (_mean(row.raw[str(ranks)], key) for key in ("open_cpu_s", "cpu_s", "bytes_read"))
        one = one or (work, read)
        shares = (work * ranks / one[0], read * ranks / one[1])
        figures = {"start CPU s": start, "steps CPU s": work, "MB read": read / 1e6, "× ranks, of one's": shares[0], "bytes × ranks, of one's": shares[1]}
        row.lines.append(Line(f"{ranks} rank{'s' * (ranks > 1)}", figures))
        if ranks > 1:
            row.aims.append(Aim.at_most(f"{ranks} ranks: CPU of all, of one rank's", shares[0], 1.15))
            row.aims.append(Aim.at_most(f"{ranks} ranks: bytes read by all, of one rank's", shares[1], 1.15))
    row.notes = ["the mean over ranks; the medians of all turns. start: recipe, tokenizer and index; it is what each rank pays however many there are"]
    return [row]


def _mean(turns: list[list[dict[str, float]]], key: str) -> float:
    """Of a rank, the median over turns."""
    return statistics.median(statistics.mean(found[key] for found in ranks) for ranks in turns)
