"""What the adapters share: batches in other forms, checks of a trainer's settings against the loader's, and states beside a framework's checkpoint."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .._training import _positions, _starts
from ..batch import Batch
from ..errors import InvalidArgument, NotFound
from ..loader import Loader
from ..node_loader import NodeLoader

_FILE = re.compile(r"laneway-(\d+)-of-(\d+)\.json")


def open_loader(recipe: Any, rank: int, ranks: int, *, microbatch_size: int, server: str | None, **options: Any) -> Loader:
    """A data-parallel rank's loader: of this process, or with ``server`` a :class:`~laneway.NodeLoader` of the node's server of that name. ``peers`` is counted
    unless it is given, for which all processes of the job must be here."""
    if server is None:
        return Loader(recipe, rank, ranks, microbatch_size=microbatch_size, **options)
    if options.get("peers") is None:
        options["peers"] = _local_peers(rank)
    return NodeLoader(recipe, rank, ranks, name=server, microbatch_size=microbatch_size, **options)


def _local_peers(rank: int) -> int:
    """How many processes of this node are of this data-parallel rank: one, and its tensor-, pipeline- and context-parallel peers."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    mine = (socket.gethostname(), os.environ.get("LANEWAY_DIR"), rank)
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found.count(mine)


def unshifted_labels(batch: Batch) -> torch.Tensor:
    """Labels for models that shift them themselves: each counting label stands at its own token's place. Nothing is lost, since a row's last position never
    has one. A copy, rows × length."""
    labels = batch.labels
    moved = torch.full_like(labels, -100)
    moved[:, 1:] = labels[:, :-1]
    return moved


def piece_positions(batch: Batch) -> torch.Tensor:
    """Positions that start at 0 in every piece of a document, so that none exceeds the row's length, and every start shows where attention ends. A copy."""
    return torch.from_numpy(_positions(_starts(batch)))


def check_trainer(loader: Loader, *, rank: int, ranks: int, microbatch_size: int, accumulation: int, names: tuple[str, str, str]) -> None:
    """Compares what a trainer is set to with what the loader gives.

    Args:
        rank, ranks: of data parallelism.
        microbatch_size, accumulation: rows that the trainer takes at once, and how many times before a step.
        names: the trainer's words for number of ranks, microbatch size and accumulation.

    Raises:
        InvalidArgument: what differs, with both numbers and what to set.
    """
    of_ranks, of_size, of_accumulation = names
    if (sizes := loader.recipe.fields()["batch.global_batch"]).startswith("["):
        raise InvalidArgument(f"the recipe's global_batch is a schedule, {sizes}, but this trainer takes as many batches at every step: use one number")
    if (loader.rank, loader.ranks) != (rank, ranks):
        raise InvalidArgument(f"the loader is rank {loader.rank} of {loader.ranks}, but {of_ranks} makes this rank {rank} of {ranks}: open it with rank={rank}, ranks={ranks}")
    info = loader.info
    rows, size = info["rows"], info["microbatch_size"]
    if size != microbatch_size:
        raise InvalidArgument(f"the loader's microbatches have {size} rows, but {of_size} is {microbatch_size}: open it with microbatch_size={microbatch_size}")
    if info["microbatches"] != accumulation:
        raise InvalidArgument(
            f"a step of the recipe has {info['global_batch']} rows, {rows} of them this rank's: {info['microbatches']} microbatches of {size}, but {of_accumulation} is "
            f"{accumulation}: set it to {info['microbatches']}"
        )


def save_state(folder: str | os.PathLike[str], loader: Loader) -> Path:
    """Writes this rank's state into a folder that all ranks share, whole or not at all."""
    path = Path(folder, f"laneway-{loader.rank}-of-{loader.ranks}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(loader.state_dict()))
    os.replace(unfinished, path)
    if loader.rank == 0:  # what an earlier run of the same steps on another number of ranks has left there
        for other, ranks in _states(folder):
            if ranks != loader.ranks:
                other.unlink(missing_ok=True)
    return path


def read_states(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The states of all ranks that :func:`save_state` wrote into a folder, however many there were.

    Raises:
        NotFound: there are none, or not all ranks' are there.
    """
    found = _states(folder)
    counts = {ranks for _, ranks in found}
    if not found:
        raise NotFound(f"{os.fspath(folder)} has no laneway-*.json: it was saved without Laneway's loader, or before that wrote its state; choose an older checkpoint")
    if len(counts) > 1 or len(found) != min(counts):
        names = ", ".join(sorted(path.name for path, _ in found))
        raise NotFound(f"{os.fspath(folder)} has {names}: expected the files of all ranks of one save; is it on a file system that all ranks share?")
    return [json.loads(path.read_text()) for path, _ in found]


def _states(folder: str | os.PathLike[str]) -> list[tuple[Path, int]]:
    files = sorted(Path(folder).glob("laneway-*-of-*.json"))
    return [(path, int(match[2])) for path in files if (match := _FILE.fullmatch(path.name))]
