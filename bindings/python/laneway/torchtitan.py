"""TorchTitan on Laneway's batches: a data loader for its configuration, whose place is in TorchTitan's own checkpoints and may be resumed on other ranks.

In the function that makes the ``Trainer.Config``::

    from laneway.torchtitan import LanewayDataLoader, check_config

    config = llama3_debugmodel()
    config.dataloader = LanewayDataLoader.Config(recipe="recipe.toml")
    config.training.seq_len = 2048             # the recipe's pack.max_length
    config.training.global_batch_size = 64     # the recipe's batch.global_batch
    check_config(config)
    return config

Written for torchtitan 0.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torchtitan.components.dataloader import BaseDataLoader

from ._functions import Function
from .errors import InvalidArgument
from .integrations._common import open_loader, piece_positions
from .loader import Loader
from .recipe import Recipe

__all__ = ["LanewayDataLoader", "check_config"]


class LanewayDataLoader(BaseDataLoader):  # type: ignore[misc]
    """Yields ``({"input": ids, "positions": positions}, labels)``, each ``local_batch_size × seq_len`` int64 on the CPU.

    Labels are shifted, −100 where none counts; positions start at 0 in every piece of a document, by which masked attention keeps documents apart. All processes of one
    data-parallel rank (its tensor-, pipeline- and context-parallel peers) get the same batches; with ``server`` those of a node read the same memory, which one process
    writes once for all.

    The state in a checkpoint has an entry for each lane. A run may resume on any number of data-parallel ranks that divides the lanes, with
    ``training.global_batch_size`` unchanged.

    Args:
        config: see :class:`Config`.
        dp_world_size, dp_rank, tokenizer, seq_len, local_batch_size, snapshot_every_n_steps: what TorchTitan's trainer gives.

    Raises:
        InvalidArgument: what TorchTitan is set to is not what the recipe gives: ranks that do not divide the lanes, a batch size that does not divide a rank's rows, another
            row length, another tokenizer, a global batch that changes on the way.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        """``recipe`` says everything about the data; the rest is tuning and changes no byte. ``dataset`` and ``dataset_path`` must stay unset."""

        recipe: str = ""
        """Path of the recipe, a TOML file."""

        server: str | None = None
        """The name of the node's server that makes the batches, as of :class:`~laneway.NodeLoader`; None: each process makes its own."""

        start_server: bool = False
        """Start that server, unless one of its name runs; it ends 10 s after the last process that reads from it."""

        threads: int | None = None
        """That read and make tokens; None: one a processor. Like what follows, of the server where ``start_server`` starts one; one that runs already keeps its own, and without ``start_server`` it is an error beside ``server``."""

        prefetch: int | None = None
        """Steps made ahead; None: one."""

        cache_dir: str | None = None
        """Where indexes and token counts are kept; None: beside the data."""

    functions: Iterable[Function] | Mapping[str, Any] = ()
    """The functions that the recipe names, as :class:`~laneway.Loader` takes them. A subclass sets them; it declares a ``Config`` of its own, derived from this
    one, by which TorchTitan finds it. A server brings its own (:class:`~laneway.Server`)."""

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        tokenizer: Any,
        seq_len: int,
        local_batch_size: int,
        snapshot_every_n_steps: int | None = None,
    ) -> None:
        recipe = _recipe_of(config)
        _check_rows(recipe, seq_len)
        _check_ranks(recipe, dp_world_size, local_batch_size)
        manner = {"functions": self.functions} if config.server is None else {"start": config.start_server}
        self.loader = open_loader(
            recipe,
            dp_rank,
            dp_world_size,
            microbatch_size=local_batch_size,
            server=config.server,
            **{name: value for name in ("threads", "prefetch", "cache_dir") if (value := getattr(config, name)) is not None},
            **manner,
        )
        _check_tokenizer(self.loader, tokenizer)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for batch in self.loader:
            yield {"input": batch.input_ids, "positions": piece_positions(batch)}, batch.labels

    def state_dict(self) -> dict[str, Any]:
        """The loader's.

        Raises:
            InvalidArgument: the trainer has taken some of a step's rows only, so its step is not the recipe's."""
        state = self.loader.state_dict()
        if state["meta"]["within"] is not None:
            info = self.loader.info
            raise InvalidArgument(
                f"a checkpoint is asked for within step {info['step']} of the recipe: training.global_batch_size is not the recipe's global_batch, "
                f"{info['global_batch']}; set it to that (laneway.torchtitan.check_config says so at start-up)"
            )
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a checkpoint of any number of ranks; nothing if it is empty.

        Raises:
            Refused: it is of another recipe, tokenizer or data: names the field."""
        if state_dict:
            self.loader.load_state_dict(state_dict)

    def close(self) -> None:
        """Ends the loader's threads."""
        self.loader.close()


