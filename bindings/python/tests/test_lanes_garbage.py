"""Loaders that nobody has any more, and whose functions go with them: each in a process of its own, since what fails here takes the interpreter along."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FUNCTIONS = """
import gc, sys, threading, time
import laneway
from laneway import Function, Loader, Operator, Recipe, Rows, errors

gc.disable()
text = 'functions = ["keep 1"]\\n' + open(sys.argv[1]).read()
recipe = Recipe.parse(text, sys.argv[2])


def loader(keep, **options):
    return Loader(recipe, functions=[Function("keep 1", filter=keep)], framework="numpy", progress=False, **options)
"""

IN_A_CYCLE = """
class Trainer:
    def __init__(self, keep):
        self.me = self
        self.loader = loader(keep, threads=3, prefetch=500)
        next(self.loader)

def train():
    # A collector takes apart what is older first: the function, whose globals and cells are gone then.
    most = 10**6
    keep = lambda text: sum(len(word) for word in text.split()) < most
    Trainer(keep)

for _ in range(20):
    train()
    assert gc.collect() > 0
"""

BY_ITS_OWN_THREAD = """
made = []

class Trainer:
    def __init__(self, keep):
        self.me = self
        self.loader = loader(keep, threads=3, prefetch=500)
        next(self.loader)

def collecting(number):
    calls = 0
    def keep(text):
        nonlocal calls
        calls += 1
        if number in left and threading.current_thread() is not threading.main_thread():
            left.discard(number)
            gc.collect()
            made.append(number)
        return True
    return keep

left = set()
for number in range(20):
    trainer = Trainer(collecting(number))
    del trainer
    left.add(number)
    end = time.monotonic() + 20
    while number not in made and time.monotonic() < end:
        time.sleep(0.001)
    # Its threads may have been done with all that was wanted before they were asked.
    left.discard(number)
    gc.collect()
assert len(made) > 0, made
"""

BY_ITS_LAST_NAME = """
held, dropped = [], threading.Event()

def keep(text):
    time.sleep(0.0005)
    if armed.is_set() and held:
        held.clear()
        dropped.set()
    return True

armed = threading.Event()
for _ in range(10):
    armed.clear(), dropped.clear()
    held.append(loader(keep, threads=3, prefetch=500))
    next(held[0])
    armed.set()
    assert dropped.wait(60)
"""

CLOSED_INSIDE = """
for threads in (0, 1, 3):
    def keep(text):
        closing.close()
        return True
    closing = loader(keep, threads=threads)
    try:
        while True:
            next(closing)
    except (errors.Closed, errors.DataError) as error:
        assert "closed" in str(error), error
    else:
        raise AssertionError("it went on")

    def asks(text):
        return closing.step >= 0
    closing = loader(asks, threads=threads)
    try:
        next(closing)
    except errors.DataError as error:
        assert "cannot use the loader" in str(error), error
    else:
        raise AssertionError("it went on")
"""

ROWS = """
def operator():
    def push(state, records):
        return state + len(records), records
    return Operator("keep 1", init_state=lambda: 0, push=push)

class Teacher:
    def __init__(self):
        self.operator = operator()
        self.me = self
        self.rows = Rows(recipe, operators=[self.operator], framework="numpy", progress=False)
        self.rows.get([(0, 3), (1, 2)])

    def __del__(self):
        try:
            self.rows.get([(0, 4)])
        except errors.Closed:
            closed.append(1)

closed = []
for _ in range(5):
    Teacher()
    gc.collect()
assert len(closed) == 5, closed
"""

SERVER = """
from laneway import NodeLoader, Server

def serve():
    Server(recipe, functions=[Function("keep 1", filter=lambda text: len(text.split()) > 0)], name="unnamed", ranks=1, threads=2, prefetch=50, progress=False).start()

serve()
gc.collect()
peer = NodeLoader(recipe, name="unnamed", rank=0, ranks=1, framework="numpy", progress=False)
for _ in range(30):
    next(peer)
    gc.collect()
"""


@pytest.mark.parametrize(
    "program",
    [IN_A_CYCLE, BY_ITS_OWN_THREAD, BY_ITS_LAST_NAME, CLOSED_INSIDE, ROWS, SERVER],
    ids=["in a cycle", "by its own thread", "by its last name", "closed inside", "rows", "server"],
)
def test_a_loader_goes_with_its_functions_whoever_collects_it(program, lanes: Path, folder: Path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-X", "faulthandler", "-c", FUNCTIONS + program, str(lanes), str(lanes.parent)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "panic" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr[-4000:]
