#!/usr/bin/env python3
"""Hugging Face's Trainer on Laneway's batches: stop, and go on with another number of ranks on the same global batches.

    torchrun --nproc-per-node 2 hf_trainer.py out --steps 20
    torchrun --nproc-per-node 4 hf_trainer.py out --steps 40 --resume

A small Llama learns from Python's own reference and library (`elastic/corpus.py`), on CPUs.
"""

import argparse
import sys
from pathlib import Path

import torch.distributed as dist
from laneway import Loader, NodeLoader
from laneway.integrations.transformers import Trainer
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments, set_seed

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from elastic.corpus import VOCABULARY, prepare  # noqa: E402
from elastic.leave import leave  # noqa: E402

LENGTH, GLOBAL_BATCH, MICROBATCH = 128, 16, 2


def small_llama() -> LlamaForCausalLM:
    """About a quarter of a million parameters."""
    set_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH, tie_word_embeddings=True, **sizes))


def make_trainer(folder: Path, recipe: Path, steps: int, save_every: int, server: str | None = None) -> Trainer:
    """This rank's. A step is the recipe's whatever the number of ranks, so fewer ranks take more microbatches. With `server`, one process of that name makes
    the batches of all ranks."""
    args = TrainingArguments(
        str(folder),
        max_steps=steps,
        per_device_train_batch_size=MICROBATCH,
        learning_rate=3e-3,
        lr_scheduler_type="constant",
        save_steps=save_every,
        logging_steps=1,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    args.gradient_accumulation_steps = GLOBAL_BATCH // (MICROBATCH * args.world_size)
    if server is None:
        loader = Loader(recipe, args.process_index, args.world_size, microbatch_size=MICROBATCH)
    else:
        loader = NodeLoader(recipe, args.process_index, args.world_size, microbatch_size=MICROBATCH, name=server, start=True)
    return Trainer(model=small_llama(), args=args, loader=loader)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--resume", action="store_true", help="from the folder's last checkpoint")
    parser.add_argument("--server", help="let one process of this name make the batches of all ranks; the first rank starts it")
    options = parser.parse_args()
    recipe = prepare(options.folder / "data", LENGTH, GLOBAL_BATCH)
    trainer = make_trainer(options.folder, recipe, options.steps, options.save_every, options.server)
    trainer.train(resume_from_checkpoint=options.resume)
    print(f"rank {trainer.loader.rank}: the loader is at step {trainer.loader.step}")
    if dist.is_initialized():
        leave()


if __name__ == "__main__":
    main()
