"""Operators of the user's between documents and rows, written in Python and called by the library's threads, lane by lane in order."""

from __future__ import annotations

import ctypes
import json
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _native, _structs
from ._callbacks import borrow, lend
from ._functions import _failures, gone
from ._plain import decode, encode

_TOKENS = "input_ids"


class SampleMeta:
    """Where a record comes from; also what keeps its tokens at hand while it lives.

    Attributes:
        dataset: which of the recipe's datasets, from 0.
        document: its number there.
        start, length: the place of its tokens in the document's: at first the whole document.
        lane_id: the lane.
    """

    __slots__ = ("__weakref__", "_number", "_owner", "_tokens", "dataset", "document", "lane_id", "length", "start")

    def __init__(self, owner: _Lane, piece: _structs.Piece) -> None:
        self._owner, self._number = owner, piece.number
        self.dataset, self.document, self.lane_id = piece.dataset, piece.document, piece.lane
        self.start, self.length = piece.start, piece.length
        self._tokens = _copied(piece)

    @property
    def tokens(self) -> np.ndarray:
        """All of its tokens, int64, not to be written."""
        if self._tokens is None:
            self._tokens = self._owner.tokens(self._number)
        return self._tokens

    def __deepcopy__(self, _memo: object) -> SampleMeta:
        return self

    def __copy__(self) -> SampleMeta:
        return self

    def __repr__(self) -> str:
        return f"SampleMeta(dataset={self.dataset}, document={self.document}, start={self.start}, length={self.length}, lane_id={self.lane_id})"


class SampleRecord:
    """What an operator sees of a document: its tokens in ``payload["input_ids"]`` (int64), and in ``meta`` where they come from.

    An operator hands on records whose tokens are consecutive ones of a record that it was given: a document may be cut
    (``record.payload["input_ids"] = record.payload["input_ids"][:512]``, or :meth:`part`), left out, held back, repeated and reordered, but its
    tokens cannot be changed, since a checkpoint holds them as pointers. Change texts with ``map_transform``.
    """

    __slots__ = ("_payload", "_range", "meta")

    def __init__(self, meta: SampleMeta, payload: dict[str, Any] | None = None) -> None:
        self.meta, self._payload, self._range = meta, payload, (0, meta.length)

    @property
    def payload(self) -> dict[str, Any]:
        """``{"input_ids": tokens}``."""
        if self._payload is None:
            start, length = self._range
            self._payload = {_TOKENS: self.meta.tokens[start : start + length]}
        return self._payload

    @payload.setter
    def payload(self, value: dict[str, Any]) -> None:
        self._payload = value

    def part(self, start: int, end: int) -> SampleRecord:
        """Tokens ``start`` to ``end`` of it."""
        first, length = self.range()
        if not 0 <= start < end <= length:
            raise ValueError(f"part({start}, {end}) of a record of {length} tokens; expected 0 <= start < end <= {length}")
        made = SampleRecord(self.meta)
        made._range = (first + start, end - start)
        return made

    def __len__(self) -> int:
        return self.range()[1]

    def range(self) -> tuple[int, int]:
        """The place of its tokens in those that it was made from, and how many there are."""
        if self._payload is None:
            return self._range
        if extra := [name for name in self._payload if name != _TOKENS]:
            raise ValueError(f"the payload of a record has {extra}; only {_TOKENS!r} reaches rows: keep other things in the operator's state")
        tokens = np.asarray(self._payload.get(_TOKENS))
        whole = self.meta.tokens
        if tokens.ndim == 1 and tokens.dtype == whole.dtype and (tokens.size < 2 or tokens.strides == whole.strides):
            at = (tokens.__array_interface__["data"][0] - whole.__array_interface__["data"][0]) // whole.itemsize
            if 0 <= at and at + tokens.size <= whole.size and np.may_share_memory(tokens, whole):
                return at, tokens.size
        start, length = self._range
        for at in (start, 0):
            if tokens.ndim == 1 and tokens.size <= whole.size - at and np.array_equal(tokens, whole[at : at + tokens.size]):
                return at, tokens.size
        raise ValueError(
            f"{_TOKENS} of a record are {tokens.size} tokens that are no slice of its {whole.size}; an operator cuts documents and makes no tokens: "
            "change texts with map_transform, or take a slice"
        )

    def __repr__(self) -> str:
        return f"SampleRecord({self.meta!r}, range={self._range})"


Push = Callable[[Any, list[SampleRecord]], tuple[Any, Sequence[SampleRecord]]]