def check_config(config: Any) -> None:
    """Compares a ``Trainer.Config`` that has a :class:`LanewayDataLoader.Config` with its recipe, before anything is started. Ranks and tokenizer, which it does
    not tell, are checked when the trainer makes the data loader.

    Raises:
        InvalidArgument: what differs, and what to set.
    """
    if not isinstance(config.dataloader, LanewayDataLoader.Config):
        raise InvalidArgument(f"dataloader is a {type(config.dataloader).__qualname__}; expected a LanewayDataLoader.Config")
    recipe = _recipe_of(config.dataloader)
    training = config.training
    _check_rows(recipe, training.seq_len)
    rows = _global_batch(recipe)
    if training.global_batch_size != rows:
        is_now = "not set, so it would change with the number of ranks" if training.global_batch_size < 0 else training.global_batch_size
        raise InvalidArgument(f"training.global_batch_size is {is_now}; set it to the recipe's global_batch, {rows}")
    if rows % training.local_batch_size:
        raise InvalidArgument(
            f"training.local_batch_size is {training.local_batch_size}, which does not divide the recipe's global_batch, {rows}; use one of {_divisors(rows)}"
        )


def _recipe_of(config: LanewayDataLoader.Config) -> Recipe:
    for name in ("dataset", "dataset_path"):
        if getattr(config, name):
            raise InvalidArgument(f"dataloader.{name} is {getattr(config, name)!r}, but the recipe names the data: leave it out")
    if config.start_server and config.server is None:
        raise InvalidArgument("dataloader.start_server is set, but dataloader.server, the name of the server to be started, is not")
    if not config.recipe:
        raise InvalidArgument("dataloader.recipe is not set; it is the path of a recipe, a TOML file")
    return Recipe.load(config.recipe)


def _check_rows(recipe: Recipe, seq_len: int) -> None:
    length = int(recipe.fields()["pack.max_length"])
    if length != seq_len:
        raise InvalidArgument(f"training.seq_len is {seq_len}, but the recipe's rows have {length} tokens (pack.max_length): set one to the other")
    _global_batch(recipe)


def _check_ranks(recipe: Recipe, ranks: int, local_batch_size: int) -> None:
    """Uneven ranks would end steps with masked rows, of which TorchTitan's metrics know nothing."""
    lanes = int(recipe.fields()["batch.lanes"])
    if lanes % ranks:
        raise InvalidArgument(
            f"{ranks} data-parallel ranks do not divide the recipe's {lanes} lanes; let data_parallel_replicate_degree times data_parallel_shard_degree be one of "
            f"{_divisors(lanes)}"
        )
    rows = _global_batch(recipe) // ranks
    if rows % local_batch_size:
        raise InvalidArgument(
            f"training.local_batch_size is {local_batch_size}, which does not divide the {rows} rows of a step that each of {ranks} data-parallel ranks takes; use one of "
            f"{_divisors(rows)}"
        )


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _global_batch(recipe: Recipe) -> int:
    rows = recipe.fields()["batch.global_batch"]
    if rows.startswith("["):
        raise InvalidArgument(f"the recipe's global_batch is a schedule, {rows}, but TorchTitan takes as many batches at every step: use one number")
    return int(rows)


def _check_tokenizer(loader: Loader, tokenizer: Any) -> None:
    """That both spell the ids of the vocabulary alike: of all, or of four thousand spread over it."""
    mine = loader.info["tokenizer"]
    size, theirs = mine["vocab_size"], tokenizer.get_vocab_size()
    where = f"the recipe's tokenizer ({mine['path']})"
    if size != theirs:
        raise InvalidArgument(f"TorchTitan's tokenizer has {theirs} ids, {where} has {size}: let hf_assets_path be a folder with the same tokenizer.json")
    for token in range(0, size, max(1, size // 4096)):
        a, b = tokenizer.decode([token], skip_special_tokens=False), loader.decode([token])
        if a != b:
            raise InvalidArgument(f"id {token} is {a!r} to TorchTitan's tokenizer, and {b!r} to {where}: let hf_assets_path be a folder with the same tokenizer.json")
