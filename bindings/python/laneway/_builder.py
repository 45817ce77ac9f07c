"""What the builder's calls check and translate: published names to the recipe's keys, and what this build cannot do to an error."""

from __future__ import annotations

import difflib
import functools
import hashlib
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from ._functions import Function
from .errors import Unsupported
from .io import remove_folder
from .student import check_count

Payload = dict[str, Any]


@dataclass
class Options:
    """``Pipeline.options()``: ranks, lanes and batches, and tuning."""

    io_options: Mapping[str, Any] | None = None
    world_size: int = 1
    global_rank: int = 0
    dp_degree: int | None = None
    dp_group_id: int | None = None
    canonical_replicas: int | None = None
    global_batch: int | list[tuple[int, int]] | None = None
    mapping_strategy: str | None = None
    deterministic: bool = True
    uneven: bool = False
    max_workers: int | None = None
    prefetch_batches: int | None = None
    memory_budget: int = 256 << 20
    progress: Any = "auto"
    framework: Any = "auto"

    def set(self, hints: Mapping[str, Any]) -> None:
        """Takes options by name."""
        for name, value in hints.items():
            if name in _MOOT:
                continue
            if name not in self.__dataclass_fields__:
                near = difflib.get_close_matches(name, self.__dataclass_fields__, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(self.__dataclass_fields__)}"
                raise TypeError(f"options() has no {name!r}; {hint}")
            setattr(self, name, value)
        if self.mapping_strategy not in (None, "contiguous", "interleaved"):
            raise ValueError(f"mapping_strategy is {self.mapping_strategy!r}; expected 'contiguous' or 'interleaved'")
        # Each of these says what is wrong.
        _ = self.cache_dir(), self.ranks, self.rank

    def cache_dir(self) -> str | None:
        """Of ``io_options={"cache": {"enabled": True, "root": …}}``."""
        given = _options("io_options", self.io_options)
        cache = _options("io_options.cache", given.pop("cache", None))
        root, enabled = cache.pop("root", None), cache.pop("enabled", True)
        known = [*_MOOT_IO, "cache", *(f"cache.{c}" for c in ("enabled", "root", *_MOOT_CACHE))]
        for name in [*given, *(f"cache.{c}" for c in cache)]:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                raise TypeError(f"io_options has no {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"))
        if not isinstance(enabled, bool):
            raise TypeError(f"io_options.cache.enabled is {enabled!r}; expected True or False")
        return None if root is None else os.fspath(root)

    @property
    def ranks(self) -> int:
        """Data-parallel ranks."""
        return check_count("dp_degree", self.world_size if self.dp_degree is None else self.dp_degree, 1)

    @property
    def rank(self) -> int:
        """This one."""
        return check_count("dp_group_id", self.global_rank if self.dp_group_id is None else self.dp_group_id, 0)


def _options(name: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, (Mapping, type(None))):
        raise TypeError(f'{name} is {given!r}; expected a dict, as in io_options={{"cache": {{"enabled": True}}}}')
    return dict(given or {})


# What tunes the published design's processes, downloads and caches. There are threads here, and local files: they are accepted, and change nothing.
_MOOT = frozenset(
    "runner run_id per_stage_runner mp_context worker_allocation default_stage_prefetch per_stage_prefetch op_queue_capacity ipc_transport ipc_buffer_bytes "
    "allow_latency_flush_in_deterministic flush_every_k_chunks shutdown_mode auto_validation mtp_mode mtp_buffer mtp_buffer_bytes mtp_prefetch "
    "mtp_auto_checkpoint shm_enabled shm_min_item_bytes shm_coalesce "
    "shm_min_new_allocation_bytes shm_min_forward_bytes shm_compact_above_ratio shm_compact_min_savings_bytes shm_max_coalesced_bytes max_worker_retries".split()
)
_MOOT_IO = ("arrow", "parquet", "vortex", "lance", "metadata_cache_entries")
_MOOT_CACHE = (
    "limit_bytes rg_cache_bytes keep_zip validate_hash download_retry download_timeout open_retry_attempts open_retry_initial_backoff open_retry_max_backoff "
    "min_slack_bytes max_slack_bytes".split()
)

UNSUPPORTED_METHODS = {
    "add_op": "use map_transform, stateful_transform or map_batch",
    "enable_observability": "see Pipeline.stats",
    "expand_chat": "chat templates",
    "pack_sequences": "use pack_flat",
    "tokenize_chat": "chat templates",
}


def only(call: str, allowed: Mapping[str, tuple[Any, Iterable[Any], str]]) -> None:
    """Unsupported, if an argument is none of those that this build has: ``{name: (value, allowed, hint)}``."""
    for name, (value, values, hint) in allowed.items():
        if not any(value is v or value == v for v in values):
            raise Unsupported(f"{call}({name}={value!r}) is not supported by this build; {hint}")


