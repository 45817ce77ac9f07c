"""Teachers as operators, from Python: rows by ticket, what a worker sees of them, and batches that hold what teachers made."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laneway import BatchConfig, GenerateOptions, Loader, NodeLoader, Pipeline, Rows, StudentClient, Task, TaskError, TensorSpec, Worker, errors, global_hash
from laneway.io import Dataset
from laneway.work import StaticMixtureWorkSource

EXAMPLE = Path(__file__).parents[3] / "examples" / "python" / "distill_lanes.py"

GENERATE = """
[generate]
model_id = "first"
model_cfg = { scale = 2 }
layout = [{ name = "scaled", shape = [32], dtype = "float32" }, { name = "half", shape = [], dtype = "bfloat16" }]
batch_size = 4
"""


CONFIG = BatchConfig([TensorSpec("scaled", (32,), "float32"), TensorSpec("half", (), "bfloat16")])


@pytest.fixture
def taught(lanes: Path) -> str:
    """The recipe's text with teachers; paths are absolute."""
    from laneway import Recipe

    return Recipe.load(lanes).to_toml() + GENERATE


def scale(tasks: list[Task]) -> None:
    rows = tasks[0].rows
    assert rows is tasks[-1].rows and rows.num_rows == len(tasks)
    for i, task in enumerate(tasks):
        row = task.row
        assert set(row) == {"input_ids", "labels", "positions", "segment_ids", "loss_mask"} and (row["input_ids"] == rows.input_ids[i]).all()
        task["scaled"][:] = np.asarray(row["input_ids"], np.float32) * task.model_cfg["scale"]
        task["half"][...] = np.uint16(task.step) if task["half"].dtype == np.uint16 else task.step


class Teaching:
    """A worker on a thread of this process."""

    def __init__(self, recipe: Any, fill: Any = scale) -> None:
        self.worker = Worker(fill_fn=fill, recipe=recipe, batch_size=4, framework="numpy")

    def __enter__(self) -> Worker:
        self.worker.start()
        return self.worker

    def __exit__(self, *exc: Any) -> None:
        self.worker.stop()


def test_rows_come_by_their_tickets(lanes: Path) -> None:
    with Loader(lanes, framework="numpy") as loader:
        batches = [next(loader) for _ in range(12)]
    hashes = {(int(r["lane"]), int(r["number"])): h for b in batches for r, h in zip(b.rows, b.hashes, strict=True)}
    rows = Rows(lanes, framework="numpy")
    tickets = sorted(hashes, key=lambda t: (t[1] * 7919 + t[0] * 31) % 101)
    for at in range(0, len(tickets), 5):
        batch = rows.get(tickets[at : at + 5])
        assert [hashes[t] for t in tickets[at : at + 5]] == batch.hashes.tolist()
    assert batch.to_training(return_labels=True)["input_ids"].shape[0] == len(batch)
    with pytest.raises(errors.InvalidArgument, match="lanes 0 to 7"):
        rows.get([(8, 0)])
    with pytest.raises(errors.InvalidArgument, match="no ticket"):
        rows.get([])


def test_a_batch_has_what_teachers_made_and_travels_with_it(house: Any, taught: str) -> None:
    with Teaching(taught), Loader(taught, framework="numpy", generate=GenerateOptions(group="a")) as loader:
        for _ in range(5):
            batch = next(loader)
            assert batch.taught == ("scaled", "half") and set(dict(batch)) >= {"input_ids", "scaled", "half"}
            np.testing.assert_array_equal(batch["scaled"], batch.input_ids.astype(np.float32) * 2)
            assert batch["half"].shape == (8,) and not batch["scaled"].flags.writeable
        again = pickle.loads(pickle.dumps(batch))
        np.testing.assert_array_equal(again["scaled"], batch["scaled"])
        assert (again.hashes == batch.hashes).all()
        assert loader.stats["generate"]["delivered"] >= 40
        with pytest.raises(KeyError, match="this one has input_ids.*half"):
            batch.numpy("third")


