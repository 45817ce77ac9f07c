"""Megatron Core on Laneway's batches: a data iterator for its schedules, whose place is in its distributed checkpoints.

    from laneway.integrations.megatron import DataIterator

    data = DataIterator("recipe.toml")          # after initialize_model_parallel and init_num_microbatches_calculator
    forward_backward(forward_step_func=…, data_iterator=data, num_microbatches=get_num_microbatches(), …)

    state = {"model": model.sharded_state_dict(), "data": data.sharded_state_dict()}
    dist_checkpointing.save(state, folder)
    data.load_state_dict(dist_checkpointing.load(state, folder)["data"])     # on any number of data-parallel ranks

Written for megatron-core 0.16.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from megatron.core import num_microbatches_calculator, parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedObject

from ..batch import Batch
from ..errors import InvalidArgument
from ._common import check_trainer, open_loader, piece_positions

__all__ = ["DataIterator"]


class DataIterator:
    """Yields what a ``forward_step_func`` of Megatron's GPT takes from its iterator: a dict of

    - ``tokens``, ``labels``, ``position_ids``: int64, ``micro_batch_size × seq_length``. Labels are shifted; where none counts they are 0, and
      positions start at 0 in every piece of a document;
    - ``loss_mask``: float32, 1 where the label counts;
    - ``attention_mask``: with ``attention_mask=True`` bool, ``micro_batch_size × 1 × seq_length × seq_length``, True where a token must *not* look: ahead, and into
      other documents; else None.

    Ranks that share a data-parallel rank (its tensor-, pipeline- and context-parallel peers) get the same batches, so each may read its own, or one may read and
    broadcast, as Megatron's trainers do. With ``server`` those of a node read the same memory, which one process writes once for all.

    Args:
        recipe: what :class:`~laneway.Loader` takes.
        attention_mask: whether batches have one.
        server: the name of the node's server that makes the batches (:class:`~laneway.NodeLoader`); None: this process makes them.
        options: tuning of the loader, and ``functions``; with ``server`` what a :class:`~laneway.NodeLoader` takes, such as ``start=True``. ``peers`` is counted, with one
            collective call of torch in which every process takes part; where not all make an iterator, give it.

    Raises:
        InvalidArgument: Megatron's micro batch size or number of microbatches is not what the recipe gives: what to set. Global batches that ramp up are refused.
    """

    def __init__(self, recipe: Any, *, attention_mask: bool = False, server: str | None = None, **options: Any) -> None:
        rank, ranks = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
        size = num_microbatches_calculator.get_micro_batch_size()
        self.loader = open_loader(recipe, rank, ranks, microbatch_size=size, server=server, **options)
        check_trainer(
            self.loader,
            rank=rank,
            ranks=ranks,
            microbatch_size=size,
            accumulation=num_microbatches_calculator.get_num_microbatches(),
            names=("Megatron's data parallelism", "micro_batch_size", "the number of microbatches"),
        )
        self._with_mask = attention_mask

    def __iter__(self) -> DataIterator:
        return self

    def __next__(self) -> dict[str, Any]:
        batch = next(self.loader)
        return {
            "tokens": batch.input_ids,
            "labels": batch.labels.clamp(min=0),
            "loss_mask": batch.loss_mask.float(),
            "position_ids": piece_positions(batch),
            "attention_mask": _mask(batch) if self._with_mask else None,
        }

    def sharded_state_dict(self) -> dict[str, Any]:
        """The loader's state as Megatron's sharded objects: one a lane, and a description. To load a checkpoint, call this on an iterator of the same recipe for the
        ranks that there are now."""
        state = self.loader.state_dict()
        if state["meta"]["within"] is not None:
            raise InvalidArgument(f"a checkpoint is asked for within step {state['meta']['step']}: take all of a step's microbatches first")
        peer = (parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_context_parallel_rank())
        lanes = {lane: ShardedObject(f"laneway.lanes.{lane}", entry, (1,), (0,), replica_id=peer) for lane, entry in state["lanes"].items()}
        everywhere = (self.loader.rank, *peer)
        return {"meta": ShardedObject("laneway.meta", json.dumps(state["meta"]), (1,), (0,), replica_id=everywhere), "lanes": lanes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from what ``dist_checkpointing.load`` has put in the place of :meth:`sharded_state_dict`.

        Raises:
            Refused: it is of another recipe, tokenizer or data: names the field."""
        self.loader.load_state_dict({"meta": json.loads(state["meta"]), "lanes": state["lanes"]})


def _mask(batch: Batch) -> torch.Tensor:
    """True where a token of its row must not look."""
    segments = batch.segment_ids
    length = segments.shape[1]
    ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
    return (ahead | (segments[:, None, :] != segments[:, :, None]))[:, None]
