"""Sources of the builder: which datasets are mixed, in what proportions, in which order, and until when."""

from __future__ import annotations

import ctypes
import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_char_p, c_void_p
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from . import _native, _structs
from .errors import Unsupported
from .io import Dataset

__all__ = ["StaticMixtureWorkSource", "TokenEstimation", "WorkSource"]

T = TypeVar("T")
_UNSET: Any = object()


@dataclass(frozen=True)
class TokenEstimation:
    """Mixes by tokens. Laneway chooses each next document by true sizes, so there is nothing to estimate: the numbers are checked, and change nothing.

    Attributes:
        primer, calibration_samples, calibration_shards_min, calibration_shards_max, fallback_tokens_per_byte: as published; needless here.
        measure: a user's own cost of a document; not supported.
    """

    primer: Literal["measure"] | Mapping[str, float] | float = "measure"
    measure: Callable[[Any], int] | None = None
    calibration_samples: int = 2048
    calibration_shards_min: int = 4
    calibration_shards_max: int = 16
    fallback_tokens_per_byte: float = 0.25

    def __post_init__(self) -> None:
        if self.measure is not None:
            raise Unsupported("TokenEstimation(measure=…): this build counts tokens, not other costs; leave measure out")
        if isinstance(self.primer, str) and self.primer != "measure":
            raise ValueError(f"primer is {self.primer!r}; expected 'measure', a number, or numbers by dataset")
        numbers = dict(self.primer) if isinstance(self.primer, Mapping) else {} if isinstance(self.primer, str) else {"": self.primer}
        for name, value in [*numbers.items(), ("", self.fallback_tokens_per_byte)]:
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
                raise ValueError(f"tokens per byte{f' of {name!r}' * bool(name)} is {value!r}; expected a number above 0")
        if not 0 < self.calibration_shards_min <= self.calibration_shards_max or self.calibration_samples <= 0:
            raise ValueError("calibration_samples and calibration_shards_min must be above 0, calibration_shards_max not below the latter")


# What a source of the published design overrides to decide about each sample.
_CHUNKED = ("next_chunk", "clone_for_lane", "sample_id_at", "prime", "state_dict", "load_state_dict", "continues_after_exhaustion")


