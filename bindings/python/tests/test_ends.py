"""Ctrl-C, threads that hold locks, and the interpreter's end, whatever runs just then: each in a process of its own, which must end as Python's own would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

LANES = """
import gc, os, signal, sys, threading, time
late = []
import atexit
atexit.register(lambda: [f() for f in late])  # behind the package's own
from laneway import Function, Loader, Recipe, Rows, errors

class Slow:
    # Keeps the interpreter at its end for a moment, while other threads come back.
    def __del__(self, sleep=time.sleep):
        sleep(0.7)

import builtins
builtins.slow = Slow()
recipe = Recipe.parse('functions = ["keep 1"]\\n' + open(sys.argv[1]).read(), sys.argv[2])
armed, inside = False, threading.Event()

def wait(seconds):
    def keep(text):
        if armed:
            inside.set()
            time.sleep(seconds)
        return True
    return keep

def opened(keep, **options):
    options = {"threads": 2, "prefetch": 500, "progress": False, **options}
    return Loader(recipe, functions=[Function("keep 1", filter=keep)], framework="numpy", **options)

def interrupt(after=0.0):
    timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
"""

WITH_A_LOCK = """
lock = threading.Lock()

def keep(text):
    if armed:
        inside.set()
        with lock:
            pass
    return True

for collected in (True, False):
    armed = False
    loader = opened(keep)
    next(loader)
    holder = [loader]
    if collected:
        holder.append(holder)
    del loader
    armed = True
    inside.clear()
    with lock:
        assert inside.wait(60)
        del holder
        gc.collect()
"""

IN_A_FUNCTION = """
loaders = [opened(wait(0.3)) for _ in range(2)]
for loader in loaders:
    next(loader)
armed = True
inside.wait()
"""

IN_A_DAEMON = """
def run(step):
    while True:
        step()

rows = Rows(recipe, functions=[Function("keep 1", filter=wait(0.2))], framework="numpy", progress=False)
inline = opened(wait(0.2), threads=0)
armed = True
threading.excepthook = lambda _: None
for step in (lambda: rows.get([(0, 5)]), lambda: next(inline)):
    inside.clear()
    threading.Thread(target=run, args=(step,), daemon=True).start()
    assert inside.wait(60)
"""

OPENED_LATE = """
def use():
    try:
        print(next(loader))
    except errors.LanewayError as error:
        print(type(error).__name__)

loader = opened(wait(0.2))
next(opened(wait(0.2)))
armed = True
late.append(use)
"""

IN_THE_OPENING = """
def told(what, done, total):
    inside.set()
    time.sleep(0.3)

loader = opened(wait(0.0), progress=told, cache_dir=sys.argv[3])
threading.Thread(target=lambda: (inside.wait(), interrupt())).start()
try:
    next(loader)
except KeyboardInterrupt:
    print("interrupted")
"""

IN_THE_CLOSING = """
loader = opened(wait(1.0))
next(loader)
armed = True
inside.wait()
interrupt(0.1)
try:
    loader.close()
except KeyboardInterrupt:
    print("interrupted")
try:
    next(loader)
except errors.Closed:
    print("closed")
"""

AT_THE_END = """
loader = opened(wait(0.8))
next(loader)
armed = True
inside.wait()
late.append(lambda: print("late"))
interrupt(0.3)
"""

NOTHING_IS_LOST = """
calls, sent, caught, steps = 0, 0, 0, []

# It comes while the batch is waited for, and with the batch.
def keep(text):
    global calls, sent
    calls += 1
    if calls % 30 == 0 and sent == caught:
        sent += 1
        os.kill(os.getpid(), signal.SIGINT)
    return True

loader = opened(keep, prefetch=0)
while caught < 25:
    try:
        for batch in loader:
            steps.append(batch.step)
    except KeyboardInterrupt:
        caught += 1
assert steps == list(range(len(steps))), steps
print(caught)
"""


def ended(program: str, *args: object) -> subprocess.CompletedProcess[str]:
    """A process that ran it and ``sys.exit(3)``."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-X", "faulthandler", "-c", program + "\nsys.exit(3)", *map(str, args)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert "panic" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr[-4000:]
    assert done.returncode == 3, (done.returncode, done.stdout, done.stderr[-4000:])
    return done


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (WITH_A_LOCK, ""),
        (IN_A_FUNCTION, ""),
        (IN_A_DAEMON, ""),
        (OPENED_LATE, "Interrupted\n"),
        (IN_THE_OPENING, "interrupted\n"),
        (IN_THE_CLOSING, "interrupted\nclosed\n"),
        (AT_THE_END, "late\n"),
        (NOTHING_IS_LOST, "25\n"),
    ],
    ids=["a lock", "in a function", "in a daemon", "opened late", "in the opening", "in the closing", "at the end", "nothing is lost"],
)
def test_lanes(program, told, lanes: Path, tmp_path: Path):
    assert ended(LANES + program, lanes, lanes.parent, tmp_path).stdout == told


