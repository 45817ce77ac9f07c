"""What each process of a run writes down: one JSON object a line, flushed at once, so that a kill loses at most the last."""

import json
import time
from pathlib import Path
from typing import Any, TextIO


class Events:
    """An append-only log of one process. `write("step", loss=0.3)` adds the time and the kind."""

    def __init__(self, path: Path, fresh: bool = False) -> None:
        """Go on with the log at `path`, or with `fresh` replace it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = open(path, "w" if fresh else "a", encoding="utf-8")

    def write(self, kind: str, **fields: Any) -> None:
        self._file.write(json.dumps({"time": time.time(), "kind": kind, **fields}) + "\n")
        self._file.flush()


class EventReader:
    """Follows an event log that another process is writing, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> list[dict[str, Any]]:
        """The events written since the last call. A line that is not yet whole is left for the next."""
        if not self._path.exists():
            return []
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines() if _is_whole(line)]


def _is_whole(line: bytes) -> bool:
    """False for the fragment that a killed writer left, to which its successor then appended a line."""
    return line.startswith(b"{") and line.endswith(b"}")
