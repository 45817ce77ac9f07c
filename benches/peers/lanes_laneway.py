"""Laneway's loader from Python: ids and labels of each batch as NumPy arrays. Counts tokens."""

from __future__ import annotations

import argparse
import os

from harness.serve import end_with_parent, serve

from laneway import Loader


def main() -> None:
    end_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--microbatch", type=int)
    options = parser.parse_args()
    loader = Loader(options.recipe, threads=options.threads, microbatch_size=options.microbatch, framework="numpy", progress=None)

    def take() -> int:
        batch = next(loader)
        assert batch.input_ids.shape == batch.labels.shape
        return batch.num_tokens

    take()
    serve({"loader": os.getpid()}, take)


if __name__ == "__main__":
    main()
