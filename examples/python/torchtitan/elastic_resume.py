#!/usr/bin/env python3
"""A run of TorchTitan's trainer that changes its number of ranks twice: 2, then 1, then 4, through TorchTitan's own checkpoints, beside one that stays on 2.

    python elastic_resume.py [folder]                     needs torchtitan; CPUs suffice
    python elastic_resume.py [folder] --server titan      one process makes the batches of all ranks of the changing run
    python elastic_resume.py [folder] --swap-rows-at 9    spoils a batch, to see that it is noticed

On CPUs, of the four each two split the model's tensors between them and read the same batches. Every global batch of the changing run must have the hash of the
steady run's; the exit status is 1 if one has not. `gpu_smoke.py` is the same on a GPU.
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

STAGES = [(2, 1, 4), (1, 1, 8), (4, 2, 12)]
"""Processes, those of them that are tensor-parallel, and the step to stop before."""


def main(device: str = "cpu") -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("titan-elastic"))
    parser.add_argument("--server", help="its name")
    parser.add_argument("--swap-rows-at", type=int, help="a step of the changing run")
    options = parser.parse_args()
    folder, last = options.folder.resolve(), STAGES[-1][2]
    for name in ("steady", "changing"):
        shutil.rmtree(folder / name, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    on_gpu = device == "cuda"
    common = ["--device", device, "--data", str(folder / "data"), "--length", "128" if on_gpu else "64"]
    torchrun(folder / "steady", 2, [*common, "--until", str(last)])
    if options.server:
        common += ["--server", options.server]
    if options.swap_rows_at is not None:
        common += ["--swap-rows-at", str(options.swap_rows_at)]
    for processes, tensor_parallel, until in STAGES:
        split = 1 if on_gpu else tensor_parallel  # gloo cannot gather tensors of a GPU
        torchrun(folder / "changing", processes, [*common, "--until", str(until), "--tensor-parallel", str(split)])
    return compare(steps_of(folder / "steady"), steps_of(folder / "changing"), last)


def torchrun(folder: Path, processes: int, arguments: Sequence[str]) -> None:
    print(f"{folder.name}: {processes} process{'es' * (processes != 1)} {' '.join(arguments[6:])}", flush=True)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    with open(folder.parent / "output.log", "a") as log:
        done = subprocess.run([sys.executable, *launcher, str(HERE / "rank.py"), str(folder), *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
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
