"""torch's DataLoader with two workers, whose dataset makes each sample anew (``torch.full``) and whose default collation stacks them."""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Iterator
from typing import Any

import torch
from harness.serve import CONSTANT, end_with_parent, serve, touch
from torch.utils.data import DataLoader, IterableDataset


class Constant(IterableDataset[dict[str, torch.Tensor]]):
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        while True:
            yield {"x": torch.full((self.nbytes,), CONSTANT, dtype=torch.uint8)}


def main() -> None:
    end_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    loader: Any = DataLoader(
        Constant(options.bytes), batch_size=options.batch, num_workers=2, multiprocessing_context="fork", worker_init_fn=lambda _: end_with_parent()
    )
    batches = iter(loader)

    def take() -> int:
        batch = next(batches)["x"].numpy()
        for sample in batch:
            touch(sample)
        return len(batch)

    take()
    workers = {f"worker {i}": child.pid for i, child in enumerate(multiprocessing.active_children())}
    serve({"student": os.getpid(), **workers}, take, ahead=4 * options.batch)
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
