"""A loader as a torch dataset. Imported where torch is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, get_worker_info

from .batch import Batch
from .errors import Unsupported

if TYPE_CHECKING:
    from .loader import Loader
    from .pipeline import Pipeline


class LanesDataset(IterableDataset):  # type: ignore[misc,type-arg]
    """What ``Loader.to_torch_dataset()`` gives: yields :class:`~laneway.Batch` objects; has ``state_dict`` for torchdata's StatefulDataLoader."""

    def __init__(self, loader: Loader | Pipeline) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1 and self.loader._asks_teachers:
            raise Unsupported(
                f"DataLoader(num_workers={worker.num_workers}) of a recipe with a [generate]: the teachers are asked by one process a rank, in the order of its rows. "
                "Use num_workers=0: the loader has threads of its own and asks `prefetch` steps ahead, and the teachers are other processes already; "
                "or Loader(generate=False) for rows alone"
            )
        # DataLoader takes batches from workers in turn, so worker w has those from the w-th on, every n-th: the same order.
        return iter(self.loader) if worker is None else islice(self.loader, worker.id, None, worker.num_workers)

    def state_dict(self) -> dict[str, Any]:
        """The loader's."""
        self._in_main_process("save")
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The loader's."""
        self._in_main_process("load")
        self.loader.load_state_dict(state)

    def _in_main_process(self, what: str) -> None:
        if get_worker_info() is not None:
            raise Unsupported(f"a data worker cannot {what} the loader's state; use num_workers=0: the loader has threads of its own")
