"""Steps of the published design that have little or nothing to do here, so that programs written for it run as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._builder import Payload, only
from .errors import Unsupported
from .student import check_count

if TYPE_CHECKING:
    from .pipeline import Pipeline
    from .work import WorkSource


class PublishedSteps:
    """Those steps, for :class:`~laneway.Pipeline`."""

    source: WorkSource
    _decoded: tuple[str, ...] | None
    _change: Callable[[], None]
    _place: Callable[[str, int | None], Pipeline]
    map_transform: Callable[..., Pipeline]

    def decode_text(
        self,
        parallelism: int | None = None,
        *,
        fields: Sequence[str] = ("text",),
        encoding: str = "utf-8",
        errors: str = "strict",
        normalize_newlines: bool = True,
        lowercase: bool = False,
        max_batch: int = 128,
        max_latency_ms: int | None = 2,
    ) -> Pipeline:
        """Reading UTF-8 is part of opening a dataset, and what is done about text that is none is :meth:`Dataset.from_path`'s ``on_error``: this adds what else
        the published step does, ``normalize_newlines`` and ``lowercase``, as a :meth:`map_transform`. ``fields`` must hold the field that is tokenized."""
        only(
            "decode_text",
            {
                "encoding": (encoding.lower().replace("_", "-"), ["utf-8", "utf8"], "datasets are UTF-8"),
                "errors": (errors, ["strict"], "Dataset.from_path(on_error='skip') or 'replace' does it"),
            },
        )
        check_count("max_batch", max_batch, 1)
        self._decoded = tuple(fields)
        if normalize_newlines or lowercase:
            self.map_transform(Decoded(normalize_newlines, lowercase), drop_none=False, name=f"decode_text newlines={normalize_newlines} lowercase={lowercase}")
        return self._place("auto", parallelism)

    def fetch_parallelism(self, parallelism: int | None, max_batch: int | None = None) -> Pipeline:
        """How many threads work."""
        self._change()
        return self._place("auto", parallelism)

    def fetch(self, parallelism: int | None = None, max_batch: int | None = None) -> Pipeline:
        """As :meth:`fetch_parallelism`."""
        return self.fetch_parallelism(parallelism, max_batch)

    def prefetch(self, buffer_size: int = 1024, parallelism: int | None = None, *, placement: str = "local") -> Pipeline:
        """Changes nothing: files are local, and documents are read ahead anyhow."""
        self._change()
        return self._place(placement, None)

    def materialize(self, placement: str = "auto", parallelism: int | None = None) -> Pipeline:
        """Changes nothing: batches hold their tensors."""
        self._change()
        return self._place(placement, None)

    def ensure_mixture(
        self,
        *,
        max_buffer_size: int | None = 1000,
        drain_target_ratio: float = 0.8,
        obsolete_drain_rate: float = 0.1,
        weight_by: Callable[[Any], float] | str = "auto",
        warn_tolerance: float | None = None,
        mixture: Mapping[str, float] | None = None,
        placement: str = "auto",
        parallelism: int | None = None,
    ) -> Pipeline:
        """Changes nothing: shares are met at every document, by tokens if the source has a ``token_estimation``, else by samples. Asking for other
        weights than the source's raises :class:`~laneway.errors.Unsupported`."""
        self._change()
        if mixture is not None or callable(weight_by):
            raise Unsupported("ensure_mixture(mixture=…, weight_by=function): shares are the source's; give it the weights")
        by_tokens = getattr(self.source, "by_tokens", None)
        if weight_by != "auto" and by_tokens is not None and (weight_by == "samples") == by_tokens:
            unit = "tokens" if by_tokens else "samples"
            raise Unsupported(f"ensure_mixture(weight_by={weight_by!r}): the source mixes by {unit}, which token_estimation decides")
        return self._place(placement, None)


@dataclass(frozen=True)
class Decoded:
    """``Pipeline.decode_text()`` on payloads."""

    normalize_newlines: bool
    lowercase: bool

    def __call__(self, payload: Payload) -> Payload:
        made = {}
        for name, text in payload.items():
            if self.normalize_newlines:
                text = text.replace("\r\n", "\n").replace("\r", "\n")
            made[name] = text.lower() if self.lowercase else text
        return made