def test_torch_gets_torch_tensors_of_the_declared_type(house: Any, taught: str) -> None:
    torch = pytest.importorskip("torch")
    with Teaching(taught), Loader(taught, generate=GenerateOptions(group="t")) as loader:
        batch = next(loader)
        assert batch["half"].dtype == torch.bfloat16 and batch["scaled"].dtype == torch.float32
        assert torch.equal(batch["scaled"], batch.input_ids.float() * 2)


def test_a_model_holds_from_its_step_on_and_is_in_the_state(house: Any, taught: str) -> None:
    def run(loader: Loader, steps: int) -> list[int]:
        hashes = []
        for _ in range(steps):
            batch = next(loader)
            factor = 2 if batch.step < 3 else 5
            np.testing.assert_array_equal(batch["scaled"], batch.input_ids.astype(np.float32) * factor)
            hashes.append(global_hash([batch.hashes]))
        return hashes

    with Teaching(taught), Loader(taught, framework="numpy", generate=GenerateOptions(group="m")) as loader:
        loader.set_model("second", {"scale": 5}, from_step=3)
        expected = run(loader, 2)
        state = json.loads(json.dumps(loader.state_dict()))
        expected += run(loader, 5)
        with pytest.raises(errors.InvalidArgument, match="the first step whose model can still be set is 7"):
            loader.set_model("late", from_step=6)
        loader.load_state_dict(state)
        assert run(loader, 5) == expected[2:]
    assert state["meta"]["models"] == [{"from_step": 3, "model_id": "second", "model_cfg": {"scale": 5}}]


def test_a_row_that_fails_names_itself_and_rows_alone_ask_nobody(house: Any, taught: str) -> None:
    def fill(tasks: list[Task]) -> None:
        if any(t.lane == 2 for t in tasks):
            raise RuntimeError("lane 2 is bad luck")
        scale(tasks)

    with Teaching(taught, fill), Loader(taught, generate=GenerateOptions(group="f", max_attempts=2)) as loader:
        for _ in range(2):
            with pytest.raises(TaskError, match=r"row 0 of lane 2 \(step 0; documents .*failed after 2 attempts(.|\n)*lane 2 is bad luck"):
                next(loader)
    with Loader(taught, generate=False) as loader:
        assert next(loader).taught == ()
        with pytest.raises(errors.Unsupported, match="rows alone"):
            loader.set_model("x", from_step=9)


def test_nobody_there_is_an_error_and_not_a_hang(folder: Path, taught: str) -> None:
    with Loader(taught, generate=GenerateOptions(connect_timeout_s=0.2)) as loader, pytest.raises(errors.NotFound, match="frontend.sock"):
        next(loader)


def test_a_pipeline_has_teachers_as_one_more_call(house: Any, lanes: Path) -> None:
    def build() -> Pipeline:
        files = [Dataset.from_path("wiki", str(lanes.parent / "wiki.jsonl")), Dataset.from_path("news", lanes.parent / "news")]
        work = StaticMixtureWorkSource(datasets=files, mixture={"wiki": 0.5, "news": 0.5}, exhausted_policy="repeat", seed=7)
        pipeline = Pipeline(work).options(framework="numpy", max_workers=1)
        pipeline = pipeline.tokenize(tokenizer_id=str(lanes.parent / "tokenizer.json"), field="text", special_tokens="eos")
        return pipeline.pack_flat(max_length=32, algorithm="wrap").shuffle(buffer_size=64, seed=42).batch(microbatch_size=8)

    built = build().generate("first", CONFIG, 4, model_cfg={"scale": 2}, options=GenerateOptions(group="p"))
    assert built.recipe.taught_config() == CONFIG and build().recipe.taught_config() is None
    assert build().recipe.difference(built.recipe).startswith("generate.")
    with Teaching(built.recipe), built:
        for step, batch in zip(range(6), built, strict=False):
            if step == 0:
                built.set_model("second", {"scale": 3}, from_step=3)
                built.set_mixture({"wiki": 1.0, "news": 0.0}, 4)
            np.testing.assert_array_equal(batch["scaled"], batch.input_ids.astype(np.float32) * (2 if step < 3 else 3))
    asked = BatchConfig([TensorSpec("top", ("said<=4",), "float32", finite=True), TensorSpec("ids", ("said<=4",), "int32", min=0, max=9)])
    assert build().generate("m", asked, pad_to="max").recipe.taught_config() == asked, "what is asked of values stays"
    with pytest.raises(errors.InvalidArgument, match="pad_to is for ragged dimensions"):
        _ = build().generate("m", CONFIG, pad_to="max").recipe
    with pytest.raises(TypeError, match="expected a BatchConfig"):
        build().generate("first", {"x": 1})  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgument, match="model_cfg holds None"):
        build().generate("first", CONFIG, model_cfg={"a": [None]})


