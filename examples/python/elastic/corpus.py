"""The text that is trained on: this Python's own language reference, and the source of its library.

Both come with Python, so nothing is downloaded. The tokenizer is trained on them. What is written to the folder is all that a run needs:
two datasets, a tokenizer and a recipe.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

VOCABULARY = 2048
END_OF_TEXT = "<|endoftext|>"
LIBRARY_BYTES = 2_000_000  # of source; more makes no better demonstration
SEED = 42

RECIPE = """
# The recipe of the elastic demonstration: everything that decides which tokens step s holds. The number of ranks is not in it.
seed = {seed}

[[dataset]]
name = "reference"
paths = ["reference.jsonl"]

[[dataset]]
name = "library"
paths = ["library.jsonl"]

[mixture]
unit = "tokens"

[tokenizer]
path = "tokenizer.json"
special_tokens = "eos"
eos_token = "{end_of_text}"

[pack]
max_length = {length}

[shuffle]
buffer_size = 256

[batch]
global_batch = {global_batch}
"""


def prepare(folder: Path, length: int, global_batch: int) -> Path:
    """Write datasets, tokenizer and recipe; give the recipe's path. What is there already is kept, but for the recipe."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, documents in (("reference", reference), ("library", library)):
        if not (file := folder / f"{name}.jsonl").exists():
            _write(file, "".join(json.dumps({"text": text}) + "\n" for text in documents()))
    if not (file := folder / "tokenizer.json").exists():
        _write(file, _train_tokenizer())
    recipe = folder / "recipe.toml"
    _write(recipe, RECIPE.format(seed=SEED, end_of_text=END_OF_TEXT, length=length, global_batch=global_batch).lstrip())
    return recipe


def reference() -> Iterator[str]:
    """The topics of the language reference that `help()` shows."""
    yield from topics.values()


def library() -> Iterator[str]:
    """Modules of the standard library, in the order of their names."""
    total, root = 0, Path(os.__file__).parent
    for file in sorted(root.glob("*.py")):
        text = file.read_text("utf-8")
        if total + len(text) > LIBRARY_BYTES:
            return
        total += len(text)
        yield text


def _train_tokenizer() -> str:
    """Byte-level BPE, as a `tokenizer.json`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*reference(), *library()], trainer)
    return tokenizer.to_str()


def _write(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)
