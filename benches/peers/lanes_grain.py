"""grain 0.2.18: documents by their places in the files, `tokenizers` 0.23, its own packing, shuffle and batches, in one process. Counts tokens."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import grain
import grain.experimental
import numpy as np
from harness.serve import children, end_with_parent, serve
from tokenizers import Tokenizer


class Documents:
    """Lines of JSONL files, read one by one."""

    def __init__(self, folder: Path) -> None:
        self.files: list[int] = []
        self.places: list[tuple[int, int, int]] = []
        for path in sorted(folder.glob("*.jsonl")):
            self.files.append(os.open(path, os.O_RDONLY))
            at = 0
            with open(path, "rb") as lines:
                for line in lines:
                    self.places.append((self.files[-1], at, len(line)))
                    at += len(line)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> str:
        file, at, length = self.places[number]
        text: str = json.loads(os.pread(file, length, at))["text"]
        return text


def main() -> None:
    end_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokenizer", required=True)
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(options.tokenizer)
    end = tokenizer.token_to_id("<|endoftext|>")

    def encode(text: str) -> dict[str, np.ndarray]:
        return {"ids": np.array([*tokenizer.encode(text, add_special_tokens=False).ids, end], np.int32)}

    documents: Any = grain.MapDataset.source(Documents(options.data)).seed(42).shuffle().repeat().map(encode)
    rows = grain.experimental.ConcatThenSplitIterDataset(
        documents.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=16)),
        length_struct={"ids": 2048}, bos_handling=grain.experimental.BOSHandling.DO_NOTHING,
    )  # fmt: skip
    batches = iter(grain.experimental.WindowShuffleIterDataset(rows, window_size=1024, seed=42).batch(8))

    def take() -> int:
        return int(next(batches)["ids"].size)

    take()
    serve({"loader": os.getpid(), **children()}, take, between=True)
    os._exit(0)


if __name__ == "__main__":
    main()
