"""Programs in Rust that `make bench` measures, built when they are wanted."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from pathlib import Path

from harness.machine import ROOT


class NotBuilt(Exception):
    """Why."""


def cargo(*words: str, folder: Path = ROOT) -> str:
    """Runs cargo; its messages."""
    program = shutil.which("cargo")
    if program is None:
        raise NotBuilt("cargo is not on the PATH")
    done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise NotBuilt(f"cargo {' '.join(words[:2])}: " + " | ".join(done.stderr.strip().splitlines()[-4:]))
    return done.stdout


def executable(messages: str, name: str) -> Path:
    """The program of that target among cargo's messages, which name others as well."""
    parsed = (json.loads(line) for line in messages.splitlines() if line.startswith("{"))
    return next(Path(m["executable"]) for m in parsed if m.get("executable") and m["target"]["name"] == name)


@functools.cache
def bench(name: str) -> Path:
    """The program of `benches/{name}.rs`."""
    return executable(cargo("build", "--release", "--locked", "--bench", name, "--message-format=json"), name)
