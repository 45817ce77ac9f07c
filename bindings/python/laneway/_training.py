"""``Batch.to_training``: a batch in the form that users of the published design know."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _dtypes

if TYPE_CHECKING:
    from .batch import Batch

_GENERATED = ("ids", "texts", "input_ids", "labels")
_EXTRA = ("positions", "segment_ids", "attention_mask", "loss_mask")


def to_training(
    batch: Batch,
    *,
    tokens_field: str,
    return_labels: bool,
    dtype: Any,
    extra_fields: Sequence[str],
    ignore_index: int,
    rename_fields: Mapping[str, str] | None,
    flatten: bool,
    exclude_fields: Sequence[str],
    return_num_valid_tokens: bool,
    return_loss_mask: bool,
    return_cu_seqlens: bool,
    return_padding_mask: bool,
    eos_mask_loss: bool,
    eos_token_id: int | None,
    position_mode: str,
) -> dict[str, Any]:
    """As :meth:`Batch.to_training` says."""
    _check(
        batch, tokens_field, return_labels, extra_fields, exclude_fields, return_num_valid_tokens, return_loss_mask, return_cu_seqlens,
        return_padding_mask, eos_mask_loss, eos_token_id, position_mode,
    )  # fmt: skip
    tokens, padding = batch.numpy("input_ids"), batch.numpy("segment_ids") == 0
    inputs = slice(None, -1) if return_labels else slice(None)
    fields: dict[str, Any] = {"input_ids": tokens[:, inputs].copy()}
    if return_labels:
        labels = tokens[:, 1:].copy()
        labels[padding[:, 1:]] = ignore_index
        if eos_mask_loss:
            labels[fields["input_ids"] == eos_token_id] = ignore_index
        fields["labels"] = labels
        if return_loss_mask:
            fields["loss_mask"] = (labels != ignore_index).astype(np.float32)
    starts = _starts(batch)[:, inputs]
    if position_mode == "sequence":
        fields["positions"] = np.broadcast_to(np.arange(starts.shape[1]), starts.shape).copy()
    elif batch.emit_positions:
        fields["positions"] = _positions(starts)
    for name in extra_fields:
        if name != "positions":
            fields[name] = _extra(batch, name, padding)[:, inputs].copy()
    if return_padding_mask:
        fields["padding_mask"] = padding[:, inputs].copy()
    if flatten:
        fields = {name: value.reshape(-1) for name, value in fields.items()}

    cast = _caster(dtype, batch._as_torch)
    kept_types = ("loss_mask", "padding_mask") if return_loss_mask else ("padding_mask",)
    result: dict[str, Any] = {"ids": _ids(batch), "texts": [""] * len(batch)}
    result |= {name: cast(value, name in kept_types) for name, value in fields.items()}
    if return_num_valid_tokens:
        result["num_valid_tokens"] = int((fields["labels"] != ignore_index).sum())
    if return_cu_seqlens:
        boundaries, longest = _cu_seqlens(starts, flatten)
        result["cu_seqlens"] = cast(boundaries, True)
        result["max_seqlen"] = longest if flatten else cast(longest, True)
    return _renamed(result, rename_fields, exclude_fields)


def _check(
    batch: Batch, tokens_field: str, labels: bool, extra: Sequence[str], exclude: Sequence[str], valid_tokens: bool, loss_mask: bool,
    cu_seqlens: bool, padding_mask: bool, eos_mask: bool, eos: int | None, position_mode: str,
) -> None:  # fmt: skip
    if isinstance(exclude, str) or isinstance(extra, str):
        raise TypeError("extra_fields and exclude_fields are sequences of names, not a string")
    if tokens_field not in ("auto", "input_ids"):
        raise ValueError(f'tokens_field is {tokens_field!r}; a batch has its tokens in "input_ids"')
    for name, wanted in {"return_num_valid_tokens": valid_tokens, "return_loss_mask": loss_mask, "eos_mask_loss": eos_mask}.items():
        if wanted and not labels:
            raise ValueError(f"{name} requires return_labels=True")
    if eos is not None and (isinstance(eos, bool) or not hasattr(eos, "__index__") or eos < 0):
        raise ValueError(f"eos_token_id is {eos!r}; expected a token id, 0 or above")
    if eos_mask and eos is None:
        raise ValueError("eos_mask_loss requires eos_token_id")
    if eos is not None and not eos_mask:
        warnings.warn("eos_token_id changes nothing without eos_mask_loss=True", UserWarning, stacklevel=4)
    if position_mode not in ("preserve", "sequence"):
        raise ValueError(f'position_mode is {position_mode!r}; expected "preserve" or "sequence"')
    generated = [*_GENERATED]
    generated += ["num_valid_tokens"] * valid_tokens + ["cu_seqlens", "max_seqlen"] * cu_seqlens + ["padding_mask"] * padding_mask
    for name in extra:
        if name in generated or (name == "loss_mask" and labels):
            raise ValueError(f"extra_fields names {name!r}, which is made from the tokens: use its own argument")
        if name not in _EXTRA:
            raise ValueError(f"extra_fields names {name!r}; a packed batch has {', '.join(_EXTRA)}: a document's other fields do not outlive packing")
    if cu_seqlens and not batch.emit_positions:
        raise ValueError("return_cu_seqlens needs positions; use pack_flat(emit_positions=True)")


def _starts(batch: Batch) -> np.ndarray:
    """Where pieces of documents, and a row's padding, start."""
    ids = batch.numpy("segment_ids")
    starts = np.ones(ids.shape, bool)
    starts[:, 1:] = ids[:, 1:] != ids[:, :-1]
    return starts


