#!/usr/bin/env python3
"""Distil a real language model, layer by layer or by its logits, through Laneway.

Each line in a terminal of its own; workers may come and go while the student trains:

    python distill_llm.py mode=broker
    python distill_llm.py mode=worker device.worker_gpu=0
    torchrun --nproc_per_node=2 distill_llm.py mode=student

The teacher is SmolLM2-135M-Instruct, the text Django's documentation, the student 4 of the teacher's
30 blocks. `loss=hidden` (the default) teaches the student's blocks one after another, each from the hidden
states after one layer of the teacher: the student asks for "layer_7", later for "layer_14", and so on.
`loss=logits`, given to workers and student, then teaches the whole from the teacher's 32 likeliest tokens and
the weight of all others:

    python distill_llm.py mode=worker loss=logits
    python distill_llm.py mode=student loss=logits start_weights=runs/distill/student.pt run=runs/logits

conf/ holds every setting; any of them can be set on the command line as above. Broker, workers and students find each other
through the folder LANEWAY_DIR, if set.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from laneway import setup_logging
from omegaconf import DictConfig

if TYPE_CHECKING:  # a broker has no need of torch
    import torch


def run_broker(cfg: DictConfig) -> None:
    """Route tickets until stopped."""
    from laneway import Broker

    Broker().run()


def run_worker(cfg: DictConfig) -> None:
    """Answer tickets with the teacher until stopped."""
    from distill.worker import serve

    log = Path(cfg.run) / f"worker-{cfg.worker.name or os.getpid()}.jsonl"
    serve(choose_device("worker_gpu", cfg), hydra.utils.instantiate(cfg.loss.batch_config), cfg.worker.batch_size, log)


def run_student(cfg: DictConfig) -> None:
    """Train the student; under torchrun, as one of several ranks."""
    import torch.distributed as dist
    from distill.train import Plan, Stage, Trainer

    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        dist.init_process_group("gloo")
    plan = Plan(
        stages=[Stage(stage.model, stage.depth, stage.steps) for stage in cfg.loss.stages],
        learning_rate=cfg.loss.learning_rate,
        batch_size=cfg.batch_size,
        slot_count=cfg.slot_count,
        held_out_batches=cfg.held_out_batches,
        evaluate_every=cfg.evaluate_every,
        start_blocks=list(cfg.start_blocks),
        start_weights=Path(cfg.start_weights) if cfg.start_weights else None,
        run=Path(cfg.run),
        progress=cfg.progress,
    )
    try:
        batch_config = hydra.utils.instantiate(cfg.loss.batch_config)
        Trainer(plan, batch_config, rank, ranks, choose_device("student_gpu", cfg)).run()
        if ranks > 1:
            dist.barrier()  # none leaves while another still talks to it
    finally:
        if ranks > 1:
            dist.destroy_process_group()


def choose_device(setting: str, cfg: DictConfig) -> "torch.device":
    """The GPU that `device.<setting>` names, or the CPU; says so when the GPU is not there."""
    import torch

    torch.set_num_threads(cfg.device.cpu_threads)
    gpu = cfg.device[setting]
    if gpu is None:
        return torch.device("cpu")
    if gpu < torch.cuda.device_count():
        return torch.device("cuda", gpu)
    print(f"device.{setting}={gpu}: torch sees {torch.cuda.device_count()} GPUs here, so the CPU is used", file=sys.stderr)
    return torch.device("cpu")


@hydra.main(version_base="1.3", config_path="conf", config_name="distill")
def main(cfg: DictConfig) -> None:
    setup_logging(cfg.log_level)
    modes = {"broker": run_broker, "worker": run_worker, "student": run_student}
    if cfg.mode not in modes:
        sys.exit(f"mode={cfg.mode}: expected one of {', '.join(modes)}")
    modes[cfg.mode](cfg)


if __name__ == "__main__":
    main()
