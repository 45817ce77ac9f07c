"""Lanes: how long a start and a resume take, and how large a checkpoint is."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.cargo import NotBuilt, bench
from harness.corpus import Corpus, corpus
from harness.machine import ROOT
from harness.plan import Plan
from harness.report import Aim, Line, Row
from harness.session import python_path

LANES = 256
STEPS = (100, 1_000, 100_000)
TIMES = 5


def measure(plan: Plan) -> list[Row]:
    text = corpus(plan.progress)
    with TemporaryDirectory(prefix="lw-bench-") as name:
        folder = Path(name)
        steps = STEPS if plan.seconds >= 0.1 else (2,)
        return [_resume(plan, text, folder, steps), _sizes(plan, text, folder), _start(plan, text, folder)]


def run(*words: object) -> dict[str, Any]:
    """One line of JSON from benches/lanes.rs."""
    done = subprocess.run([bench("lanes"), *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise NotBuilt(done.stderr.strip().splitlines()[-1][:300] if done.stderr.strip() else f"it ended with {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _resume(plan: Plan, text: Corpus, folder: Path, steps: Sequence[int]) -> Row:
    title = f"lanes: resume to the first batch, {LANES} lanes on one rank, two threads"
    plan.begin(title)
    row = Row(title)
    try:
        for step in steps:
            length = 64 if step > 10_000 else 2048
            plan.progress(f"going to step {step:,}")
            recipe = text.recipe(folder, text.folder / "text", lanes=str(LANES), global_batch=str(LANES), length=str(length))
            saved = run("save", recipe, step, folder / "state")
            plan.progress(f"resuming at step {step:,}")
            found = [run("resume", recipe, folder / "state") for _ in range(TIMES)]
            took = statistics.median(f["resume_s"] for f in found)
            figures = {"resume ms": took * 1e3, "open ms": statistics.median(f["open_s"] for f in found) * 1e3}
            figures |= {"MB read": found[0]["bytes_read"] / 1e6, "save µs": saved["save_us"], "seek s": saved["seek_s"]}
            row.lines.append(Line(f"step {step:,}, rows of {length}", figures))
            row.raw[str(step)] = {"save": saved, "resume": found}
            row.aims.append(Aim.at_most(f"step {step:,}: from the state to the first batch", took, 1, " s"))
            row.aims.append(Aim.at_most(f"step {step:,}: saving", saved["save_us"] / 1e3, 1, " ms"))
    except NotBuilt as error:
        row.lines.append(Line("benches/lanes.rs", missing=str(error)))
    row.notes = ["open: recipe, tokenizer, indexes; seek: to the step by token counts, as `laneway index --tokens` keeps them"]
    return row


def _sizes(plan: Plan, text: Corpus, folder: Path) -> Row:
    title = f"lanes: bytes of a checkpoint, {LANES} lanes, two sources"
    plan.begin(title)
    row = Row(title)
    second = f'[[dataset]]\nname = "again"\npaths = ["{text.files[-1]}"]\n'
    cases = {
        "by samples, wrap": ("samples", "", 96),
        "by tokens, wrap": ("tokens", "", 160),
        "by samples, first_fit": ("samples", 'algorithm = "first_fit"\n', None),
        "by samples, best_fit_wrap": ("samples", 'algorithm = "best_fit_wrap"\n', None),
    }
    try:
        for case, (unit, pack, most) in cases.items():
            plan.progress(case)
            recipe = text.recipe(folder, text.files[0], lanes=str(LANES), global_batch=str(LANES), more=f'{second}[mixture]\nunit = "{unit}"\n')
            recipe.write_text(recipe.read_text().replace("[pack]\n", f"[pack]\n{pack}"))
            saved = run("save", recipe, 40, folder / "state")
            row.raw[case] = saved
            row.lines.append(Line(case, {"bytes": saved["bytes"], "a lane": saved["bytes"] / LANES, "save µs": saved["save_us"]}))
            if most is not None:
                row.aims.append(Aim.at_most(f"{case}: bytes beside 2 KiB, for each lane", (saved["bytes"] - 2048) / LANES, most, " B"))
    except NotBuilt as error:
        row.lines.append(Line("benches/lanes.rs", missing=str(error)))
    row.notes = ["the other packers hold whole documents, 16 bytes each at most: tests/lanes_cost.rs counts them"]
    return row


PYTHON = 'import sys, laneway; next(laneway.Loader(sys.argv[1], framework="numpy", progress=None)).input_ids; assert "torch" not in sys.modules'


def _start(plan: Plan, text: Corpus, folder: Path) -> Row:
    title = "lanes: from the start of a process to its first batch of 8 rows of 2048, index cached"
    plan.begin(title)
    row = Row(title)
    recipe = text.recipe(folder, text.folder / "text")
    python = {**os.environ, "PYTHONPATH": os.pathsep.join(python_path())}
    commands = {"C": _c_program(folder), "Python, NumPy only": [sys.executable, "-c", PYTHON]}
    for name, command in commands.items():
        if isinstance(command, NotBuilt):
            row.lines.append(Line(name, missing=str(command)))
            continue
        took, cpu = [], []
        failure = None
        for _ in range(TIMES + 1):
            before, begin = os.times(), time.perf_counter()
            done = subprocess.run([*command, str(recipe)], capture_output=True, text=True, env=python)
            if done.returncode != 0:
                failure = done.stderr.strip()[-300:] or f"it ended with {done.returncode}"
                break
            took.append(time.perf_counter() - begin)
            after = os.times()
            cpu.append(after.children_user + after.children_system - before.children_user - before.children_system)
        if failure is not None:
            row.lines.append(Line(name, missing=failure.replace("\n", " | ")))
            continue
        # The first fills caches.
        seconds = statistics.median(took[1:])
        row.lines.append(Line(name, {"s": seconds, "CPU s": statistics.median(cpu[1:])}))
        row.raw[name] = took
        row.aims.append(Aim.at_most(f"from {name}", seconds, 0.5, " s"))
    row.notes = ["the whole life of the process, its end included"]
    return row


def _c_program(folder: Path) -> list[str] | NotBuilt:
    cc = shutil.which(os.environ.get("CC", "cc"))
    library = ROOT / "target" / "release"
    if cc is None or not (library / "liblaneway.so").exists():
        return NotBuilt("no C compiler" if cc is None else "no target/release/liblaneway.so; cargo build --release makes it")
    # Under the name that programs look for; a build's folder lacks it.
    (folder / "liblaneway.so.1").symlink_to(library / "liblaneway.so")
    program = folder / "first_batch"
    words = ["-O2", f"-I{ROOT / 'include'}", str(ROOT / "benches" / "first_batch.c"), "-o", str(program), str(library / "liblaneway.so")]
    done = subprocess.run([cc, *words, f"-Wl,-rpath,{folder}"], capture_output=True, text=True)
    return [str(program)] if done.returncode == 0 else NotBuilt(done.stderr.strip()[-300:])