@dataclass(frozen=True)
class Operator:
    """A stateful step of the user's between documents and rows, for :class:`~laneway.Loader`; :meth:`Pipeline.stateful_transform` makes one.

    Each lane has a state of its own and sees its documents in order, on any thread, one at a time. What the functions do must follow from the
    state and the records alone: no clocks, no counters outside, no order of sets of strings.

    Attributes:
        name: as in the recipe's ``functions``, behind those of functions: a name with a version, ``"dedupe 2"``, which its author
            changes whenever it would do anything else than before.
        init_state: makes the state of a lane.
        push: ``push(state, records)`` gives the new state, and the records that go on now. ``records`` holds one record.
        flush: gives what is still to go on when the lane's stream ends.
        should_flush: whether the state is to be flushed now, and made anew.
        transform: applied to the records that go on; it must be pure.
        save, load: for a state of other things than None, booleans, numbers, strings, bytes, arrays, lists, tuples, sets, dicts, deques and records:
            ``save(state)`` gives such, and ``load(that)`` the state. A checkpoint has it for every lane: at most 64 KiB, records not counted.
    """

    name: str
    init_state: Callable[[], Any]
    push: Push
    flush: Callable[[Any], Sequence[SampleRecord]] | None = None
    should_flush: Callable[[Any], bool] | None = None
    transform: Callable[[list[SampleRecord]], Sequence[SampleRecord]] | None = None
    save: Callable[[Any], Any] | None = None
    load: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"name of an operator is {self.name!r}; expected a text with a version, 'dedupe 1'")
        for what in ("init_state", "push"):
            if not callable(getattr(self, what)):
                raise TypeError(f"operator {self.name!r}: {what} is a {type(getattr(self, what)).__name__}; expected a function")
        for what in ("flush", "should_flush", "transform", "save", "load"):
            if getattr(self, what) is not None and not callable(getattr(self, what)):
                raise TypeError(f"operator {self.name!r}: {what} is a {type(getattr(self, what)).__name__}; expected a function, or None")
        if (self.save is None) != (self.load is None):
            raise ValueError(f"operator {self.name!r} has {'no save' if self.save is None else 'no load'}; give both, or neither")

    def table(self) -> _structs.OperatorTable:
        """As an ``lw_operator_table``, which keeps what is called."""
        table = _structs.OperatorTable()
        _native.lib().lw_operator_table_init(ctypes.byref(table))
        table.name = self.name.encode()
        table.calls = calls = _Calls(self)
        table.user = lend(calls)
        table.open, table.close, table.push, table.flush, table.save, table.load = _OPEN, _CLOSE, _PUSH, _FLUSH, _SAVE, _LOAD
        return table