def _positions(starts: np.ndarray) -> np.ndarray:
    """Places since the last start."""
    place = np.broadcast_to(np.arange(starts.shape[1]), starts.shape)
    return place - np.maximum.accumulate(np.where(starts, place, 0), axis=1)


def _extra(batch: Batch, name: str, padding: np.ndarray) -> np.ndarray:
    return ~padding if name == "attention_mask" else batch.numpy(name)


def _cu_seqlens(starts: np.ndarray, flatten: bool) -> tuple[np.ndarray, Any]:
    """Boundaries and the longest segment: of all rows as one sequence, or of each row, filled up with the row's length."""
    count, length = starts.shape
    if flatten:
        ends = np.append(np.flatnonzero(starts.reshape(-1)), starts.size).astype(np.int32)
        return ends, int(np.diff(ends).max(initial=0))
    rows = [np.append(np.flatnonzero(row), length) for row in starts]
    boundaries = np.full((count, max((len(r) for r in rows), default=0)), length, np.int32)
    for row, ends in zip(boundaries, rows, strict=True):
        row[: len(ends)] = ends
    return boundaries, np.array([np.diff(r).max(initial=0) for r in rows], np.int32)


def _ids(batch: Batch) -> list[tuple[int, int, int] | None]:
    """Dataset, shard and document in its shard of each row's first piece; None for a row of padding."""
    ids: list[tuple[int, int, int] | None] = [None] * len(batch)
    for piece in batch.provenance[::-1]:
        dataset, shard = int(piece["dataset"]), int(piece["shard"])
        ids[piece["row"]] = (dataset, shard, int(piece["document"]) - int(batch._context[dataset][shard]))
    return ids


def _caster(dtype: Any, as_torch: bool) -> Any:
    """A function (array, whether its type stays) that gives what the caller asked for."""
    if dtype is None:
        return lambda array, _keep: array.tolist()
    if isinstance(dtype, str) and dtype == "auto":
        name = "int64"
    else:
        name = _dtypes.dtype_name(dtype)
        as_torch = str(dtype).startswith("torch.") or (as_torch and isinstance(dtype, str))
    if as_torch:
        torch = _dtypes.require_torch("a torch dtype")
        wanted = getattr(torch, name)
        return lambda array, keep: torch.from_numpy(array) if keep else torch.from_numpy(array).to(wanted)
    return lambda array, keep: array if keep else array.astype(name)


def _renamed(result: dict[str, Any], rename: Mapping[str, str] | None, exclude: Sequence[str]) -> dict[str, Any]:
    names = dict(rename or {})
    if missing := [name for name in names if name not in result]:
        raise ValueError(f"rename_fields names {missing}; the batch gives {list(result)}")
    targets = [names.get(name, name) for name in result]
    if double := sorted({name for name in targets if targets.count(name) > 1}):
        raise ValueError(f"rename_fields gives two fields the names {double}")
    return {new: value for new, value in zip(targets, result.values(), strict=True) if new not in exclude}
