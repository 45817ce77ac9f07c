"""A finished run, read back from its event logs, and what is checked of it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .events import EventReader

Event = dict[str, Any]


@dataclass
class StageRecord:
    """One model id's stretch of a student's run. Times are seconds since the epoch."""

    model: str
    generation: int
    began: float
    train: list[tuple[float, float]] = field(default_factory=list)  # (time, loss)
    held_out: list[tuple[float, float, float | None]] = field(default_factory=list)  # (time, loss, agreement)
    passages: list[Event] = field(default_factory=list)  # before and after

    @property
    def steps(self) -> int:
        return len(self.train)

    @property
    def loss_fell(self) -> bool:
        return len(self.held_out) > 1 and self.held_out[-1][1] < self.held_out[0][1]


@dataclass
class StudentRecord:
    """One student's run: its stages, and the tickets in the order of delivery as (time, lane, step, generation)."""

    began: float
    ended: float
    sample_bytes: int
    stages: list[StageRecord]
    tickets: list[tuple[float, int, int, int]]


def read_student(log: Path) -> StudentRecord:
    """The run that a student's event log tells of."""
    events = EventReader(log).new()
    if not events:
        raise ValueError(f"{log} is empty or missing: the student did not start")
    record = StudentRecord(events[0]["time"], events[-1]["time"], events[0]["sample_bytes"], [], [])
    for event in events:
        time = event["time"]
        match event["kind"]:
            case "switch" if event["split"] == "held_out":
                record.stages.append(StageRecord(event["model"], event["generation"], time))
            case "switch":
                record.stages[-1].generation = event["generation"]
            case "tickets":
                record.tickets += [(time, lane, step, event["generation"]) for lane, step in zip(event["lane"], event["step"])]
            case "step":
                record.stages[-1].train.append((time, event["loss"]))
            case "evaluate":
                record.stages[-1].held_out.append((time, event["loss"], event["agreement"]))
            case "passage":
                record.stages[-1].passages.append(event)
    return record


@dataclass
class WorkerRecord:
    """What one worker made, over all its lives: batches as (end time, seconds, samples)."""

    name: str
    made: list[tuple[float, float, int]]
    taken: list[tuple[float, list[tuple[int, int]], bool]]  # (time, tickets as (lane, step), whether they were made)

    @property
    def samples(self) -> int:
        return sum(samples for _, _, samples in self.made)


def read_worker(log: Path, name: str) -> WorkerRecord:
    """The work that a worker's event log tells of."""
    record = WorkerRecord(name, [], [])
    for event in EventReader(log).new():
        if event["kind"] == "take":
            record.taken.append((event["time"], list(zip(event["lane"], event["step"])), False))
        elif event["kind"] == "made":
            record.made.append((event["time"], event["seconds"], event["samples"]))
            record.taken[-1] = (*record.taken[-1][:2], True)
    return record


def ticket_faults(record: StudentRecord) -> list[str]:
    """What breaks the promise "each ticket once and in order": empty when it held.

    In every lane the steps must follow each other with no gap and no repetition, and the generation
    must never go back.
    """
    faults: list[str] = []
    last: dict[int, tuple[int, int]] = {}
    for _, lane, step, generation in record.tickets:
        before_step, before_generation = last.get(lane, (step - 1, generation))
        if step != before_step + 1:
            faults.append(f"lane {lane}: step {step} came after step {before_step}")
        if generation < before_generation:
            faults.append(f"lane {lane}, step {step}: generation {generation} came after {before_generation}")
        last[lane] = (step, generation)
    return faults


@dataclass
class Run:
    """The whole demo: the students one after the other, the workers, and what was done to a worker when."""

    students: list[StudentRecord]
    workers: list[WorkerRecord]
    marks: list[tuple[float, str, str]]  # (time, worker, "killed" or "started again")

    @property
    def stages(self) -> list[StageRecord]:
        return [stage for student in self.students for stage in student.stages]

    @property
    def samples(self) -> int:
        return sum(len(student.tickets) for student in self.students)

    @property
    def bytes(self) -> int:
        return sum(len(student.tickets) * student.sample_bytes for student in self.students)

    @property
    def seconds(self) -> float:
        """From each student's first ticket to its end, summed: loading models is not counted."""
        return sum(student.ended - student.tickets[0][0] for student in self.students if student.tickets)

    def faults(self) -> list[str]:
        """What the run promised and did not keep."""
        faults = [fault for student in self.students for fault in ticket_faults(student)]
        for stage in self.stages:
            if not stage.loss_fell:
                losses = ", ".join(f"{loss:.3f}" for _, loss, _ in stage.held_out)
                faults.append(f"{stage.model}: the held-out loss did not fall: {losses or 'never measured'}")
        if [what for _, _, what in self.marks] != ["killed", "started again"]:
            faults.append("no worker was killed and started again: the student was done too soon")
        return faults

    @property
    def kill_story(self) -> list[str]:
        """What became of the tickets that a killed worker held, and of the worker."""
        story = []
        for moment, victim, what in self.marks:
            worker = next(worker for worker in self.workers if worker.name == victim)
            if what == "killed":
                story += [self._rescue_of(worker, tickets, moment) for time, tickets, made in worker.taken if not made and time <= moment]
            else:
                again = sum(samples for time, _, samples in worker.made if time > moment)
                story.append(f"{victim} was started again and made {again} more samples")
        return story

    def _rescue_of(self, victim: WorkerRecord, tickets: list[tuple[int, int]], killed_at: float) -> str:
        lost, first, last = set(tickets), min(tickets), max(tickets)
        held = f"{victim.name} was killed while it held {len(lost)} tickets (lane {first[0]}, steps {first[1]} to {last[1]})"
        takes = [
            (time, worker.name) for worker in self.workers for time, tickets, _ in worker.taken if time > killed_at and lost & set(tickets)
        ]
        if not takes:
            return f"{held}, which nobody made again"
        time, name = min(takes)
        return f"{held}; {name} took them up {time - killed_at:.2f} s later"


def read_run(folder: Path, workers: list[str], marks: list[tuple[float, str, str]]) -> Run:
    """The demo's run, from the logs in `folder`; workers are named "worker 1", "worker 2"."""
    return Run(
        students=[read_student(folder / name / "student-0.jsonl") for name in ("hidden", "logits")],
        workers=[read_worker(folder / "workers" / f"worker-{name.rpartition(' ')[2]}.jsonl", name) for name in workers],
        marks=marks,
    )
