"""Distillation as one recipe: text becomes rows, teachers make logits of each row, and a batch holds both. Its hash is the same with 1, 2
and 4 workers, with workers killed on the way, on 1, 2 and 4 ranks, and for a run that is cut and goes on with another number of each.

    python examples/python/distill_lanes.py               all of that, in processes of their own; exit status 0 only if every hash is the same
    python examples/python/distill_lanes.py worker        one worker, as many as you like, whenever you like
    python examples/python/distill_lanes.py rank R N      one of N trainers: prints the hashes of each step's rows

The last two read FOLDER/recipe.toml and find the broker in LANEWAY_DIR; FOLDER is the environment's DISTILL_FOLDER.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import laneway

STEPS, CUT, VOCABULARY, LENGTH, TOP = 40, 17, 300, 128, 8

RECIPE = f"""
seed = 7
[[dataset]]
name = "tales"
paths = "tales.txt"
[tokenizer]
path = "tokenizer.json"
special_tokens = "none"
[pack]
max_length = {LENGTH}
[shuffle]
buffer_size = 64
[batch]
global_batch = 8
[generate]
model_id = "teacher 1"
layout = [{{ name = "top_logits", shape = [{LENGTH}, {TOP}], dtype = "float32" }}, {{ name = "top_ids", shape = [{LENGTH}, {TOP}], dtype = "int32" }}]
batch_size = 4
"""


def write_data(folder: Path) -> None:
    """A small text, a tokenizer whose tokens are words, and the recipe."""
    lines = [" ".join(f"w{(d * 7919 + i * i * 31) % VOCABULARY}" for i in range(20 + d * 37 % 200)) for d in range(400)]
    (folder / "tales.txt").write_text("\n".join(lines) + "\n")
    vocab = {f"w{i}": i for i in range(VOCABULARY)} | {"<unk>": VOCABULARY}
    nothing = dict.fromkeys(["truncation", "padding", "normalizer", "post_processor", "decoder"])
    model = {"type": "WordLevel", "unk_token": "<unk>", "vocab": vocab}
    tokenizer = {"version": "1.0", **nothing, "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "recipe.toml").write_text(RECIPE)


class Teacher:
    """A deterministic stand-in for a language model: the logits of a position follow from its token and its document's place, row by row."""

    def __init__(self, model_id: str) -> None:
        rng = np.random.default_rng(len(model_id) + ord(model_id[-1]))
        self.tokens = rng.standard_normal((VOCABULARY + 1, 16), np.float32)
        self.places = rng.standard_normal((64, 16), np.float32)
        self.head = rng.standard_normal((16, VOCABULARY), np.float32)

    def logits(self, ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        # One row at a time: sums of one row must not depend on which rows came with it.
        return np.stack([(self.tokens[i] + self.places[p % 64]) @ self.head for i, p in zip(ids, positions, strict=True)])


def work(folder: Path) -> None:
    """A worker: makes its own inputs from the recipe, so that only tickets travel."""
    teachers: dict[str, Teacher] = {}

    def fill(tasks: list[laneway.Task]) -> None:
        rows = tasks[0].rows
        teacher = teachers.setdefault(tasks[0].model_id, Teacher(tasks[0].model_id))
        time.sleep(0.002 * len(tasks))  # so that a kill finds it with tasks in hand
        for task, logits in zip(tasks, teacher.logits(rows.numpy("input_ids"), rows.numpy("positions")), strict=True):
            top = np.argsort(-logits, axis=1, kind="stable")[:, :TOP]
            task["top_ids"][:] = top
            task["top_logits"][:] = np.take_along_axis(logits, top, 1)

    laneway.Worker(fill_fn=fill, recipe=folder / "recipe.toml", batch_size=4, framework="numpy", cache_dir=folder / "cache").run()


def train(folder: Path, rank: int, ranks: int) -> None:
    """A trainer: reads batches, and where told saves at step CUT or goes on from what was saved there."""
    loader = laneway.Loader(folder / "recipe.toml", rank, ranks, threads=1, cache_dir=folder / "cache", framework="numpy", progress=None)
    states = [json.loads(p.read_text()) for p in sorted(folder.glob("state-*.json"))] if "RESUME" in os.environ else []
    if states:
        loader.load_state_dict(states)
    else:
        loader.set_model("teacher 2", from_step=25)  # the same on every rank, kept in the state
    last = CUT if "SAVE" in os.environ else STEPS
    while loader.step < last:
        batch = next(loader)
        # What a student learns from: batch.input_ids, batch["top_ids"], batch["top_logits"], rows × length × 8.
        assert batch["top_logits"].shape == (batch.num_rows, LENGTH, TOP)
        print(batch.step, " ".join(str(h) for h in batch.hashes), flush=True)
    print("deaths", loader.stats["generate"]["deaths"], flush=True)
    if last == CUT:
        (folder / f"state-{rank}.json").write_text(json.dumps(loader.state_dict()))


class House:
    """A broker, and the processes around it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "LANEWAY_DIR": str(folder / "run"), "DISTILL_FOLDER": str(folder), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        (folder / "run").mkdir(mode=0o700)

    def start(self, *role: str, stdout: int | None = None, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, __file__, *role], env=self.env | env, stdout=stdout, text=True)

    @contextlib.contextmanager
    def workers(self, count: int) -> Iterator[list[subprocess.Popen[str]]]:
        """That many workers, ended at the end."""
        running = [self.start("worker") for _ in range(count)]
        try:
            yield running
        finally:
            for worker in running:
                worker.kill()
                worker.wait()

    def run(self, ranks: int, workers: int, kill_at: tuple[int, ...] = (), **env: str) -> dict[int, int]:
        """The hash of each global batch. After each step of ``kill_at`` a worker is killed, and another started in its place."""
        with self.workers(workers) as running:
            trainers = [self.start("rank", str(r), str(ranks), stdout=subprocess.PIPE, **env) for r in range(ranks)]
            parts: list[dict[int, list[int]]] = []
            for trainer in trainers:
                part, deaths = {}, 0
                for line in trainer.stdout or ():
                    name, *numbers = line.split()
                    if name == "deaths":
                        deaths = int(numbers[0])
                        continue
                    part[int(name)] = [int(n) for n in numbers]
                    if int(name) in kill_at:
                        victim = kill_at.index(int(name)) % workers
                        running[victim].send_signal(signal.SIGKILL)
                        running[victim].wait()
                        running[victim] = self.start("worker")
                if trainer.wait() != 0 or deaths < len(kill_at):
                    raise SystemExit(f"a trainer ended with status {trainer.returncode} and saw {deaths} of {len(kill_at)} deaths")
                parts.append(part)
        return {step: laneway.global_hash([np.array(p[step], np.uint64) for p in parts]) for step in parts[0]}


def main() -> bool:
    same = True
    with tempfile.TemporaryDirectory(prefix="laneway-") as name:
        folder = Path(name)
        write_data(folder)
        house = House(folder)
        broker = house.start("broker")
        try:
            expected = house.run(1, 1)
            print(f"1 rank,  1 worker:                  {len(expected)} steps, hash of the last {expected[STEPS - 1]:016x}")
            for ranks, workers, kill_at in [(2, 2, ()), (4, 4, ()), (1, 4, (4, 12, 20))]:
                found = house.run(ranks, workers, kill_at)
                same &= found == expected
                told = f"{ranks} rank{'s' if ranks > 1 else ''}, {workers} workers{f', {len(kill_at)} killed' if kill_at else ''}:"
                print(f"{told:<36}{'the same' if found == expected else 'DIFFERENT'}")
            found = house.run(2, 1, SAVE="1") | house.run(4, 2, RESUME="1")
            same &= found == expected
            print(f"{f'cut at step {CUT}, 2 ranks, then 4:':<36}{'the same' if found == expected else 'DIFFERENT'}")
        finally:
            broker.terminate()
            broker.wait()
    return same


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(0 if main() else 1)
    here = Path(os.environ.get("DISTILL_FOLDER", "."))
    if sys.argv[1] == "broker":
        laneway.Broker().run()
    elif sys.argv[1] == "worker":
        work(here)
    else:
        train(here, int(sys.argv[2]), int(sys.argv[3]))