def test_who_does_not_want_to_wait_at_the_end_presses_twice(lanes: Path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    program = AT_THE_END.replace("0.8", "600").replace("interrupt(0.3)", "print('ready', flush=True)")
    command = [sys.executable, "-c", LANES + program, lanes, lanes.parent]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        # The library says after two seconds what it waits for.
        assert "still run; waiting for them" in process.stderr.readline()
        for _ in range(100):
            process.send_signal(signal.SIGINT)
            try:
                process.wait(0.3)
                break
            except subprocess.TimeoutExpired:
                pass
    assert process.returncode == -signal.SIGINT


EXCHANGE = """
import gc, os, random, signal, sys, threading, time
from laneway import BatchConfig, Broker, StudentClient, TensorSpec, Worker, metrics

config = BatchConfig([TensorSpec("x", (16,), "int64")])

def fill(tasks):
    for task in tasks:
        task["x"][:] = task.step
"""

SAMPLES = """
def interrupting(tasks):
    global sent
    fill(tasks)
    if sent == caught and tasks[0].step % 7 == 0:
        sent += 1
        os.kill(os.getpid(), signal.SIGINT)

sent, caught, steps = 0, 0, []
Broker().start()
Worker(fill_fn=interrupting, batch_config=config, framework="numpy").start()
client = StudentClient(0, 4, config, framework="numpy")
client.set_model("m")
while caught < 25:
    try:
        while True:
            sample = client.request_sample(60_000)
            steps.append(sample.step)
            del sample
    except KeyboardInterrupt:
        caught += 1
assert steps == list(range(len(steps))), steps
assert client.stats["held"] == 0, client.stats
print(caught)
"""

FINALIZERS = """
broker = Broker()
broker.start()
Worker(fill_fn=fill, batch_config=config, framework="numpy").start()
client = StudentClient(0, 64, config, framework="numpy", prefetch=64)
client.set_model("m")
caught, done, seen = 0, False, threading.Event()

def send():
    global done
    for _ in range(100):
        time.sleep(0.002 + random.random() * 0.002)
        seen.clear()
        os.kill(os.getpid(), signal.SIGINT)
        if not seen.wait(120):
            print("a Ctrl-C was lost")
    done = True

threading.Thread(target=send, daemon=True).start()
while not done:
    try:
        while not done:
            for sample in client.next_samples(64):
                sample["x"] if sample.step % 2 else None
    except KeyboardInterrupt:
        caught += 1
        seen.set()
print(caught)
"""

DROPPED = """
broker = Broker()
broker.start()
for _ in range(3):
    Worker(fill_fn=fill, batch_config=config, framework="numpy").hello()
gc.collect()
assert metrics()["workers"] == []
Worker(fill_fn=fill, batch_config=config, framework="numpy").start()

class Trainer:
    def __init__(self):
        self.me = self
        self.client = StudentClient(0, 4, config, framework="numpy")
        self.client.set_model("m")
        self.samples = [self.client.request_sample(60_000) for _ in range(3)]
        self.data, self.tensor, self.step = self.samples[0].data, self.samples[1]["x"], self.samples[1].step

    def __del__(self):
        assert (self.tensor == self.step).all(), (self.tensor, self.step)

for _ in range(3):
    Trainer()
    gc.collect()
# Closed, and gone later.
closed = [StudentClient(0, 4, config, framework="numpy") for _ in range(3)]
for client in closed:
    client.hello()
    client.close()
    gc.collect()
del client, closed
gc.collect()
client = StudentClient(0, 4, config, framework="numpy")
kept = client.request_sample(60_000)["x"]
"""


@pytest.mark.parametrize(("program", "told"), [(SAMPLES, "25\n"), (FINALIZERS, "100\n"), (DROPPED, "")], ids=["samples", "finalizers", "dropped"])
def test_exchange(program, told, folder: Path):
    assert ended(EXCHANGE + program).stdout == told