class WorkSource(ABC):
    """What a pipeline reads. A source of one's own derives from this and says what the recipe shall say: which datasets, in what proportions, from which
    step on, in which kind of order.

    The order of documents is made by the library from that, as a pure function of seed, lane and position: so a checkpoint needs no more than a
    position, ``seek`` is arithmetic, and any rank can make any lane. A source that hands out samples by itself, as published (``next_chunk``,
    ``clone_for_lane``, ``state_dict``), would make each of these depend on Python code that has to be run from the start, and is refused when
    the class is made. What such sources are written for goes in other ways: a curriculum is ``tables()["mixture"]["schedule"]`` or
    :meth:`Loader.set_mixture`; leaving out, cutting and reordering documents with a state is :meth:`Pipeline.stateful_transform`; a fixed order of
    one's own is a file of documents in that order and ``shuffle_shards=False``.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if own := [name for name in _CHUNKED if name in cls.__dict__]:
            raise Unsupported(
                f"{cls.__name__} hands out samples by itself ({', '.join(own)}), which is not supported by this build: the library orders documents by seed, "
                "lane and position, so that any rank can resume any lane from a position alone. Say in tables() what shall be mixed, and from which step on (a mixture's "
                "'schedule'; or Pipeline.set_mixture while it runs); leave out, cut or reorder documents with Pipeline.stateful_transform; an order of your own "
                "is files in that order, with shuffle_shards=False"
            )

    @abstractmethod
    def tables(self, text_field: str) -> dict[str, Any]:
        """The recipe's ``seed``, ``dataset`` (a list of tables), ``mixture``, and ``shuffle`` without ``buffer_size`` and ``seed``, as a dict; ``mixture``
        may hold a ``schedule`` of weights."""


class StaticMixtureWorkSource(WorkSource):
    """Datasets mixed in fixed proportions.

    Args:
        datasets: what is mixed; names must differ.
        mixture: weights by name, one for each dataset; relative to each other.
        chunk_size: how coarse the published design meets shares. Here they are met at every document: it changes nothing.
        seed: of every order.
        shuffle_shards: False, with nothing else set, leaves documents in their order.
        shuffle_within_shard: as published; blocks of documents are shuffled inside as well anyhow.
        shuffle_block_size: ``"global"`` shuffles single documents over the whole dataset; None, ``"auto"`` or a number: in blocks that are read together.
        exhausted_policy: ``"repeat"``, ``"stop"`` or ``"redistribute"``, for all or by name: what happens when a dataset was gone through. ``"repeat"``
            for all is a stream without an end. A dataset that is not named stops.
        reshuffle_on_repeat: only True: each epoch has an order of its own.
        max_repeats: for ``"repeat"``: ends the stream after this many repeats, so ``max_repeats + 1`` epochs; None: never.
        stop_after_passes: ends the stream when the slowest dataset was gone through so often; the others repeat meanwhile. With neither
            ``exhausted_policy`` nor ``max_repeats`` given it is 1, as published; None: ``exhausted_policy`` says it. Which dataset is slowest is told from
            numbers of documents, or, by tokens, of bytes.
        lane_assignment: ``"permute"`` or ``"modulo"``; changes nothing: blocks are dealt to lanes by a key, so none gets the same places of every round.
        token_estimation: given: weights count tokens; None: documents.

    A stream that ends is counted first: all documents are read and tokenized once, and the counts are kept in the cache.
    """

    def __init__(
        self,
        datasets: Sequence[Dataset],
        mixture: Mapping[str, float],
        chunk_size: int = 16384,
        seed: int = 0,
        shuffle_shards: bool = True,
        shuffle_within_shard: bool = False,
        shuffle_block_size: int | str | None = None,
        exhausted_policy: str | Mapping[str, str] | None = None,
        reshuffle_on_repeat: bool | Mapping[str, bool] = True,
        max_repeats: int | Mapping[str, int | None] | None = None,
        stop_after_passes: int | None = _UNSET,
        lane_assignment: str = "permute",
        token_estimation: TokenEstimation | None = None,
    ) -> None:
        if not isinstance(datasets, Sequence) or not all(isinstance(d, Dataset) for d in datasets):
            raise TypeError(f"datasets is {datasets!r}; expected a list of laneway.io.Dataset: [Dataset.from_path(name, path), …]")
        self.datasets = list(datasets)
        names = [d.name for d in self.datasets]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"datasets are {names}; expected at least one, each with a name of its own")
        mixture = getattr(mixture, "weights", mixture)
        if not isinstance(mixture, Mapping) or not all(isinstance(w, numbers.Real) for w in mixture.values()):
            raise TypeError(f"mixture is {mixture!r}; expected a weight for each dataset: {{{names[0]!r}: 1.0, …}}")
        weights = dict(mixture)
        if set(weights) != set(names):
            raise ValueError(f"mixture names {sorted(weights)}; expected a weight for each of {sorted(names)}")
        self.weights = {name: float(weights[name]) for name in names}
        if chunk_size <= 0:
            raise ValueError(f"chunk_size is {chunk_size}; expected above 0")
        if lane_assignment not in ("permute", "modulo"):
            raise ValueError(f"lane_assignment is {lane_assignment!r}; expected 'permute' or 'modulo'")
        if not all(_by_name(reshuffle_on_repeat, names, True, "reshuffle_on_repeat").values()):
            raise Unsupported("reshuffle_on_repeat=False: each epoch has an order of its own here; leave it out")
        if token_estimation is not None and not isinstance(token_estimation, TokenEstimation):
            raise TypeError(f"token_estimation is a {type(token_estimation).__name__}; expected TokenEstimation() or None")
        self.seed, self.by_tokens = seed, token_estimation is not None
        self._documents = _order(shuffle_shards, shuffle_within_shard, shuffle_block_size)
        if stop_after_passes is _UNSET:
            stop_after_passes = 1 if exhausted_policy is None and max_repeats is None else None
        elif stop_after_passes is not None and (max_repeats is not None or exhausted_policy not in (None, "repeat")):
            raise ValueError("stop_after_passes makes every dataset repeat; give it, or exhausted_policy and max_repeats, not both")
        if stop_after_passes is not None and stop_after_passes < 1:
            raise ValueError(f"stop_after_passes is {stop_after_passes}; expected 1 or above, or None")
        self.stop_after_passes = stop_after_passes
        policies = _by_name(exhausted_policy, names, "stop" if stop_after_passes is None else "repeat", "exhausted_policy")
        repeats = _by_name(max_repeats, names, None, "max_repeats")
        self._ends = {name: _end(name, policies[name], repeats[name]) for name in names}
        self._chunk_size = chunk_size

    @property
    def datasets_by_id(self) -> dict[int, Dataset]:
        """The datasets by their numbers in batches' provenance."""
        return dict(enumerate(self.datasets))

    def component_ids(self) -> dict[str, int]:
        """The datasets' numbers by name."""
        return {d.name: i for i, d in enumerate(self.datasets)}

    def chunk_size_hint(self) -> int | None:
        """The ``chunk_size`` that was given; it changes nothing."""
        return self._chunk_size

    def tables(self, text_field: str) -> dict[str, Any]:
        """The recipe's part that the source decides."""
        tables = [d.table(text_field) | {"weight": self.weights[d.name]} | self._ends[d.name] for d in self.datasets]
        if self.stop_after_passes is not None:
            slowest = tables[_slowest(tables, self.by_tokens)]
            slowest |= {"exhausted": "stop", "epochs": self.stop_after_passes}
        unit = "tokens" if self.by_tokens else "samples"
        return {"seed": self.seed, "dataset": tables, "mixture": {"unit": unit}, "shuffle": {"documents": self._documents}}


