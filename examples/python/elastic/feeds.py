"""Two loaders under one interface. A feed gives a rank its rows of every global batch, and says where it stands.

Rows are (count, length) int64, labels -100 where none counts.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from laneway import Loader
from torch import Tensor
from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from .corpus import END_OF_TEXT, SEED

Rows = tuple[Tensor, Tensor]
"""`input_ids` and `labels`."""


class Feed(Protocol):
    """What the training loop knows of a loader."""

    def next(self) -> Rows: ...

    def state_dict(self) -> dict[str, Any]: ...

    def resume(self, states: list[dict[str, Any]]) -> None:
        """Go on from the states of all ranks of the run that saved them, however many they were."""


class LanewayFeed:
    """Laneway's loader."""

    def __init__(self, data: Path, rank: int, ranks: int, length: int, global_batch: int) -> None:
        # One thread: the ranks share a machine, and the model is what takes the time.
        self._loader = Loader(data / "recipe.toml", rank, ranks, threads=1, cache_dir=data / "index")

    def next(self) -> Rows:
        batch = next(self._loader)
        return batch.input_ids, batch.labels

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def resume(self, states: list[dict[str, Any]]) -> None:
        self._loader.load_state_dict(states)


class StandardFeed:
    """A loader as they are commonly written: each rank takes every n-th document, tokenizes it, fills rows, and keeps its place and what is left
    over in its checkpoint, through torchdata's StatefulDataLoader.

    It resumes exactly on as many ranks. On another number there is no right answer, since each state belongs to a share of documents that
    no longer exists: a rank takes the state that has its number, and one that finds none begins anew.
    """

    def __init__(self, data: Path, rank: int, ranks: int, length: int, global_batch: int) -> None:
        self._rank = rank
        self._loader = StatefulDataLoader(PackedText(data, rank, ranks, length), batch_size=global_batch // ranks)
        self._batches: Iterator[Rows] | None = None

    def next(self) -> Rows:
        if self._batches is None:
            self._batches = iter(self._loader)
        return next(self._batches)

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def resume(self, states: list[dict[str, Any]]) -> None:
        if self._rank < len(states):
            self._loader.load_state_dict(states[self._rank])


class PackedText(IterableDataset[Rows]):
    """This rank's documents, shuffled anew for each epoch, end to end, cut into rows."""

    def __init__(self, data: Path, rank: int, ranks: int, length: int) -> None:
        from tokenizers import Tokenizer

        self._texts = [json.loads(line)["text"] for name in ("reference", "library") for line in open(data / f"{name}.jsonl", encoding="utf-8")]
        self._tokenizer = Tokenizer.from_file(str(data / "tokenizer.json"))
        self._end = self._tokenizer.token_to_id(END_OF_TEXT)
        self._rank, self._ranks, self._length = rank, ranks, length
        self._taken = 0  # documents
        self._left: list[int] = []  # tokens of the last one that are in no row yet

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self._taken, "left": list(self._left)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._taken, self._left = state["taken"], list(state["left"])

    def __iter__(self) -> Iterator[Rows]:
        while True:
            while len(self._left) <= self._length:
                self._left += self._tokenizer.encode(self._texts[self._document()], add_special_tokens=False).ids + [self._end]
                self._taken += 1
            row, self._left = self._left[: self._length + 1], self._left[self._length :]
            yield torch.tensor(row[:-1]), torch.tensor(row[1:])

    def _document(self) -> int:
        epoch, place = divmod(self._taken * self._ranks + self._rank, len(self._texts))
        order = list(range(len(self._texts)))
        random.Random(SEED + epoch).shuffle(order)
        return order[place]


FEEDS = {"laneway": LanewayFeed, "standard": StandardFeed}
