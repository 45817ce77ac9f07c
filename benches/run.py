#!/usr/bin/env python3
"""`make bench`: the exchange and the lanes beside their peers, in one run, pinned to two cores. docs/benchmarks.md says what is compared and why.

python benches/run.py                    everything, in about ten minutes
python benches/run.py --only throughput round_trip
python benches/run.py --quick            a tenth of the time, to see that it works; its figures are not worth quoting

Prints a table; writes benches/results/<time>.json (every window of every peer), and pictures beside it. Aims that are missed are told, not punished: it exits with 0.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from pathlib import Path

BENCHES = Path(__file__).resolve().parent
sys.path[:0] = [str(BENCHES), str(BENCHES.parent / "bindings" / "python")]

from harness.machine import describe, pin  # noqa: E402
from harness.plan import Plan  # noqa: E402
from harness.report import Row  # noqa: E402

ROWS = ("throughput", "round_trip", "in_place", "scaling", "counters", "native", "generate", "lanes", "lanes_state", "lanes_reading", "lanes_ranks", "node")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=ROWS, default=ROWS, help="which rows")
    parser.add_argument("--rounds", type=int, default=7, help="windows for each peer (7); medians are taken over them")
    parser.add_argument("--seconds", type=float, default=0.4, help="length of a window (0.4)")
    parser.add_argument("--cores", type=int, nargs=2, help="the two cores to be pinned to (the first two that are allowed)")
    parser.add_argument("--quick", action="store_true", help="two windows of 0.1 s")
    parser.add_argument("--results", type=Path, default=BENCHES / "results", help="where the JSON and the pictures go")
    options = parser.parse_args()

    machine = {**describe(), "cores_used": pin(options.cores)}
    plan = Plan(2, 0.1) if options.quick else Plan(options.rounds, options.seconds)
    print(f"{machine['cpu']}, {machine['cores']} cores, pinned to {machine['cores_used']}, Linux {machine['kernel']}, {machine['versions']}")
    if machine["load"] > 0.5:
        print(f"the machine is busy (load {machine['load']}): these figures are noise")
    rows: list[Row] = []
    for name in options.only:
        for row in importlib.import_module(f"rows.{name}").measure(plan):
            plan.done()
            print("\n" + row.show(), end="", flush=True)
            rows.append(row)
    write(rows, machine, plan, options.results)


def write(rows: list[Row], machine: dict, plan: Plan, folder: Path) -> None:
    """The JSON, the pictures, and a last line that says where they are."""
    from harness.picture import lanes, throughput

    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / time.strftime("%Y%m%d-%H%M%S")
    report = {
        "command": " ".join(sys.argv), "machine": machine, "rounds": plan.rounds, "seconds": plan.seconds, "rows": [r.to_dict() for r in rows]
    }  # fmt: skip
    files = [stem.with_suffix(".json")]
    files[0].write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    for suffix, picture in ((".svg", throughput(rows)), ("-lanes.svg", lanes(rows))):
        if picture is not None:
            files.append(stem.with_name(stem.name + suffix))
            files[-1].write_text(picture)
    aims = [aim for row in rows for aim in row.aims]
    met, missed = sum(a.met is True for a in aims), sum(a.met is False for a in aims)
    took = time.monotonic() - plan.start
    print(f"\n{met} aims met, {missed} missed, {len(aims) - met - missed} not measured, in {took:.0f} s; {' '.join(map(os.path.relpath, files))}")


if __name__ == "__main__":
    main()
