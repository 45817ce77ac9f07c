"""What is learnt from: Django's documentation as JSONL, the teacher's own tokenizer, and the recipe that makes batches of both."""

import json
import os
from pathlib import Path

from distill.corpus import cache_folder, documents
from distill.teacher import load_tokenizer

TOP = 32  # of the teacher's next tokens: how many travel with their logits

RECIPE = """
# Text becomes tokens, tokens become rows, and a teacher says of each row what it expects next. Nothing of this depends on who does it, or how many.
seed = 7

[[dataset]]
name = "documentation"
paths = ["documentation.jsonl"]

[tokenizer]
path = "tokenizer.json"
special_tokens = "eos"
eos_token = "<|endoftext|>"

[pack]
max_length = {length}

[shuffle]
buffer_size = 64

[batch]
global_batch = {global_batch}

[generate]
model_id = "SmolLM2-135M-Instruct"
layout = [
    {{ name = "top_logits", shape = [{length}, {top}], dtype = "float32" }},
    {{ name = "top_ids", shape = [{length}, {top}], dtype = "int32" }},
    {{ name = "rest", shape = [{length}], dtype = "float32" }},
]
batch_size = 2
"""


def prepare(folder: Path, length: int, global_batch: int) -> Path:
    """Write dataset, tokenizer and recipe; give the recipe's path. What is there already is kept, but for the recipe."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (file := folder / "documentation.jsonl").exists():
        cache = cache_folder()
        cache.mkdir(parents=True, exist_ok=True)
        _write(file, "".join(json.dumps({"text": text}) + "\n" for text in documents(cache)))
    if not (file := folder / "tokenizer.json").exists():
        _write(file, load_tokenizer().to_str())
    recipe = folder / "recipe.toml"
    _write(recipe, RECIPE.format(length=length, global_batch=global_batch, top=TOP).lstrip())
    return recipe


def _write(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)