def test_workers_without_the_recipe_are_given_the_rows(house: Any, taught: str) -> None:
    def fill(tasks: list[Task]) -> None:
        for task in tasks:
            assert set(task.inputs) == {"input_ids", "positions", "segment_ids"}
            task["scaled"][:] = np.asarray(task.inputs["input_ids"], np.float32) * 2 + task.inputs["positions"]
            task["half"][...] = 0
        with pytest.raises(errors.InvalidArgument, match="no recipe to make rows from"):
            _ = tasks[0].rows

    given = taught + 'input = "tokens"\n'
    worker = Worker(fill_fn=fill, batch_config=CONFIG, batch_size=3, framework="numpy")
    worker.start()
    with Loader(given, framework="numpy", generate=GenerateOptions(group="g")) as loader, Loader(taught, generate=False, framework="numpy") as alone:
        for batch, same in zip(range(20), alone, strict=False):
            batch = next(loader)
            assert (batch.input_ids == same.input_ids).all()
            np.testing.assert_array_equal(batch["scaled"], batch.input_ids.astype(np.float32) * 2 + batch.positions)
    worker.stop()


RAGGED = """
[generate]
model_id = "m"
layout = [{ name = "top", shape = ["said<=12", 4], dtype = "float32", finite = true }, { name = "ids", shape = ["said<=12"], dtype = "int32" }]
"""


def said(lane: int, row: int) -> int:
    return (3 * lane + row) % 13


def answer(tasks: list[Task]) -> None:
    """Says a different number of words of each row."""
    for task in tasks:
        views = task.set_length(said=said(task.lane, task.step))
        assert views["top"].shape == (said(task.lane, task.step), 4)
        views["top"][:] = np.random.default_rng(task.seed).standard_normal(views["top"].shape)
        views["ids"][:] = task.step


