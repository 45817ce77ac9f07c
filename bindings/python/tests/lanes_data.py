"""A folder with two datasets, a tokenizer and recipes, small enough to be gone through many times."""

from __future__ import annotations

import json
from pathlib import Path

WORDS = 400
EOS = WORDS + 1

RECIPE = """
seed = 7

[[dataset]]
name = "wiki"
paths = ["wiki.jsonl"]
weight = 0.5

[[dataset]]
name = "news"
paths = ["news"]
weight = 0.5

[mixture]
unit = "tokens"

[tokenizer]
path = "tokenizer.json"
special_tokens = "eos"

[pack]
max_length = 32
algorithm = "wrap"

[shuffle]
buffer_size = 64
seed = 42

[batch]
global_batch = 8
"""


def words(source: int, document: int) -> str:
    """The text of a document: 1 to 60 words, of its own."""
    return " ".join(f"w{(document * 7919 + source * 104729 + i * 31) % WORDS}" for i in range(1 + (document * 37 + source * 11) % 60))


def write_jsonl(path: Path, source: int, documents: range) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"id": d, "text": words(source, d)}) + "\n" for d in documents))


def write_tokenizer(path: Path) -> None:
    """Words are their numbers; EOS ends a document."""
    vocab = {f"w{i}": i for i in range(WORDS)} | {"<unk>": WORDS, "<eos>": EOS}
    eos = {"id": EOS, "content": "<eos>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    model = {"type": "WordLevel", "unk_token": "<unk>", "vocab": vocab}
    nothing = dict.fromkeys(["truncation", "padding", "normalizer", "post_processor", "decoder"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": "1.0", **nothing, "added_tokens": [eos], "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model}))


def write_data(folder: Path) -> Path:
    """Writes everything; gives the recipe's path."""
    write_jsonl(folder / "wiki.jsonl", 0, range(300))
    write_jsonl(folder / "news" / "a.jsonl", 1, range(40))
    write_jsonl(folder / "news" / "b.jsonl", 1, range(40, 70))
    write_tokenizer(folder / "tokenizer.json")
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE)
    return recipe
