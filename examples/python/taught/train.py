"""One rank's training loop: a student of a few blocks learns the teacher's next tokens from batches that hold both rows and answers."""

import hashlib
import json
from dataclasses import dataclass, fields
from pathlib import Path

import torch
import torch.distributed as dist
from distill.events import Events
from distill.losses import logits_loss
from distill.student import Student
from laneway import Batch, GenerateOptions, Loader
from torch.nn.parallel import DistributedDataParallel

TAUGHT = ("top_logits", "top_ids", "rest")


@dataclass(frozen=True)
class Sizes:
    """What all runs of a demonstration share; each is an option of the same name."""

    steps: int = 10
    save_at: int = 5  # steps taken before the checkpoint
    length: int = 24  # tokens of a row
    global_batch: int = 4  # rows of a step, over all ranks

    def __post_init__(self) -> None:
        if not 0 < self.save_at < self.steps or self.steps < 6:
            raise ValueError(f"save_at is {self.save_at} of {self.steps} steps; expected 1 to one less than steps, and 6 steps at least")


SIZES = tuple(field.name for field in fields(Sizes))
START_BLOCKS = (0, 1, 28, 29)  # of the teacher, that the student's four start as
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Run:
    """One run: from the start, or from another's checkpoint."""

    name: str  # in words; also of its folder and of its group at the broker
    ranks: int
    workers: int
    folder: Path
    data: Path
    sizes: Sizes
    kills: tuple[int, ...] = ()  # after each of these steps a worker is killed while it holds tickets
    resume: Path | None = None  # a folder with a checkpoint
    other_answer_at: int | None = None  # one row of this step is answered differently, to see that the demonstration notices

    @property
    def first(self) -> int:
        return self.sizes.save_at if self.resume else 0


def train(run: Run, rank: int, student: Student) -> None:
    """The whole of one rank. The process group is there already."""
    model = DistributedDataParallel(student)
    optimizer = torch.optim.AdamW([p for p in student.parameters() if p.requires_grad], lr=LEARNING_RATE, weight_decay=0.0)
    recipe, index = run.data / "recipe.toml", run.data / "index"
    events = Events(run.folder / f"rank-{rank}.jsonl", fresh=True)
    # All that a trainer sees of the teachers: one option that says where they are, and the batch's tensors.
    teachers = GenerateOptions(group=run.folder.name)
    with Loader(recipe, rank, run.ranks, threads=1, cache_dir=index, generate=teachers, progress=None) as loader:
        if run.resume:
            _load(run.resume, student, optimizer, loader)
        while loader.step < run.sizes.steps:
            step = loader.step
            if step == run.sizes.save_at and not run.resume:
                _save(run.folder, rank, student, optimizer, loader)
            batch = next(loader)
            loss = logits_loss(model(batch.input_ids, logits=True), *(batch[name] for name in TAUGHT))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            whole = loss.detach().clone()
            dist.all_reduce(whole)
            events.write("step", step=step, loss=whole.item() / run.ranks, rows=row_hashes(batch))
        events.write("end", deaths=loader.stats["generate"]["deaths"])


def row_hashes(batch: Batch) -> list[str]:
    """A hash of each row's bytes, tokens and answers: no business of the loader's own."""
    parts = [tensor.contiguous().numpy() for tensor in (batch.input_ids, *(batch[name] for name in TAUGHT))]
    return [hashlib.sha256(b"".join(part[row].tobytes() for part in parts)).hexdigest() for row in range(batch.num_rows)]


def _save(folder: Path, rank: int, student: Student, optimizer: torch.optim.Optimizer, loader: Loader) -> None:
    """Each rank writes its loader's state; the first one also what all ranks have in common."""
    (folder / f"loader-{rank}.json").write_text(json.dumps(loader.state_dict()))
    if rank == 0:
        torch.save({"blocks": student.llama.blk.state_dict(), "optimizer": optimizer.state_dict()}, folder / "student.pt")


def _load(folder: Path, student: Student, optimizer: torch.optim.Optimizer, loader: Loader) -> None:
    """From the files of however many ranks there were."""
    saved = torch.load(folder / "student.pt")
    student.llama.blk.load_state_dict(saved["blocks"])
    optimizer.load_state_dict(saved["optimizer"])
    loader.load_state_dict([json.loads(file.read_text()) for file in sorted(folder.glob("loader-*.json"))])
