"""The node loader beside an in-process one: CPU time of all processes for the same global batches, 32 rows of 2048 tokens a step with GPT-2's vocabulary."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import node_loader
from harness.corpus import corpus
from harness.plan import Plan
from harness.report import Aim, Line, Row

ALONE = "one in-process loader"
WAYS = {"server and four peers of one rank": (1, 1.3), "server and four data-parallel ranks": (4, 1.2)}
"""Ranks, and how many times the in-process loader's CPU time it may be."""


def measure(plan: Plan) -> list[Row]:
    plan.begin("node: making the text")
    text = corpus(plan.progress)
    title = "node loader: CPU time of all processes a step of 32 × 2048 tokens, one thread making them"
    plan.begin(title)
    with TemporaryDirectory(prefix="lw-bench-") as name:
        recipe = text.recipe(Path(name), text.folder / "text", global_batch="32", lanes="32")
        options = Namespace(recipe=recipe, steps=max(10, int(750 * plan.seconds)))
        spent: dict[str, list[float]] = {ALONE: [], **{way: [] for way in WAYS}}
        for turn in range(plan.rounds):
            plan.progress(f"round {turn + 1} of {plan.rounds}")
            spent[ALONE].append(node_loader.in_process(options))
            for way, (ranks, _) in WAYS.items():
                spent[way].append(node_loader.node(options, ranks))
    # Turn by turn: what slows a turn slows all of it.
    of_alone = {way: median(a / b for a, b in zip(seconds, spent[ALONE], strict=True)) for way, seconds in spent.items()}
    row = Row(title, raw={way: [{"cpu_ms_per_step": s * 1e3} for s in seconds] for way, seconds in spent.items()})
    row.lines = [Line(way, {"CPU ms/step": median(seconds) * 1e3, "of in-process": of_alone[way]}) for way, seconds in spent.items()]
    row.aims = [Aim.at_most(f"CPU of one in-process loader, by a {way}", of_alone[way], most) for way, (_, most) in WAYS.items()]
    row.notes = ["every peer asks for input_ids and labels; four in-process peers of one rank would be 4×"]
    return [row]
