#!/usr/bin/env python3
"""Train a small language model, stop, and go on with another number of ranks on exactly the same batches.

    torchrun --nproc-per-node 2 elastic_train.py run                          60 steps, with a checkpoint at step 30
    torchrun --nproc-per-node 4 elastic_train.py again --resume run           steps 30 to 59 again, on four ranks
    torchrun --nproc-per-node 1 elastic_train.py last --resume run --loader standard

Each rank writes `rank-N.jsonl` in the run's folder: of every step the loss and the hashes of its rows. `make demo` runs all combinations, compares them
and draws a picture. The text comes with Python; the model is trained on CPUs.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from elastic.corpus import prepare
from elastic.feeds import FEEDS
from elastic.leave import leave
from elastic.train import Run, Sizes, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the run's logs and checkpoint go")
    parser.add_argument("--resume", type=Path, help="the folder of the run whose checkpoint is gone on from")
    parser.add_argument("--loader", choices=FEEDS, default="laneway")
    parser.add_argument("--data", type=Path, default=Path("elastic-data"), help="where text, tokenizer and recipe are, or are made")
    Sizes.add_options(parser)
    options = parser.parse_args()
    sizes = Sizes.of(options)

    torch.set_num_threads(max(1, torch.get_num_threads() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        prepare(options.data, sizes.length, sizes.global_batch)
        options.folder.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    train(Run(options.loader, ranks, options.folder, options.data, sizes, options.resume), rank)
    leave()


if __name__ == "__main__":
    main()