class _Calls:
    """An operator as the library calls it."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._lanes: dict[int, _Lane] = {}
        self._next = 0

    def open(self, _lane: int, state: Any) -> int:
        with _failures():
            lane = _Lane(self._operator)
            self._next = number = self._next + 1
            self._lanes[number] = lane
            state[0] = number
            return 0
        return -1

    def close(self, state: int) -> None:
        self._lanes.pop(state, None)

    def push(self, state: int, piece: Any, pieces: int) -> int:
        with _failures():
            self._lanes[state].push(piece.contents, pieces)
            return 0
        return -1

    def flush(self, state: int, pieces: int) -> int:
        with _failures():
            self._lanes[state].flush(pieces)
            return 0
        return -1

    def save(self, state: int, pieces: int, data: Any, length: Any) -> int:
        with _failures():
            saved = self._lanes[state].save(pieces)
            data[0], length[0] = ctypes.cast(saved, ctypes.c_void_p).value, len(saved)
            return 0
        return -1

    def load(self, state: int, data: int, length: int, held: Any, count: int, _pieces: int) -> int:
        with _failures():
            self._lanes[state].load(ctypes.string_at(data, length), [held[i] for i in range(count)])
            return 0
        return -1


def _of(name: str) -> Callable[..., int]:
    """What calls that method of the :class:`_Calls` whose number is ``user``."""

    def call(user: int | None, *args: Any) -> int:
        calls = borrow(user)
        return gone() if calls is None else getattr(calls, name)(*args)

    return call


_OPEN, _CLOSE = _structs.OperatorOpen(_of("open")), _structs.OperatorClose(_of("close"))
_PUSH, _FLUSH = _structs.OperatorPush(_of("push")), _structs.OperatorFlush(_of("flush"))
_SAVE, _LOAD = _structs.OperatorSave(_of("save")), _structs.OperatorLoad(_of("load"))


class _Lane:
    """One lane's state."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._state = operator.init_state()
        self._lib = _native.lib()
        self._held: dict[int, weakref.ref[SampleMeta]] = {}
        # Numbers of pieces whose records nobody has any more; they are let go of in the next call.
        self._dead: list[int] = []
        # During a call: what it may be asked for. The bytes of the last save.
        self._pieces: int | None = None
        self._saved = b""

    def push(self, piece: _structs.Piece, pieces: int) -> None:
        self._pieces = pieces
        try:
            number = piece.number
            alive = self._push(SampleMeta(self, piece))
            if (meta := alive()) is not None:
                _native.check(self._lib.lw_pieces_hold(pieces, number))
                self._hold(meta)
            self._let_go()
        finally:
            self._pieces = None

    def _push(self, meta: SampleMeta) -> weakref.ref[SampleMeta]:
        operator = self._operator
        made = operator.push(self._state, [SampleRecord(meta)])
        if not isinstance(made, tuple) or len(made) != 2:
            raise TypeError(f"push returned {_kind(made)}; expected a tuple (new state, records)")
        self._state, out = made
        self._emit(out)
        if operator.should_flush is not None and operator.should_flush(self._state):
            if operator.flush is not None:
                self._emit(operator.flush(self._state))
            self._state = operator.init_state()
        return weakref.ref(meta)

    def flush(self, pieces: int) -> None:
        self._pieces = pieces
        try:
            if self._operator.flush is not None:
                self._emit(self._operator.flush(self._state))
            self._state = self._operator.init_state()
            self._let_go()
        finally:
            self._pieces = None

    def save(self, pieces: int) -> bytes:
        self._pieces = pieces
        try:
            state = self._state if self._operator.save is None else self._operator.save(self._state)
            records: list[SampleRecord] = []
            encoded = encode(state, SampleRecord, records)
            # Pieces that nothing in the state names are not saved; the others are named by their place among those that are.
            kept = {record.meta._number for record in records}
            for number in [n for n in self._held if n not in kept]:
                self._release(number)
            places = {number: place for place, number in enumerate(sorted(kept))}
            slices = [[places[r.meta._number], *r.range()] for r in records]
            self._saved = b"[" + json.dumps(slices, separators=(",", ":")).encode() + b"," + encoded + b"]"
            return self._saved
        finally:
            self._pieces = None

    def load(self, saved: bytes, held: list[_structs.Piece]) -> None:
        slices, tagged = json.loads(saved)
        metas = [SampleMeta(self, piece) for piece in held]
        records = []
        for place, start, length in slices:
            record = SampleRecord(metas[place])
            record._range = (start, length)
            records.append(record)
        state = decode(tagged, records)
        self._state = state if self._operator.load is None else self._operator.load(state)
        for meta in metas:
            self._hold(meta)

    def tokens(self, number: int) -> np.ndarray:
        """Those of a piece that is held."""
        if self._pieces is None:
            raise RuntimeError("a record's tokens are first looked at during push, flush or save, on their thread, and not in load")
        piece = _structs.Piece()
        _native.check(self._lib.lw_pieces_get(self._pieces, number, ctypes.byref(piece)))
        tokens = _copied(piece)
        assert tokens is not None
        return tokens

    def _emit(self, records: Any) -> None:
        if self._operator.transform is not None and records:
            records = self._operator.transform(list(records))
        if not isinstance(records, (list, tuple)):
            raise TypeError(f"the records that go on are {_kind(records)}; expected a list")
        for record in records:
            if not isinstance(record, SampleRecord):
                raise TypeError(f"the records that go on hold {_kind(record)}; expected SampleRecord")
            if record.meta._owner is not self:
                raise ValueError("a record that goes on is another lane's; keep records in the state, not outside")
            start, length = record.range()
            if length:
                _native.check(self._lib.lw_pieces_emit(self._pieces, record.meta._number, start, length))

    def _hold(self, meta: SampleMeta) -> None:
        number, dead = meta._number, self._dead
        self._held[number] = weakref.ref(meta, lambda _: dead.append(number))

    def _let_go(self) -> None:
        while self._dead:
            number = self._dead.pop()
            if number in self._held:
                self._release(number)

    def _release(self, number: int) -> None:
        del self._held[number]
        _native.check(self._lib.lw_pieces_release(self._pieces, number))


def _copied(piece: _structs.Piece) -> np.ndarray | None:
    if not piece.tokens:
        return None
    made = np.frombuffer(ctypes.string_at(piece.tokens, 4 * piece.length), np.uint32).astype(np.int64)
    made.flags.writeable = False
    return made


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"
