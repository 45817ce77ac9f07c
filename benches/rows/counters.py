"""What 10,000 samples on one host cost beside CPU: messages through the broker, and system calls (counted by strace)."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from typing import Any

from harness.machine import laneway_program
from harness.plan import Plan
from harness.report import Aim, Line, Row
from harness.session import Peer, PeerFailed, Session

SAMPLES = 10_000
PEER = Peer("laneway: fill_fn, client", "exchange", {"bytes": 4 << 10, "slots": 64, "batch": 8})

REPORTS = ("REPORT", "STATS", "PING")
"""Messages that the clock sends, not the samples: each peer's report once a second, and the question that counts."""


def measure(plan: Plan) -> list[Row]:
    title = f"{SAMPLES:,} samples of 4 KiB on one host"
    plan.begin(title)
    row = Row(title)
    try:
        session = Session(PEER)
    except PeerFailed as failure:
        row.lines.append(Line(PEER.title, missing=str(failure)))
        return [row]
    try:
        session.measure(samples=SAMPLES)
        _messages(session, row)
        _system_calls(session, row)
    finally:
        session.close()
    return [row]


def _messages(session: Session, row: Row) -> None:
    before = _broker_messages(session)
    session.measure(samples=SAMPLES)
    after = _broker_messages(session)
    added = {kind: count - before.get(kind, 0) for kind, count in after.items() if count != before.get(kind, 0)}
    caused = sum(count for kind, count in added.items() if kind not in REPORTS)
    row.raw["messages"] = added
    row.lines.append(Line("control messages", {"count": caused}))
    row.aims.append(Aim.at_most("control messages added by the samples", caused, 0, ""))
    row.notes.append(f"messages that the broker received meanwhile, by kind: {added}; {', '.join(REPORTS)} come by the clock and are not counted")


def _broker_messages(session: Session) -> dict[str, int]:
    # The broker's counters are up to a tenth of a second old.
    time.sleep(0.15)
    env = {**os.environ, "LANEWAY_DIR": str(session.folder / "sockets")}
    text = subprocess.run([laneway_program(), "top", "--once", "--json"], env=env, capture_output=True, text=True, check=True).stdout
    messages: dict[str, int] = json.loads(text)["broker"]["messages"]
    return messages


def _system_calls(session: Session, row: Row) -> None:
    strace = shutil.which("strace")
    if strace is None:
        row.lines.append(Line("system calls", missing="strace is not installed"))
        return
    calls = strace_counts(strace, session)
    if isinstance(calls, str):
        row.lines.append(Line("system calls", missing=calls))
        return
    total = sum(calls.values())
    row.raw["system calls"] = calls
    row.lines.append(Line("system calls", {"count": total, "per sample": total / SAMPLES}))
    row.aims.append(Aim.at_most("system calls per sample, all processes, while saturated", total / SAMPLES, 0.1, ""))
    most = sorted(calls.items(), key=lambda item: -item[1])[:5]
    row.notes.append("by name: " + ", ".join(f"{name} {count}" for name, count in most))


def strace_counts(strace: str, session: Session) -> dict[str, int] | str:
    """Calls by name while the session takes the samples, in all its processes and threads; or why there are none."""
    out = session.folder / "strace"
    words = [w for pid in session.pids.values() for w in ("-p", str(pid))]
    tracer = subprocess.Popen([strace, "-f", "-c", "-U", "name,calls", "-o", str(out), *words], stderr=subprocess.PIPE, text=True)
    try:
        assert tracer.stderr is not None
        for _ in session.pids:
            line = tracer.stderr.readline()
            if "attached" not in line:
                return f"strace: {line.strip() or 'ended'}"
        session.measure(samples=SAMPLES)
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait()
    found: dict[str, Any] = {}
    for name, count in re.findall(r"^(\w+)\s+(\d+)$", out.read_text(), re.MULTILINE):
        if name != "total":
            found[name] = int(count)
    return found
