#!/usr/bin/env python3
"""Runs the test suites, counts their tests, and compares with tests/expected.txt.

    scripts/run_tests.py [--bless] [SUITE...]        default: all, in the order of SUITES

`make test` runs this after all set-up. Each suite's output goes to build/logs/<suite>.log and is shown if it fails. A test that is not there any more is
noticed: the number of tests of each suite must be the one in tests/expected.txt (--bless writes it). A test that skips itself since a tool is missing
says so, and fails if CI is set. The last line is `N passed, N failed`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "build" / "logs"
EXPECTED = ROOT / "tests" / "expected.txt"
TARGET = ROOT / "target"
SUITE_LIMIT_S = 25 * 60
COMPLETE = bool(os.environ.get("CI"))


@dataclass
class Count:
    """What a suite's output says of its tests."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    @property
    def total(self) -> int:
        return self.passed + self.failed + self.skipped


def cargo_count(log: str) -> Count:
    """Sums `test result: ok. 3 passed; 0 failed; 0 ignored; …` over all test programs."""
    found = re.findall(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", log, re.MULTILINE)
    return Count(*(sum(int(f[i]) for f in found) for i in range(3)))


def ctest_count(log: str) -> Count:
    """Sums `100% tests passed, 0 tests failed out of 28`."""
    found = re.findall(r"tests passed, (\d+) tests failed out of (\d+)", log)
    failed, total = (sum(int(f[i]) for f in found) for i in range(2))
    return Count(total - failed, failed)


def pytest_count(log: str) -> Count:
    """Reads the line `3 failed, 120 passed, 2 skipped in 61.20s`."""
    last = next((line for line in reversed(log.splitlines()) if re.search(r"\d+ \w+.* in [\d.]+s", line)), "")
    number = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|errors?|skipped)", last)}
    return Count(number.get("passed", 0), number.get("failed", 0) + number.get("error", 0) + number.get("errors", 0), number.get("skipped", 0))


def step_count(log: str) -> Count:
    """Counts the lines `step ok: …` and `step failed: …` that this script writes itself."""
    return Count(log.count("\nstep ok: "), log.count("\nstep failed: "), log.count("\nstep skipped: "))


def rust() -> Iterator[list[str]]:
    yield ["cargo", "test", "--release", "--locked", "--no-fail-fast", "--", "--show-output"]


def kill_points() -> Iterator[list[str]]:
    """The segment's code with a place to die at every store. In a folder of its own: cargo gives the library the same file name with this feature and without,
    so the tests after this one would run with it. What is not the crate's own is copied there rather than compiled again."""
    folder = TARGET / "kill-points"
    if not folder.exists():
        mine = shutil.ignore_patterns("*laneway*", "incremental", "examples")
        shutil.copytree(TARGET / "release", folder / "release", symlinks=True, ignore=mine)
    yield ["cargo", "test", "--release", "--locked", "--target-dir", str(folder), "--features", "kill-points", "--test", "kill_points", "--", "--show-output"]


def model() -> Iterator[list[str]]:
    """The same algorithms under a model checker."""
    yield ["cargo", "test", "--release", "--locked", "--manifest-path", "tests/model/Cargo.toml", "--", "--show-output"]


def cmake(build: Path, *options: str) -> Iterator[list[str]]:
    ninja = ["-G", "Ninja"] if shutil.which("ninja") and not (build / "CMakeCache.txt").exists() else []
    yield ["cmake", *ninja, "-S", ".", "-B", str(build), f"-DLANEWAY_TARGET_DIR={TARGET}", *options]
    yield ["cmake", "--build", str(build)]


def c() -> Iterator[list[str]]:
    """The C and C++ programs and examples, plainly and under valgrind; and the installed package."""
    build = ROOT / "build"
    yield from cmake(build)
    yield ["cmake", "--install", str(build), "--component", "development", "--prefix", str(build / "prefix")]
    yield ["ctest", "--test-dir", str(build), "--output-on-failure", "-j2"]


def sanitize() -> Iterator[list[str]]:
    """The same programs with address and undefined-behaviour sanitizers."""
    build = ROOT / "build" / "sanitize"
    yield from cmake(build, "-DLANEWAY_SANITIZE=address,undefined", "-DCMAKE_BUILD_TYPE=Debug")
    yield ["ctest", "--test-dir", str(build), "--output-on-failure", "-j2"]


def python() -> Iterator[list[str]]:
    """The Python bindings, the wheel, the torch extension, the examples."""
    yield [sys.executable, "-m", "pytest", "-q", "-rs", "--timeout=600", "-p", "no:cacheprovider", "bindings/python/tests"]


def lint() -> Iterator[list[str]]:
    """Formatting, clippy, documentation."""
    if shutil.which("cargo-fmt"):
        yield ["cargo", "fmt", "--check"]
    if shutil.which("cargo-clippy"):
        yield ["cargo", "clippy", "--release", "--locked", "--all-targets", "--", "-D", "warnings"]
    yield ["cargo", "doc", "--release", "--locked", "--no-deps", "--document-private-items"]


