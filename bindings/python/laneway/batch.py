"""A batch of packed rows: its tensors in place, and which documents they are made of."""

from __future__ import annotations

import ctypes
import functools
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ctypes import byref, c_size_t, c_void_p
from typing import Any, Literal

import numpy as np

from . import _dtypes, _native, _structs
from ._owned import free_with
from ._ragged import name_of
from .errors import Unsupported

TENSORS = ("input_ids", "labels", "positions", "segment_ids", "loss_mask", "cu_seqlens")
"""Names of every batch's tensors; the numbers beside them are attributes of the batch."""

SEGMENT = np.dtype([(name, "<u8" if name == "document" else "<u4") for name, _ in _structs.Segment._fields_])
"""What is known of a piece of a document in a row: an element of :attr:`Batch.provenance`."""

ROW = np.dtype([(name, "<u8" if name in ("number", "position") else "<u4") for name, _ in _structs.Row._fields_])
"""What is known of a row: an element of :attr:`Batch.rows`."""

# A batch is taken and looked at thousands of times a second: structures are read in one go, not field by field, and what is the same for all is made once.
_INFO = struct.Struct("@8Qq")
"""``lw_batch_info``"""

_TENSOR = struct.Struct("@3PQ4i")
"""``lw_tensor``"""

_STORAGE = {number: _dtypes.storage_dtype(name) for name, number in _dtypes.NUMBERS.items()}
_ENCODED = {name: name.encode() for name in TENSORS}
_NOTHING: Mapping[str, str] = {}


