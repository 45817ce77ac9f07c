"""The machine that is measured on: what it is, and the two cores that everything is pinned to."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def describe() -> dict[str, Any]:
    """What a reader of the figures must know."""
    with open("/proc/cpuinfo") as file:
        cpu = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), platform.machine())
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "load": round(os.getloadavg()[0], 1),
        "versions": ", ".join([f"Python {platform.python_version()}", *map(_version, ("numpy", "torch", "softs", "zephon", "grain"))]),
    }


def _version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"no {package}"


def pin(cores: Sequence[int] | None) -> list[int]:
    """Keeps this process, and all that it starts, on two cores; which."""
    allowed = sorted(os.sched_getaffinity(0))
    chosen = list(cores) if cores else allowed[:2]
    if len(set(chosen)) < 2 or not set(chosen) <= set(allowed):
        raise SystemExit(f"cores {chosen} cannot be used: two different ones of {allowed} are needed")
    os.sched_setaffinity(0, chosen)
    return chosen


def laneway_program() -> str:
    """The ``laneway`` program: ``$LANEWAY_BIN``, else this checkout's release build, else one on the PATH."""
    built = ROOT / "target" / "release" / "laneway"
    found = os.environ.get("LANEWAY_BIN") or (str(built) if built.is_file() else shutil.which("laneway"))
    if found is None:
        raise SystemExit(f"no laneway program: neither $LANEWAY_BIN, nor {built}, nor on the PATH; cargo build --release makes it")
    return found
