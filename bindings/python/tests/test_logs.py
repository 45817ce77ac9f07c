"""The library's messages in Python's ``logging``."""

import os
import subprocess
import sys

import pytest
from conftest import wait_until

from laneway import setup_logging


def run(code, env):
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("level", ["INFO", "info", 20, 25, "OFF", "TRACE", 0])
def test_levels_are_names_and_numbers(level):
    setup_logging(level)
    setup_logging("WARNING")


def test_a_wrong_level_is_refused():
    with pytest.raises(ValueError, match="level is 'LOUD'; expected one of TRACE, DEBUG, INFO"):
        setup_logging("LOUD")
    for bad in (None, True, 1.5):
        with pytest.raises(TypeError, match="expected an int or a str"):
            setup_logging(bad)


def test_warnings_are_shown_though_nobody_asked_for_a_log(tmp_path):
    """The index of a dataset that can be kept nowhere, say: each process would build it again and again, in silence."""
    for name in "abc":
        (tmp_path / f"{name}.jsonl").write_text('{"text": "one"}\n' * 30_000)
    (tmp_path / "file").write_text("no folder")
    ask = "from laneway.work import _size; _size({'name': 'd', 'paths': ['*.jsonl']}, False)"
    closed = {"LANEWAY_CACHE": str(tmp_path / "file"), "XDG_CACHE_HOME": str(tmp_path / "file"), "HOME": str(tmp_path / "file")}
    (tmp_path / ".laneway").write_text("no folder")
    done = subprocess.run([sys.executable, "-c", ask], env=os.environ | closed, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == ""
    assert done.stderr.startswith("WARNING laneway::data") and "each process" in done.stderr, done.stderr
    assert done.stderr.count("WARNING") == 2 and "nor could those of 2 other files" in done.stderr, "one at once, one for thousands of others"


WARNS = """if True:
    import os, sys, threading, time
    from laneway import setup_logging
    from laneway.work import _size
    def warn(): _size({"name": "d", "paths": ["a.jsonl"]}, False)
"""


@pytest.fixture
def nowhere(tmp_path):
    """A folder with a dataset whose index can be kept nowhere, which is a warning, and the environment for that."""
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n' * 30_000)
    for name in ("file", ".laneway"):
        (tmp_path / name).write_text("no folder")
    return tmp_path, os.environ | dict.fromkeys(("LANEWAY_CACHE", "XDG_CACHE_HOME", "HOME"), str(tmp_path / "file"))


def test_a_warning_is_one_write(nowhere):
    """Ranks and workers share one standard error: pieces of lines would come between each other."""
    folder, env = nowhere
    out, into = os.pipe2(os.O_DIRECT)  # what is read is what was written at once
    done = subprocess.run([sys.executable, "-c", WARNS + "    warn()"], cwd=folder, env=env, stderr=into, timeout=120)
    line = os.read(out, 1 << 16).decode()
    os.close(out)
    os.close(into)
    assert done.returncode == 0 and line.startswith("WARNING laneway::data") and line.endswith("\n"), line


def test_a_child_forked_while_a_warning_waits_to_be_read_can_warn(nowhere):
    folder, env = nowhere
    code = """
    full, into = os.pipe()
    os.set_blocking(into, False)
    try:
        while True: os.write(into, b"x" * 4096)
    except BlockingIOError: pass
    os.set_blocking(into, True)
    seen = os.dup(2)
    os.dup2(into, 2)
    threading.Thread(target=warn, daemon=True).start()
    def calls():
        for task in os.listdir("/proc/self/task"): yield open(f"/proc/self/task/{task}/syscall").read()
    while not any(call.startswith("1 0x2 ") for call in calls()): time.sleep(0.01)  # write(2, ...)
    child = os.fork()
    if child == 0:
        os.dup2(seen, 2)
        setup_logging("WARNING")
        setup_logging("ERROR")
        os._exit(7)
    for _ in range(3000):
        done, status = os.waitpid(child, os.WNOHANG)
        if done: break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
    os._exit(os.waitstatus_to_exitcode(status) if done else 1)
"""
    done = subprocess.run([sys.executable, "-c", WARNS + code], cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 7, done


CODE = """if True:
    import logging, sys
    from laneway import *
    records = []
    class Keep(logging.Handler):
        def emit(self, record): records.append(record)
    logging.getLogger("laneway").addHandler(Keep())
    setup_logging({level!r})
    with StudentClient(0, 4, BatchConfig([TensorSpec("x", (4,), "int8")])) as client:
        client.set_model("layer_5")
    import time; time.sleep(0.3)
    print(*[(r.levelname, r.name, r.getMessage()) for r in records], sep="\\n")"""


def test_the_librarys_messages_arrive_at_pythons_logger(house):
    done = run(CODE.format(level="INFO"), house.env)
    assert done.returncode == 0, done.stderr
    assert "model 'layer_5' set" in done.stdout and "'INFO', 'laneway." in done.stdout


def test_below_the_level_nothing_is_said(house):
    done = run(CODE.format(level="ERROR"), house.env)
    assert done.returncode == 0 and "layer_5" not in done.stdout + done.stderr


def test_a_trainer_that_holds_the_gil_does_not_hold_up_the_library(house):
    """A worker dies while the trainer computes in one call for seconds; the sweeper, which also logs, is not held up by that."""
    house.worker("fill")
    code = """if True:
        import hashlib, os, signal, sys, time
        from laneway import *
        from peers import CONFIG
        setup_logging("DEBUG")
        client = StudentClient(0, 8, CONFIG, prefetch=8, max_attempts=100)
        client.set_model("m")
        client.request_sample(60_000).release()
        victim = int(sys.argv[1])
        os.kill(victim, signal.SIGKILL)
        sys.setswitchinterval(100)
        end = time.monotonic() + 4
        while time.monotonic() < end:  # pure Python, and no other thread gets the GIL
            pass
        print(client.stats["deaths"])"""
    victim = house.processes[-1]
    wait_until(lambda: "registered" in victim.log.read_text() or victim.poll() is None, "the worker")
    done = subprocess.run([sys.executable, "-c", code, str(victim.pid)], env=house.env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.strip() == "1", done.stderr


def test_logging_in_a_forked_child_and_at_exit_never_hangs(house):
    code = """if True:
        import os
        from laneway import *
        setup_logging("TRACE")
        client = StudentClient(0, 4, BatchConfig([TensorSpec("x", (4,), "int8")]))
        client.hello()
        pid = os.fork()
        setup_logging("DEBUG")
        if pid == 0:
            try:
                client.hello()
            except RuntimeError:
                pass
        else:
            os.waitpid(pid, 0)"""
    for _ in range(2):
        assert run(code, house.env).returncode == 0
    assert os.getpid()
