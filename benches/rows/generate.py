"""What `[generate]` costs beside the exchange that it stands on (`benches/generate.rs`)."""

from __future__ import annotations

import json
import subprocess

from harness.cargo import NotBuilt, bench
from harness.plan import Plan
from harness.report import Aim, Line, Row


def measure(plan: Plan) -> list[Row]:
    title = "teachers as operators, from Rust"
    plan.begin(title)
    row = Row(title)
    loader, exchange, rows = "a loader with teachers", "the exchange alone", "a loader of the same rows alone"
    try:
        plan.progress("building (the first time takes minutes)")
        program = bench("generate")
        plan.progress("measuring, about 20 s")
        done = subprocess.run([str(program)], capture_output=True, text=True, timeout=300, check=True)
    except (NotBuilt, subprocess.SubprocessError) as error:
        row.lines = [Line(loader, missing=f"{error} {getattr(error, 'stderr', None) or ''}".strip()[:300])]
        return [row]
    cpu, slow = (json.loads(line) for line in done.stdout.splitlines())
    column = "CPU µs/sample of 4 KiB"
    row.lines = [
        Line(loader, {column: cpu["taught_us"], "samples/s, 5 ms each": slow["taught_per_s"]}),
        Line(exchange, {column: cpu["exchange_us"], "samples/s, 5 ms each": slow["exchange_per_s"]}),
        Line(rows, {column: cpu["rows_us"]}),
    ]
    row.aims = [
        Aim.at_most("CPU a sample over exchange and rows", cpu["over_us"], 5, " µs"),
        Aim.at_least("throughput of the exchange alone with a teacher of 5 ms", slow["share"], 0.95),
    ]
    row.raw = {"cpu": cpu, "slow_teacher": slow}
    return [row]