class Batch:
    """Some rows of one step. Tensors lie where the library wrote them: nothing is copied, and each keeps the batch's memory alive, also past
    the loader's end. They are torch tensors where torch can be imported, else NumPy arrays (``framework`` of the loader); do not write to them.

    Tensors, ``rows × row_length`` unless said otherwise:

    - ``input_ids`` (int64): rows filled up with the padding token;
    - ``labels`` (int64): the token to be predicted at each position, shifted already; −100 where none counts: at a row's last position, and where
      a document ends;
    - ``positions`` (int64): the place in its document, which goes on counting where a document goes on in another row; 0 in padding;
    - ``segment_ids`` (int32): which document of its row, from 1; 0 in padding;
    - ``loss_mask`` (bool): whether the label counts;
    - ``cu_seqlens`` (int32, ``[segments + 1]``): where segments start in the batch laid out as one sequence, and its end;
    - what teachers made (a recipe's ``[generate]``), by the names of its layout: ``batch["logits"]``, ``rows × shape``, zero for rows of padding. A ragged
      dimension, ``"seq<=2048"`` in the layout, has the size that the recipe's ``pad_to`` says, with zeroes behind each row's data, and comes with
      ``batch["seq_lengths"]`` (int64, ``[rows]``) and ``batch["seq_mask"]`` (bool, ``rows × size``), True where there is data.

    Attributes:
        step: the step that it belongs to, from 0.
        microbatch, microbatches: which of the rank's batches of that step it is, from 0, and how many there are: as many on every rank.
        num_rows, row_length: the tensors' shape.
        num_tokens: tokens of documents, padding left out.
        num_valid_tokens: labels that count; divide a loss by their sum over all ranks and microbatches of the step.
        max_seqlen: the longest segment of ``cu_seqlens``.
        taught: names of the tensors that teachers made, with lengths and masks of their ragged dimensions; empty without teachers.
        emit_positions: whether :meth:`to_training` gives positions, as ``pack_flat(emit_positions=…)`` said.
    """

    def __init__(self, source: _Native | _Copied, as_torch: bool, context: Any = None) -> None:
        self._source, self._as_torch, self._context = source, as_torch, context
        self._tensors: dict[str, Any] = {}
        self.emit_positions = True
        self.taught: tuple[str, ...] = tuple(source.taught)
        self.step: int
        self.microbatch: int
        self.microbatches: int
        self.num_rows: int
        self.row_length: int
        self.num_tokens: int
        self.num_valid_tokens: int
        self.max_seqlen: int
        (
            self.step, self.microbatch, self.microbatches, self.num_rows, self.row_length, _,
            self.num_tokens, self.num_valid_tokens, self.max_seqlen,
        ) = source.info  # fmt: skip

    def numpy(self, name: str) -> np.ndarray:
        """The tensor of that name as a NumPy array that shares the batch's memory, whatever ``framework`` is; not to be written."""
        if name not in TENSORS and name not in self.taught:
            raise KeyError(f"a batch has no tensor {name!r}; this one has {', '.join(self.keys())}")
        return self._source.array(name)

    def __getitem__(self, name: str) -> Any:
        if (tensor := self._tensors.get(name)) is None:
            tensor = self.numpy(name)
            if not self._as_torch:
                tensor = tensor.view()
                tensor.flags.writeable = False
            if self._as_torch or name in self.taught:
                tensor = _dtypes.viewer(self._source.taught.get(name) or str(tensor.dtype), self._as_torch)(tensor)
            self._tensors[name] = tensor
        return tensor

    @property
    def input_ids(self) -> Any:
        """Token ids."""
        return self["input_ids"]

    @property
    def labels(self) -> Any:
        """Next tokens, −100 where none counts."""
        return self["labels"]

    @property
    def positions(self) -> Any:
        """Places of tokens in their documents."""
        return self["positions"]

    @property
    def segment_ids(self) -> Any:
        """Which document of its row each token belongs to, from 1."""
        return self["segment_ids"]

    @property
    def loss_mask(self) -> Any:
        """Where labels count."""
        return self["loss_mask"]

    @property
    def cu_seqlens(self) -> Any:
        """Where segments start in the batch as one sequence, and its end."""
        return self["cu_seqlens"]

    def keys(self) -> Iterator[str]:
        """Names of the tensors: ``dict(batch)`` has them all."""
        return iter(TENSORS + self.taught)

    @functools.cached_property
    def provenance(self) -> np.ndarray:
        """Which documents the rows are made of: one :data:`SEGMENT` for each piece, in order, padding left out. Fields: ``dataset`` and ``shard``
        (numbers in the recipe's order), ``document`` (in the dataset), ``row`` of the batch, ``offset`` in the row, and ``start`` and
        ``length`` in the document's tokens. :meth:`Loader.locate` has file and line."""
        return self._source.records("segments")

    @functools.cached_property
    def rows(self) -> np.ndarray:
        """One :data:`ROW` for each row: its ``number`` in its ``lane``, its ``position`` in the global batch, and its count of ``segments``. Rows that
        only fill up a short rank have lane 2³²−1."""
        return self._source.records("rows")

    @functools.cached_property
    def hashes(self) -> np.ndarray:
        """Hashes (uint64) of ids, labels, positions and segment ids of each row of the global batch; :func:`global_hash` joins them."""
        return self._source.records("hashes")

    def to(self, device: Any, *, non_blocking: bool = False) -> dict[str, Any]:
        """The torch tensors on a device, by name. With ``non_blocking``, copies of a pinned batch to a GPU are not waited for: keep the batch until they are
        done.

        Raises:
            Unsupported: the batch has NumPy arrays."""
        self._needs_torch("to")
        return {name: self[name].to(device, non_blocking=non_blocking) for name in self.keys()}

    def pin_memory(self) -> Batch:
        """This batch with its torch tensors copied to page-locked memory, from which a GPU copies by itself. ``DataLoader(pin_memory=True)`` calls it. Needs
        an accelerator."""
        self._needs_torch("pin_memory")
        pinned = Batch(self._source, True, self._context)
        pinned.emit_positions = self.emit_positions
        pinned._tensors = {name: self[name].pin_memory() for name in self.keys()}
        return pinned

    def _needs_torch(self, what: str) -> None:
        if not self._as_torch:
            raise Unsupported(f"Batch.{what}() needs torch tensors, and this batch has NumPy arrays: open the loader with framework='torch'")

    def to_training(
        self,
        *,
        tokens_field: str = "auto",
        return_labels: bool = False,
        dtype: Any = "auto",
        extra_fields: Sequence[str] = (),
        ignore_index: int = -100,
        rename_fields: dict[str, str] | None = None,
        flatten: bool = False,
        exclude_fields: Sequence[str] = (),
        return_num_valid_tokens: bool = False,
        return_loss_mask: bool = False,
        return_cu_seqlens: bool = False,
        return_padding_mask: bool = False,
        eos_mask_loss: bool = False,
        eos_token_id: int | None = None,
        position_mode: Literal["preserve", "sequence"] = "preserve",
    ) -> dict[str, Any]:
        """The batch in the published form, with its field names: copies, in which every transition of a row is a label.

        With ``return_labels`` inputs lose their last token and labels their first, so both have length S−1, and only padding is masked (with
        ``eos_mask_loss`` also what follows ``eos_token_id``). Positions start at 0 in every piece of a document. :attr:`labels` and the
        other attributes are the native form: length S, documents' ends masked.

        Args:
            tokens_field: ``"auto"`` or ``"input_ids"``.
            return_labels: whether there are labels.
            dtype: of ids, labels and positions: ``"auto"`` (int64), a torch or NumPy dtype, or None for nested lists.
            extra_fields: more tensors of the batch, ``"segment_ids"`` say, sliced like the inputs. ``"attention_mask"`` is 1 on documents.
            ignore_index: the label of what does not count.
            rename_fields, exclude_fields: new names, and then which to leave out.
            flatten: ``[B, S]`` becomes ``[B·S]``.
            return_num_valid_tokens: adds the number of labels that count.
            return_loss_mask: adds 1.0 where a label counts (float32).
            return_cu_seqlens: adds ``cu_seqlens`` and ``max_seqlen`` of the inputs: int32, a row each (``[B, K]``, filled up with the row's
                length, and ``[B]``), or with ``flatten`` one sequence and an int.
            return_padding_mask: adds True where padding is.
            eos_mask_loss, eos_token_id: see above.
            position_mode: ``"preserve"``, or ``"sequence"``: 0 … S−1 in every row.

        Returns:
            ``ids`` (dataset, shard and document in the shard of each row's first piece), ``texts`` (empty strings: packed rows have none), ``input_ids``,
            ``positions``, and what was asked for.

        Raises:
            ValueError: arguments that contradict each other or name no field.
        """
        from ._training import to_training

        arguments = {name: value for name, value in locals().items() if name not in ("self", "to_training")}
        return to_training(self, **arguments)

    def __len__(self) -> int:
        return self.num_rows

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a batch is not iterated; its tensors are attributes, and dict(batch) has them all")

    def __reduce__(self) -> tuple[Any, ...]:
        # Across processes the memory does not go along: a copy does.
        return Batch, (_Copied.of(self._source), self._as_torch, self._context)

    def __repr__(self) -> str:
        of = f", microbatch={self.microbatch} of {self.microbatches}" if self.microbatches > 1 else ""
        return f"Batch(step={self.step}{of}, {self.num_rows} × {self.row_length})"


