"""What the tests share: a broker of their own in a folder of its own, and workers in processes of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1]
if os.environ.get("LANEWAY_TEST_INSTALLED") != "1":  # else the installed wheel is tested
    sys.path.insert(0, str(PACKAGE))


class House:
    """A folder with a broker, and the processes started around it. All are ended by the fixture."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "LANEWAY_DIR": str(folder), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self.processes: list[subprocess.Popen[str]] = []
        self.broker: subprocess.Popen[str] | None = None

    def python(self, *args: str, **kwargs: object) -> subprocess.Popen[str]:
        """A Python process, its output in ``folder``/<number>.log."""
        log = open(self.folder / f"{len(self.processes)}.log", "w")
        popen = subprocess.Popen([sys.executable, *args], env=self.env, stdout=log, stderr=log, text=True, **kwargs)
        popen.log = Path(log.name)
        self.processes.append(popen)
        return popen

    def start_broker(self) -> subprocess.Popen[str]:
        self.broker = self.python("-c", "from laneway import Broker; Broker().run()")
        wait_until(lambda: (self.folder / "frontend.sock").exists(), "the broker")
        return self.broker

    def worker(self, *args: str) -> subprocess.Popen[str]:
        """A process that runs ``tests/peers.py``."""
        return self.python(str(Path(__file__).with_name("peers.py")), *args)

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
        for process in self.processes:
            process.wait()

    def logs(self) -> str:
        return "\n".join(f"--- {p.args}\n{p.log.read_text()}" for p in self.processes)


def wait_until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Waits for something that comes soon; what it was, if it did not."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not come within {seconds} s"
        time.sleep(0.01)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """``LANEWAY_DIR`` of this test. Short, since a socket's path has 107 characters at most."""
    path = Path(f"/tmp/lwt-{os.getpid()}-{time.monotonic_ns() % 10**9}")
    path.mkdir(mode=0o700)
    monkeypatch.setenv("LANEWAY_DIR", str(path))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def house(folder: Path, request: pytest.FixtureRequest) -> Iterator[House]:
    """A broker in a process of its own."""
    house = House(folder)
    house.start_broker()
    yield house
    house.end()
    if getattr(request.node, "failed", False):
        print(house.logs())


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = (yield).get_result()
    if report.failed:
        item.failed = True
        if "house" in getattr(item, "funcargs", {}):
            report.sections.append(("processes", item.funcargs["house"].logs()))


@pytest.fixture(scope="session")
def lanes_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets, a tokenizer and ``recipe.toml``; with their indexes, once made. Not to be changed."""
    from lanes_data import write_data

    folder = tmp_path_factory.mktemp("lanes")
    write_data(folder)
    return folder


@pytest.fixture
def lanes(lanes_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recipe of :func:`lanes_folder`; caches stay beside it."""
    monkeypatch.setenv("LANEWAY_CACHE", str(lanes_folder / "cache"))
    return lanes_folder / "recipe.toml"