@pytest.mark.parametrize("pad_to", ["longest", "max", 5])
def test_answers_of_different_lengths_are_filled_up_and_masked(house: Any, lanes: Path, pad_to: str | int) -> None:
    from laneway import Recipe

    torch = pytest.importorskip("torch")
    recipe = Recipe.load(lanes).to_toml() + RAGGED + f"pad_to = {json.dumps(pad_to)}\n"
    with Teaching(recipe, answer), Loader(recipe, microbatch_size=4, generate=GenerateOptions(group=f"r{pad_to}")) as loader:
        for _ in range(30):
            batch = next(loader)
            assert batch.taught == ("top", "ids", "said_lengths", "said_mask")
            lengths = [said(int(r["lane"]), int(r["number"])) for r in batch.rows]
            size = {"longest": max(lengths), "max": 12}.get(str(pad_to), -(-max(lengths) // 5) * 5)
            assert batch["said_lengths"].tolist() == lengths and batch["said_mask"].dtype == torch.bool
            assert batch["top"].shape == (4, size, 4) and batch["ids"].shape == batch["said_mask"].shape == (4, size)
            assert batch["said_mask"].sum(1).tolist() == lengths and not batch["top"][~batch["said_mask"]].any()
            for row, length in enumerate(lengths):
                assert batch["ids"][row, :length].tolist() == [int(batch.rows[row]["number"])] * length
            # A loss over answers of different lengths, one of them empty perhaps, is a number, and so are its gradients.
            guess = torch.zeros_like(batch["top"], requires_grad=True)
            each = torch.nn.functional.kl_div(guess.log_softmax(-1), batch["top"].log_softmax(-1), log_target=True, reduction="none").sum(-1)
            loss = (each * batch["said_mask"]).sum() / batch["said_mask"].sum().clamp(min=1)
            loss.backward()
            assert loss.isfinite() and guess.grad.isfinite().all() and not guess.grad[~batch["said_mask"]].any()
        assert set(batch.to("cpu")) == set(dict(batch)) and torch.equal(batch.to("cpu")["top"], batch["top"])
        again = pickle.loads(pickle.dumps(batch))
        assert torch.equal(again["said_mask"], batch["said_mask"]) and (again.hashes == batch.hashes).all()


def test_a_dataloader_with_several_workers_is_told_who_asks_the_teachers(house: Any, taught: str) -> None:
    data = pytest.importorskip("torch").utils.data
    loader = Loader(taught, generate=GenerateOptions(group="d"))
    with pytest.raises(errors.Unsupported, match=r"num_workers=2\) of a recipe with a \[generate\](.|\n)*Use num_workers=0"):
        next(iter(data.DataLoader(loader.to_torch_dataset(), batch_size=None, num_workers=2)))
    alone = Loader(taught, generate=False)
    batches = data.DataLoader(alone.to_torch_dataset(), batch_size=None, num_workers=2)
    assert [batch.step for batch, _ in zip(batches, range(4), strict=False)] == [0, 1, 2, 3]
    with Teaching(taught):
        for workers in (0, 1):
            one = Loader(taught, generate=GenerateOptions(group=f"d{workers}"))
            batch = next(iter(data.DataLoader(one.to_torch_dataset(), batch_size=None, num_workers=workers)))
            np.testing.assert_array_equal(batch["scaled"], batch.input_ids.float() * 2)


def test_a_students_tickets_carry_what_it_gives(house: Any) -> None:
    def fill(tasks: list[Task]) -> None:
        for task in tasks:
            if task.step == 4 and task.attempt == 0:
                raise RuntimeError("once")
            task["y"][:] = task.inputs["x"] * 2 + task.inputs["n"]

    config = BatchConfig([TensorSpec("y", (8,), "int64")])
    inputs = BatchConfig([TensorSpec("x", (8,), "int64"), TensorSpec("n", (), "int32")])
    worker = Worker(fill_fn=fill, batch_config=config, batch_size=4, framework="numpy")
    worker.start()
    with StudentClient(0, 8, config, group="i", input_config=inputs, prefetch=7, framework="numpy") as client:
        client.set_model("m")
        for n in range(20):
            client.give({"x": np.arange(8) + n, "n": np.int32(n)})
        for n in range(20):
            if n == 10:
                client.set_model("again")  # tickets made anew keep what they carry
            sample = client.request_sample(60_000)
            assert sample is not None and (sample.step, sample["y"].tolist()) == (n, (2 * (np.arange(8) + n) + n).tolist())
            sample.release()
        assert client.request_sample(50) is None  # no ticket without its input
        with pytest.raises(ValueError, match="input 0 has 3 bytes"):
            client.give(b"abc")
    worker.stop()


def test_wrong_use_is_named(lanes: Path, taught: str) -> None:
    with pytest.raises(TypeError, match="recipe needs fill_fn"):
        Worker(lambda m, c: b"", 4, recipe=taught)
    with pytest.raises(TypeError, match="fill_fn needs batch_config"):
        Worker(fill_fn=scale, recipe=lanes)
    with pytest.raises(TypeError, match="expected laneway.GenerateOptions"):
        Loader(taught, generate="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="broker is 'mine'"):
        GenerateOptions(broker="mine")
    with pytest.raises(ValueError, match="no input_config"):
        StudentClient(0, 4, CONFIG).give(b"")


def test_rows_of_a_parent_are_not_a_childs(lanes: Path) -> None:
    rows = Rows(lanes)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            rows.get([(0, 0)])
        except errors.Forked as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b"forked child" in os.read(read, 1000)
    assert threading.active_count() >= 1


def test_the_example_gives_one_hash_whoever_works_and_dies() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, str(EXAMPLE)], env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("the same") == 4 and "3 killed" in done.stdout


def test_a_server_that_a_loader_starts_need_not_ask_teachers(lanes: Path, taught: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANEWAY_DIR", str(tmp_path))
    with NodeLoader(taught, start=True, generate=False, framework="numpy") as node, Loader(lanes, framework="numpy") as loader:
        for _ in range(3):
            batch, alone = node.next(timeout_s=120), next(loader)
            assert batch is not None and batch.taught == () and (batch.input_ids == alone.input_ids).all()
