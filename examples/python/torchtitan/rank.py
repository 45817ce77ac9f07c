#!/usr/bin/env python3
"""One rank of TorchTitan's own trainer, on Laneway's data: its small Llama 3, its tokenizer, optimizer, schedule, loss and checkpoints.

    torchrun --nproc-per-node 2 rank.py out --until 4
    torchrun --nproc-per-node 1 rank.py out --until 8         goes on from the checkpoint in out/checkpoint, whoever made it

`elastic_resume.py` runs such a chain and checks it. All ranks share the first GPU, or with `--device cpu` have none; either way they talk over gloo.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

GLOBAL_BATCH, LOCAL_BATCH, LAYERS = 16, 2, 2
STEPS = 12  # of the whole run, which the learning rate follows


def make_config(folder: Path, data: Path, processes: int, options: argparse.Namespace) -> Any:
    """TorchTitan's configuration of its debug model, on Laneway's data."""
    from laneway.torchtitan import LanewayDataLoader, check_config
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    config = llama3_debugmodel()
    config.dump_folder = str(folder)
    config.hf_assets_path = str(data)
    config.dataloader = LanewayDataLoader.Config(recipe=str(data / "recipe.toml"), server=options.server, start_server=options.server is not None)
    config.training.seq_len = options.length
    config.training.local_batch_size = LOCAL_BATCH
    config.training.global_batch_size = GLOBAL_BATCH
    config.training.steps = options.until
    config.training.disable_cuda_graphs = True
    config.lr_scheduler.total_steps = STEPS
    config.parallelism.tensor_parallel_degree = options.tensor_parallel
    # Replicas, not shards: gloo can add up tensors of a GPU, but not gather them.
    config.parallelism.pipeline_parallel_degree = options.pipeline_parallel
    config.parallelism.data_parallel_replicate_degree = processes // options.tensor_parallel // options.pipeline_parallel
    config.parallelism.data_parallel_shard_degree = 1
    config.checkpoint.enable = True
    config.checkpoint.interval = options.save_every
    config.checkpoint.last_save_model_only = False
    config.validator.enable = False
    config.debug.seed = 0
    model = config.model_spec.model
    model.layers = model.layers[:LAYERS]
    if options.device == "cpu":
        from on_cpu import give_attention

        give_attention(model)
        config.training.mixed_precision_param = "float32"
    else:
        config.debug.deterministic, config.debug.deterministic_warn_only = True, True  # nor tunes kernels, which would take longer than the run
    check_config(config)
    return config


def run(folder: Path, config: Any, swap_rows_at: int | None = None) -> None:
    """TorchTitan's trainer, whose batches are written down. The process group is there already."""
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
                if self.step - 1 == swap_rows_at:
                    inputs, labels = {name: tensor.flip(0) for name, tensor in inputs.items()}, labels.flip(0)
                self.rows += row_hashes(inputs["input"], labels)
                yield inputs, labels

        def open_events(self) -> Events | None:
            """Of those that have the same rows, one writes them down."""
            peers = [self.parallel_dims.get_optional_mesh(name) for name in ("tp", "pp")]
            if any(mesh is not None and mesh.get_local_rank() for mesh in peers):
                return None
            rank = self.batch_rank()
            return Events(folder / f"{self.step - 1}-to-{config.training.steps}" / f"rank-{rank}.jsonl", fresh=True)

        def batch_rank(self) -> int:
            replicas = self.parallel_dims.get_optional_mesh("batch")
            return 0 if replicas is None else replicas.get_local_rank()

        def forward_backward_step(self, **arguments: Any) -> torch.Tensor:
            loss = super().forward_backward_step(**arguments)
            if not self.parallel_dims.pp_enabled or self.pp_has_last_stage:
                self.loss = self.loss + loss.detach().cpu()  # of this rank's labels, divided by all ranks' labels of the step
            return loss

        def train_step(self, data_iterator: Any) -> None:
            super().train_step(data_iterator)
            dist.all_reduce(self.loss)
            everybody: list[tuple[int, list[str]]] = [(0, [])] * dist.get_world_size()
            dist.all_gather_object(everybody, (self.batch_rank(), self.rows))
            if any(rank == self.batch_rank() and rows != self.rows for rank, rows in everybody):
                raise RuntimeError(f"step {self.step - 1}: two processes of data-parallel rank {self.batch_rank()} were given different rows")
            if self.events:
                self.events.write("step", step=self.step - 1, loss=self.loss.item() / self.parallel_dims.tp, rows=self.rows)
            self.rows, self.loss = [], torch.zeros(())

    trainer = Recorded(config)
    trainer.train()
    trainer.close()
    trainer.dataloader.close()


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the run: logs, and checkpoint/")
    parser.add_argument("--data", type=Path, default=Path("elastic-data"), help="where text, tokenizer and recipe are, or are made")
    parser.add_argument("--until", type=int, default=STEPS, help="the step to stop before")
    parser.add_argument("--save-every", type=int, default=4)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--length", type=int, default=64, help="tokens of a row")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="CPUs only: processes that split the model's tensors between them, and read the same batches")
    parser.add_argument("--pipeline-parallel", type=int, default=1, help="CPUs only: processes that have a part of the layers each, and read the same batches")
    parser.add_argument("--server", help="let one process of this name make the batches of all ranks; the first rank starts it")
    parser.add_argument("--swap-rows-at", type=int, help="spoil this step's batches, to see that it is noticed")
    return parser.parse_args(words)


def main() -> None:
    options = parse()
    if options.device == "cpu":
        from on_cpu import use_cpu

        use_cpu()
    import torch
    import torch.distributed as dist
    from elastic.corpus import prepare
    from elastic.leave import leave

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # TorchTitan takes the process group that it finds; its own would be NCCL's, which refuses two ranks on one GPU.
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        prepare(options.data, options.length, GLOBAL_BATCH)
    dist.barrier()
    run(options.folder, make_config(options.folder, options.data, dist.get_world_size(), options), options.swap_rows_at)
    leave()


if __name__ == "__main__":
    main()
