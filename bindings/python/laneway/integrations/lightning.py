"""Lightning on Laneway's batches.

    import pytorch_lightning as pl                  # or: import lightning.pytorch as pl
    from laneway.integrations.lightning import LanewayDataModule

    trainer = pl.Trainer(max_steps=1000, devices=4, accumulate_grad_batches=2)
    trainer.fit(model, LanewayDataModule("recipe.toml", microbatch_size=8), ckpt_path="last")

A checkpoint holds the states of all ranks' loaders, and a run that resumes from it, on as many ranks or on others, goes on with the same global batches. On others,
set ``accumulate_grad_batches`` so that a step stays the recipe's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

if "lightning.pytorch" in sys.modules:
    from lightning.pytorch import LightningDataModule
else:
    try:
        from pytorch_lightning import LightningDataModule
    except ImportError:
        from lightning.pytorch import LightningDataModule

from ..errors import InvalidArgument, NotFound
from ..loader import Loader
from ..recipe import Recipe
from ._common import check_trainer, open_loader

__all__ = ["LanewayDataModule"]


class LanewayDataModule(LightningDataModule):  # type: ignore[misc]
    """Gives ``training_step`` dicts of a :class:`~laneway.Batch`'s tensors, as the batch has them (labels are shifted, −100 where none counts), and
    ``num_valid_tokens``, an int. For the loss of the whole step, sum over its labels and divide by the sum of these over ranks and microbatches.

    The loader is opened when the trainer asks for it, with the ranks of its data parallelism. Saving a checkpoint collects the ranks' states, a few hundred
    bytes a lane, with one collective call of torch, since Lightning writes one rank's.

    Args:
        recipe: what :class:`~laneway.Loader` takes.
        microbatch_size: rows of a batch.
        server: the name of the node's server that makes the batches (:class:`~laneway.NodeLoader`); None: each rank's process makes its own.
        options: tuning of the loader, and ``functions``; with ``server`` what a :class:`~laneway.NodeLoader` takes, such as ``start=True``.
    """

    def __init__(self, recipe: Any, *, microbatch_size: int, server: str | None = None, **options: Any) -> None:
        super().__init__()
        self.recipe = Recipe.of(recipe)
        self.microbatch_size, self.server, self.options = microbatch_size, server, options
        self._batches: _Batches | None = None
        self._place: dict[str, Any] | None = None  # to start from, while no loader is open

    def train_dataloader(self) -> Any:
        """This rank's batches, from where they were left.

        Raises:
            InvalidArgument: the trainer is set to something else than the recipe gives: what, and what to set.
            NotFound: the checkpoint has no state of the loader.
            Refused: it is of another recipe, tokenizer or data: names the field.
        """
        trainer = self.trainer
        self._leave()
        if trainer.global_step > 0 and self._place is None:
            raise NotFound(
                f"the trainer is at step {trainer.global_step}, but its checkpoint has no state of a {type(self).__name__}: it was saved without one; start from the "
                "beginning, or from a checkpoint that has it"
            )
        replicas = trainer.distributed_sampler_kwargs or {"rank": 0, "num_replicas": 1}
        rank, ranks = replicas["rank"], replicas["num_replicas"]
        loader = open_loader(self.recipe, rank, ranks, microbatch_size=self.microbatch_size, server=self.server, **self.options)
        if self._place is not None:
            loader.load_state_dict(self._place)
        check_trainer(
            loader,
            rank=rank,
            ranks=ranks,
            microbatch_size=self.microbatch_size,
            accumulation=trainer.accumulate_grad_batches,
            names=("the trainer", "microbatch_size", "accumulate_grad_batches"),
        )
        if trainer.max_steps <= 0 and loader.steps is None:
            raise InvalidArgument("max_steps is not set, and the recipe's stream has no end: set max_steps, or `exhausted` to another than \"repeat\"")
        self._batches = _Batches(loader)
        return self._batches

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Counts what the model is given; Lightning fetches ahead of it."""
        if self._batches is not None and self.trainer.training:
            self._batches.used += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The states of all ranks' loaders, merged; every rank calls this at once."""
        mine = self._place if self._batches is None else self._batches.state_dict()
        if mine is None:
            return {}
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return mine
        states: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(states, mine)
        return {"meta": mine["meta"], "lanes": {lane: entry for state in states for lane, entry in state["lanes"].items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Kept until the loader is opened."""
        self._place = state_dict or None

    def teardown(self, stage: str) -> None:
        """Ends the loader's threads. The place is kept, for another ``fit``."""
        self._leave()

    def _leave(self) -> None:
        if self._batches is not None:
            self._place = self._batches.state_dict()
            self._batches.loader.close()
            self._batches = None


class _Batches:
    """What Lightning iterates. It fetches one batch more than it has used, so the places before the last fetches are kept."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.used = self._made = 0
        self._places: dict[int, dict[str, Any]] = {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            self._places = {made: place for made, place in self._places.items() if made >= self.used}
            self._places[self._made] = self.loader.state_dict()
            batch = self.loader.next()
            if batch is None:
                return
            self._made += 1
            yield {**{name: batch[name] for name in batch.keys()}, "num_valid_tokens": batch.num_valid_tokens}

    def state_dict(self) -> dict[str, Any]:
        """The place after the batches that the model was given."""
        return self.loader.state_dict() if self.used == self._made else self._places[self.used]