def global_hash(hashes: Iterable[Any] | np.ndarray) -> int:
    """The hash of a global batch from :attr:`Batch.hashes` of all its batches in order: the same however ranks and microbatches cut it."""
    parts = hashes if isinstance(hashes, np.ndarray) else np.concatenate([np.asarray(h, np.uint64).reshape(-1) for h in hashes])
    flat = np.ascontiguousarray(parts, np.uint64).reshape(-1)
    return _native.lib().lw_batch_global_hash(flat.ctypes.data, len(flat))  # type: ignore[no-any-return]


@functools.lru_cache(64)
def _memory(size: int) -> Any:
    """The ctypes type of so many bytes. ctypes forgets the types of arrays that are gone, and making one takes longer than all else here."""
    return type(f"memory_{size}", (ctypes.c_char * size,), {"owner": None})


def _dtypes_of(layout: int) -> dict[str, str]:
    """Names and dtypes of the tensors that a batch has of a layout: its own, then lengths and mask of each ragged dimension."""
    specs = json.loads(_native.text(_native.lib().lw_layout_to_json, layout))["specs"]
    dims = dict.fromkeys(name for spec in specs for size in spec["shape"] if (name := name_of(size)) is not None)
    return {spec["name"]: spec["dtype"] for spec in specs} | {
        tensor: dtype for dim in dims for tensor, dtype in ((f"{dim}_lengths", "int64"), (f"{dim}_mask", "bool"))
    }


