#!/usr/bin/env python3
"""What the node loader costs beside an in-process loader, in CPU time of all processes for each batch of the whole run.

    python benches/node_loader.py [RECIPE] [--steps N]

Three ways to make the same global batches: one in-process loader; a server and four peers of one data-parallel rank; a server and four data-parallel
ranks. Every peer asks for input_ids and labels, by the C functions: Python's own objects are not to be measured four times. One thread makes tokens. Aims: ≤ 1.3× and ≤ 1.2× of the in-process loader's.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bindings" / "python"))

from laneway import Loader, NodeLoader, _native, _structs  # noqa: E402
from laneway.batch import Arrival  # noqa: E402

NAME = f"bench-{os.getpid()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("recipe", nargs="?", default=ROOT / "examples" / "recipes" / "documentation.toml", type=Path)
    parser.add_argument("--steps", type=int, default=300, help="global batches that are measured (300)")
    parser.add_argument("--play", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        return play(json.loads(options.play))
    alone = in_process(options)
    print(f"in-process loader:               {alone * 1e3:8.3f} ms of CPU a step")
    for what, ranks, aim in (("four peers of one rank", 1, 1.3), ("four data-parallel ranks", 4, 1.2)):
        cost = node(options, ranks)
        verdict = "met" if cost / alone <= aim else "MISSED"
        print(f"server, {what + ':':<25}{cost * 1e3:8.3f} ms of CPU a step, {cost / alone:.2f}x (aim <= {aim}x: {verdict})")


def in_process(options: argparse.Namespace) -> float:
    [cpu] = run([{"kind": "alone", "recipe": str(options.recipe), "steps": options.steps}])
    return cpu / options.steps


def node(options: argparse.Namespace, ranks: int) -> float:
    words = [str(_native.find_program()), "serve", str(options.recipe), "--name", NAME, "--threads", "1", "--log", "warning"]
    server = subprocess.Popen([*words, "--peers", str(4 // ranks)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        server.stdout.readline()
        role = {"kind": "peer", "name": NAME, "ranks": ranks, "peers": 4 // ranks, "steps": options.steps, "server": server.pid}
        peers = [{**role, "rank": i % ranks} for i in range(4)]
        results = run(peers)
        served = max(r[1] for r in results)
        return (sum(r[0] for r in results) + served) / options.steps
    finally:
        server.terminate()
        server.wait()


def run(roles: list[dict]) -> list:
    """Plays roles in processes of their own, at the same time."""
    played = [subprocess.Popen([sys.executable, __file__, "--play", json.dumps(role)], stdout=subprocess.PIPE, text=True) for role in roles]
    return [json.loads(process.communicate()[0]) for process in played]


def play(role: dict) -> None:
    if role["kind"] == "alone":
        loader = Loader(role["recipe"], threads=1, framework="numpy", progress=None)
    else:
        loader = NodeLoader(None, role["rank"], role["ranks"], name=role["name"], peers=role["peers"], framework="numpy", progress=None)
    take(loader, max(10, role["steps"] // 10))
    begin, served = time.process_time(), cpu_of(role["server"]) if "server" in role else 0.0
    take(loader, role["steps"])
    spent = time.process_time() - begin
    print(json.dumps(spent if role["kind"] == "alone" else [spent, cpu_of(role["server"]) - served]))


def take(loader: Loader, steps: int) -> None:
    opened, lib, view = loader._opened(), _native.lib(), _structs.Tensor()
    for _ in range(steps):
        arrival = Arrival()  # released when it dies
        assert opened.wait(arrival, _native.NEVER)
        for name in (b"input_ids", b"labels"):
            _native.check(lib.lw_batch_tensor(arrival.out, name, ctypes.byref(view)))


def cpu_of(pid: int) -> float:
    """CPU seconds of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


if __name__ == "__main__":
    main()
