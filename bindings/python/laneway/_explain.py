"""``Pipeline.explain()``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .loader import Loader


def explain(loader: Loader) -> str:
    """What a loader does, a line a stage."""
    info, fields = loader.info, {name: _plain(value) for name, value in loader.recipe.fields().items()}
    lines = [f"recipe {info['fingerprint']}, rank {loader.rank} of {loader.ranks}"]
    for dataset in info["datasets"]:
        name = dataset["name"]
        end = fields[f"dataset.{name}.exhausted"]
        ends = "starts again at its end" if end == "repeat" else f"ends after {fields[f'dataset.{name}.epochs']} epoch(s): {end}"
        weight = fields[f"dataset.{name}.weight"]
        lines.append(f"read      {name}: {dataset['documents']} documents in {dataset['shards']} shard(s), {dataset['groups']} group(s); weight {weight}; {ends}")
    lines.append(f"mix       by {fields['mixture.unit']}; documents shuffled: {fields['shuffle.documents']}; seed {fields['seed']}")
    if fields["functions"]:
        lines.append(f"map       {', '.join(fields['functions'])}")
    tokenizer = info["tokenizer"]
    lines.append(f"tokenize  {tokenizer['path']} ({tokenizer['vocab_size']} tokens, {tokenizer['engine']} engine); special tokens: {fields['tokenizer.special_tokens']}")
    long = fields["pack.long_documents"]
    lines.append(f"pack      rows of {info['row_length']} by {fields['pack.algorithm']}; longer documents: {long}; padding: {info['pad_token_id']}")
    buffer = fields["shuffle.buffer_size"]
    lines.append(f"shuffle   rows among {buffer} over all lanes, seed {fields['shuffle.seed']}" if buffer else "shuffle   no rows")
    per_step = f"{info['microbatches']} batch(es) of {info['microbatch_size']} rows"
    lanes = f"lanes {info['first_lane']} to {info['end_lane'] - 1} of {info['lanes']}"
    lines.append(f"batch     {info['global_batch']} rows a step; this rank: {per_step}, from {lanes}; next step {info['step']}")
    if info["finite"]:
        lines.append("The stream ends: all documents are counted first, once.")
    return "\n".join(lines)


def _plain(value: str) -> object:
    try:
        return json.loads(value)
    except ValueError:
        return value