def _by_name(given: Any, names: list[str], default: T, what: str) -> dict[str, T]:
    """One value for each dataset, from one for all or some by name."""
    if given is None:
        return dict.fromkeys(names, default)
    if not isinstance(given, Mapping):
        return dict.fromkeys(names, given)
    if unknown := sorted(set(given) - set(names)):
        raise ValueError(f"{what} names {unknown}; datasets are {names}")
    return {name: given.get(name, default) for name in names}


def _end(name: str, policy: str, repeats: int | None) -> dict[str, Any]:
    """The recipe's keys for an end."""
    if policy not in ("repeat", "stop", "redistribute"):
        raise ValueError(f"exhausted_policy of {name!r} is {policy!r}; expected repeat, stop or redistribute")
    if policy != "repeat":
        if repeats is not None:
            raise ValueError(f"max_repeats of {name!r} is {repeats}, and its exhausted_policy {policy!r}; only 'repeat' has repeats")
        return {"exhausted": policy}
    if repeats is None:
        return {}
    if isinstance(repeats, bool) or repeats < 0:
        raise ValueError(f"max_repeats of {name!r} is {repeats}; expected 0 or above, or None")
    return {"exhausted": "stop", "epochs": repeats + 1}


def _order(shards: bool, within: bool, block: int | str | None) -> str:
    if block == "global":
        return "global"
    if block not in (None, "auto") and (isinstance(block, (bool, str)) or block < 1):
        raise ValueError(f"shuffle_block_size is {block!r}; expected None, 'auto', 'global' or a number above 0")
    if not shards and within:
        raise Unsupported("shuffle_within_shard=True with shuffle_shards=False: this build shuffles both, or neither")
    return "blocks" if shards else "none"


def _slowest(tables: list[dict[str, Any]], by_tokens: bool) -> int:
    """Which dataset takes longest to go through at its weight."""
    takes = [_size(t, by_tokens) / t["weight"] if t["weight"] > 0 else 0.0 for t in tables] if len(tables) > 1 else [1.0]
    return takes.index(max(takes))


def _size(table: dict[str, Any], in_bytes: bool) -> int:
    """Documents, or bytes of shards, of a dataset, whose index is built if there is none."""
    lib = _native.lib()
    c = _structs.DatasetOptions()
    lib.lw_dataset_options_init(ctypes.byref(c))
    paths = [p.encode() for p in table["paths"]]
    c.paths, c.path_count = (c_char_p * len(paths))(*paths), len(paths)
    c.name = table["name"].encode()
    for key in ("format", "text_field", "text_unit", "on_error"):
        if table.get(key) is not None:
            setattr(c, key, table[key].encode())

    def ask(_deadline: int) -> int:
        out = c_void_p()
        _native.check(lib.lw_dataset_open(ctypes.byref(c), ctypes.byref(out)))
        try:
            return sum(_group_bytes(out.value)) if in_bytes else lib.lw_dataset_documents(out)  # type: ignore[no-any-return,arg-type]
        finally:
            lib.lw_dataset_free(out)

    return _native.interruptibly(ask, 1e9)  # type: ignore[no-any-return]


def _group_bytes(handle: int) -> list[int]:
    """Uncompressed bytes of each group."""
    lib = _native.lib()
    count = ctypes.c_size_t()
    _native.check(lib.lw_dataset_groups(handle, None, 0, ctypes.byref(count)))
    groups = (_structs.Group * max(1, count.value))()
    _native.check(lib.lw_dataset_groups(handle, groups, count.value, ctypes.byref(count)))
    return [groups[i].bytes for i in range(count.value)]
