#!/usr/bin/env python3
"""A TorchTitan run that changes its number of ranks twice: 2, then 1, then 4, through TorchTitan's own checkpoints, beside one that stays on 2.

    python elastic_resume.py [folder]      needs torchtitan; CPUs suffice

Every global batch of the changing run must have the hash of the steady run's; the exit status is 1 if one has not.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from elastic.record import LOSS_BOUND, Step, read_run  # noqa: E402

STAGES = [(2, 4), (1, 8), (4, 12)]  # ranks, and the step to stop before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("titan-elastic"))
    return play(parser.parse_args().folder.resolve(), HERE / "rank.py")


def play(folder: Path, program: Path, given: Sequence[str] = ()) -> int:
    """The steady run and the stages of the changing one, with these arguments besides; the exit status."""
    last = STAGES[-1][1]
    for name in ("steady", "changing"):
        shutil.rmtree(folder / name, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    torchrun(program, folder, "steady", 2, last, given)
    steady = steps_of(folder / "steady")
    for ranks, until in STAGES:
        torchrun(program, folder, "changing", ranks, until, given)
    return compare(steady, steps_of(folder / "changing"), last)


def torchrun(program: Path, folder: Path, name: str, ranks: int, until: int, given: Sequence[str]) -> None:
    print(f"{name}: {ranks} rank{'s' * (ranks != 1)}, until step {until}", flush=True)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    arguments = [str(folder / name), "--data", str(folder / "data"), "--until", str(until), *given]
    with open(folder / "output.log", "a") as log:
        done = subprocess.run([sys.executable, *launcher, str(program), *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"elastic_resume: that ended with status {done.returncode}: see {log.name}")


def steps_of(run: Path) -> dict[int, Step]:
    """All steps of a run, whatever stages it had."""
    return {number: step for stage in run.glob("*-to-*") for number, step in read_run(stage).steps.items()}


def compare(steady: dict[int, Step], changing: dict[int, Step], last: int) -> int:
    """Print what is the same; the exit status."""
    different = [number for number in range(last) if steady.get(number) is None or number not in changing or steady[number].hash != changing[number].hash]
    if different:
        print(f"elastic_resume: the global batch of step {different[0]} is another ({last - len(different)} of {last} are identical)", file=sys.stderr)
        return 1
    apart = max(abs(steady[number].loss - changing[number].loss) for number in range(last))
    print(f"2 -> 1 -> 4 ranks: {last} of {last} global batches identical; losses within {apart:.2g} nats a token")
    if apart > LOSS_BOUND:
        print(f"elastic_resume: expected losses within {LOSS_BOUND}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
