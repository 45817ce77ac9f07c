"""Hugging Face's ``Trainer`` on Laneway's batches.

    from laneway import Loader
    from laneway.integrations.transformers import Trainer

    args = TrainingArguments("out", max_steps=1000, per_device_train_batch_size=8, gradient_accumulation_steps=4, save_steps=100)
    loader = Loader("recipe.toml", rank=args.process_index, ranks=args.world_size, microbatch_size=args.per_device_train_batch_size)
    Trainer(model=model, args=args, loader=loader).train(resume_from_checkpoint=True)

A checkpoint holds the state of each rank's loader beside what ``Trainer`` writes, and a run that resumes from it, on as many ranks or on others, goes on with the
same global batches. On others, set ``gradient_accumulation_steps`` so that a step stays the recipe's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from transformers.trainer_utils import get_last_checkpoint

from ..errors import InvalidArgument
from ..loader import Loader
from ._common import check_trainer, piece_positions, read_states, save_state, unshifted_labels

__all__ = ["Trainer"]


class Trainer(transformers.Trainer):  # type: ignore[misc]
    """``transformers.Trainer`` whose training batches are a :class:`~laneway.Loader`'s.

    A batch has ``input_ids``, ``labels`` and ``position_ids``, each ``per_device_train_batch_size × length``. Labels are not shifted, as models of this
    library expect, and positions start at 0 in every piece of a document, by which those models keep documents of a row apart where their attention
    supports it. Losses are divided by the labels that count over all ranks and microbatches of a step, as ``Trainer`` does by itself.

    Args:
        loader: this rank's, not open yet or at the place to start from. Its microbatch size and the recipe's step must be those of ``args``.
        kwargs: as of ``transformers.Trainer``, but for ``train_dataset`` and ``data_collator``, which would have no meaning.

    Raises:
        InvalidArgument: ``args`` ask for something else than the loader gives: what, and what to set.
    """

    def __init__(self, *, loader: Loader, **kwargs: Any) -> None:
        for name in ("train_dataset", "data_collator"):
            if kwargs.get(name) is not None:
                raise InvalidArgument(f"{name} is given, but the loader makes the batches: leave it out")
        super().__init__(**kwargs)
        args = self.args
        if args.dataloader_num_workers:
            raise InvalidArgument(f"dataloader_num_workers is {args.dataloader_num_workers}: set it to 0, the loader has threads of its own")
        if args.n_gpu > 1:
            raise InvalidArgument(f"this process would split batches over {args.n_gpu} GPUs: start a process for each with torchrun")
        started = int(os.environ.get("WORLD_SIZE", args.world_size))
        if started != args.world_size:
            raise InvalidArgument(
                f"torchrun started {started} processes, but TrainingArguments found {args.world_size}, so that each would train on its own: without GPUs set use_cpu=True"
            )
        if args.max_steps <= 0:
            raise InvalidArgument("max_steps is not set: a recipe counts steps, not epochs")
        check_trainer(
            loader,
            rank=args.process_index,
            ranks=args.world_size,
            microbatch_size=args.per_device_train_batch_size,
            accumulation=args.gradient_accumulation_steps,
            names=("the process group", "per_device_train_batch_size", "gradient_accumulation_steps"),
        )
        if loader.steps is not None and args.max_steps > loader.steps:
            raise InvalidArgument(f"max_steps is {args.max_steps}, but the recipe's stream ends after {loader.steps}: set it to that, or `exhausted` to \"repeat\"")
        # The loader goes to its place by itself; reading up to there would be the slow way.
        args.ignore_data_skip = True
        self.loader = loader
        self.add_callback(_SaveState(loader))

    def get_train_dataloader(self) -> Any:
        """The loader's batches, which are this rank's already, and so are not handed to accelerate."""
        return _Batches(self.loader)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As ``transformers.Trainer.train``; a checkpoint's loader states are loaded, too.

        Raises:
            NotFound: the checkpoint has no state of the loader.
            Refused: it is of another recipe, tokenizer or data: names the field.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir)
            if resume_from_checkpoint is None:
                raise InvalidArgument(f"{self.args.output_dir} has no checkpoint to resume from: leave resume_from_checkpoint out, or give a folder")
        if resume_from_checkpoint:
            self.loader.load_state_dict(read_states(resume_from_checkpoint))
        return super().train(resume_from_checkpoint, *args, **kwargs)


class _SaveState(transformers.TrainerCallback):  # type: ignore[misc]
    """Writes the loader's state into each checkpoint."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        save_state(os.path.join(args.output_dir, f"checkpoint-{state.global_step}"), self._loader)


class _Batches:
    """What ``Trainer`` iterates; it asks for the batches of a step when it starts the step, so the loader's place is the trainer's."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for batch in self._loader:
            yield {"input_ids": batch.input_ids, "labels": unshifted_labels(batch), "position_ids": piece_positions(batch)}
