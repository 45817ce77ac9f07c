"""Lanes: how fast text is indexed, how much a rank reads for what it uses, and how evenly batches come."""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.cargo import NotBuilt
from harness.corpus import Corpus, corpus
from harness.plan import Plan
from harness.report import Aim, Line, Row
from rows.lanes_state import run

COPIES, TIMES = 20, 5


def measure(plan: Plan) -> list[Row]:
    text = corpus(plan.progress)
    with TemporaryDirectory(prefix="lw-bench-") as name:
        return [_index(plan, text, Path(name)), _bytes(plan, text, Path(name)), _pace(plan, text, Path(name))]


def _index(plan: Plan, text: Corpus, folder: Path) -> Row:
    title = "lanes: indexing JSONL, one thread, file in the page cache"
    plan.begin(title)
    row = Row(title)
    data = text.repeated(COPIES if plan.seconds >= 0.1 else 1)
    recipe = text.recipe(folder, data)
    found = []
    try:
        for _ in range(TIMES + 1):
            shutil.rmtree(data / ".laneway", ignore_errors=True)
            found.append(run("index", recipe))
        cpu = statistics.median(f["bytes"] / f["cpu_s"] for f in found[1:]) / 1e9
        row.lines.append(Line("index", {"GB/CPU-s": cpu, "GB/s": statistics.median(f["bytes"] / f["wall_s"] for f in found[1:]) / 1e9}))
        row.aims.append(Aim.at_least("GB of JSONL a core and second", cpu, 1))
    except NotBuilt as error:
        row.lines.append(Line("index", missing=str(error)))
    row.raw["index"] = found
    return row


def _bytes(plan: Plan, text: Corpus, folder: Path) -> Row:
    title = "lanes: bytes read for those of the documents used, rank 5 of 16, 16 lanes, at least 64 groups"
    plan.begin(title)
    row = Row(title)
    recipe = text.recipe(folder, text.repeated(COPIES if plan.seconds >= 0.1 else 1), lanes="16", global_batch="16")
    try:
        found = run("reads", recipe, 5, 16, 2_000 if plan.seconds >= 0.1 else 20)
        row.lines.append(Line("plain JSONL", {"MB read": found["bytes_read"] / 1e6, "MB used": found["bytes_used"] / 1e6}))
        row.raw["reads"] = found
        row.aims.append(Aim.at_most("read / used", found["bytes_read"] / found["bytes_used"], 1.1))
    except NotBuilt as error:
        row.lines.append(Line("plain JSONL", missing=str(error)))
    row.notes = ["used: lines of the documents that the delivered rows are made of; tests/lanes_cost.rs asserts the same of compressed files, too"]
    return row


def _pace(plan: Plan, text: Corpus, folder: Path) -> Row:
    title = "lanes: waiting for a batch of 8 rows, by a consumer at 80 % of the loader's rate, one thread"
    plan.begin(title)
    row = Row(title)
    for lanes, prefetch in (("8", 8), ("256", 1)):
        recipe = text.recipe(folder, text.folder / "text", lanes=lanes, global_batch=lanes)
        try:
            found = run("pace", recipe, 1, 8, prefetch, 0.8, 16 if plan.seconds >= 0.1 else 0.4)
        except NotBuilt as error:
            row.lines.append(Line(f"{lanes} lanes", missing=str(error)))
            continue
        columns = {"p50 ms": found["p50_us"] / 1e3, "p99 ms": found["p99_us"] / 1e3, "max ms": found["max_us"] / 1e3}
        row.lines.append(Line(f"{lanes} lanes, prefetch {prefetch}", columns | {"batches": found["batches"], "epochs": found["epochs"], "of rate": found["share"]}))
        row.raw[lanes] = found
        row.aims.append(Aim.at_most(f"{lanes} lanes: p99", found["p99_us"] / 1e3, 1, " ms"))
        row.aims.append(Aim.at_most(f"{lanes} lanes: the longest", found["max_us"] / 1e3, 50, " ms"))
    row.notes = ["a wait is the call of next and the writing of ids and labels; shuffle windows and epochs end on the way"]
    return row
