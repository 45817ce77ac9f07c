"""What is opened is closed: no file, thread, process or memory stays behind, however often, and whatever ends the program."""

import os
import select
import signal
import subprocess
import sys
import time

import pytest

ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}

OPENS = """
import gc, os, sys
from laneway import Function, Loader, Recipe

recipe = Recipe.parse('functions = ["same 1"]\\n' + open({recipe!r}).read(), {folder!r})


def once(i):
    loader = Loader(recipe, i % 2, 2, functions=[Function("same 1", map=lambda text: text)], threads=2, prefetch=2, framework="numpy")
    batches = [next(loader) for _ in range(3)]
    state = loader.state_dict()
    loader.seek(1)
    loader.load_state_dict(state)
    next(loader)
    kept = batches[i % 3].input_ids  # outlives its loader
    if i % 2:
        loader.close()
    del loader, batches
    return int(kept[0, 0])


def held():
    gc.collect()
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return len(os.listdir("/proc/self/fd")), int(status["Threads"]), int(status["VmRSS"].split()[0])


for i in range(40):
    once(i)
before = held()
for i in range(160):
    once(i)
print(*before, *held())
"""


def test_opening_and_closing_many_times_leaves_nothing_open_or_held(lanes, lanes_folder):
    program = OPENS.format(recipe=str(lanes), folder=str(lanes_folder))
    done = subprocess.run([sys.executable, "-c", program], env={**ENV, "LANEWAY_CACHE": os.environ["LANEWAY_CACHE"]}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    files, threads, kilobytes, files_after, threads_after, kilobytes_after = map(int, done.stdout.split())
    assert (files_after, threads_after) == (files, threads)
    # One leaked loader is about 100 KB.
    assert kilobytes_after - kilobytes < 4096, f"{kilobytes} KB before 160 more loaders, and {kilobytes_after} KB after"


TRAINS = """
import torch
from laneway import Loader

data = torch.utils.data.DataLoader(Loader({recipe!r}).to_torch_dataset(), batch_size=None, num_workers={workers})
try:
    for i, batch in enumerate(data):
        if i == 5:
            print("runs", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


INTERRUPTED = """
import random, signal, sys, time
from laneway import Loader, Recipe

raised = caught = 0
dropped = []
sys.unraisablehook = dropped.append


def interrupt(*_):
    global raised
    raised += 1
    raise KeyboardInterrupt


text = open({recipe!r}).read()
loader = Loader(Recipe.parse(text, {folder!r}), threads=0, framework="numpy")
next(loader)
works = {{"recipe": lambda: Recipe.parse(text), "batch": lambda: next(loader)}}
work = works[{what!r}]
signal.signal(signal.SIGALRM, interrupt)
moments = random.Random(0)
end = time.monotonic() + 1.5
while time.monotonic() < end:
    before = raised
    try:
        signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, 4e-4))
        while raised == before:
            work()
    except KeyboardInterrupt:
        caught += 1
signal.signal(signal.SIGALRM, signal.SIG_IGN)
print(raised, caught, len(dropped), dropped[:1])
"""


@pytest.mark.parametrize("what", ["recipe", "batch"])
def test_no_ctrl_c_is_lost_while_objects_are_let_go_of(lanes, lanes_folder, what):
    program = INTERRUPTED.format(recipe=str(lanes), folder=str(lanes_folder), what=what)
    env = {**ENV, "LANEWAY_CACHE": os.environ["LANEWAY_CACHE"]}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    raised, caught, dropped, *_ = done.stdout.split()
    assert raised == caught and dropped == "0" and int(raised) > 100, done.stdout


def group_is_gone(group, seconds=20.0):
    """Whether no process of that group is left, zombies included, within some seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def interrupt(process):
    """Ctrl-C, as a terminal sends it: to all of the group; and once more if nothing follows. Python drops a KeyboardInterrupt that is raised just while a
    finalizer runs, such as that of the batch before, so one of many is lost."""
    for _ in range(4):
        os.killpg(process.pid, signal.SIGINT)
        if select.select([process.stdout], [], [], 5.0)[0]:
            return


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ending", ["Ctrl-C", "SIGTERM", "SIGKILL"])
def test_a_training_that_is_ended_takes_its_data_workers_with_it(lanes, workers, ending):
    pytest.importorskip("torch")
    program = [sys.executable, "-c", TRAINS.format(recipe=str(lanes), workers=workers)]
    with subprocess.Popen(program, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True) as process:
        try:
            assert process.stdout.readline() == "runs\n"
            if ending == "Ctrl-C":
                interrupt(process)
            else:
                process.send_signal(signal.SIGTERM if ending == "SIGTERM" else signal.SIGKILL)
            out = process.stdout.read()
            code = process.wait(timeout=60)
            assert (out, code) == {"Ctrl-C": ("interrupted\n", 0), "SIGTERM": ("", -signal.SIGTERM), "SIGKILL": ("", -signal.SIGKILL)}[ending]
            assert group_is_gone(process.pid), "data workers are left"
        finally:
            if process.poll() is None or not group_is_gone(process.pid, 0.1):
                os.killpg(process.pid, signal.SIGKILL)
