"""What a pipeline is built of, step by step, and the recipe that the steps describe."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._builder import Options, Payload, Transform, WrittenTokenizer, batch_keys, only, signature
from ._operators import Operator, SampleRecord
from ._published import PublishedSteps
from .batch import Batch
from .batch_config import BatchConfig
from .errors import InvalidArgument, Unsupported
from .generate import GenerateOptions
from .recipe import Recipe
from .student import check_count, to_json
from .work import WorkSource

if TYPE_CHECKING:
    from .loader import State
    from .pipeline import Pipeline


class Steps(PublishedSteps):
    """The steps, for :class:`~laneway.Pipeline`."""

    _restored: list[State] | None

    def __init__(self, work_source: WorkSource) -> None:
        self.source = work_source
        self._options = Options()
        self._transforms: list[Transform] = []
        self._operators: list[Operator] = []
        self._tokenizer: dict[str, Any] | None = None
        self._field = "text"
        self._decoded: tuple[str, ...] | None = None
        self._truncate: int | None = None
        self._written: WrittenTokenizer | None = None
        self._pack: dict[str, Any] | None = None
        self._shuffle: dict[str, Any] = {"buffer_size": 0}
        self._microbatch_size: int | None = None
        self._generate: dict[str, Any] | None = None
        self._reached: GenerateOptions | bool = True
        self._tail = "drop"
        self._batch_maps: list[tuple[Callable[[Batch], Any], bool]] = []
        self._emit_positions = True
        self._threads: int | None = None

    def map_transform(
        self,
        transform_fn: Callable[[Payload], Payload | None],
        *,
        drop_none: bool = True,
        name: str | None = None,
        placement: str = "auto",
        parallelism: int | None = None,
    ) -> Pipeline:
        """A function on ``{field: text}``, before :meth:`tokenize`, whose ``field`` it is. None leaves the document out (with ``drop_none``).

        It must be pure: it runs on any thread, in any order, and again after a restore. ``name`` with a version stands for it in the recipe and in checkpoints; unless
        given, its name and a hash of its code."""
        self._change()
        if self._tokenizer is not None:
            raise Unsupported("map_transform after tokenize: functions run on texts in this build; call it before tokenize")
        self._transforms.append(Transform(transform_fn, drop_none, name))
        return self._place(placement, parallelism)

    def tokenize(
        self,
        tokenizer: Any | None = None,
        tokenizer_id: str | None = None,
        *,
        field: str,
        missing_field: str = "error",
        add_attention_mask: bool = True,
        max_length: int | None = None,
        padding: bool | str = False,
        truncation: bool = False,
        return_tensors: str | None = None,
        split_long_samples: bool = False,
        use_fast: bool | None = True,
        preserve_upstream_payload: bool = False,
        special_tokens: str = "bos_eos",
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        pad_token: str | None = None,
        parse_special: bool = False,
        placement: str = "auto",
        parallelism: int | None = None,
    ) -> Pipeline:
        """Text to tokens.

        Args:
            tokenizer: a ``tokenizer.json`` or its folder, or a fast tokenizer object of ``transformers`` or ``tokenizers``, which is written to a temporary file; or
            tokenizer_id: also a hub id, looked up in the local hub cache, never downloaded.
            field: the documents' field, or column, that holds the text; ``a.b`` looks into objects.
            special_tokens: ``"bos_eos"``, ``"bos"``, ``"eos"``, ``"none"`` or ``"tokenizer_default"``.
            bos_token, eos_token, pad_token: how they are spelled, where the tokenizer's files do not tell.
            truncation, max_length: True, and the ``max_length`` of :meth:`pack_flat`: longer documents lose their ends (``long_documents="truncate"``).
            add_attention_mask: changes nothing: ``to_training(extra_fields=["attention_mask"])`` gives one.
            parse_special: whether text that spells a control token becomes that token.
        """
        self._change()
        if (tokenizer is None) == (tokenizer_id is None):
            raise InvalidArgument("tokenize() takes a tokenizer (a path) or a tokenizer_id, one of them")
        if tokenizer is not None and not isinstance(tokenizer, (str, os.PathLike)):
            self._written = WrittenTokenizer(tokenizer)
            spelled = self._written.tokens
            bos_token, eos_token, pad_token = bos_token or spelled["bos_token"], eos_token or spelled["eos_token"], pad_token or spelled["pad_token"]
            tokenizer = self._written.path
        if truncation != (max_length is not None):
            raise InvalidArgument(f"tokenize(truncation={truncation}, max_length={max_length}): give both or neither")
        long = "rows are cut by pack_flat; see its long_documents"
        named = "name the token instead: bos_token='<s>', eos_token='</s>'"
        only(
            "tokenize",
            {
                "missing_field": (missing_field, ["error"], "Dataset.from_path(on_error='skip') leaves such documents out"),
                "padding": (padding, [False], "rows are padded by pack_flat"),
                "return_tensors": (return_tensors, [None], "batches hold tensors"),
                "split_long_samples": (split_long_samples, [False], long),
                "use_fast": (use_fast, [True, None], "there is no slow one"),
                "preserve_upstream_payload": (preserve_upstream_payload, [False], "batch.provenance and Pipeline.loader.read() lead back to documents"),
                "bos_token_id": (bos_token_id, [None], named),
                "eos_token_id": (eos_token_id, [None], named),
            },
        )
        if not isinstance(field, str) or not field:
            raise TypeError(f"tokenize(field={field!r}): expected the name of the field, or column, that holds the text")
        self._field, self._truncate = field, max_length
        path = os.fspath(tokenizer) if tokenizer is not None else tokenizer_id
        tokens = {"bos_token": bos_token, "eos_token": eos_token, "pad_token": pad_token}
        self._tokenizer = {"path": path, "special_tokens": special_tokens, "parse_special": bool(parse_special), **tokens}
        return self._place(placement, parallelism)

    def pack_flat(
        self,
        max_length: int,
        *,
        num_bins: int | None = None,
        max_sequences_per_bin: int | None = None,
        algorithm: str = "first_fit",
        tokens_field: str = "auto",
        pad_token_id: int | None = None,
        emit_positions: bool = True,
        drop_oversized: bool | None = None,
        min_sequence_length: int = 1,
        shuffle_strategy: str | None = None,
        shuffle_seed: int | None = None,
        flush_strategy: str = "fifo",
        candidate_pool_size: int | None = None,
        max_candidate_age: int | None = None,
        homogeneity: str = "none",
        groups: Mapping[str, Sequence[str]] | None = None,
        long_documents: str | None = None,
        placement: str = "auto",
        parallelism: int | None = None,
    ) -> Pipeline:
        """Documents to rows of ``max_length`` tokens.

        Args:
            algorithm: ``"first_fit"``, ``"best_fit"``, ``"wrap"``, ``"best_fit_wrap"``, or ``"none"``: one document a row.
            num_bins: open rows of the fit algorithms (64).
            max_sequences_per_bin: documents, or parts of them, of a row; None: any number.
            min_sequence_length: a row of the fit algorithms with less room than that is full.
            flush_strategy: which open row goes when none has room and ``num_bins`` are open: the oldest (``"fifo"``), or the ``"fullest"``.
            candidate_pool_size: documents that ``best_fit_wrap`` chooses from (64).
            max_candidate_age: changes nothing: each row of ``best_fit_wrap`` begins with the oldest candidate, so none is older than the pool is large.
            pad_token_id: what rows are filled up with; None: the tokenizer's.
            emit_positions: whether :meth:`Batch.to_training` gives positions.
            drop_oversized: whether documents longer than a row are left out, and counted; None: with the fit algorithms.
            long_documents: the same in full: ``"split"``, ``"truncate"``, ``"drop"`` or ``"error"``.
            homogeneity, groups: which datasets may share a row: ``"none"`` (any), ``"full"`` (of one dataset), ``"group"`` (of one of ``groups``; a dataset in
                none is one by itself).
        """
        self._change()
        check_count("min_sequence_length", min_sequence_length, 0)
        if flush_strategy not in ("fifo", "fullest"):
            raise ValueError(f"flush_strategy is {flush_strategy!r}; expected 'fifo' or 'fullest'")
        only(
            "pack_flat",
            {
                "tokens_field": (tokens_field, ["auto", "input_ids"], "there is one"),
                "shuffle_strategy": (shuffle_strategy, [None], "use shuffle()"),
                "shuffle_seed": (shuffle_seed, [None], "use shuffle(seed=…)"),
            },
        )
        wraps = algorithm in ("wrap", "best_fit_wrap")
        if wraps and num_bins is not None:
            raise InvalidArgument(f"num_bins belongs to first_fit and best_fit, not to {algorithm}; leave it out")
        if max_candidate_age is not None:
            check_count("max_candidate_age", max_candidate_age, 1)
        if wraps:
            # Rows of these are filled to the last token, or by max_sequences_per_bin.
            min_sequence_length, flush_strategy = 1, "fifo"
        if drop_oversized is not None:
            if long_documents is not None:
                raise InvalidArgument("drop_oversized and long_documents say the same; give one")
            if wraps and drop_oversized:
                raise InvalidArgument(f"drop_oversized=True does not go with {algorithm}, which splits; long_documents='drop' does it")
            long_documents = "drop" if drop_oversized else "split" if wraps else "error"
        self._pack = {
            "max_length": max_length,
            "algorithm": algorithm,
            "num_bins": num_bins,
            "max_sequences_per_bin": max_sequences_per_bin,
            # The published 0 also closes a row only when it is full.
            "min_sequence_length": max(1, min_sequence_length),
            "flush_strategy": flush_strategy,
            "candidate_pool_size": candidate_pool_size,
            "pad_token_id": pad_token_id,
            "homogeneity": homogeneity,
            "groups": groups,
            "long_documents": long_documents,
        }
        self._emit_positions = bool(emit_positions)
        return self._place(placement, parallelism)

    def shuffle(
        self,
        buffer_size: int | None = None,
        *,
        seed: int | None = None,
        algorithm: str = "streaming",
        warmup_growth: float = 1.5,
        placement: str = "auto",
        parallelism: int | None = None,
    ) -> Pipeline:
        """Shuffles rows among ``buffer_size`` (8192), counted over all lanes; ``seed`` None: the source's. Rows move within windows, the first ones smaller; there
        is one algorithm, whichever of the published ``"streaming"``, ``"block"`` and ``"block_warmup"`` is named, and one ``warmup_growth``."""
        self._change()
        if self._pack is None:
            raise InvalidArgument("shuffle() comes after pack_flat(): it moves rows; in what order documents come is the source's")
        only("shuffle", {"algorithm": (algorithm, ["streaming", "block", "block_warmup"], "rows are shuffled in windows, the first ones smaller")})
        size = 8192 if buffer_size is None else check_count("buffer_size", buffer_size, 0, 2**63 - 1)
        self._shuffle = {"buffer_size": size, "seed": seed}
        return self._place(placement, parallelism)

    def batch(self, microbatch_size: int, *, drop_last: bool = True, placement: str = "auto") -> Pipeline:
        """Rows to batches of ``microbatch_size``. ``drop_last``: whether rows that do not fill a last step are left out, or the step filled up with masked
        rows."""
        self._change()
        self._microbatch_size = check_count("microbatch_size", microbatch_size, 1)
        self._tail = "drop" if drop_last else "pad"
        return self._place(placement, None)

    def generate(
        self,
        model_id: str,
        layout: BatchConfig,
        batch_size: int = 8,
        *,
        model_cfg: Mapping[str, Any] | None = None,
        input: str = "ticket",
        pad_to: str | int | None = None,
        options: GenerateOptions | bool = True,
        placement: str = "auto",
        parallelism: int | None = None,
    ) -> Pipeline:
        """Teachers make a sample for each row: workers of a broker (:class:`~laneway.Worker` with this pipeline's :attr:`recipe`), whatever their number.
        Batches then have the layout's tensors, ``batch["logits"]``: ``rows × shape``.

        Args:
            model_id, model_cfg: what they make it with, from step 0 on; :meth:`set_model` changes it at a step. None has no place in ``model_cfg``.
            layout: the tensors that are made of a row.
            batch_size: most rows that a worker takes at once.
            input: what a worker is given of a row: ``"ticket"``, from which it makes the row itself (``task.rows``), or ``"tokens"``, the row
                (``task.inputs``).
            pad_to: the size of ragged dimensions in a batch: ``"longest"`` (as None) of its rows, ``"max"``, or a number that sizes are to be a multiple of.
            options: where the workers are. It changes no byte.
        """
        self._change()
        if not isinstance(layout, BatchConfig):
            raise TypeError(f"layout is a {type(layout).__name__}; expected a BatchConfig")
        specs = layout.to_dict()["specs"]
        cfg = None if model_cfg is None else json.loads(to_json(model_cfg) or "{}")
        if _has_none(cfg):
            raise InvalidArgument("model_cfg holds None, for which a recipe has no form; leave the key out")
        self._generate = {"model_id": model_id, "model_cfg": cfg, "layout": specs, "batch_size": batch_size, "input": input, "pad_to": pad_to}
        self._reached = options
        return self._place(placement, parallelism)

    def map_batch(
        self, transform_fn: Callable[[Batch], Any], *, drop_none: bool = True, placement: str = "auto", parallelism: int | None = None
    ) -> Pipeline:
        """A function on each batch, after :meth:`batch`, in the thread that iterates; None leaves the batch out (with ``drop_none``)."""
        self._change()
        if self._microbatch_size is None:
            raise InvalidArgument("map_batch() comes after batch(); map_transform() is for documents")
        self._batch_maps.append((transform_fn, drop_none))
        return self._place(placement, parallelism)

    def stateful_transform(
        self,
        name: str,
        *,
        init_state: Callable[[], Any],
        push: Callable[[Any, list[SampleRecord]], tuple[Any, Sequence[SampleRecord]]],
        flush: Callable[[Any], Sequence[SampleRecord]] | None = None,
        should_flush: Callable[[Any], bool] | None = None,
        transform: Callable[[list[SampleRecord]], Sequence[SampleRecord]] | None = None,
        save: Callable[[Any], Any] | None = None,
        load: Callable[[Any], Any] | None = None,
        version: str | None = None,
        placement: str = "auto",
        parallelism: int = 1,
        indexable: bool = False,
        preserves_cursor_order: bool = True,
    ) -> Pipeline:
        """An operator with a state, between :meth:`tokenize` and :meth:`pack_flat`: it drops, cuts, holds back, repeats or reorders documents. Several run one
        behind the other.

        Each lane has a state of its own and sees its documents, mixed and in order. The state is part of every checkpoint: there are no flushes but where
        ``should_flush`` asks for one and where the stream ends. Shares of a mixture are those before this operator.

        Args:
            name: with ``version``, or unless given a hash of the functions' code, its name in the recipe and in checkpoints.
            init_state: makes a lane's state.
            push: ``push(state, records)`` gives the new state and the :class:`~laneway.SampleRecord` s that go on; ``records`` holds one.
            flush: gives what is still to go on when the stream ends, or ``should_flush`` says so.
            should_flush: whether to flush now, and to begin with a new state.
            transform: applied to the records that go on, in the lane's order; it must be pure.
            save, load: as for :class:`~laneway.Operator`: for states that are no plain values.
            placement, parallelism, indexable, preserves_cursor_order: as published; they change nothing here.
        """
        self._change()
        where = f"stateful_transform({name!r})"
        if self._tokenizer is None:
            raise Unsupported(f"{where} before tokenize: operators see documents in the order of their lane, as tokens; call it after tokenize, and use map_transform for texts")
        if self._pack is not None:
            raise Unsupported(f"{where} after pack_flat: operators see documents; call it before pack_flat, and use map_batch for batches")
        functions = [f for f in (init_state, push, flush, should_flush, transform, save, load) if f is not None]
        if version is None:
            version = hashlib.sha256("\n".join(signature(f) for f in functions).encode()).hexdigest()[:12]
        self._operators.append(Operator(f"{name} {version}", init_state, push, flush, should_flush, transform, save, load))
        return self._place(placement, None)

    @property
    def recipe(self) -> Recipe:
        """The recipe that the calls describe; ``recipe.to_toml()`` is the file. May have to index datasets, to tell which is the slowest."""
        return self._compiled()[0]

    def _compiled(self) -> tuple[Recipe, list[Any]]:
        for part, call in ((self._tokenizer, "tokenize(tokenizer_id=…, field=…)"), (self._pack, "pack_flat(max_length)"), (self._microbatch_size, "batch(n)")):
            if part is None:
                raise InvalidArgument(f"this Pipeline lacks .{call}; it needs tokenize, pack_flat and batch")
        assert self._pack is not None and self._microbatch_size is not None
        given = self.source.tables(self._field)
        if not isinstance(given, Mapping):
            raise TypeError(f"{type(self.source).__name__}.tables() returned a {type(given).__name__}; expected a dict: {{'seed': …, 'dataset': [{{…}}], …}}")
        keys = dict(given)
        pack = dict(self._pack)
        if self._decoded is not None and self._field not in self._decoded:
            raise InvalidArgument(f"decode_text(fields={list(self._decoded)}) does not name {self._field!r}, which tokenize reads")
        if self._truncate is not None:
            if self._truncate != pack["max_length"] or pack["long_documents"] not in (None, "truncate"):
                raise Unsupported(
                    f"tokenize(truncation=True, max_length={self._truncate}) with pack_flat(max_length={pack['max_length']}, "
                    f"long_documents={pack['long_documents']!r}): documents are cut to the length of a row; give both the same max_length"
                )
            pack["long_documents"] = "truncate"
        if pack["groups"] is not None:
            # A dataset in no group is one by itself.
            grouped = {name for members in pack["groups"].values() for name in members}
            alone = {d["name"]: [d["name"]] for d in keys["dataset"] if d["name"] not in grouped}
            pack["groups"] = {**pack["groups"], **alone}
        functions = [f for transform in self._transforms for f in transform.functions(self._field)]
        restored = None if self._restored is None else self._restored[0]["meta"].get("recipe")
        keys |= {
            "functions": [f.name for f in [*functions, *self._operators]] or None,
            "tokenizer": self._tokenizer,
            "pack": pack,
            "shuffle": {**keys.get("shuffle", {}), **self._shuffle},
            "batch": {**batch_keys(self._options, self._microbatch_size, restored), "tail": self._tail},
            "generate": self._generate,
        }
        return Recipe.from_dict(keys), functions


def _has_none(value: Any) -> bool:
    if isinstance(value, dict):
        return any(v is None or _has_none(v) for v in value.values())
    return isinstance(value, list) and any(v is None or _has_none(v) for v in value)
