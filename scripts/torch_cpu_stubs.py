#!/usr/bin/env python3
"""Let a CUDA build of torch import on a machine that has no CUDA libraries.

The wheel of torch on PyPI links against NVIDIA's libraries, 2.5 GB of wheels
that a machine without a GPU has no use for. This script builds a stand-in for
each library that is linked but absent: it exports the same versioned symbols,
and every function in it returns 100, `cudaErrorNoDevice`, or where it returns a
text, words to that effect. torch then imports and finds no device, which is the
truth, and what needs one is an error.

    torch_cpu_stubs.py TORCH_FOLDER      e.g. .venv/lib/python3.11/site-packages/torch

It writes into TORCH_FOLDER/lib, lists what it wrote in STAND_INS.txt there, and
never replaces a file but its own. torch's own search path asks the `nvidia-*` wheels first,
so installing those later puts the real libraries back in charge.
Needs gcc, and nm and readelf from binutils. Use only on a torch of your own.
"""

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

NO_DEVICE = 100  # cudaErrorNoDevice, which torch reads as "no GPU here"
TEXT = re.compile(r"(?!cu[A-Z])\w+GetError(String|Name)")  # functions that return a text, which torch reads when another one failed
NVIDIA_LIBRARY = re.compile(r"lib(cu|nv|nccl|cusparseLt)")
# Symbols that torch imports without a version, so that no table says whose they are.
NVIDIA_SYMBOL = re.compile(r"(nccl|cudnn|cu[A-Z]|cufile|cublas|cusparse|cusolver|cufft|nvrtc|nvJitLink|cupti|cuda|__cuda|nvshmem)")


def tool(*command: str | Path) -> str:
    """The output of a binutils program."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Links:
    """What a set of shared objects asks of others, as their symbol tables say."""

    def __init__(self, objects: list[Path]) -> None:
        self.needed: set[str] = set()
        self.owner_of_version: dict[str, str] = {}
        self.undefined: set[tuple[str, str]] = set()
        self.defined: set[str] = set()
        for path in objects:
            self.needed.update(re.findall(r"\(NEEDED\).*\[(.+?)\]", tool("readelf", "-dW", path)))
            self._read_versions(path)
            self._read_symbols(path)

    def _read_versions(self, path: Path) -> None:
        library = ""
        for line in tool("readelf", "-VW", path).splitlines():
            if found := re.search(r"File: (\S+)", line):
                library = found[1]
            elif found := re.search(r"Name: (\S+)\s+Flags", line):
                self.owner_of_version[found[1]] = library

    def _read_symbols(self, path: Path) -> None:
        for line in tool("nm", "-D", path).splitlines():
            *_, kind, symbol = line.split()
            name, _, version = symbol.partition("@")
            if kind in "Uw":
                self.undefined.add((name, version))
            else:
                self.defined.add(name)


def stand_in_source(symbols: set[str]) -> str:
    """C source of a library that answers "no device" to everything."""
    texts = {name for name in symbols if TEXT.fullmatch(name)}
    lines = [f"long {name}(void) {{ return {NO_DEVICE}; }}\n" for name in sorted(symbols - texts)]
    lines += [f'const char *{name}(void) {{ return "no CUDA device (CUDA\'s libraries are absent)"; }}\n' for name in sorted(texts)]
    return "".join(lines) or "typedef int empty;\n"


def version_script(symbols: dict[str, set[str]]) -> str:
    """The linker script that gives each symbol the version that torch asks for."""
    return "".join(
        f"{version} {{ global: {' '.join(name + ';' for name in sorted(names))} }};\n" if names else f"{version} {{ }};\n"
        for version, names in sorted(symbols.items())
    )


def build(path: Path, versioned: dict[str, set[str]], plain: set[str]) -> None:
    """Compile one stand-in library at `path`."""
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder, "stand_in.c"), Path(folder, "versions.map")
        source.write_text(stand_in_source(set().union(plain, *versioned.values())))
        command = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", "-o", path, source, f"-Wl,-soname,{path.name}"]
        if versioned:
            script.write_text(version_script(versioned))
            command.append(f"-Wl,--version-script={script}")
        subprocess.run(command, check=True)


def main() -> None:
    if len(sys.argv) != 2 or not Path(sys.argv[1], "lib").is_dir():
        sys.exit(f"usage: {sys.argv[0]} TORCH_FOLDER (the folder that holds torch's __init__.py and lib/)")
    lib = Path(sys.argv[1], "lib")
    written = lib / "STAND_INS.txt"
    mine = set(written.read_text().split()) if written.exists() else set()
    objects = sorted(path for path in lib.iterdir() if ".so" in path.suffixes and path.name not in mine)
    links = Links(objects)
    present = {path.name for path in objects}
    missing = sorted(name for name in links.needed - present if NVIDIA_LIBRARY.match(name))

    versioned: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for version, library in links.owner_of_version.items():
        if library in missing:
            versioned[library][version]  # a version must exist even if no symbol is asked of it
    plain = set()
    for name, version in links.undefined:
        library = links.owner_of_version.get(version, "")
        if library in missing:
            versioned[library][version].add(name)
        elif not version and name not in links.defined and NVIDIA_SYMBOL.match(name):
            plain.add(name)

    # Unversioned symbols are found whichever library has them: the first one takes all.
    for position, library in enumerate(missing):
        build(lib / library, versioned[library], plain if position == 0 else set())
    written.write_text("".join(name + "\n" for name in missing))
    print(f"built {len(missing)} stand-ins for absent CUDA libraries in {lib}: CPU use only")


if __name__ == "__main__":
    main()
