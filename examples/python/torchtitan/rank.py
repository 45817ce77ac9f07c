#!/usr/bin/env python3
"""One rank of a training run made of TorchTitan's parts, on CPUs: its tokenizer, optimizer, schedule, loss and checkpoints, with Laneway's data loader.

    torchrun --nproc-per-node 2 rank.py out --until 4
    torchrun --nproc-per-node 1 rank.py out --until 8         goes on from the checkpoint in out/checkpoint, whoever made it

`elastic_resume.py` runs such a chain and checks it. TorchTitan's own `Trainer` wants GPUs: `gpu_smoke.py`.
"""

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from laneway.torchtitan import LanewayDataLoader
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.loss import IGNORE_INDEX, cross_entropy_loss
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.tokenizer import HuggingFaceTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from distill.events import Events  # noqa: E402
from distill.llama import Llama, LlamaConfig  # noqa: E402
from elastic.corpus import VOCABULARY, prepare  # noqa: E402
from elastic.train import row_hashes  # noqa: E402

LENGTH, GLOBAL_BATCH, LOCAL_BATCH = 64, 16, 2
STEPS = 12  # of the whole run, which the learning rate follows


class Model(torch.nn.Module):
    """A small Llama; ids (B, T) to logits (B, T, V)."""

    def __init__(self) -> None:
        super().__init__()
        self.llama = Llama(LlamaConfig(2, 64, 192, 4, 4, VOCABULARY, 10_000.0, 1e-5))
        torch.nn.init.normal_(self.llama.token_embd.weight, std=0.02)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.llama.logits(input_ids)


class TrainState:
    """What TorchTitan's trainer keeps of itself in a checkpoint."""

    step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def run(folder: Path, data: Path, until: int, save_every: int, server: str | None = None) -> None:
    """The loop of TorchTitan's trainer, as far as CPUs go. With `server`, one process of that name makes the batches of all ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = fully_shard(Model(), mesh=init_device_mesh("cpu", (ranks,)))
    optimizer_config = default_adamw(lr=3e-3)
    optimizer_config.implementation = "for-loop"
    optimizers = optimizer_config.build(model_parts=[model])
    schedulers = LRSchedulersContainer.Config(warmup_steps=2).build(optimizers=optimizers, training_steps=STEPS)
    tokenizer = HuggingFaceTokenizer.Config().build(tokenizer_path=str(data))
    dataloader = LanewayDataLoader.Config(recipe=str(data / "recipe.toml"), threads=1, server=server, start_server=server is not None).build(
        dp_world_size=ranks, dp_rank=rank, tokenizer=tokenizer, seq_len=LENGTH, local_batch_size=LOCAL_BATCH, snapshot_every_n_steps=None
    )
    state = TrainState()
    checkpointer = CheckpointManager.Config(enable=True, interval=save_every, last_save_model_only=False).build(
        dataloader=dataloader,
        model_parts=[model],
        optimizers=optimizers,
        lr_schedulers=schedulers,
        states={"train_state": state},
        sd_adapter=None,
        base_folder=str(folder),
    )
    checkpointer.load()
    events = Events(folder / f"{state.step}-to-{until}" / f"rank-{rank}.jsonl", fresh=True)
    batches = iter(dataloader)
    while state.step < until:
        microbatches = [next(batches) for _ in range(GLOBAL_BATCH // (LOCAL_BATCH * ranks))]
        valid = torch.tensor(sum(int((labels != IGNORE_INDEX).sum()) for _, labels in microbatches))
        dist.all_reduce(valid)
        total = torch.zeros(())
        optimizers.zero_grad()
        for inputs, labels in microbatches:
            loss = cross_entropy_loss(model(inputs["input"]), labels) / valid
            (loss * ranks).backward()  # gradients are averaged over ranks
            total += loss.detach()
        optimizers.step()
        schedulers.step()
        dist.all_reduce(total)
        rows = [row for inputs, labels in microbatches for row in row_hashes(inputs["input"], labels)]
        events.write("step", step=state.step, loss=total.item(), rows=rows)
        state.step += 1
        checkpointer.save(state.step, last_step=state.step == until)
    checkpointer.close()
    dataloader.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the run: logs, and checkpoint/")
    parser.add_argument("--data", type=Path, default=Path("elastic-data"), help="where text, tokenizer and recipe are, or are made")
    parser.add_argument("--until", type=int, default=STEPS, help="the step to stop before")
    parser.add_argument("--save-every", type=int, default=4)
    parser.add_argument("--server", help="let one process of this name make the batches of all ranks; the first rank starts it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        prepare(options.data, LENGTH, GLOBAL_BATCH)
    dist.barrier()
    run(options.folder, options.data, options.until, options.save_every, options.server)
    dist.barrier()  # none leaves while another still talks to it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
