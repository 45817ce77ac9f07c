"""The node loader: a :class:`~laneway.Loader` whose batches one process makes for all ranks of a node."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from typing import Any

from . import _native
from ._dtypes import Framework
from ._open_loader import Connection, OpenLoader, OpenNodeLoader, ProgressFn
from .batch import Batch
from .errors import LanewayError, PeerDead
from .generate import GenerateOptions
from .loader import Loader, _as_generate
from .recipe import Recipe
from .student import check_count

_STARTER_PATIENCE_S = 1.0


class NodeLoader(Loader):
    """Batches that a server of this node makes: the same as a :class:`~laneway.Loader`'s, with the same methods and the same states.

    The server (``laneway serve recipe.toml``, or a :class:`~laneway.Server`) runs one pipeline for each data-parallel rank in a process of its own.
    Peers of a rank (its tensor-, pipeline- and context-parallel processes) read the same memory, without a copy; a batch's memory is written again
    once every peer has let go of it and of all arrays made from it, and peers that keep more than a few batches get copies.

    When the server dies, a waiting loader goes on with another of its name exactly where it was. ``load_state_dict`` and ``seek`` move the pipeline of
    the rank, unless it is at that place: every peer of the rank does the same, and one that does not gets :class:`~laneway.errors.Stale`.

    Args:
        recipe: as in :class:`~laneway.Loader`, to be compared with the server's; None: the server's.
        rank, ranks: this data-parallel rank, from 0, and how many there are. All peers of a rank give its number.
        name: what the server is called.
        peers: how many processes read this rank: its first batches, and those after a load, are kept until so many have come.
        microbatch_size, uneven: as in :class:`~laneway.Loader`; the same for all peers of a server.
        start: start the server, unless one of that name runs; it ends 10 s after its last peer. Of several local ranks (``LOCAL_RANK``) the
            first does. Needs ``recipe``, without functions.
        threads, prefetch, slots, cache_dir, generate: of the server that is started, as in :class:`~laneway.Server`; None: its defaults. A server that runs
            already has its own, so that they need ``start=True``.
        spin_us: how long to look for a batch before sleeping, in microseconds.
        patience_s: how long to wait for a server: at the beginning, and for another when one has died.
        progress, framework: as in :class:`~laneway.Loader`.
    """

    def __init__(
        self,
        recipe: Recipe | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        rank: int = 0,
        ranks: int = 1,
        *,
        name: str = "default",
        peers: int = 1,
        microbatch_size: int | None = None,
        uneven: bool = False,
        start: bool = False,
        threads: int | None = None,
        prefetch: int | None = None,
        slots: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        generate: GenerateOptions | bool | None = None,
        spin_us: int = 0,
        patience_s: float = 60.0,
        progress: ProgressFn | bool | str | None = "auto",
        framework: Framework = "auto",
    ) -> None:
        self._recipe = None if recipe is None else Recipe.of(recipe)
        self.rank, self.ranks = check_count("rank", rank, 0), check_count("ranks", ranks, 1)
        self._check_rank()
        if start and self._recipe is None:
            raise ValueError("start=True needs a recipe to serve")
        self._starts = bool(start) and os.environ.get("LOCAL_RANK", "0") == "0"
        given = {"threads": threads, "prefetch": prefetch, "slots": slots, "cache_dir": cache_dir, "generate": generate}
        if not start and (names := ", ".join(name for name, value in given.items() if value is not None)):
            raise ValueError(f"{names}: of the server that start=True starts; one that runs already has its own (laneway serve --help)")
        self._server = _server_words(threads, prefetch, slots, cache_dir, generate)
        if not 0 <= patience_s <= 4_000_000:
            raise ValueError(f"patience_s is {patience_s!r}; expected a number of seconds")
        self._patience_s = float(patience_s)
        self._tuning = Connection(
            microbatch_size=0 if microbatch_size is None else check_count("microbatch_size", microbatch_size, 1),
            uneven=bool(uneven),
            threads=None,
            prefetch=0,
            cache_dir=None,
            memory_budget=0,
            task_bytes=0,
            generate=False,
            name=name,
            peers=check_count("peers", peers, 1, 64),
            spin_us=check_count("spin_us", spin_us, 0, 2**32 - 1),
            # Whoever can start a server need not wait for somebody else to.
            patience_s=min(self._patience_s, _STARTER_PATIENCE_S) if self._starts else self._patience_s,
        )
        self._functions, self._operators = [], []
        self._set_manner(progress, framework)

    @property
    def recipe(self) -> Recipe:  # type: ignore[override]
        """The recipe that was given, or else the server's."""
        if self._recipe is None:
            self._recipe = self._opened().recipe
        return self._recipe

    def _fresh(self) -> OpenLoader:
        if self._starts:
            self._start_server()
        return OpenNodeLoader(self._recipe, self.rank, self.ranks, self._tuning, [], [], self._progress)

    def __next__(self) -> Batch:
        batch = self.next()
        if batch is None:
            raise StopIteration
        return batch

    def next(self, timeout_s: float | None = None) -> Batch | None:
        """As :meth:`laneway.Loader.next`.

        Raises:
            PeerDead: the server has died, and none came back within ``patience_s``; nothing is lost, call again.
            Stale: another peer of this rank has loaded a state or moved; load the same, or make a new loader.
        """
        try:
            return super().next(timeout_s)
        except PeerDead:
            if not self._starts:
                raise
        self._start_server()
        return super().next(timeout_s)

    def _start_server(self) -> None:
        """Starts ``laneway serve`` in the background, unless one of that name runs."""
        assert self._recipe is not None
        assert isinstance(self._tuning, Connection)
        program, tuning = _native.find_program(), self._tuning
        # Not how many ranks: a run that comes back on others finds it still there.
        words = [str(program), "serve", "-", "--embedded", "--log", "warning", "--name", tuning.name]
        words += ["--peers", str(tuning.peers), *self._server]
        processes = os.environ.get("LOCAL_WORLD_SIZE", "")
        words += ["--local-ranks", str(max(1, int(processes) // tuning.peers))] if processes.isdigit() else []
        done = subprocess.run(words, input=self._recipe.to_toml(), text=True, stderr=subprocess.PIPE, check=False)
        if done.returncode not in (0, _IN_USE):
            raise LanewayError(f"{program} did not start a node loader: {done.stderr.strip()}")


def _server_words(
    threads: int | None,
    prefetch: int | None,
    slots: int | None,
    cache_dir: str | os.PathLike[str] | None,
    generate: GenerateOptions | bool | None,
) -> list[str]:
    """What is given, as options of ``laneway serve``; each is checked here, since the process that starts the server may be another one."""
    words = [] if threads is None else [f"--threads={check_count('threads', threads, 0, 4096)}"]
    words += [] if prefetch is None else [f"--prefetch={check_count('prefetch', prefetch, 0)}"]
    words += [] if slots is None else [f"--slots={check_count('slots', slots, 1, 32)}"]
    words += [] if cache_dir is None else [f"--cache={os.fspath(cache_dir)}"]
    if generate is None or _as_generate(generate) is True:
        return words
    return [*words, *(generate.words() if isinstance(generate, GenerateOptions) else ["--rows-only"])]


_IN_USE = 3
"""What ``laneway serve`` exits with where one of that name runs."""
