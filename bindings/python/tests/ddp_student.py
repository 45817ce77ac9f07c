"""One rank of the torchrun test: trains nothing, but checks every word that it is given and writes what it saw."""

import json
import os
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from peers import CONFIG, expected

from laneway import DistillIterableDataset, StudentClient
from laneway.torch import DataLoader

BATCHES = 50

rank = int(os.environ["RANK"])
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1024, 1))

client = StudentClient(student_rank=rank, slot_count=8, batch_config=CONFIG)
client.hello()
if rank == 0:
    client.set_model("m1")
else:
    client.start_sub_listener()
dist.barrier()

dataset = DistillIterableDataset(rank, client.generation_value, 8, CONFIG)
report = {"stale": 0, "mixed": 0, "wrong": 0, "generations": [], "steps": {}}
batches = iter(DataLoader(dataset, batch_size=4, num_workers=2))
for i in range(BATCHES):
    asked_at = client.generation
    batch = next(batches)
    generations = set(batch["ticket"][:, 2].tolist())
    report["mixed"] += len(generations) > 1
    report["stale"] += min(generations) < asked_at
    for (lane, step, generation, _), x in zip(batch["ticket"].tolist(), batch["x"].numpy(), strict=True):
        report["wrong"] += not np.array_equal(x, expected(lane, step, generation))
        report["steps"].setdefault(lane, []).append(step)
    report["generations"] = sorted({*report["generations"], *generations})
    model(batch["x"]).sum().backward()
    # Every 20 samples, while the other rank may be in the middle of a batch.
    if rank == 0 and i % 5 == 4 and i < BATCHES - 1:
        client.set_model(f"m{i}")

with open(os.path.join(sys.argv[1], f"rank{rank}.json"), "w") as file:
    json.dump(report, file)
client.close()
dist.barrier()
dist.destroy_process_group()
# torch's threads let go of the last sums a moment later, for which they need Python: a rank whose interpreter ends meanwhile is aborted.
time.sleep(0.5)
