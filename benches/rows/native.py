"""From Rust, both sides spinning, samples of 64 bytes: Laneway (`benches/raw.rs`) beside iceoryx2 (`benches/iceoryx2`). Reported, without an aim."""

from __future__ import annotations

import json
import statistics
import subprocess
from pathlib import Path
from typing import Any

from harness.cargo import NotBuilt, bench, cargo, executable
from harness.machine import ROOT
from harness.plan import Plan
from harness.report import Line, Row

NBYTES = 64
ROUNDS = 3
ROUND_TRIP, FLOW = "laneway, round trip", "laneway, flow"
ROUND_TRIP_THEIRS, ONE_WAY_THEIRS = "iceoryx2 0.10, request-response", "iceoryx2 0.10, publish-subscribe, one way"
FLOW_THEIRS = "iceoryx2 0.10, publish-subscribe, flow"


def measure(plan: Plan) -> list[Row]:
    title = "64 B from Rust, spinning"
    plan.begin(title)
    row = Row(title)
    commands: dict[str, list[str] | NotBuilt] = {}
    for build, made in ((_build_raw, {ROUND_TRIP: "round_trip", FLOW: "flow"}), (_build_iceoryx2, {
        ROUND_TRIP_THEIRS: "round_trip", ONE_WAY_THEIRS: "one_way", FLOW_THEIRS: "flow",
    })):  # fmt: skip
        plan.progress("building (the first time takes minutes)")
        try:
            program, sizes = build()
        except NotBuilt as error:
            commands.update(dict.fromkeys(made, error))
        else:
            commands.update({peer: [str(program), mode, *sizes, str(plan.seconds)] for peer, mode in made.items()})

    found: dict[str, list[dict[str, Any]]] = {peer: [] for peer in commands}
    failures = {peer: str(command) for peer, command in commands.items() if isinstance(command, NotBuilt)}
    for number in range(ROUNDS):
        for peer, command in commands.items():
            if peer in failures or isinstance(command, NotBuilt):
                continue
            plan.progress(f"{peer}, round {number + 1} of {ROUNDS}")
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=plan.seconds + 60, check=True)
                found[peer].append(json.loads(done.stdout))
            except (subprocess.SubprocessError, ValueError) as error:
                failures[peer] = f"{error} {getattr(error, 'stderr', None) or ''}".strip()[:300]
    for peer in (ROUND_TRIP, ROUND_TRIP_THEIRS, ONE_WAY_THEIRS, FLOW, FLOW_THEIRS):
        row.lines.append(Line(peer, missing=failures[peer]) if peer in failures else _line(peer, found[peer]))
    row.raw = dict(found)
    row.notes = [
        "laneway delivers each ticket once and in order whatever worker dies, and a worker takes batches of 8; iceoryx2 passes messages",
        "p50 of a flow is that of one receive: for laneway of a batch of 1 to 8 samples",
    ]
    return [row]


def _line(peer: str, runs: list[dict[str, Any]]) -> Line:
    def median(key: str) -> float:
        return statistics.median(run[key] for run in runs)

    return Line(peer, {"samples/s": median("samples_per_s"), "p50 µs": median("p50_us"), "p99 µs": median("p99_us")})


def _build_raw() -> tuple[Path, list[str]]:
    return bench("raw"), [str(NBYTES)]


def _build_iceoryx2() -> tuple[Path, list[str]]:
    target = str(ROOT / "target" / "iceoryx2")
    words = ("build", "--release", "--locked", "--message-format=json", "--target-dir", target)
    return executable(cargo(*words, folder=ROOT / "benches" / "iceoryx2"), "iceoryx2-peer"), []
