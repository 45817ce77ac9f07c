"""What the runs of both loaders wrote down, and what is checked of it."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from distill.events import EventReader

LOSS_BOUND = 0.05  # nats a token: how far the losses of two runs on the same batches may drift apart by the order of additions alone


@dataclass(frozen=True)
class Step:
    """A step of a run: the hash of its global batch, and its loss in nats a token."""

    hash: str
    loss: float


@dataclass(frozen=True)
class RunRecord:
    """A run: how many ranks it had, and its steps by number."""

    ranks: int
    steps: dict[int, Step]


def read_run(folder: Path) -> RunRecord:
    """The run of the logs in `folder`. A step's hash is that of all its rows, in the order of the ranks."""
    logs = sorted(folder.glob("rank-*.jsonl"), key=lambda file: int(file.stem.rpartition("-")[2]))
    if not logs:
        raise ValueError(f"{folder} has no rank-*.jsonl: the run did not start")
    ranks = [[event for event in EventReader(log).new() if event["kind"] == "step"] for log in logs]
    if len({tuple(event["step"] for event in events) for events in ranks}) != 1:
        raise ValueError(f"{folder}: the ranks did not take the same steps")
    steps = {}
    for parts in zip(*ranks):
        rows = [row for part in parts for row in part["rows"]]
        steps[parts[0]["step"]] = Step(step_hash(rows), parts[0]["loss"])
    return RunRecord(len(ranks), steps)


def step_hash(rows: list[str]) -> str:
    """The hash of a global batch from those of its rows, in order."""
    return hashlib.sha256("".join(rows).encode()).hexdigest()


@dataclass(frozen=True)
class Comparison:
    """A resumed run beside the one that was never interrupted."""

    ranks: int
    first: int  # the step that it went on with
    steps: int
    identical: int  # how many global batches are
    different: int | None  # the first step whose batch is not
    loss_apart: float  # the largest difference of losses, nats a token

    @property
    def same(self) -> bool:
        return self.different is None

    def words(self) -> str:
        batches = f"{self.identical} of {self.steps} global batches identical"
        return f"resumed on {self.ranks} rank{'s' * (self.ranks != 1)}: {batches}; losses within {self.loss_apart:.2g} nats a token"


@dataclass(frozen=True)
class LoaderRecord:
    """All runs of one loader: the uninterrupted one, and those that went on from its checkpoint."""

    name: str
    whole: RunRecord
    resumed: list[RunRecord]

    @property
    def comparisons(self) -> list[Comparison]:
        return [compare(self.whole, run) for run in self.resumed]


def compare(whole: RunRecord, run: RunRecord) -> Comparison:
    """How the batches and losses of a run are beside those of a whole one."""
    wrong = [step for step, taken in run.steps.items() if taken.hash != whole.steps[step].hash]
    apart = max(abs(taken.loss - whole.steps[step].loss) for step, taken in run.steps.items())
    return Comparison(run.ranks, min(run.steps), len(run.steps), len(run.steps) - len(wrong), min(wrong, default=None), apart)


@dataclass(frozen=True)
class Record:
    """The whole demonstration."""

    laneway: LoaderRecord
    standard: LoaderRecord
    save_at: int
    steps: int

    def faults(self) -> list[str]:
        """What Laneway promised and did not keep."""
        faults = []
        for found in self.laneway.comparisons:
            where = f"laneway, resumed on {found.ranks} rank{'s' * (found.ranks != 1)}"
            if (found.first, found.steps) != (self.save_at, self.steps - self.save_at):
                faults.append(f"{where}: took {found.steps} steps from {found.first}, expected {self.steps - self.save_at} from {self.save_at}")
            if not found.same:
                faults.append(f"{where}: the global batch of step {found.different} is another ({found.identical} of {found.steps} are identical)")
            elif found.loss_apart > LOSS_BOUND:
                faults.append(f"{where}: same batches, but losses {found.loss_apart:.2g} nats apart; expected at most {LOSS_BOUND}")
        first, last = self.laneway.whole.steps[0].loss, self.laneway.whole.steps[self.steps - 1].loss
        if last >= first:
            faults.append(f"the model learnt nothing: loss {first:.3f} at first, {last:.3f} at last")
        return faults
