"""`tokenizers` 0.23 from Python, alone, on one thread: what the other Python loaders are bound by. Counts tokens."""

from __future__ import annotations

import argparse
import json
import os
from itertools import cycle
from pathlib import Path

from harness.serve import end_with_parent, serve
from tokenizers import Tokenizer


def main() -> None:
    end_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokenizer", required=True)
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(options.tokenizer)
    lines = (line for path in sorted(options.data.glob("*.jsonl")) for line in path.open())
    texts = cycle([json.loads(line)["text"] for line in lines])

    def take() -> int:
        return len(tokenizer.encode(next(texts), add_special_tokens=False).ids)

    serve({"loader": os.getpid()}, take)


if __name__ == "__main__":
    main()
