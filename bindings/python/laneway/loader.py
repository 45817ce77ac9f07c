"""The loader: a rank's part of every global batch, the same rows in the same order on any number of ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from . import _dtypes, _native
from ._dtypes import Framework
from ._functions import Function
from ._operators import Operator
from ._open_loader import InlineLoader, OpenLoader, ProgressFn, Tuning
from ._process import ProcessLock
from .batch import Batch
from .errors import Closed, InvalidArgument
from .generate import GenerateOptions
from .recipe import Recipe
from .student import check_count, to_json

State = Mapping[str, Any]
"""A checkpoint: ``{"meta": {…}, "lanes": {"17": "…", …}}``, for ``json.dump`` or torch's distributed checkpoint."""


class Loader:
    """Batches of a recipe, for one of the ranks of a run.

    ``for batch in loader`` yields :class:`~laneway.Batch` objects, and goes on where it was left if it is started again. Nothing is opened, and
    no thread started, before the first call that needs it: a loader may be pickled, or forked, before that, and then opens in the
    process that uses it. In a forked child of the process that opened it, every call raises :class:`~laneway.errors.Forked`. Any thread may call any
    method; calls take turns. Waits release the GIL and notice Ctrl-C within 0.1 s.

    ``rank`` and ``ranks`` choose the part, ``recipe``, ``functions`` and ``operators`` the bytes; nothing else changes a byte.

    Args:
        recipe: the path of a TOML file, TOML text, a dict of the same keys, or a :class:`~laneway.Recipe`.
        rank, ranks: this data-parallel rank, from 0, and how many there are. They must divide the lanes, unless ``uneven``.
        microbatch_size: rows of a batch; None: all rows of the rank at a step.
        uneven: any number of ranks and any microbatch size; short ranks end a step with fully masked rows.
        threads: that read and make tokens; None: one a processor; 0: those that ask for batches do.
        prefetch: steps made ahead of the one that is asked for.
        cache_dir: where indexes and token counts are kept; None: beside the data, else in ``$LANEWAY_CACHE``, else in the user's cache.
        memory_budget: bytes that half-read compressed files may keep, for each dataset.
        task_bytes: bytes of text that a thread takes at once.
        functions: the :class:`~laneway.Function` s, or ``{name: callable}`` of maps, that the recipe's ``functions`` names.
        operators: the :class:`~laneway.Operator` s whose names stand behind those of the functions there.
        progress: what is told of indexing and of counting tokens: ``"auto"`` is a bar on a terminal, True a bar, None nobody, or
            ``f(what, done, total)``, called on any thread.
        framework: ``"torch"``, ``"numpy"``, or ``"auto"``: torch where it can be imported.
        generate: where the teachers are, for a recipe with a ``[generate]``: :class:`~laneway.GenerateOptions`; True: at the default broker;
            False: nobody is asked, and batches hold rows alone.

    Raises:
        InvalidArgument, DataError: what is wrong in the recipe, with the line. What is wrong with the data is said by the first call that opens it.
    """

    def __init__(
        self,
        recipe: Recipe | Mapping[str, Any] | str | os.PathLike[str],
        rank: int = 0,
        ranks: int = 1,
        *,
        microbatch_size: int | None = None,
        uneven: bool = False,
        threads: int | None = None,
        prefetch: int = 1,
        cache_dir: str | os.PathLike[str] | None = None,
        memory_budget: int = 256 << 20,
        task_bytes: int = 32 << 10,
        functions: Iterable[Function] | Mapping[str, Callable[[str], str]] = (),
        operators: Iterable[Operator] = (),
        progress: ProgressFn | bool | str | None = "auto",
        framework: Framework = "auto",
        generate: GenerateOptions | bool = True,
    ) -> None:
        self.recipe = Recipe.of(recipe)
        self.rank, self.ranks = check_count("rank", rank, 0), check_count("ranks", ranks, 1)
        self._check_rank()
        self._tuning = Tuning(
            microbatch_size=0 if microbatch_size is None else check_count("microbatch_size", microbatch_size, 1),
            uneven=bool(uneven),
            threads=None if threads is None else check_count("threads", threads, 0, 4096),
            prefetch=check_count("prefetch", prefetch, 0),
            cache_dir=None if cache_dir is None else os.fspath(cache_dir),
            memory_budget=check_count("memory_budget", memory_budget, 0, 2**63 - 1),
            task_bytes=check_count("task_bytes", task_bytes, 1, 2**31),
            generate=_as_generate(generate),
        )
        self._functions, self._operators = _as_functions(functions), _as_operators(operators)
        self._set_manner(progress, framework)

    def _set_manner(self, progress: ProgressFn | bool | str | None, framework: Framework) -> None:
        """What all kinds of loaders have, and a place that is not open yet."""
        if not (progress in (None, True, False, "auto") or callable(progress)):
            raise ValueError(f'progress is {progress!r}; expected "auto", True, None or a function (what, done, total)')
        self._progress = progress
        if framework not in ("auto", "torch", "numpy"):
            raise ValueError(f'framework is {framework!r}; expected "auto", "torch" or "numpy"')
        self._framework: Framework = framework
        self._start: list[bytes] | int | None = None
        self._renew()

    @property
    def _asks_teachers(self) -> bool:
        return self._tuning.generate is not False and self.recipe.taught_config() is not None

    def _check_rank(self) -> None:
        if self.rank >= self.ranks:
            raise ValueError(f"rank is {self.rank}; expected 0 to {self.ranks - 1}, since ranks is {self.ranks}")

    def _renew(self) -> None:
        self._lock = ProcessLock()
        self._open: OpenLoader | None = None
        self._closed = False

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = self._opened().next(_dtypes.use_torch(self._framework))
        if batch is None:
            raise StopIteration
        return batch

    def next(self, timeout_s: float | None = None) -> Batch | None:
        """The next batch, waited for up to ``timeout_s`` seconds; None after the last.

        Raises:
            Timeout: it is not there yet; nothing is lost, call again.
            DataError: a document, a file or a function failed, and the message names it. Every later call raises it again, until the
                loader is moved or loaded.
        """
        return self._opened().next(_dtypes.use_torch(self._framework), _native.deadline(timeout_s))

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands after the last batch that was taken: ``meta``, the same on all ranks, and an entry for each of this rank's
        ``lanes`` by number. A few hundred bytes a lane, whatever the step; saving changes nothing. Merging all ranks' dicts key by key gives
        the state of the whole run."""
        return json.loads(self._opened().text("lw_loader_save_json"))  # type: ignore[no-any-return]

    def load_state_dict(self, state: State | Sequence[State]) -> None:
        """Goes on from a state, or from several ranks' states of one moment, which together hold at least the lanes that this rank owns; they
        may come from any number of ranks. On a loader that is not open yet they are kept, and checked when it opens.

        Raises:
            NotFound: a lane that this rank owns is missing; names it.
            Refused: the recipe, the tokenizer or the data is another; names the field. The loader stays where it was.
            Corrupt: the state is damaged.
        """
        states = [state] if isinstance(state, Mapping) or not isinstance(state, Sequence) else list(state)
        for part in states:
            if not isinstance(part, Mapping) or not {"meta", "lanes"} <= part.keys():
                raise InvalidArgument("a state is a dict with 'meta' and 'lanes', as state_dict() gives it, or a list of such")
        if not states:
            raise InvalidArgument("load_state_dict() got no state; give the dict that state_dict() returned")
        self._move([json.dumps(part).encode() for part in states])

    def seek(self, step: int) -> None:
        """Goes to the start of a step, ahead or back. Quick where the tokens of every document were counted (a stream that ends, or
        ``laneway index --tokens``); otherwise this rank's lanes are run up to there, which the log says. All ranks seek the same step."""
        self._move(check_count("step", step, 0, 2**63 - 1))

    def _move(self, target: list[bytes] | int) -> None:
        with self._lock:
            if self._open is None and not self._closed:
                self._start = target
                return
        self._opened().move(target)

    def set_mixture(self, weights: Mapping[str, float] | Sequence[float], from_step: int) -> None:
        """Sets the mixture's weights from a step on: ``{dataset: weight}``, or a list in the recipe's order. Every rank sets the same.

        They hold for documents taken after the first row of the first row window at or after that step, and are kept in checkpoints.

        Raises:
            InvalidArgument: too early, with the first step that is possible; or a weight that is wrong.
        """
        opened = self._opened()
        names = opened.dataset_names
        if isinstance(weights, Mapping):
            if set(weights) != set(names):
                raise ValueError(f"weights name {sorted(weights)}; expected every dataset: {names}")
            weights = [weights[name] for name in names]
        opened.set_mixture([float(w) for w in weights], check_count("from_step", from_step, 0, 2**63 - 1))

    def set_model(self, model_id: str, model_cfg: Mapping[str, Any] | None = None, *, from_step: int) -> None:
        """Has teachers make the rows from ``from_step`` on with another model (of a recipe with a ``[generate]``). Every rank sets the same, and
        rank 0 tells the workers; it is kept in checkpoints.

        Args:
            model_id: any text, of any length.
            model_cfg: anything that JSON can carry, or an OmegaConf node; workers get an equal ``dict``.
            from_step: the first step whose rows it makes.

        Raises:
            InvalidArgument: too early, with the first step that is possible.
            Unsupported: there are no teachers.
        """
        if not isinstance(model_id, str):
            raise TypeError(f"model_id is a {type(model_id).__name__}; expected a str")
        self._opened().set_model(model_id, to_json(model_cfg), check_count("from_step", from_step, 0, 2**63 - 1))

    @property
    def step(self) -> int:
        """The step of the next batch."""
        return self._opened().step

    @property
    def steps(self) -> int | None:
        """How many steps the stream has; None if it does not end. One that ends is counted first: all documents are read and tokenized once,
        unless the cache has the counts."""
        return self._opened().steps

    @property
    def stats(self) -> dict[str, Any]:
        """What was done: ``batches`` taken and ``waited_ns`` for them, ``bytes_read``, ``tokenizer`` (the engine, and why); over this rank's lanes,
        what was made ahead included: ``documents``, ``tokens``, ``rows``, ``epoch``, ``truncated_tokens``, and documents left out: ``empty``, ``filtered``,
        ``skipped``, ``dropped`` (``dropped_tokens``); of a stream that ends, those behind a lane's last row are counted when the end is told;
        ``generate``: what a :class:`~laneway.StudentClient`'s ``stats`` say of the student that asks the teachers, or None."""
        return json.loads(self._opened().text("lw_loader_stats"))  # type: ignore[no-any-return]

    @property
    def info(self) -> dict[str, Any]:
        """What it is: ``fingerprint`` of the recipe, ``step``, ``lanes``, ``first_lane`` and ``end_lane`` of this rank, ``global_batch``, ``rows``,
        ``microbatch_size`` and ``microbatches`` at the next step, ``row_length``, ``pad_token_id``, ``finite``, ``datasets``, ``tokenizer``."""
        return json.loads(self._opened().text("lw_loader_info"))  # type: ignore[no-any-return]

    def explain(self) -> str:
        """What a run of this recipe on this rank does, in words, in the order in which data flows."""
        return self._opened().text("lw_loader_explain")

    def locate(self, dataset: int, document: int) -> str:
        """Where a document comes from, for people: ``"data/wiki/a.jsonl line 17"``."""
        return self._opened().locate(dataset, document)

    def read(self, dataset: int, document: int) -> str:
        """A document's text, before any function; empty for one that is left out."""
        return self._opened().read(dataset, document)

    def decode(self, ids: Any) -> str:
        """The text of token ids (one dimension), special tokens spelled out."""
        return self._opened().decode(np.ascontiguousarray(ids, np.int64).reshape(-1))

    def to_torch_dataset(self) -> Any:
        """This loader as a ``torch.utils.data.IterableDataset``, for ``DataLoader(dataset, batch_size=None)``. Needs torch.

        The loader has threads of its own, so ``num_workers=0`` is what pays. With workers, each makes every batch and hands over its share, so
        batches and their order are the same; they open the loader themselves, so it must not be open yet in this process. Its state is then
        in the workers: save with ``num_workers=0``. Teachers of a ``[generate]`` are asked by one process: ``num_workers`` of 2 or more is refused."""
        from ._torch_dataset import LanesDataset

        return LanesDataset(self)

    def close(self) -> None:
        """Ends the loader's threads; waits in other threads end with :class:`~laneway.errors.Closed`. Batches stay readable. May be called twice."""
        with self._lock:
            opened, self._open, self._closed = self._open, None, True
        if opened is not None:
            opened.close()

    def _fresh(self) -> OpenLoader:
        kind = InlineLoader if self._tuning.threads == 0 else OpenLoader
        return kind(self.recipe, self.rank, self.ranks, self._tuning, self._functions, self._operators, self._progress)

    def _opened(self) -> OpenLoader:
        opened = self._open
        if opened is None:
            with self._lock:
                if self._closed:
                    raise Closed(f"this {type(self).__name__} was closed; make a new one")
                if self._open is None:
                    fresh = self._fresh()
                    if self._start is not None:
                        fresh.move(self._start)
                    self._open, self._start = fresh, None
                opened = self._open
        opened.check_process()
        return opened

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        if self._open is not None:
            raise TypeError("this Loader is open, and cannot be pickled with its place; pickle it before its first use, or send state_dict()")
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_open", "_closed")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._renew()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(recipe={self.recipe.fingerprint:016x}, rank={self.rank}, ranks={self.ranks})"


def _as_operators(given: Iterable[Operator]) -> list[Operator]:
    operators = list(given)
    for operator in operators:
        if not isinstance(operator, Operator):
            raise TypeError(f"operators holds a {type(operator).__name__}; expected laneway.Operator")
    return operators


def _as_generate(given: GenerateOptions | bool) -> GenerateOptions | bool:
    if isinstance(given, (bool, GenerateOptions)):
        return given
    raise TypeError(f"generate is a {type(given).__name__}; expected laneway.GenerateOptions, True or False")


def _as_functions(given: Iterable[Function] | Mapping[str, Callable[[str], str]]) -> list[Function]:
    if isinstance(given, Mapping):
        return [f if isinstance(f, Function) else Function(name, f) for name, f in given.items()]
    functions = list(given)
    for f in functions:
        if not isinstance(f, Function):
            raise TypeError(f"functions holds a {type(f).__name__}; expected laneway.Function, or a dict of names and callables")
    return functions
