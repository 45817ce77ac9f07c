#!/usr/bin/env python3
"""TorchTitan's own trainer with Laneway's data loader on a GPU: its small Llama 3 is trained on 2 ranks, then 1, then 4, through its checkpoints.

    python gpu_smoke.py [folder]      needs torchtitan with all that its trainer imports, and a GPU

All ranks share the first GPU, over gloo. Global batches are compared with those of a run that stays on two ranks; the exit status is 1 if one is another.
This has not been run yet: it was written without a GPU at hand. `elastic_resume.py` is what runs, on CPUs.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

LENGTH, GLOBAL_BATCH, LOCAL_BATCH, STEPS = 256, 16, 4, 12


def make_config(folder: Path, data: Path, ranks: int, until: int) -> Any:
    """TorchTitan's configuration of its debug model, on Laneway's data."""
    from laneway.torchtitan import LanewayDataLoader, check_config
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    config = llama3_debugmodel()
    config.dump_folder = str(folder)
    config.hf_assets_path = str(data)
    config.dataloader = LanewayDataLoader.Config(recipe=str(data / "recipe.toml"))
    config.training.seq_len = LENGTH
    config.training.local_batch_size = LOCAL_BATCH
    config.training.global_batch_size = GLOBAL_BATCH
    config.training.steps = until
    config.training.disable_cuda_graphs = True
    config.lr_scheduler.total_steps = STEPS
    # Replicas only: gloo can add up tensors of a GPU, but not gather them.
    config.parallelism.data_parallel_replicate_degree = ranks
    config.parallelism.data_parallel_shard_degree = 1
    config.checkpoint.enable = True
    config.checkpoint.interval = 4
    config.checkpoint.last_save_model_only = False
    config.validator.enable = False
    check_config(config)
    return config


def run_rank(folder: Path, data: Path, until: int) -> None:
    """One rank: TorchTitan's trainer, whose batches are written down."""
    import torch
    import torch.distributed as dist
    from distill.events import Events
    from elastic.corpus import prepare
    from elastic.train import row_hashes
    from torchtitan.trainer import Trainer

    class Recorded(Trainer):
        rows: list[str] = []
        loss = torch.zeros(())
        events: Events | None = None

        def batch_generator(self, data_iterable: Any) -> Iterator[Any]:
            self.events = Events(folder / f"{self.step}-to-{until}" / f"rank-{dist.get_rank()}.jsonl", fresh=True)
            for inputs, labels in super().batch_generator(data_iterable):
                self.rows += row_hashes(inputs["input"], labels)
                yield inputs, labels

        def forward_backward_step(self, **arguments: Any) -> torch.Tensor:
            loss = super().forward_backward_step(**arguments)
            self.loss = self.loss + loss.detach().cpu()  # of this rank's labels, divided by all ranks' labels of the step
            return loss

        def train_step(self, data_iterator: Any) -> None:
            super().train_step(data_iterator)
            dist.all_reduce(self.loss)
            assert self.events
            self.events.write("step", step=self.step - 1, loss=self.loss.item(), rows=self.rows)
            self.rows, self.loss = [], torch.zeros(())

    # TorchTitan takes the process group that it finds; its own would be NCCL's, which refuses two ranks on one GPU.
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        prepare(data, LENGTH, GLOBAL_BATCH)
    dist.barrier()
    trainer = Recorded(make_config(folder, data, dist.get_world_size(), until))
    trainer.train()
    trainer.close()
    dist.barrier()  # none leaves while another still talks to it
    dist.destroy_process_group()


def main() -> int:
    if "LOCAL_RANK" in os.environ:
        folder, data, until = Path(sys.argv[1]), Path(sys.argv[3]), int(sys.argv[5])
        run_rank(folder, data, until)
        return 0
    import torch
    from elastic_resume import play

    if not torch.cuda.is_available():
        print("gpu_smoke: torch sees no GPU here; nothing was tried", file=sys.stderr)
        return 2
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return play(Path(sys.argv[1] if len(sys.argv) > 1 else "titan-gpu").resolve(), HERE / "gpu_smoke.py")


if __name__ == "__main__":
    sys.exit(main())
