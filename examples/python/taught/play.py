"""All runs of one recipe with teachers, compared and drawn: the generate part of `make demo`, which can also be run by itself.

    python -m taught.play [folder] [--other-answer-at STEP]     from examples/python; default: demo/ at the top of the repository

The recipe is run with one, two and four workers, some killed with SIGKILL while they hold tickets, and from a checkpoint on other numbers of ranks.
Global batches are compared by hash, over tokens and teacher's answers. The exit status is 0 only if all were identical.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of each of the processes, which share a machine; also, no thread may run where they are forked

import torch
from tqdm import tqdm

from .cast import Models, RunFailure, broker, play
from .corpus import prepare
from .page import write_page
from .record import Record, read
from .train import SIZES, Run, Sizes


def runs(folder: Path, sizes: Sizes, other_answer_at: int | None) -> list[Run]:
    """The first is what the others are held against; the second saves the checkpoint that the last two go on from."""
    first = Run("1 rank, 1 worker", 1, 1, folder / "1-worker", folder / "data", sizes)
    second = replace(first, name="2 ranks, 2 workers", ranks=2, workers=2, folder=folder / "2-workers")
    kills = (sizes.steps // 4, sizes.steps // 2)
    killed = replace(first, name="1 rank, 4 workers, 2 killed", workers=4, folder=folder / "4-workers", kills=kills)
    return [
        first,
        second,
        replace(killed, other_answer_at=other_answer_at),
        replace(first, name="resumed on 4 ranks, 2 workers", ranks=4, workers=2, folder=folder / "on-4", resume=second.folder),
        replace(first, name="resumed on 1 rank, 4 workers", workers=4, folder=folder / "on-1", resume=second.folder),
    ]


def demonstrate(folder: Path, sizes: Sizes, other_answer_at: int | None = None) -> Record:
    """Run everything, with a bar; the logs stay in `folder`. `other_answer_at` spoils an answer in the run whose workers are killed.

    Raises:
        RunFailure: a run did not come to its end.
    """
    live = sys.stderr.isatty()
    shutil.rmtree(folder, ignore_errors=True)
    prepare(folder / "data", sizes.length, sizes.global_batch)
    models = Models()
    tqdm.monitor_interval = 0  # no thread
    cast = runs(folder, sizes, other_answer_at)
    with broker(folder / "broker.log"), tqdm(total=sum(sizes.steps - run.first for run in cast), unit="step", disable=not live, dynamic_ncols=True) as bar:
        for run in cast:
            bar.set_description(run.name) if live else print(f"  {run.name}", file=sys.stderr)
            play(run, models, bar.update)
    whole, *others = map(read, cast)
    return Record(whole, others, sizes.steps, sizes.save_at)


def report(record: Record) -> list[str]:
    """Print what was seen; return what went wrong."""
    first, last = (record.whole.batches.steps[step].loss for step in (0, record.steps - 1))
    print(f"  {record.whole.name}: {record.steps} steps; the student's KL divergence from its teacher {first:.2f} -> {last:.2f} nats a token")
    for run, found in record.comparisons:
        print(f"  {run.name}: {found.identical} of {found.steps} global batches identical, tokens and answers; losses within {found.loss_apart:.2g}")
        for loss in run.losses:
            print(f"    {loss.words()}")
    return record.faults()


def show(folder: Path, sizes: Sizes, other_answer_at: int | None = None) -> int:
    """The whole of it, with the page and the picture in `folder`; the exit status."""
    began = time.monotonic()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="laneway-demo-") as sockets:
        os.environ["LANEWAY_DIR"] = sockets
        try:
            record = demonstrate(folder / "generate", sizes, other_answer_at)
        except RunFailure as failure:
            print(f"demo: {failure}", file=sys.stderr)
            return 1
    faults = report(record)
    page, picture = write_page(record, folder)
    print(f"  page: {page}, picture: {picture} (this part took {time.monotonic() - began:.0f} s)")
    for fault in faults:
        print(f"demo: {fault}", file=sys.stderr)
    return 1 if faults else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).resolve().parents[3] / "demo")
    for name in SIZES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(Sizes, name), help=f"({getattr(Sizes, name)})")
    parser.add_argument("--other-answer-at", type=int, help="spoil an answer of this step where workers are killed, to see that it is noticed")
    options = parser.parse_args()
    try:
        return show(options.folder.resolve(), Sizes(**{name: getattr(options, name) for name in SIZES}), options.other_answer_at)
    except KeyboardInterrupt:
        print("demo: stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
