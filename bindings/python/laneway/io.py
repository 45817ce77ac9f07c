"""Datasets of the builder: where documents are."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import NotFound, Unsupported

__all__ = ["Dataset", "InMemoryShard"]

_FORMATS = ("jsonl", "parquet", "text")
_UNITS = ("line", "paragraph", "file")
_POLICIES = ("error", "skip", "replace")


class InMemoryShard:
    """Rows in memory, for tests and quick starts: dicts that JSON can carry."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = list(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        return self._rows[index]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self._rows)


class Dataset:
    """A named set of documents: one ``[[dataset]]`` of a recipe. Nothing is read before a pipeline is iterated.

    Attributes:
        name: as in the mixture.
        paths: files, folders and globs.
        keys: further keys of the recipe's table.
    """

    def __init__(self, name: str, paths: Sequence[str], **keys: Any) -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"name is {name!r}; expected a text that is not empty")
        self.name, self.paths = name, list(paths)
        self.keys = {k: v for k, v in keys.items() if v is not None}
        self._shards: dict[int, InMemoryShard] | None = None
        self._folder: Path | None = None

    @classmethod
    def from_path(
        cls,
        name: str,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        fmt: str | None = None,
        text_unit: str | None = None,
        on_error: str | None = None,
    ) -> Dataset:
        """The documents in files.

        Args:
            name: as in the mixture.
            path: a file, a folder, a glob, or a list of them, on this machine.
            fmt: ``"jsonl"``, ``"parquet"`` or ``"text"``; None: from each file's suffix, under ``.gz`` or ``.zst``.
            text_unit: what a document of plain text is: ``"line"`` (default), ``"paragraph"`` or ``"file"``.
            on_error: what is done about a document that cannot be read: ``"error"`` (default), ``"skip"`` or ``"replace"``.

        Raises:
            NotFound: nothing is there.
            Unsupported: a remote path, or a format that this build does not read.
            TypeError, ValueError: an argument of another kind.
        """
        given = [path] if isinstance(path, (str, os.PathLike)) else path
        if not isinstance(given, Sequence) or not given or not all(isinstance(p, (str, os.PathLike)) for p in given):
            raise TypeError(f"dataset {name!r}: path is {path!r}; expected a path, or a list of at least one")
        paths = [os.fspath(p) for p in given]
        for p in paths:
            if "://" in p:
                scheme = p.partition("://")[0]
                raise Unsupported(f"dataset {name!r}: {p}: this build reads local files only, not {scheme}://; download it and give its folder")
            if not any(c in p for c in "*?[") and not os.path.exists(p):
                raise NotFound(f"dataset {name!r}: {p} does not exist")
        for key, value, known in (("text_unit", text_unit, _UNITS), ("on_error", on_error, _POLICIES)):
            if value is not None and value not in known:
                raise ValueError(f"dataset {name!r}: {key} is {value!r}; expected one of {', '.join(known)}")
        if fmt is not None and fmt not in _FORMATS:
            raise Unsupported(f"dataset {name!r}: fmt is {fmt!r}; this build reads {', '.join(_FORMATS)}")
        return cls(name, paths, format=fmt, text_unit=text_unit, on_error=on_error)

    @classmethod
    def from_dict(cls, name: str, shards: Mapping[int, InMemoryShard | Sequence[Mapping[str, Any]]]) -> Dataset:
        """Documents in memory: ``{0: InMemoryShard([{"text": …}, …]), …}``. They are written to a temporary folder, which goes with this object."""
        if not isinstance(shards, Mapping):
            raise TypeError(f"dataset {name!r}: shards is a {type(shards).__name__}; expected a dict of numbers and rows: {{0: [{{'text': …}}, …]}}")
        dataset = cls(name, [])
        dataset._shards = {int(i): s if isinstance(s, InMemoryShard) else InMemoryShard(s) for i, s in shards.items()}
        return dataset

    def table(self, text_field: str | None = None) -> dict[str, Any]:
        """The recipe's table, without a weight."""
        paths = self.paths if self._shards is None else [str(self._written())]
        # Plain text has no fields, whatever the payload of functions is called.
        field = None if self.keys.get("format") == "text" else text_field
        return {"name": self.name, "paths": paths, "text_field": field, **self.keys}

    def _written(self) -> Path:
        if self._folder is None or not self._folder.is_dir():
            assert self._shards is not None
            # The folder is named alike everywhere, so that shards have the same names.
            top = Path(tempfile.mkdtemp(prefix="laneway-"))
            weakref.finalize(self, remove_folder, top, os.getpid())
            folder = top / "shards"
            folder.mkdir()
            for i, shard in sorted(self._shards.items()):
                with open(folder / f"{i:08d}.jsonl", "w", encoding="utf-8") as file:
                    for number, row in enumerate(shard):
                        file.write(self._line(i, number, row))
            self._folder = folder
        return self._folder

    def _line(self, shard: int, number: int, row: Mapping[str, Any]) -> str:
        if not isinstance(row, Mapping):
            raise TypeError(f"dataset {self.name!r}: row {number} of shard {shard} is a {type(row).__name__}; expected a dict, {{'text': …}} say")
        try:
            return json.dumps(row, allow_nan=False) + "\n"
        except (TypeError, ValueError) as error:
            raise TypeError(f"dataset {self.name!r}: row {number} of shard {shard} cannot be carried by JSON: {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_folder": None}

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, {self.paths if self._shards is None else f'{len(self._shards)} shards in memory'})"


def remove_folder(folder: Path, pid: int) -> None:
    """Removes a temporary folder, in the process that made it."""
    if pid == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)
