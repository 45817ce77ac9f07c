"""A node loader of a recipe with teachers: the batches of an in-process loader, whoever dies, and one fence for the models of all ranks."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import House, wait_until
from test_node_loader import heard, peer, said, serve

from laneway import GenerateOptions, Loader, NodeLoader, Recipe, Server, Task, TaskError, Worker, _native, errors
from laneway.errors import LanewayError

TEACHER = Path(__file__).with_name("node_teacher.py")

GENERATE = """
[generate]
model_id = "first"
model_cfg = { scale = 2 }
layout = [{ name = "scaled", shape = [32], dtype = "float32" }, { name = "sum", shape = [], dtype = "int64" }]
batch_size = 2
"""


@pytest.fixture
def taught(lanes: Path, folder: Path) -> Path:
    """The recipe ``lanes`` with teachers."""
    path = folder / "taught.toml"
    path.write_text(Recipe.load(lanes).to_toml() + GENERATE)
    return path


def check(batch: Any, scale: int) -> None:
    assert batch.taught == ("scaled", "sum")
    np.testing.assert_array_equal(batch["scaled"], batch.input_ids.astype(np.float32) * scale)
    np.testing.assert_array_equal(batch["sum"], batch.input_ids.sum(1) + batch.step)


def alone(recipe: Path, steps: int) -> list[list[int]]:
    """The rows of an in-process loader, whose model changes at step 12."""
    with Loader(recipe, framework="numpy", generate=GenerateOptions(group="alone")) as loader:
        loader.set_model("second", {"scale": 5}, from_step=12)
        rows = []
        for step in range(steps):
            batch = next(loader)
            check(batch, 2 if step < 12 else 5)
            rows.append(batch.hashes.tolist())
        return rows


def test_peers_get_what_teachers_made_whoever_dies(house: House, taught: Path) -> None:
    teachers = [house.python(str(TEACHER), str(taught)) for _ in range(2)]
    want = alone(taught, 40)
    of_rank = [[[step, 0, rows[4 * rank : 4 * rank + 4]] for step, rows in enumerate(want)] for rank in (0, 1)]
    serve(house, taught, "--ranks", "2", "--peers", "2", "--group", "node", "--threads", "1")
    steady = [NodeLoader(taught, rank, 2, peers=2, framework="numpy") for rank in (0, 1)]
    for loader in steady:
        loader.set_model("second", {"scale": 5}, from_step=12)
    victim, partner = peer(house, taught, 0, 2, batches=1000, peers=2), peer(house, taught, 1, 2, batches=40, peers=2)
    for step, rows in enumerate(want):
        found = []
        for loader in steady:
            batch = loader.next(120)
            assert batch is not None
            check(batch, 2 if step < 12 else 5)
            found += batch.hashes.tolist()
        assert found == rows, f"step {step}"
        if step == 10:
            assert said(victim), "it has read on"
            for process in (victim, teachers[0]):
                process.kill()
                process.wait()
            teachers.append(house.python(str(TEACHER), str(taught)))
        if step == 20:
            back = peer(house, taught, 0, 2, batches=19, peers=2, state=steady[0].state_dict())
            wait_until(lambda process=back: said(process), "its place, which is kept as long as its rank waits there")
    assert heard(partner)[0] == of_rank[1] and heard(back)[0] == of_rank[0][21:]
    assert all(line in of_rank[0] for line in said(victim))
    state = steady[0].state_dict()
    assert state["meta"]["models"] == [{"from_step": 12, "model_id": "second", "model_cfg": {"scale": 5}}]
    with pytest.raises(errors.InvalidArgument, match="whose model can still be set is"):
        steady[0].set_model("late", from_step=30)
    # An in-process loader goes on from there.
    states = [loader.state_dict() for loader in steady]
    for loader in steady:
        loader.close()
    with Loader(taught, framework="numpy", generate=GenerateOptions(group="after")) as loader:
        loader.load_state_dict(states)
        check(next(loader), 5)


def test_a_broker_that_is_not_there_yet_is_an_error_and_the_next_call_tries_again(node_house: House, taught: Path) -> None:
    options = GenerateOptions(group="late", connect_timeout_s=0.3)
    with Server(taught, name="g", generate=options, progress=None), NodeLoader(taught, name="g", framework="numpy") as loader:
        for _ in range(2):
            with pytest.raises(errors.NotFound, match=r"\[generate\]"):
                loader.next(60)
        node_house.start_broker()
        node_house.python(str(TEACHER), str(taught))
        batch = loader.next(120)
        assert batch is not None and batch.step == 0
        check(batch, 2)


def test_a_time_out_says_what_the_servers_teachers_lack(house: House, taught: Path) -> None:
    with Server(taught, name="g", generate=GenerateOptions(group="w"), progress=None), NodeLoader(taught, name="g", framework="numpy") as loader:
        with pytest.raises(errors.Timeout, match="batch of step 0 was not ready in time; call again; its server: .*no worker"):
            loader.next(3)
        house.python(str(TEACHER), str(taught))
        check(loader.next(120), 2)


def test_a_row_that_is_given_up_is_an_error_on_every_peer(house: House, taught: Path) -> None:
    at = "    rows = tasks[0].rows\n"
    refuses = '    if any((t.lane, t.step) == (3, 2) for t in tasks):\n        raise RuntimeError("bad luck")\n'
    text = TEACHER.read_text().replace(at, refuses + at)
    house.python("-c", text, str(taught))
    with Server(taught, name="g", peers=2, generate=GenerateOptions(group="f", max_attempts=2), progress=None):
        peers = [NodeLoader(taught, name="g", peers=2, framework="numpy") for _ in range(2)]
        for loader in peers:
            assert [loader.next(120).step for _ in range(2)] == [0, 1]  # type: ignore[union-attr]
        for loader in peers:
            with pytest.raises(TaskError, match=r"row 2 of lane 3 (.|\n)*bad luck"):
                loader.next(120)


WAYS: dict[str, Callable[[NodeLoader], object]] = {
    "next": lambda loader: None,
    "seek": lambda loader: loader.seek(loader.step),
    "load": lambda loader: loader.load_state_dict(loader.state_dict()),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_failure_is_told_to_every_peer_even_if_another_has_gone_on_and_a_newcomer_moves_nobody(house: House, taught: Path, way: str) -> None:
    mended = taught.with_name("mended")
    at = "    rows = tasks[0].rows\n"
    refuses = '    if any((t.lane, t.step) == (3, 12) for t in tasks) and not Path(sys.argv[2]).exists():\n        raise RuntimeError("bad luck")\n'
    text = TEACHER.read_text().replace(at, refuses + at).replace("import sys\n", "import sys\nfrom pathlib import Path\n")
    house.python("-c", text, str(taught), str(mended))
    with Server(taught, name="g", peers=2, generate=GenerateOptions(group="f", max_attempts=2), progress=None):
        first, second = (NodeLoader(taught, name="g", peers=2, framework="numpy") for _ in range(2))
        for step in range(12):
            for loader in (first, second):
                assert loader.next(120).step == step  # type: ignore[union-attr]
        with pytest.raises(TaskError, match="row 12 of lane 3"):
            first.next(120)
        with pytest.raises(errors.Refused, match="its beginning is gone"):
            NodeLoader(taught, name="g", peers=2, framework="numpy").next(120)
        mended.touch()
        WAYS[way](first)
        assert first.next(120).step == 12  # type: ignore[union-attr]
        with pytest.raises(TaskError, match="row 12 of lane 3"):
            second.next(120)
        for loader in (second, first):
            assert loader.next(120).step == 12 + (loader is first)  # type: ignore[union-attr]


def test_a_server_in_the_place_of_another_teaches_as_it_did(house: House, taught: Path) -> None:
    house.python(str(TEACHER), str(taught))
    teaching = lambda: Server(taught, name="g", generate=GenerateOptions(group="s"), progress=None)  # noqa: E731
    alone = lambda: Server(taught, name="g", generate=False, progress=None)  # noqa: E731
    for before, after, what in ((teaching, alone, "serves rows alone"), (alone, teaching, "serves what teachers make too")):
        with before():
            loader = NodeLoader(taught, name="g", framework="numpy")
            assert loader.next(120).step == 0  # type: ignore[union-attr]
        with after():
            with pytest.raises(errors.Refused, match=what):
                for _ in range(20):
                    loader.next(120)
            for go in (lambda: loader.seek(1), lambda: loader.load_state_dict(loader.state_dict()), lambda: loader.next(120)):
                with pytest.raises(errors.Refused, match=what):
                    go()
        with before():
            loader.seek(7)
            batch = loader.next(120)
            assert batch is not None and batch.step == 7 and bool(batch.taught) == (before is teaching)


RAGGED = """
[generate]
model_id = "m"
layout = [{ name = "top", shape = ["said<=9", 3], dtype = "float32" }, { name = "ids", shape = ["said<=9"], dtype = "int32" }]
batch_size = 2
"""


def say(tasks: list[Task]) -> None:
    """Answers of 0 to 9 words."""
    for task in tasks:
        views = task.set_length(said=(3 * task.lane + task.step) % 10)
        views["top"][:] = np.random.default_rng(task.seed).standard_normal(views["top"].shape)
        views["ids"][:] = task.step


@pytest.mark.parametrize("pad_to", ['"longest"', '"max"', "4"])
def test_answers_of_different_lengths_are_those_of_an_in_process_loader(house: House, lanes: Path, folder: Path, pad_to: str) -> None:
    recipe = folder / "ragged.toml"
    recipe.write_text(Recipe.load(lanes).to_toml() + RAGGED + f"pad_to = {pad_to}\n")
    worker = Worker(fill_fn=say, recipe=recipe, batch_size=2, framework="numpy")
    worker.start()
    with Server(recipe, name="g", peers=2, generate=GenerateOptions(group="node"), progress=None):
        peers = [NodeLoader(recipe, name="g", peers=2, framework="numpy") for _ in range(2)]
        with Loader(recipe, framework="numpy", generate=GenerateOptions(group="here")) as here:
            sizes = set()
            for _ in range(20):
                want = next(here)
                for loader in peers:
                    batch = loader.next(120)
                    assert batch is not None and (batch.step, batch.taught) == (want.step, ("top", "ids", "said_lengths", "said_mask"))
                    for name in want.taught:
                        np.testing.assert_array_equal(batch[name], want[name])
                    assert batch.hashes.tolist() == want.hashes.tolist()
                sizes.add(want["top"].shape[1])
        for loader in peers:
            loader.close()
    worker.stop()
    assert max(sizes) == (12 if pad_to == "4" else 9)


def test_many_kept_batches_stop_nobody(house: House, taught: Path) -> None:
    house.python(str(TEACHER), str(taught))
    with Server(taught, name="g", generate=GenerateOptions(group="k"), progress=None), NodeLoader(taught, name="g", framework="numpy") as loader:
        kept = [loader.next(60) for _ in range(70)]
        for step, batch in enumerate(kept):
            assert batch is not None and batch.step == step
            check(batch, 2)


def test_rows_alone_are_served_where_nobody_is_to_be_asked(folder: Path, taught: Path) -> None:
    with Server(taught, name="g", generate=False, progress=None), NodeLoader(taught, name="g", framework="numpy") as loader:
        with Loader(taught, generate=False, framework="numpy") as here:
            assert next(loader).hashes.tolist() == next(here).hashes.tolist()
        assert next(loader).taught == ()
        with pytest.raises(errors.Unsupported, match="rows alone"):
            loader.set_model("x", from_step=1000)


@pytest.fixture
def node_house(folder: Path) -> Any:
    """Processes without a broker."""
    house = House(folder)
    yield house
    house.end()


EVERYTHING = {
    "frontend_endpoint": "tcp://127.0.0.1:4001",
    "control_endpoint": "tcp://127.0.0.1:4002",
    "control_pub_endpoint": "tcp://127.0.0.1:4003",
    "group": "--mine",
    "window": 24,
    "max_workers": 3,
    "max_attempts": 1,
    "connect_timeout_s": 2.5,
    "broker": "embedded",
    "spin_us": 0,
}


def test_a_loader_that_starts_its_server_passes_on_all_that_it_is_given(taught: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that is started here notes its words, and what comes in, and serves nobody."""
    assert set(EVERYTHING) == {field.name for field in fields(GenerateOptions)}
    program = folder / "program"
    program.write_text('#!/bin/sh\nfor word; do echo "$word"; done > "$0.words"\ncat > "$0.toml"\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setattr(_native, "find_program", lambda: program)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    always = ["serve", "-", "--embedded", "--log", "warning", "--name", "n", "--peers", "2"]
    tuning = {"threads": 0, "prefetch": 0, "slots": 5, "cache_dir": folder / "a b"}
    given = ["--threads=0", "--prefetch=0", "--slots=5", f"--cache={folder}/a b"]
    teachers = ["--frontend=tcp://127.0.0.1:4001", "--control=tcp://127.0.0.1:4002", "--control-pub=tcp://127.0.0.1:4003", "--group=--mine"]
    teachers += ["--window=24", "--max-workers=3", "--max-attempts=1", "--connect-timeout=2.5", "--embedded-broker", "--spin-us=0"]
    for options, words in [
        ({}, []),
        (tuning, given),
        ({"generate": True}, []),
        ({"generate": False, "slots": 1}, ["--slots=1", "--rows-only"]),
        ({"generate": GenerateOptions(**EVERYTHING), **tuning}, given + teachers),  # type: ignore[arg-type]
    ]:
        with pytest.raises(LanewayError, match="did not start a node loader"):
            NodeLoader(taught, name="n", peers=2, start=True, **options).next(60)  # type: ignore[arg-type]
        assert (folder / "program.words").read_text().splitlines() == always + words
        assert (folder / "program.toml").read_text() == Recipe.load(taught).to_toml()
        if options:
            with pytest.raises(ValueError, match=f"^{', '.join(sorted(options, key=[*tuning, 'generate'].index))}: of the server that start=True starts"):
                NodeLoader(taught, name="n", **options)  # type: ignore[arg-type]


def test_a_server_that_a_loader_starts_asks_the_teachers_of_a_broker_elsewhere(house: House, taught: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house.python(str(TEACHER), str(taught))
    elsewhere = house.folder / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    monkeypatch.setenv("LANEWAY_DIR", str(elsewhere))
    places = [f"ipc://{house.folder}/{name}.sock" for name in ("frontend", "control", "control_pub")]
    generate = GenerateOptions(*places, group="afar", window=16, max_workers=2, max_attempts=2, connect_timeout_s=60, spin_us=0)
    with NodeLoader(taught, name="g", start=True, generate=generate, framework="numpy") as loader:
        for step in range(3):
            batch = loader.next(120)
            assert batch is not None and batch.step == step
            check(batch, 2)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--rows-only", "--window", "3"], "--window with --rows-only: nobody is asked there"),
        (["--max-attempts", "0"], "--max-attempts is 0; expected at least 1"),
        (["--max-worker", "3"], "there is no option '--max-worker'; did you mean --max-workers?"),
        (["--connect-timeout", "soon"], "--connect-timeout 'soon': expected a number of seconds"),
    ],
)
def test_what_a_server_cannot_do_with_its_teachers_is_an_error(folder: Path, taught: Path, words: list[str], why: str) -> None:
    done = subprocess.run([_native.find_program(), "serve", taught, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and why in done.stderr, done.stderr


def test_options_for_teachers_of_a_recipe_without_any_are_an_error(folder: Path, lanes: Path) -> None:
    loader = NodeLoader(lanes, start=True, generate=GenerateOptions(window=8))
    with pytest.raises(LanewayError, match=r"--window: the recipe has no \[generate\], so no teachers are asked"):
        loader.next(60)
