"""Plain Python values as bytes, the same for equal values, and back. Unlike pickle it runs nothing when it is read."""

from __future__ import annotations

import json
import math
from collections import deque
from typing import Any

import numpy as np


def encode(value: Any, special: type | None, found: list[Any]) -> bytes:
    """``value`` as bytes. Objects of the class ``special`` are put into ``found``, and written as their places there.

    Raises:
        TypeError: a value of another type, with the way to it.
    """
    return json.dumps(_tagged(value, special, found, "state"), separators=(",", ":")).encode()


def _tagged(value: Any, special: type | None, found: list[Any], where: str) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else ["f", repr(value)]
    if special is not None and isinstance(value, special):
        found.append(value)
        return ["r", len(found) - 1]
    if kind in (list, tuple):
        return ["l" if kind is list else "t", *(_tagged(v, special, found, f"{where}[{i}]") for i, v in enumerate(value))]
    if kind in (set, frozenset):
        members = [_tagged(v, None, found, f"{where}, a set,") for v in value]
        return ["s" if kind is set else "z", *sorted(members, key=json.dumps)]
    if kind is dict:
        pairs = [[_tagged(k, None, found, f"a key of {where}"), _tagged(v, special, found, f"{where}[{k!r}]")] for k, v in value.items()]
        return ["d", *pairs]
    if kind is deque:
        return ["q", value.maxlen, *(_tagged(v, special, found, f"{where}[{i}]") for i, v in enumerate(value))]
    if kind is bytes:
        return ["b", value.hex()]
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        array = np.ascontiguousarray(value)
        return ["a" if isinstance(value, np.ndarray) else "n", value.dtype.str, list(value.shape), array.tobytes().hex()]
    raise TypeError(f"{where} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold; give save= and load=, which turn the state into plain values and back")


def decode(tagged: Any, found: list[Any]) -> Any:
    """What :func:`encode` was given, from what ``json.loads`` gives."""
    if not isinstance(tagged, list):
        return tagged
    tag, *rest = tagged
    if tag == "f":
        return float(rest[0])
    if tag == "r":
        return found[rest[0]]
    if tag == "b":
        return bytes.fromhex(rest[0])
    if tag == "d":
        return {decode(k, found): decode(v, found) for k, v in rest}
    if tag in "an":
        array = np.frombuffer(bytes.fromhex(rest[2]), np.dtype(rest[0])).reshape(rest[1]).copy()
        return array if tag == "a" else array[()]
    if tag == "q":
        return deque((decode(v, found) for v in rest[1:]), rest[0])
    return {"l": list, "t": tuple, "s": set, "z": frozenset}[tag](decode(v, found) for v in rest)
