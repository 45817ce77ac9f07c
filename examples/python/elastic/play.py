"""All runs of both loaders, compared and drawn: the elastic part of `make demo`, which can also be run by itself.

    python -m elastic.play [folder] [--swap-rows-at STEP]     from examples/python; default: demo/ at the top of the repository

A model is trained on two ranks and saves a checkpoint half way. From that, it is trained on by one, two and four ranks, with Laneway's loader and
with a standard one. Global batches are compared by hash, losses by size. The exit status is 0 only if each of Laneway's batches was identical.
"""

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

from tqdm import tqdm

from .cast import RunFailure, play
from .corpus import prepare
from .page import write_page
from .record import LoaderRecord, Record, read_run
from .train import Run, Sizes

SAVED_ON = 2
RESUMED_ON = (1, 2, 4)
LOADERS = {"laneway": "Laneway", "standard": "a standard loader"}


def demonstrate(folder: Path, sizes: Sizes, swap_rows_at: int | None = None) -> Record:
    """Run everything, with a bar; the logs stay in `folder`. `swap_rows_at` spoils a batch of Laneway's run on four ranks.

    Raises:
        RunFailure: a run did not come to its end.
    """
    live = sys.stderr.isatty()
    data = folder / "data"
    prepare(data, sizes.length, sizes.global_batch)
    total = len(LOADERS) * (sizes.steps + len(RESUMED_ON) * (sizes.steps - sizes.save_at))
    records = {}
    with tqdm(total=total, unit="step", disable=not live, dynamic_ncols=True) as bar:
        for loader, name in LOADERS.items():
            shutil.rmtree(folder / loader, ignore_errors=True)
            whole = Run(loader, SAVED_ON, folder / loader / "whole", data, sizes)
            runs = [whole]
            for ranks in RESUMED_ON:
                spoilt = swap_rows_at if loader == "laneway" and ranks == RESUMED_ON[-1] else None
                runs.append(Run(loader, ranks, folder / loader / f"on-{ranks}", data, sizes, whole.folder, spoilt))
            for run in runs:
                what = f"{name}: {run.ranks} rank{'s' * (run.ranks != 1)}, {'from the checkpoint' if run.resume else 'from the start'}"
                bar.set_description(what) if live else print(f"  {what}", file=sys.stderr)
                play(run, bar.update)
            records[loader] = _read(name, runs)
    return Record(records["laneway"], records["standard"], sizes.save_at, sizes.steps)


def _read(name: str, runs: list[Run]) -> LoaderRecord:
    whole, *resumed = (read_run(run.folder) for run in runs)
    return LoaderRecord(name, whole, resumed)


def report(record: Record) -> list[str]:
    """Print what was seen; return what went wrong."""
    for loader in (record.laneway, record.standard):
        print(f"  {loader.name}, trained on {loader.whole.ranks} ranks, a checkpoint at step {record.save_at}:")
        for comparison in loader.comparisons:
            print(f"    {comparison.words()}")
    return record.faults()


def show(folder: Path, sizes: Sizes, swap_rows_at: int | None = None) -> int:
    """The whole of it, with the page and the picture in `folder`; the exit status."""
    began = time.monotonic()
    try:
        record = demonstrate(folder / "elastic", sizes, swap_rows_at)
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
    Sizes.add_options(parser)
    parser.add_argument("--swap-rows-at", type=int, help="spoil this step's batch on four ranks, to see that it is noticed")
    options = parser.parse_args()
    try:
        return show(options.folder.resolve(), Sizes.of(options), options.swap_rows_at)
    except KeyboardInterrupt:
        print("demo: stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
