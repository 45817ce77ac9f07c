"""One rank's training loop: a small Llama-like model, rows from a feed, a checkpoint on the way.

    torchrun --nproc-per-node 2 examples/python/elastic_train.py …      as a user runs it; the demo starts the same function
"""

import argparse
import hashlib
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from distill.events import Events
from distill.llama import Llama, LlamaConfig
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .corpus import VOCABULARY
from .feeds import FEEDS, Feed


@dataclass(frozen=True)
class Sizes:
    """What all runs of a demonstration share; each is an option of the same name."""

    steps: int = 60
    save_at: int = 30  # steps taken before the checkpoint
    length: int = 64  # tokens of a row
    global_batch: int = 16  # rows of a step, over all ranks
    width: int = 128
    blocks: int = 2
    learning_rate: float = 3e-3

    def __post_init__(self) -> None:
        if not 0 < self.save_at < self.steps:
            raise ValueError(f"save_at is {self.save_at}; expected 1 to {self.steps - 1}, one less than steps")

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        for field in fields(cls):
            parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default, help=f"({field.default})")

    @classmethod
    def of(cls, options: argparse.Namespace) -> "Sizes":
        return cls(**{field.name: getattr(options, field.name) for field in fields(cls)})


@dataclass(frozen=True)
class Run:
    """One run: from the start, or from another's checkpoint."""

    loader: str  # a key of FEEDS
    ranks: int
    folder: Path
    data: Path
    sizes: Sizes
    resume: Path | None = None  # a folder with a checkpoint
    swap_rows_at: int | None = None  # spoils this step's batch, to see that the demonstration notices


class Predictor(nn.Module):
    """Token ids and labels to the sum of the losses of all labels that count."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.llama = Llama(LlamaConfig(sizes.blocks, sizes.width, 3 * sizes.width, 4, 4, VOCABULARY, 10_000.0, 1e-5))
        nn.init.normal_(self.llama.token_embd.weight, std=0.02)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        logits = self.llama.logits(input_ids).flatten(0, 1)
        return F.cross_entropy(logits, labels.flatten(), ignore_index=-100, reduction="sum")


def train(run: Run, rank: int) -> None:
    """The whole of one rank. The process group is there already."""
    sizes = run.sizes
    torch.manual_seed(0)
    model = DistributedDataParallel(Predictor(sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=sizes.learning_rate)
    feed: Feed = FEEDS[run.loader](run.data, rank, run.ranks, sizes.length, sizes.global_batch)
    first = _load(run.resume, model, optimizer, feed) if run.resume else 0
    events = Events(run.folder / f"rank-{rank}.jsonl", fresh=True)
    events.write("start", step=first, ranks=run.ranks)
    for step in range(first, sizes.steps):
        if step == sizes.save_at and not run.resume:
            _save(run.folder, rank, step, model, optimizer, feed)
        input_ids, labels = feed.next()
        if step == run.swap_rows_at and rank == 0:
            input_ids, labels = input_ids.flip(0), labels.flip(0)
        # Summed over all ranks and divided by the labels of the global batch, so that the loss does not depend on who held which row. DDP averages gradients.
        total = torch.tensor([(labels != -100).sum(), 0.0], dtype=torch.float64)
        dist.all_reduce(total)
        loss = model(input_ids, labels)
        optimizer.zero_grad()
        (loss * run.ranks / total[0]).backward()
        optimizer.step()
        total[1] = loss.detach()
        dist.all_reduce(total[1])
        events.write("step", step=step, loss=(total[1] / total[0]).item(), rows=row_hashes(input_ids, labels))
    events.write("end")


def row_hashes(input_ids: Tensor, labels: Tensor) -> list[str]:
    """A hash of each row's bytes, ids and labels: of any loader's, and no business of the loader's own."""
    both = torch.stack((input_ids, labels), dim=1).to(torch.int64).contiguous().numpy()
    return [hashlib.sha256(row.tobytes()).hexdigest() for row in both]


def _save(folder: Path, rank: int, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, feed: Feed) -> None:
    """Each rank writes its loader's state; the first one also what all ranks have in common."""
    (folder / f"loader-{rank}.json").write_text(json.dumps(feed.state_dict()))
    if rank == 0:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "model.pt")


def _load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, feed: Feed) -> int:
    """From the files of however many ranks there were; gives the step to go on with."""
    saved: dict[str, Any] = torch.load(folder / "model.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    files = sorted(folder.glob("loader-*.json"), key=lambda file: int(file.stem.rpartition("-")[2]))
    feed.resume([json.loads(file.read_text()) for file in files])
    return int(saved["step"])
