"""zephon 0.2.0: the pipeline of its own documentation over the same files, in threads, which is its fastest runner here. Counts tokens."""

from __future__ import annotations

import argparse
import os
import warnings

from harness.serve import children, end_with_parent, serve
from transformers import PreTrainedTokenizerFast
from zephon import Pipeline
from zephon.io import Dataset
from zephon.work import StaticMixtureWorkSource


def main() -> None:
    end_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--tokenizer", required=True)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    end = "<|endoftext|>"
    # A limit would make it warn about every longer document.
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=options.tokenizer, bos_token=end, eos_token=end, model_max_length=1 << 30)
    # Its chunks of 16,384 documents would be more than there are.
    source = StaticMixtureWorkSource(
        datasets=[Dataset.from_path("django", options.data, fmt="jsonl")], mixture={"django": 1.0}, seed=42, chunk_size=256, exhausted_policy="repeat"
    )
    pipeline = (
        Pipeline(source)
        .tokenize(tokenizer, field="text", special_tokens="eos", add_attention_mask=False)
        .pack_flat(max_length=2048, algorithm="wrap")
        .shuffle(buffer_size=1024, seed=42)
        .batch(microbatch_size=8)
    )
    batches = iter(pipeline)

    def take() -> int:
        return int(next(batches).to_training()["input_ids"].numel())

    take()
    serve({"loader": os.getpid(), **children()}, take, between=True)
    os._exit(0)


if __name__ == "__main__":
    main()
