#!/usr/bin/env python3
"""TorchTitan's own trainer with Laneway's data loader: its small Llama 3 is trained on 2 ranks, then 1, then 4, through its checkpoints.

    python gpu_smoke.py [folder]                        needs torchtitan with all that its trainer imports, and a GPU
    python gpu_smoke.py [folder] --device cpu           the same trainer on CPUs, without kernels of its own (on_cpu.py)
    python gpu_smoke.py [folder] --server titan         one process makes the batches of all ranks

All ranks share the first GPU, over gloo; of the four, each two split the model's tensors between them. Global batches are compared with those of a run that stays
on two ranks; the exit status is 1 if one is another. On a GPU this has not been run yet: there was none at hand. The tests run it on CPUs.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

LENGTH, GLOBAL_BATCH, LOCAL_BATCH, STEPS, EVERY = 256, 16, 4, 12, 4
TENSOR_PARALLEL = {4: 2}  # for that many processes


def make_config(folder: Path, data: Path, processes: int, until: int, device: str = "cuda", server: str | None = None) -> Any:
    """TorchTitan's configuration of its debug model, on Laneway's data."""
    from laneway.torchtitan import LanewayDataLoader, check_config
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    config = llama3_debugmodel()
    config.dump_folder = str(folder)
    config.hf_assets_path = str(data)
    config.dataloader = LanewayDataLoader.Config(recipe=str(data / "recipe.toml"), server=server, start_server=server is not None)
    config.training.seq_len = LENGTH
    config.training.local_batch_size = LOCAL_BATCH
    config.training.global_batch_size = GLOBAL_BATCH
    config.training.steps = until
    config.training.disable_cuda_graphs = True
    config.lr_scheduler.total_steps = STEPS
    # Replicas only: gloo can add up tensors of a GPU, but not gather them.
    config.parallelism.tensor_parallel_degree = TENSOR_PARALLEL.get(processes, 1)
    config.parallelism.data_parallel_replicate_degree = processes // config.parallelism.tensor_parallel_degree
    config.parallelism.data_parallel_shard_degree = 1
    config.checkpoint.enable = True
    config.checkpoint.interval = EVERY
    config.checkpoint.last_save_model_only = False
    config.validator.enable = False
    if device == "cpu":
        from on_cpu import give_attention

        give_attention(config.model_spec.model)
        config.training.mixed_precision_param = "float32"
    check_config(config)
    return config


def run_rank(folder: Path, config: Any) -> None:
    """One rank: TorchTitan's trainer, whose batches are written down. The process group is there already."""
    import torch
    import torch.distributed as dist
    from distill.events import Events
    from elastic.train import row_hashes
    from torchtitan.trainer import Trainer

    class Recorded(Trainer):
        rows: list[str] = []
        loss = torch.zeros(())
        events: Events | None = None

        def batch_generator(self, data_iterable: Any) -> Iterator[Any]:
            self.events = self.open_events()
            for inputs, labels in super().batch_generator(data_iterable):
                self.rows += row_hashes(inputs["input"], labels)
                yield inputs, labels

        def open_events(self) -> Events | None:
            """Of those that have the same rows, one writes them down."""
            peers, replicas = self.parallel_dims.get_optional_mesh("tp"), self.parallel_dims.get_optional_mesh("batch")
            if peers is not None and peers.get_local_rank():
                return None
            rank = 0 if replicas is None else replicas.get_local_rank()
            return Events(folder / f"{self.step - 1}-to-{config.training.steps}" / f"rank-{rank}.jsonl", fresh=True)

        def forward_backward_step(self, **arguments: Any) -> torch.Tensor:
            loss = super().forward_backward_step(**arguments)
            self.loss = self.loss + loss.detach().cpu()  # of this rank's labels, divided by all ranks' labels of the step
            return loss

        def train_step(self, data_iterator: Any) -> None:
            super().train_step(data_iterator)
            dist.all_reduce(self.loss)
            if self.events:
                self.events.write("step", step=self.step - 1, loss=self.loss.item() / self.parallel_dims.tp, rows=self.rows)
            self.rows, self.loss = [], torch.zeros(())

    trainer = Recorded(config)
    trainer.train()
    trainer.close()
    trainer.dataloader.close()


def rank_of(options: argparse.Namespace) -> None:
    """What torchrun starts."""
    if options.device == "cpu":
        from on_cpu import use_cpu

        use_cpu()
    import torch
    import torch.distributed as dist
    from elastic.corpus import prepare

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # TorchTitan takes the process group that it finds; its own would be NCCL's, which refuses two ranks on one GPU.
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        prepare(options.data, LENGTH, GLOBAL_BATCH)
    dist.barrier()
    run_rank(options.folder, make_config(options.folder, options.data, dist.get_world_size(), options.until, options.device, options.server))
    dist.barrier()  # none leaves while another still talks to it
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("titan-smoke"), help="of the runs: logs and checkpoints")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--server", help="let one process of this name make the batches of all ranks; the first rank starts it")
    parser.add_argument("--data", type=Path, help="of a rank: where text, tokenizer and recipe are, or are made")
    parser.add_argument("--until", type=int, help="of a rank: the step to stop before")
    options = parser.parse_args()
    if "LOCAL_RANK" in os.environ:
        rank_of(options)
        return 0
    import torch
    from elastic_resume import play

    given = ["--device", options.device, *(["--server", options.server] if options.server else [])]
    if options.device == "cuda":
        if not torch.cuda.is_available():
            print("gpu_smoke: torch sees no GPU here, and nothing was tried; --device cpu tries all but the GPU", file=sys.stderr)
            return 2
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return play(options.folder.resolve(), Path(__file__).resolve(), given)


if __name__ == "__main__":
    sys.exit(main())
