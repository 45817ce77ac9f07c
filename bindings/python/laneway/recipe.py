"""The recipe: everything that may change a byte of what a run sees, as one TOML file or the same keys in a dict."""

from __future__ import annotations

import ctypes
import json
import os
import re
from collections.abc import Mapping, Sequence
from ctypes import c_void_p
from pathlib import Path
from typing import Any

from . import _native
from ._owned import free_with
from .batch_config import BatchConfig
from .errors import LanewayError


class Recipe:
    """A recipe that was read and checked. It never changes; any thread and any forked child may use it; it can be pickled.

    Make one with :meth:`load`, :meth:`parse` or :meth:`from_dict`; :class:`~laneway.Loader` takes the same things directly. The keys
    are listed in ``examples/recipes/every_option.toml``. A key that is not known is an error with a suggestion.
    """

    def __init__(self, text: str, base: str | os.PathLike[str] | None = None) -> None:
        """As :meth:`parse`."""
        encoded = text.encode()
        out = c_void_p()
        where = None if base is None else os.fspath(base).encode()
        _native.check(_native.lib().lw_recipe_parse(encoded, len(encoded), where, ctypes.byref(out)))
        self._own(out)

    def _own(self, handle: c_void_p) -> None:
        self._handle = handle
        self._owned = free_with(_native.lib().lw_recipe_free, handle)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recipe:
        """The recipe in a TOML file; relative paths in it are relative to its folder.

        Raises:
            IoError: the file cannot be read.
            InvalidArgument, DataError: what is wrong in it, with the line and what was expected.
        """
        recipe = cls.__new__(cls)
        out = c_void_p()
        _native.check(_native.lib().lw_recipe_load(os.fsencode(path), ctypes.byref(out)))
        recipe._own(out)
        return recipe

    @classmethod
    def parse(cls, text: str, base: str | os.PathLike[str] | None = None) -> Recipe:
        """The recipe in a TOML text; relative paths in it are relative to ``base``, else to the current folder."""
        return cls(text, base)

    @classmethod
    def from_dict(cls, keys: Mapping[str, Any], base: str | os.PathLike[str] | None = None) -> Recipe:
        """The recipe whose TOML has these keys: ``{"dataset": [{"name": …, "paths": …}], "tokenizer": {…}, …}``. None leaves a key out.

        Raises:
            TypeError: a value that TOML has no form for, with its key.
        """
        try:
            return cls(to_toml(keys), base)
        except LanewayError as e:
            # The line is one of a text that the caller has not written.
            raise type(e)(re.sub(r"^line \d+: ", "", str(e))) from None

    @classmethod
    def of(cls, given: Recipe | Mapping[str, Any] | str | os.PathLike[str]) -> Recipe:
        """What :class:`~laneway.Loader` takes: a recipe, a dict, the path of a TOML file, or TOML text (text of more than one line)."""
        if isinstance(given, Recipe):
            return given
        if isinstance(given, Mapping):
            return cls.from_dict(given)
        if isinstance(given, os.PathLike):
            return cls.load(given)
        if isinstance(given, str):
            if not given:
                raise ValueError("recipe is ''; expected the path of a TOML file, or TOML text")
            return cls.parse(given) if "\n" in given else cls.load(Path(given))
        raise TypeError(f"recipe is a {type(given).__name__}; expected a path, TOML text, a dict or a Recipe")

    def to_toml(self) -> str:
        """The recipe as TOML, every default spelled out."""
        return _native.text(_native.lib().lw_recipe_to_toml, self._handle)

    def fields(self) -> dict[str, str]:
        """What the fingerprint is made of: names as in ``pack.max_length``, values as TOML. Paths are no part of it."""
        return json.loads(_native.text(_native.lib().lw_recipe_fields, self._handle))  # type: ignore[no-any-return]

    @property
    def fingerprint(self) -> int:
        """Equal for recipes that give the same bytes from the same data and tokenizer."""
        return _native.lib().lw_recipe_fingerprint(self._handle)  # type: ignore[no-any-return]

    def taught_config(self) -> BatchConfig | None:
        """The tensors that teachers make of a row, as its ``[generate]`` says; None where it has none."""
        layout = self.fields().get("generate.layout")
        if layout is None:
            return None
        import tomllib

        return BatchConfig(tomllib.loads(f"layout = {layout}")["layout"])

    def difference(self, other: Recipe) -> str:
        """The first field in which two recipes differ, for people; empty if they give the same bytes."""
        return _native.text(_native.lib().lw_recipe_difference, self._handle, other._handle)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and self.fields() == other.fields()

    def __hash__(self) -> int:
        return self.fingerprint

    def __reduce__(self) -> tuple[Any, ...]:
        return Recipe, (self.to_toml(),)

    def __repr__(self) -> str:
        return f"Recipe(fingerprint={self.fingerprint:016x})"


def to_toml(keys: Mapping[str, Any]) -> str:
    """TOML of a dict; tables are written inline but for those at the top."""
    plain = {k: v for k, v in keys.items() if not _is_table(v) and v is not None}
    lines = [f"{_key(k)} = {_value(v, k)}" for k, v in plain.items()]
    for name, value in keys.items():
        for table in [value] if isinstance(value, Mapping) else value if _is_table(value) else []:
            lines.append(f"\n[{_key(name)}]" if isinstance(value, Mapping) else f"\n[[{_key(name)}]]")
            lines += [f"{_key(k)} = {_value(v, f'{name}.{k}')}" for k, v in table.items() if v is not None]
    return "\n".join([*lines, ""])


def _is_table(value: Any) -> bool:
    """A table, or a list of at least one and of nothing else."""
    if isinstance(value, Mapping):
        return True
    return isinstance(value, Sequence) and len(value) > 0 and all(isinstance(v, Mapping) for v in value)


def _key(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is a key of the recipe; expected a str")
    return json.dumps(name).replace("\x7f", "\\u007f")


def _value(value: Any, where: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        return _key(value)
    if hasattr(value, "__index__"):
        return str(value.__index__())
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_value(v, f'{where}.{k}')}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return "[" + ", ".join(_value(v, f"{where}[{i}]") for i, v in enumerate(value)) + "]"
    raise TypeError(f"{where} is a {type(value).__name__}; a recipe holds strings, numbers, booleans, lists and tables")