class Arrival:
    """Where the library puts an ``lw_batch``; its reference is this object's from then on, so that there is no moment at which an exception would lose it."""

    __slots__ = ("out", "owned")

    def __init__(self) -> None:
        self.out = c_void_p()
        # What lies there when it dies.
        self.owned = free_with(_native.lib().lw_batch_release, self.out)


class _Native:
    """One reference to an ``lw_batch``."""

    __slots__ = ("handle", "info", "owned", "taught")

    def __init__(self, arrival: Arrival) -> None:
        lib = _native.lib()
        handle = arrival.out.value
        assert handle is not None
        self.handle, self.owned = handle, arrival.owned
        info = _structs.BatchInfo()
        _native.check(lib.lw_batch_describe(handle, byref(info)))
        self.info: Sequence[int] = _INFO.unpack(info)
        layout = lib.lw_batch_layout(handle)
        self.taught = _NOTHING if layout is None else _dtypes_of(layout)

    def array(self, name: str) -> np.ndarray:
        tensor = _structs.Tensor()
        _native.check(_native.lib().lw_batch_tensor(self.handle, _ENCODED.get(name) or name.encode(), byref(tensor)))
        data, _, _, size, ndim, dtype, _, _ = _TENSOR.unpack(tensor)
        shape = tensor.shape[:ndim]
        if size == 0:
            return np.empty(shape, _STORAGE[dtype])
        # NumPy keeps it as the array's base, and it keeps the batch.
        memory = _memory(size).from_address(data)
        memory.owner = self
        return np.ndarray(shape, _STORAGE[dtype], memory)

    def records(self, what: str) -> np.ndarray:
        """What a function of the form ``f(batch, items, capacity, &count)`` writes."""
        lib = _native.lib()
        function, dtype = {
            "segments": (lib.lw_batch_segments, SEGMENT),
            "rows": (lib.lw_batch_rows, ROW),
            "hashes": (lib.lw_batch_row_hashes, np.dtype("<u8")),
        }[what]
        count = c_size_t()
        _native.check(function(self.handle, None, 0, ctypes.byref(count)))
        records = np.empty(count.value, dtype)
        _native.check(function(self.handle, c_void_p(records.ctypes.data), count.value, ctypes.byref(count)))
        return records


class _Copied:
    """What a batch holds, as arrays of its own: how it crosses processes."""

    def __init__(self, info: Sequence[int], taught: Mapping[str, str], arrays: dict[str, np.ndarray]) -> None:
        self.info, self.taught, self.arrays = info, taught, arrays

    @classmethod
    def of(cls, source: _Native | _Copied) -> _Copied:
        if isinstance(source, _Copied):
            return source
        arrays = {name: source.array(name) for name in (*TENSORS, *source.taught)}
        return cls(source.info, source.taught, arrays | {name: source.records(name) for name in ("segments", "rows", "hashes")})

    def array(self, name: str) -> np.ndarray:
        return self.arrays[name]

    records = array
