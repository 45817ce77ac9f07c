"""`make bench` in miniature: it runs, measures what it says, and tells a missed aim without failing. No speed is asserted here."""

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCHES = Path(__file__).parents[3] / "benches"


def run(tmp_path: Path, *rows: str) -> tuple[str, list[dict]]:
    """What was printed, and the rows of the JSON file."""
    command = [sys.executable, BENCHES / "run.py", "--rounds", "1", "--seconds", "0.02", "--results", tmp_path, "--only", *rows]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(next(tmp_path.glob("*.json")).read_text())["rows"]


@pytest.fixture
def harness(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHES))
    return importlib.import_module


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the benchmarks need two cores")
def test_the_exchange_is_measured_beside_its_peers(tmp_path):
    printed, rows = run(tmp_path, "in_place", "scaling")
    for row in rows:
        assert row["title"] in printed
        for line in row["lines"]:
            assert line["missing"] is None and line["figures"]["samples/s"] > 0 and line["figures"]["CPU µs/sample"] > 0, line
        assert all(aim["value"] > 0 and aim["met"] is not None for aim in row["aims"])
        for windows in row["raw"].values():
            assert all(w["samples"] > 0 and w["wall_s"] > 0 for w in windows) and len(windows) == 1


def test_cpu_of_another_process_is_what_that_process_used(harness):
    process_cpu = harness("harness.serve").process_cpu
    with subprocess.Popen([sys.executable, "-c", "input(); import time\nwhile time.process_time() < 0.5: pass\ninput()"], stdin=subprocess.PIPE) as busy:
        assert busy.stdin is not None
        busy.stdin.write(b"\n")
        busy.stdin.flush()
        end = time.monotonic() + 60
        while process_cpu(busy.pid) < 0.5 and time.monotonic() < end:
            time.sleep(0.01)
        before = process_cpu(busy.pid)
        time.sleep(0.2)
        assert process_cpu(busy.pid) - before < 0.1, "it sleeps by now"
        assert 0.5 <= process_cpu(busy.pid) < 1.0
        busy.kill()


def test_a_peer_that_fails_is_told_and_leaves_the_others_alone(harness):
    session, report, plan = map(harness, ("harness.session", "harness.report", "harness.plan"))
    peers = [session.Peer("memcpy", "memcpy", {"bytes": 64, "slots": 2}), session.Peer("broken", "memcpy", {"bytes": "many", "slots": 2})]
    results = plan.Plan(1, 0.01).interleave(peers)
    assert plan.times(results, "memcpy", "broken") is None
    row = report.Row("row", report.lines(results), [report.Aim.at_least("of broken", None, 2)])
    assert "invalid int value: 'many'" in row.show() and "not measured" in row.show()
    assert results["memcpy"].rate > 0


def test_an_aim_is_met_at_its_very_value(harness):
    aim = harness("harness.report").Aim
    assert aim.at_least("x", 30.0, 30).met and not aim.at_least("x", 29.9, 30).met
    assert aim.at_most("x", 1.2, 1.2).met and not aim.at_most("x", 1.21, 1.2).met