@dataclass
class Suite:
    name: str
    commands: Callable[[], Iterator[list[str]]]
    count: Callable[[str], Count]
    needs: tuple[str, ...] = ()


SUITES = [
    Suite("lint", lint, step_count),
    Suite("rust", rust, cargo_count),
    Suite("kill-points", kill_points, cargo_count),
    Suite("model", model, cargo_count),
    Suite("c", c, ctest_count, ("cmake", "valgrind", "pkg-config")),
    Suite("sanitize", sanitize, ctest_count, ("cmake",)),
    Suite("python", python, pytest_count),
]


def environment() -> dict[str, str]:
    env = {**os.environ, "RUST_BACKTRACE": "0", "RUSTDOCFLAGS": "-D warnings -A rustdoc::private-intra-doc-links", "CARGO_TERM_COLOR": "never", "PYTHONDONTWRITEBYTECODE": "1"}
    return env | {"LANEWAY_BIN": str(TARGET / "release" / "laneway"), "LANEWAY_PREFIX": str(ROOT / "build" / "prefix")}


def execute(command: list[str], log: Path) -> bool:
    """Runs one command of a suite; what it leaves running after its end or its time is killed with it."""
    with log.open("a") as file:
        file.write(f"\n$ {' '.join(command)}\n")
        file.flush()
        process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            ok = process.wait(SUITE_LIMIT_S) == 0
        except subprocess.TimeoutExpired:
            ok = False
            file.write(f"\ntook longer than {SUITE_LIMIT_S} s\n")
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        file.write(f"\nstep {'ok' if ok else 'failed'}: {' '.join(command)}\n")
        return ok


def run(suite: Suite) -> tuple[Count, list[str]]:
    """Runs a suite; gives its count and what is wrong with it."""
    missing = [tool for tool in suite.needs if shutil.which(tool) is None]
    if missing and COMPLETE:
        return Count(failed=1), [f"missing: {', '.join(missing)}"]
    if "cmake" in missing:
        return Count(), ["SKIPPED: cmake is missing"]
    log = LOGS / f"{suite.name}.log"
    log.write_text("")
    wrong = []
    for command in suite.commands():
        if not execute(command, log):
            wrong.append(f"failed: {' '.join(command)}")
            break
    text = log.read_text(errors="replace")
    count = suite.count(text)
    if wrong:
        count.failed = max(count.failed, 1)
        tail = "\n".join(text.splitlines()[-150:])
        print(f"{tail}\n{suite.name}: the whole output is in {log.relative_to(ROOT)}")
    wrong += sorted(set(re.findall(r"^ *SKIPPED.*", text, re.MULTILINE)))
    wrong += [f"SKIPPED: {tool} is missing" for tool in missing]
    return count, wrong


def read_expected() -> dict[str, int]:
    lines = EXPECTED.read_text().splitlines() if EXPECTED.exists() else []
    return {name: int(number) for name, number in (line.split() for line in lines if line and not line.startswith("#"))}


def write_expected(numbers: dict[str, int]) -> None:
    head = "# How many tests each suite has in a clean clone with every tool (`make expected` writes this; scripts/run_tests.py compares).\n"
    EXPECTED.write_text(head + "".join(f"{suite.name} {numbers[suite.name]}\n" for suite in SUITES if suite.name in numbers))


def main() -> int:
    names = [a for a in sys.argv[1:] if a != "--bless"]
    unknown = [n for n in names if n not in {s.name for s in SUITES}]
    if unknown:
        print(f"unknown suite {unknown[0]!r}; there are: {', '.join(s.name for s in SUITES)}", file=sys.stderr)
        return 2
    LOGS.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("run_tests: told to end"))  # so that a running suite is ended, too
    expected, seen, all_counts = read_expected(), {}, Count()
    for suite in SUITES:
        if names and suite.name not in names:
            continue
        print(f"{suite.name}: running …", flush=True)
        start = time.monotonic()
        count, remarks = run(suite)
        all_counts = Count(*(getattr(all_counts, f) + getattr(count, f) for f in ("passed", "failed", "skipped")))
        seen[suite.name] = count.total
        print(f"{suite.name}: {count.passed} passed, {count.failed} failed, {count.skipped} skipped in {time.monotonic() - start:.0f} s")
        for remark in remarks:
            print(f"  {remark.strip()}")
        want = expected.get(suite.name)
        complete = COMPLETE or not any("SKIPPED" in r for r in remarks)
        if "--bless" not in sys.argv and count.total != want and complete and not count.failed:
            all_counts.failed += 1
            print(f"  {suite.name} ran {count.total} tests, but tests/expected.txt says {want}: were tests lost? If this is right, run `make expected`.")
    if "--bless" in sys.argv and not all_counts.failed:
        write_expected(expected | seen)
    print(f"{all_counts.passed} passed, {all_counts.failed} failed")
    return 1 if all_counts.failed else 0


if __name__ == "__main__":
    sys.exit(main())
