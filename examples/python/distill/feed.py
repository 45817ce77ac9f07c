"""A Laneway student's side: one rank's stream of batches, and the switch from one model to the next."""

from collections.abc import Iterator
from types import TracebackType
from typing import Self

import torch
import torch.distributed as dist
from laneway import BatchConfig, DistillIterableDataset, StudentClient
from laneway.torch import DataLoader
from torch import Tensor

from .corpus import Split

Batch = dict[str, Tensor]


class Feed:
    """Batches of what the workers make. Every rank has one; rank 0 leads, so its `switch` moves all ranks."""

    def __init__(self, rank: int, ranks: int, batch_config: BatchConfig, batch_size: int, slot_count: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.client = StudentClient(student_rank=rank, slot_count=slot_count, batch_config=batch_config)
        self.client.hello()
        if rank != 0:
            self.client.start_sub_listener()
        dataset = DistillIterableDataset(
            student_rank=rank,
            generation_value=self.client.generation_value,
            slot_count=slot_count,
            batch_config=batch_config,
            tags=True,
        )
        self._batches: Iterator[Batch] = iter(DataLoader(dataset, batch_size=batch_size))
        self.generation = 0

    def switch(self, model: str, split: Split) -> None:
        """From the next batch on, every rank gets samples of this model and split only."""
        if self.ranks > 1:
            dist.barrier()  # each rank has taken what it wanted of the last model
        generation = torch.tensor(self.client.set_model(model, {"split": split}) if self.rank == 0 else 0)
        if self.ranks > 1:
            dist.broadcast(generation, src=0)
        self.generation = int(generation)

    def next(self) -> Batch:
        """The next batch (batch size, …) by tensor name, with the tickets as "_lane", "_step" and "_generation"."""
        batch = next(self._batches)
        if stale := set(batch["_generation"].tolist()) - {self.generation}:
            raise RuntimeError(f"rank {self.rank} got samples of generation {sorted(stale)} after the switch to {self.generation}")
        return batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.client.close()
