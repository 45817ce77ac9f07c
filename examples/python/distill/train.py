"""A Laneway student: trains the small model stage by stage, each against one of the teacher's outputs."""

import logging
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from laneway import BatchConfig
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from .events import Events
from .feed import Batch, Feed
from .losses import hidden_loss, logits_loss
from .student import Student

WARM_UP_STEPS = 5


@dataclass(frozen=True)
class Stage:
    """Training of the student's first `depth` blocks against `model`, for so many steps."""

    model: str
    depth: int
    steps: int


@dataclass(frozen=True)
class Plan:
    """Everything that a training run is told."""

    stages: list[Stage]
    learning_rate: float
    batch_size: int
    slot_count: int
    held_out_batches: int
    evaluate_every: int
    start_blocks: list[int]
    start_weights: Path | None
    run: Path
    progress: bool


class Trainer:
    """One rank's training loop."""

    def __init__(self, plan: Plan, batch_config: BatchConfig, rank: int, ranks: int, device: torch.device) -> None:
        self.plan, self.batch_config, self.rank, self.ranks, self.device = plan, batch_config, rank, ranks, device
        self.events = Events(plan.run / f"student-{rank}.jsonl", fresh=True)
        self.student = Student(plan.start_blocks)
        if plan.start_weights:
            self.student.llama.blk.load_state_dict(torch.load(plan.start_weights, map_location="cpu"))
        self.student.to(device)

    def run(self) -> None:
        """All stages, then the trained blocks go to `student.pt` in the run's folder."""
        plan = self.plan
        steps = sum(stage.steps for stage in plan.stages)
        self.events.write("start", steps=steps, sample_bytes=self.batch_config.nbytes())
        with (
            logging_redirect_tqdm([logging.getLogger("laneway")]),  # messages above the bar, not through it
            Feed(self.rank, self.ranks, self.batch_config, plan.batch_size, plan.slot_count) as feed,
            tqdm(total=steps, unit="step", disable=self.rank != 0 or not plan.progress, dynamic_ncols=True) as bar,
        ):
            for stage in plan.stages:
                bar.set_description(stage.model)
                self._run_stage(stage, feed, bar)
        if self.rank == 0:
            torch.save(self.student.llama.blk.state_dict(), plan.run / "student.pt")
        self.events.write("end")

    def _run_stage(self, stage: Stage, feed: Feed, bar: tqdm) -> None:
        plan = self.plan
        self.student.train_depth(stage.depth)
        model: nn.Module = DistributedDataParallel(self.student) if self.ranks > 1 else self.student
        trained = [parameter for parameter in self.student.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=plan.learning_rate, weight_decay=0.0)
        warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / WARM_UP_STEPS, total_iters=WARM_UP_STEPS - 1)

        feed.switch(stage.model, "held_out")
        self.events.write("switch", model=stage.model, split="held_out", generation=feed.generation)
        held_out = [self._take(feed) for _ in range(plan.held_out_batches)]
        feed.switch(stage.model, "train")
        self.events.write("switch", model=stage.model, split="train", generation=feed.generation)
        self._evaluate(held_out, 0)
        self._show_passage(held_out[0])
        for step in range(1, stage.steps + 1):
            loss, _ = self._compare(model, self._take(feed))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            warm_up.step()
            self.events.write("step", step=step, loss=loss.item())
            if step % plan.evaluate_every == 0 or step == stage.steps:
                bar.set_postfix_str(f"held-out loss {self._evaluate(held_out, step):.3f}")
            bar.update()
        self._show_passage(held_out[0])

    def _take(self, feed: Feed) -> Batch:
        batch = feed.next()
        self.events.write("tickets", lane=batch["_lane"].tolist(), step=batch["_step"].tolist(), generation=feed.generation)
        return {name: value.to(self.device) for name, value in batch.items()}

    def _compare(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss, and the share of positions whose likeliest next token is the teacher's (NaN for hidden states)."""
        if "hidden" in batch:
            return hidden_loss(model(batch["input_ids"], logits=False), batch["hidden"]), torch.tensor(torch.nan)
        logits = model(batch["input_ids"], logits=True)
        loss = logits_loss(logits, batch["top_logits"], batch["top_ids"], batch["rest"])
        return loss, (logits.argmax(dim=-1) == batch["top_ids"][..., 0]).float().mean()

    @torch.no_grad()
    def _show_passage(self, batch: Batch) -> None:
        """Note what teacher and student expect after each token of one unseen passage (of a stage on logits)."""
        if "top_ids" in batch:
            input_ids = batch["input_ids"][:1]
            student = self.student(input_ids, logits=True).argmax(dim=-1)
            self.events.write(
                "passage", input_ids=input_ids[0].tolist(), teacher=batch["top_ids"][0, :, 0].tolist(), student=student[0].tolist()
            )

    @torch.no_grad()
    def _evaluate(self, held_out: list[Batch], step: int) -> float:
        """The mean loss over the held-out batches of all ranks."""
        results = torch.stack([torch.stack(self._compare(self.student, batch)) for batch in held_out]).mean(dim=0).cpu()
        if self.ranks > 1:
            dist.all_reduce(results)
            results /= self.ranks
        loss, agreement = results.tolist()
        self.events.write("evaluate", step=step, loss=loss, agreement=agreement if agreement == agreement else None)
        return loss