def batch_keys(options: Options, microbatch_size: int, restored: Mapping[str, str] | None) -> dict[str, Any]:
    """The recipe's ``global_batch`` and ``lanes``; what the user left open is taken from a restored checkpoint's recipe."""
    import json

    global_batch, lanes = options.global_batch, options.canonical_replicas
    if restored is not None:
        if global_batch is None and (lanes is None or str(lanes) == restored["batch.lanes"]):
            global_batch = json.loads(restored["batch.global_batch"])
        if lanes is None:
            lanes = json.loads(restored["batch.lanes"])
    if global_batch is None:
        global_batch = microbatch_size * (options.ranks if lanes is None else lanes)
    return {"global_batch": global_batch, "lanes": lanes}


class Transform:
    """A function on payloads (``{field: text}``) as functions on texts: a filter for those that become None, and a map.

    Both run one after the other on a thread, so the function is called once a document.
    """

    def __init__(self, function: Callable[[Payload], Payload | None], drop_none: bool, name: str | None) -> None:
        if not callable(function):
            raise TypeError(f"transform_fn is a {type(function).__name__}; expected a function of a payload")
        self.function, self.drop_none, self.name = function, drop_none, name or signature(function)
        self.field = "text"
        self._last = threading.local()

    def functions(self, field: str) -> list[Function]:
        """Under the names that the recipe gets."""
        self.field = field
        mapping = Function(self.name, map=self._map)
        return [Function(f"{self.name} keeps", filter=self._keeps), mapping] if self.drop_none else [mapping]

    def _keeps(self, text: str) -> bool:
        made = self._call(text)
        self._last.pair = (text, made)
        return made is not None

    def _map(self, text: str) -> str:
        pair = self._last.__dict__.pop("pair", None)
        made = pair[1] if pair is not None and pair[0] == text else self._call(text)
        if made is None:
            raise TypeError(f"{self.name} returned None; with drop_none=True that leaves the document out")
        return made

    def _call(self, text: str) -> str | None:
        payload = self.function({self.field: text})
        if payload is None:
            return None
        if not isinstance(payload, Mapping) or not isinstance(payload.get(self.field), str):
            raise TypeError(f"{self.name} returned {type(payload).__name__}; expected a dict whose {self.field!r} is a str: only that becomes tokens")
        return payload[self.field]  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_last"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._last = threading.local()


class WrittenTokenizer:
    """A tokenizer object as a ``tokenizer.json`` in a temporary folder, which goes with this.

    Attributes:
        path: the file.
        tokens: how the object spells the tokens of a text's beginning, its end and padding.
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if not callable(getattr(backend, "to_str", None)):
            raise Unsupported(f"tokenize(tokenizer={type(tokenizer).__name__} object): it is no fast tokenizer (it has no tokenizer.json); give the path of one")
        names = ("bos_token", "eos_token", "pad_token")
        self._text = backend.to_str()
        self.tokens = {name: None if (token := getattr(tokenizer, name, None)) is None else str(token) for name in names}
        self._write()

    def _write(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="laneway-"))
        weakref.finalize(self, remove_folder, folder, os.getpid())
        self.path = str(folder / "tokenizer.json")
        Path(self.path).write_text(self._text, encoding="utf-8")


def signature(function: Any) -> str:
    """A name with a hash of the function's code and of the texts and numbers that its arguments default to, so that a checkpoint of an edited function is refused.
    What it closes over, or calls, is not seen."""
    if isinstance(function, functools.partial):
        bound = _plain(function.args, function.keywords)
        return f"{signature(function.func)}{f' with {bound}' if bound else ''}"
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if not hasattr(function, "__code__"):
        function = getattr(type(function), "__call__", None)
    code = getattr(function, "__code__", None)
    if code is None:
        return name
    defaults = _plain(getattr(function, "__defaults__", None) or (), getattr(function, "__kwdefaults__", None) or {})
    return f"{name} {hashlib.sha256(_code(code) + defaults.encode()).hexdigest()[:12]}"


def _plain(values: Iterable[Any], named: Mapping[str, Any]) -> str:
    """Those that are texts or numbers: others may look different in each process. Empty if there are none."""
    found = [repr(v) for v in values if isinstance(v, (str, int, float))]
    found += [f"{name}={value!r}" for name, value in sorted(named.items()) if isinstance(value, (str, int, float))]
    return ", ".join(found)


def _code(code: CodeType) -> bytes:
    constants = b"".join(_code(c) if isinstance(c, CodeType) else _constant(c).encode() for c in code.co_consts)
    return code.co_code + constants + repr(code.co_names).encode()


def _constant(value: Any) -> str:
    """As ``repr``, but the same in every process: sets of texts have another order in each."""
    if isinstance(value, frozenset):
        return f"frozenset({sorted(map(_constant, value))})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))}{',' * (len(value) == 1)})"
    return repr(value)
