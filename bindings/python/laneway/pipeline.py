"""The builder: a recipe from calls, for those who know the published design."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from ._builder import UNSUPPORTED_METHODS, only
from ._steps import Steps
from .errors import Closed, InvalidArgument, Unsupported
from .loader import Loader, State
from .recipe import Recipe
from .student import check_count
from .work import WorkSource

_ANY_PLACE = ("auto", "local")


class Pipeline(Steps):
    """Builds a recipe call by call, and iterates it: ``Pipeline(source).tokenize(…).pack_flat(…).shuffle(…).batch(…)``.

    It is a :class:`~laneway.Loader` of :attr:`recipe`: the same recipe, fingerprint and bytes as the TOML file. Nothing is read before it is iterated, or asked
    for what only the data tells. ``parallelism`` anywhere says how many threads work, and changes no byte; ``placement`` is accepted and means
    nothing, since there are no processes. An argument that this build cannot honour raises :class:`~laneway.errors.Unsupported`.
    """

    def __init__(self, work_source: WorkSource) -> None:
        if not isinstance(work_source, WorkSource):
            raise TypeError(f"work_source is a {type(work_source).__name__}; expected a laneway.work.WorkSource, a StaticMixtureWorkSource say")
        super().__init__(work_source)
        self._restored: list[State] | None = None
        self._step: int | None = None
        self._loader: Loader | None = None
        self._closed = False

    def options(self, **hints: Any) -> Pipeline:
        """Ranks, lanes, batches, and tuning; may be called several times.

        Args:
            dp_degree, dp_group_id: how many data-parallel ranks there are, and which this is; else ``world_size`` and ``global_rank``.
            canonical_replicas: lanes; None: one a row of the global batch.
            global_batch: rows a step, or a schedule ``[[0, 128], [1000, 256]]``; None: ``canonical_replicas × microbatch_size``, else ``microbatch_size ×
                dp_degree``. What is left open is taken from a restored checkpoint.
            uneven: any number of ranks; short ranks end a step with fully masked rows.
            max_workers: threads.
            prefetch_batches: batches made ahead.
            io_options: ``{"cache": {"enabled": …, "root": folder}}``: where indexes and counts are kept; they are kept in any case.
            deterministic: changes nothing: batches are the same whatever the threads, at no cost.
            mapping_strategy: changes nothing: a rank owns neighbouring lanes, and the global batch is the same in any case.
            memory_budget, progress, framework: as for :class:`~laneway.Loader`.

        The published options that tune runners, queues between processes, flushes, downloads and shared memory are accepted and change nothing.

        Raises:
            TypeError: an option that is not known, with the nearest that is.
            Unsupported: a value that this build cannot honour.
        """
        self._change()
        self._options.set(hints)
        return self

    @property
    def _asks_teachers(self) -> bool:
        return self._reached is not False and self._generate is not None

    def set_model(self, model_id: str, model_cfg: Mapping[str, Any] | None = None, *, from_step: int) -> None:
        """:meth:`Loader.set_model`."""
        self.loader.set_model(model_id, model_cfg, from_step=from_step)

    def set_mixture(self, weights: Mapping[str, float] | Sequence[float], from_step: int) -> None:
        """:meth:`Loader.set_mixture`."""
        self.loader.set_mixture(weights, from_step)

    @property
    def loader(self) -> Loader:
        """The loader beneath, for :meth:`Loader.set_mixture`, ``stats`` and more."""
        if self._closed:
            raise Closed("this Pipeline was closed; make a new one")
        if self._loader is None:
            recipe, functions = self._compiled()
            options = self._options
            rows = recipe_rows(recipe) // options.ranks
            ahead = options.prefetch_batches
            loader = Loader(
                recipe,
                options.rank,
                options.ranks,
                microbatch_size=self._microbatch_size,
                uneven=options.uneven,
                threads=self._threads if options.max_workers is None else options.max_workers,
                prefetch=1 if ahead is None else -(-ahead * (self._microbatch_size or 1) // max(1, rows)),
                cache_dir=options.cache_dir(),
                memory_budget=options.memory_budget,
                functions=functions,
                operators=self._operators,
                progress=options.progress,
                framework=options.framework,
                generate=self._reached,
            )
            if self._restored is not None:
                loader.load_state_dict(self._restored)
            elif self._step is not None:
                loader.seek(self._step)
            self._loader = loader
        return self._loader

    def __iter__(self) -> Iterator[Any]:
        """Goes on where it was left."""
        for batch in self.loader:
            batch.emit_positions = self._emit_positions
            made: Any = batch
            for function, drop_none in self._batch_maps:
                made = function(made)
                if made is None and drop_none:
                    break
            else:
                yield made

    def checkpoint(self) -> dict[str, Any]:
        """Where the pipeline stands, after the last batch that was taken: :meth:`Loader.state_dict`."""
        return self.loader.state_dict()

    def restore(self, ckpt: State | Sequence[State]) -> None:
        """Goes on from a checkpoint, or from several ranks' checkpoints, merged or as a list. Lanes and global batch that :meth:`options` left open
        are the checkpoint's. Checked against recipe and data when the pipeline is next used."""
        states = list(ckpt) if isinstance(ckpt, Sequence) else [ckpt]
        if not states or not all(isinstance(s, Mapping) and {"meta", "lanes"} <= s.keys() for s in states):
            raise InvalidArgument("a checkpoint is a dict with 'meta' and 'lanes', as checkpoint() gives it, or a list of such")
        self._reset()
        self._restored, self._step = states, None

    def seek(self, step: int) -> None:
        """Goes to the start of a step: :meth:`Loader.seek`."""
        check_count("step", step, 0, 2**63 - 1)
        if self._loader is not None:
            self._loader.seek(step)
        else:
            self._restored, self._step = None, step

    state_dict, load_state_dict = checkpoint, restore

    @property
    def stats(self) -> dict[str, Any]:
        """:attr:`Loader.stats`."""
        return self.loader.stats

    def explain(self) -> str:
        """:meth:`Loader.explain`. Opens the datasets."""
        return self.loader.explain()

    def to_torch_dataset(self, stateful: bool = True) -> Any:
        """As :meth:`Loader.to_torch_dataset`; it always has ``state_dict``."""
        from ._torch_dataset import LanesDataset

        return LanesDataset(self)

    def close(self) -> None:
        """Ends its threads. May be called twice."""
        self._reset()
        self._closed = True

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def _reset(self) -> None:
        loader, self._loader = self._loader, None
        if loader is not None:
            loader.close()

    def _change(self) -> None:
        if self._loader is not None:
            raise InvalidArgument("this Pipeline is in use; build it before it is iterated, or make a new one")

    def _place(self, placement: str, parallelism: int | None) -> Pipeline:
        only("Pipeline", {"placement": (placement, _ANY_PLACE, "there are threads only: 'auto'")})
        if parallelism is not None:
            self._threads = max(self._threads or 0, check_count("parallelism", parallelism, 1, 4096))
        return self

    def __getattr__(self, name: str) -> Any:
        if name in UNSUPPORTED_METHODS:
            raise Unsupported(f"Pipeline.{name}: not in this build: {UNSUPPORTED_METHODS[name]}")
        near = difflib.get_close_matches(name, [n for n in dir(type(self)) if not n.startswith("_")], 1)
        raise AttributeError(f"'Pipeline' object has no attribute {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loader": None} if self._loader is None else self._refuse()

    def _refuse(self) -> NoReturn:
        raise TypeError("this Pipeline is in use, and cannot be pickled with its place; pickle it before its first use, or send checkpoint()")


def recipe_rows(recipe: Recipe) -> int:
    """Rows of the first step."""
    rows = json.loads(recipe.fields()["batch.global_batch"])
    return int(rows if isinstance(rows, int) else rows[0][1])
