#!/usr/bin/env python3
"""Lightning on Laneway's batches: stop, and go on with another number of ranks on the same global batches.

    python lightning_trainer.py out --ranks 2 --steps 20
    python lightning_trainer.py out --ranks 4 --steps 40 --resume

A small Llama learns from Python's own reference and library (`elastic/corpus.py`), on CPUs.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from laneway.integrations.lightning import LanewayDataModule
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from elastic.corpus import prepare  # noqa: E402
from elastic.train import Predictor, Sizes  # noqa: E402

LENGTH, GLOBAL_BATCH, MICROBATCH = 128, 16, 2


class Model(pl.LightningModule):
    """`elastic.train.Predictor` as Lightning wants it. Keeps the losses of its steps, over all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.predictor = Predictor(Sizes(width=64, blocks=2))
        self.losses: list[float] = []
        self._sums = torch.zeros(2, dtype=torch.float64)  # losses and labels of the step so far

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        loss = self.predictor(batch["input_ids"], batch["labels"])
        self._sums += torch.tensor([loss.item(), batch["num_valid_tokens"]], dtype=torch.float64)
        # By the labels of this microbatch: where their numbers differ much between ranks, divide by the step's sum instead, as elastic/train.py does.
        return loss / batch["num_valid_tokens"]

    def on_before_zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
        sums, self._sums = self._sums, torch.zeros(2, dtype=torch.float64)
        if self.trainer.world_size > 1:
            dist.all_reduce(sums)
        if sums[1]:
            self.losses.append((sums[0] / sums[1]).item())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def make_trainer(folder: Path, ranks: int, steps: int, save_every: int, strategy: Any = "auto") -> pl.Trainer:
    """A step is the recipe's whatever the number of ranks, so fewer ranks take more microbatches."""
    return pl.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        devices=ranks,
        strategy=strategy,
        max_steps=steps,
        accumulate_grad_batches=GLOBAL_BATCH // (MICROBATCH * ranks),
        callbacks=[ModelCheckpoint(folder, every_n_train_steps=save_every, save_top_k=-1, filename="step={step}", auto_insert_metric_name=False)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def make_data(recipe: Path, server: str | None = None) -> LanewayDataModule:
    """With `server`, one process of that name makes the batches of all ranks."""
    return LanewayDataModule(recipe, microbatch_size=MICROBATCH, server=server, **({} if server is None else {"start": True}))


def last_checkpoint(folder: Path) -> Path:
    return max(folder.glob("step=*.ckpt"), key=lambda path: int(path.stem.partition("=")[2]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--resume", action="store_true", help="from the folder's last checkpoint")
    parser.add_argument("--server", help="let one process of this name make the batches of all ranks; the first rank starts it")
    options = parser.parse_args()
    recipe = prepare(options.folder / "data", LENGTH, GLOBAL_BATCH)
    pl.seed_everything(0)
    model = Model()
    trainer = make_trainer(options.folder, options.ranks, options.steps, options.save_every)
    resume = last_checkpoint(options.folder) if options.resume else None
    trainer.fit(model, make_data(recipe, options.server), ckpt_path=resume)
    if trainer.is_global_zero:
        print("losses:", " ".join(f"{loss:.4f}" for loss in model.losses))


if __name__ == "__main__":
    main()
