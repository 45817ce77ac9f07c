"""What the runs wrote down, and what is checked of it."""

from dataclasses import dataclass
from pathlib import Path

from distill.events import EventReader
from elastic.record import LOSS_BOUND, Comparison, RunRecord, compare, read_run

from .train import Run

Ticket = tuple[int, int]
"""A lane, and the number of a row in it."""


@dataclass(frozen=True)
class Loss:
    """Tickets that a killed worker held, and which worker made them in its place (None: nobody)."""

    worker: int
    tickets: list[Ticket]
    rescuer: int | None

    def words(self) -> str:
        which = " and ".join(f"row {row} of lane {lane}" for lane, row in self.tickets)
        return f"worker {self.worker} was killed while it made {which}; " + (
            "nobody made them again" if self.rescuer is None else f"worker {self.rescuer} made them again"
        )


@dataclass(frozen=True)
class TaughtRun:
    """A run of the demonstration, as its processes noted it."""

    name: str
    first: int
    workers: int
    kills: int  # that were planned
    batches: RunRecord
    deaths: int  # that the loaders saw
    makers: dict[Ticket, int]  # of each row that was delivered, the number of the worker that made it
    losses: list[Loss]


def read(run: Run) -> TaughtRun:
    """What is in the folder of a run that has ended."""
    logs = sorted(run.folder.glob("worker-*.jsonl"), key=lambda file: int(file.stem.rpartition("-")[2]))
    makers, taken = dict[Ticket, int](), dict[int, list[Ticket]]()
    for worker, log in enumerate(logs):
        for event in EventReader(log).new():
            tickets = list(zip(event["lane"], event["row"]))
            taken[worker] = tickets if event["kind"] == "take" else []
            if event["kind"] == "made":
                makers |= dict.fromkeys(tickets, worker)
    ends = [event for log in run.folder.glob("rank-*.jsonl") for event in EventReader(log).new() if event["kind"] == "end"]
    killed = [event["worker"] for event in EventReader(run.folder / "cast.jsonl").new() if event["kind"] == "kill"]
    losses = [Loss(worker, taken[worker], makers.get(taken[worker][0])) for worker in killed]
    return TaughtRun(
        run.name, run.first, run.workers, len(run.kills), read_run(run.folder), max((end["deaths"] for end in ends), default=0), makers, losses
    )


@dataclass(frozen=True)
class Record:
    """The whole demonstration: the first run, and those that are held against it."""

    whole: TaughtRun
    others: list[TaughtRun]
    steps: int
    save_at: int

    @property
    def comparisons(self) -> list[tuple[TaughtRun, Comparison]]:
        return [(run, compare(self.whole.batches, run.batches)) for run in self.others]

    def faults(self) -> list[str]:
        """What was promised and not kept."""
        faults = []
        for run, found in self.comparisons:
            if (found.first, found.steps) != (run.first, self.steps - run.first):
                faults.append(f"{run.name}: took {found.steps} steps from {found.first}, expected {self.steps - run.first} from {run.first}")
            if not found.same:
                faults.append(f"{run.name}: the global batch of step {found.different} is another ({found.identical} of {found.steps} are identical)")
            elif found.loss_apart > LOSS_BOUND:
                faults.append(f"{run.name}: same batches, but losses {found.loss_apart:.2g} nats apart; expected at most {LOSS_BOUND}")
            if len(run.losses) < run.kills or run.deaths < run.kills:
                faults.append(f"{run.name}: {run.kills} workers were to die with rows in hand; {len(run.losses)} did, and {run.deaths} deaths were seen")
        first, last = self.whole.batches.steps[0].loss, self.whole.batches.steps[self.steps - 1].loss
        if last >= first:
            faults.append(f"the student learnt nothing: KL divergence {first:.3f} at first, {last:.3f} at last")
        return faults
