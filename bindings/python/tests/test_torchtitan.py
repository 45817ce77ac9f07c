"""The data loader for TorchTitan, in TorchTitan's own parts as far as CPUs go: an elastic run through its checkpoints, and checks at start-up."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ranks import preload, run_ranks

from laneway import Function, Loader, errors

NEEDED = ("torch", "torchdata", "torchtitan.components.dataloader", "tokenizers")
for name in NEEDED:
    pytest.importorskip(name, reason=f"{name} cannot be imported: the data loader for TorchTitan was not tried")

from torchtitan.components.dataloader import BaseDataLoader  # noqa: E402

from laneway.torchtitan import LanewayDataLoader, check_config  # noqa: E402

preload("titan_on_cpu", "laneway.torchtitan")
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "python" / "torchtitan"
sys.path[:0] = [str(EXAMPLE), str(EXAMPLE.parent)]
LENGTH = 64


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example's text, tokenizer and recipe."""
    import rank as example
    from elastic.corpus import prepare

    return prepare(tmp_path_factory.mktemp("titan"), LENGTH, example.GLOBAL_BATCH).parent


def trainer(rank: int, ranks: int, node: str, words: list[str]) -> None:
    """One process of the example's run: TorchTitan's own trainer. ``node``: where the server of the node lies, if one makes the batches."""
    os.environ["LANEWAY_DIR"] = node
    sys.path[:0] = [str(EXAMPLE), str(EXAMPLE.parent)]
    import rank as example

    options = example.parse([*words, "--device", "cpu", "--save-every", "2"])
    example.run(options.folder, example.make_config(options.folder, options.data, ranks, options), options.swap_rows_at)


def test_torchtitans_trainer_takes_the_same_batches_on_other_ranks_through_its_checkpoints(
    data: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two, then one, then four ranks, of which each two split the model's tensors between them, then two that have half of the layers each, in TorchTitan's interleaved schedule. The
    ranks themselves make the batches of the first and last stage, a server those of the others: their checkpoints are the same."""
    import elastic_resume
    from elastic.record import Step, step_hash
    from elastic.train import row_hashes

    run, server = tmp_path / "changing", ["--server", "titan"]
    start = [str(run), "--data", str(data)]
    run_ranks(trainer, 2, tmp_path / "on-2", str(folder), [*start, "--until", "2"])
    assert not list(folder.glob("node-*"))
    run_ranks(trainer, 1, tmp_path / "on-1", str(folder), [*start, "--until", "4", *server])
    assert list(folder.glob("node-titan*")), "a server has made them"
    last = [*start, "--until", "6", *server, "--tensor-parallel", "2"]
    run_ranks(trainer, 4, tmp_path / "on-4", str(folder), last)
    found = elastic_resume.steps_of(run)
    assert sorted(found) == list(range(6)) and found[5].loss < found[0].loss
    split = tmp_path / "split"
    shutil.copytree(run / "checkpoint", split / "checkpoint")
    run_ranks(trainer, 2, tmp_path / "on-2-again", str(folder), [str(split), "--data", str(data), "--until", "8", "--pipeline-parallel", "2"])
    layers = elastic_resume.steps_of(split)
    assert sorted(layers) == [6, 7] and all(abs(layers[step].loss - found[5].loss) < 0.5 for step in layers)
    expected = {step: Step(step_hash(row_hashes(batch.input_ids, batch.labels)), layers[step].loss) for step, batch in enumerate(islice(Loader(data / "recipe.toml"), 8)) if step >= 6}
    assert layers == expected
    # What one rank alone would have been given.
    expected = {step: Step(step_hash(row_hashes(batch.input_ids, batch.labels)), found[step].loss) for step, batch in enumerate(islice(Loader(data / "recipe.toml"), 6))}
    assert elastic_resume.compare(expected, found, last=6) == 0
    assert "6 of 6 global batches identical" in capsys.readouterr().out
    # And if one were not, in which some rows stand in another order:
    shutil.rmtree(run / "checkpoint" / "step-6")
    shutil.rmtree(run / "4-to-6")
    run_ranks(trainer, 1, tmp_path / "spoilt", str(folder), [*start, "--until", "6", "--swap-rows-at", "5"])
    assert elastic_resume.compare(expected, elastic_resume.steps_of(run), last=6) == 1
    assert "the global batch of step 5 is another (5 of 6 are identical)" in capsys.readouterr().err
    assert elastic_resume.compare(expected, {step: found[step] for step in range(5)}, last=6) == 1


def build(data: Path, recipe: Path | None = None, tokenizer: Path | None = None, **changes: Any) -> LanewayDataLoader:
    from torchtitan.components.tokenizer import HuggingFaceTokenizer

    settings = {"dp_world_size": 2, "dp_rank": 0, "seq_len": 64, "local_batch_size": 2, "snapshot_every_n_steps": 10} | changes
    tokens = HuggingFaceTokenizer.Config().build(tokenizer_path=str(tokenizer or data))
    return LanewayDataLoader.Config(recipe=str(recipe or data / "recipe.toml")).build(tokenizer=tokens, **settings)


def test_a_batch_is_what_torchtitans_trainer_takes(data: Path) -> None:
    inputs, labels = next(iter(build(data, dp_rank=1)))
    batch = next(Loader(data / "recipe.toml", 1, 2, microbatch_size=2))
    assert inputs["input"].tolist() == batch.input_ids.tolist() and labels.tolist() == batch.labels.tolist()
    assert inputs.keys() == {"input", "positions"} and inputs["positions"].shape == labels.shape == (2, 64)
    for positions, segments in zip(inputs["positions"].tolist(), batch.segment_ids.tolist(), strict=True):
        starts = [i for i in range(64) if i == 0 or segments[i] != segments[i - 1]]
        assert [i for i, position in enumerate(positions) if position == 0] == starts


def other_tokenizer(data: Path, folder: Path) -> Path:
    """The data's tokenizer with two letters' ids swapped."""
    keys = json.loads((data / "tokenizer.json").read_text())
    vocabulary = keys["model"]["vocab"]
    vocabulary["!"], vocabulary["#"] = vocabulary["#"], vocabulary["!"]
    (folder / "tokenizer.json").write_text(json.dumps(keys))
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dp_world_size": 3}, r"3 data-parallel ranks do not divide the recipe's 16 lanes; let .* be one of \[1, 2, 4, 8, 16\]"),
        ({"local_batch_size": 3}, r"training.local_batch_size is 3, which does not divide the 8 rows of a step that each of 2 .*; use one of \[1, 2, 4, 8\]"),
        ({"seq_len": 128}, r"training.seq_len is 128, but the recipe's rows have 64 tokens \(pack.max_length\)"),
    ],
    ids=["ranks and lanes", "rows and batch size", "context length"],
)
def test_a_setting_that_contradicts_the_recipe_is_named_when_the_loader_is_made(data: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=message):
        build(data, **changes)


def test_lanes_that_do_not_divide_the_step_are_refused(data: Path) -> None:
    recipe = data / "lanes.toml"
    recipe.write_text((data / "recipe.toml").read_text().replace("global_batch = 16", "global_batch = 16\nlanes = 6"))
    with pytest.raises(errors.InvalidArgument, match="lanes = 6 does not divide global_batch = 16; use one of 1, 2, 4, 8, 16"):
        build(data, recipe=recipe)


def test_another_tokenizer_is_refused_with_the_id_that_differs(data: Path, tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgument, match="id 1 is '#' to TorchTitan's tokenizer, and '!' to the recipe's tokenizer"):
        build(data, tokenizer=other_tokenizer(data, tmp_path))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"recipe": ""}, "dataloader.recipe is not set"),
        ({"dataset": "c4"}, "dataloader.dataset is 'c4', but the recipe names the data"),
        ({"dataset_path": "/data"}, "dataloader.dataset_path is '/data', but the recipe names the data"),
        ({"start_server": True}, "start_server is set, but dataloader.server, the name of the server to be started, is not"),
    ],
    ids=["no recipe", "a dataset", "a path", "a server without a name"],
)
def test_a_config_that_says_too_little_or_too_much_is_refused(data: Path, settings: dict[str, Any], message: str) -> None:
    config = LanewayDataLoader.Config(**({"recipe": str(data / "recipe.toml")} | settings))
    with pytest.raises(errors.InvalidArgument, match=message):
        config.build(dp_world_size=1, dp_rank=0, tokenizer=None, seq_len=64, local_batch_size=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"global_batch_size": -1}, "training.global_batch_size is not set, so it would change with the number of ranks; set it to the recipe's global_batch, 16"),
        ({"global_batch_size": 32}, "training.global_batch_size is 32; set it to the recipe's global_batch, 16"),
        ({"local_batch_size": 3}, r"training.local_batch_size is 3, .* use one of \[1, 2, 4, 8, 16\]"),
        ({"seq_len": 2048}, "training.seq_len is 2048"),
    ],
    ids=["right", "unset", "another step", "batch size", "context length"],
)
def test_a_trainers_config_is_checked_before_anything_starts(data: Path, changes: dict[str, Any], message: str | None) -> None:
    from torchtitan.config.configs import TrainingConfig

    training = TrainingConfig(**({"seq_len": 64, "local_batch_size": 2, "global_batch_size": 16} | changes))
    config = SimpleNamespace(training=training, dataloader=LanewayDataLoader.Config(recipe=str(data / "recipe.toml")))
    with pytest.raises(errors.InvalidArgument, match="dataloader is a BaseDataLoader.Config; expected a LanewayDataLoader.Config"):
        check_config(SimpleNamespace(training=training, dataloader=BaseDataLoader.Config()))
    if message is None:
        check_config(config)
        return
    with pytest.raises(errors.InvalidArgument, match=message):
        check_config(config)


class Shouting(LanewayDataLoader):
    """A data loader with a function of its own, as TorchTitan wants it declared."""

    functions = [Function("upper 1", map=str.upper)]

    @dataclass(kw_only=True, slots=True)
    class Config(LanewayDataLoader.Config):
        pass


def test_a_subclass_brings_the_functions_that_a_recipe_names(data: Path) -> None:
    from torchtitan.components.tokenizer import HuggingFaceTokenizer

    recipe = data / "functions.toml"
    recipe.write_text('functions = ["upper 1"]\n' + (data / "recipe.toml").read_text())
    with pytest.raises(errors.InvalidArgument, match="upper 1"):
        build(data, recipe=recipe)
    tokens = HuggingFaceTokenizer.Config().build(tokenizer_path=str(data))
    loader = Shouting.Config(recipe=str(recipe)).build(dp_world_size=1, dp_rank=0, tokenizer=tokens, seq_len=64, local_batch_size=16)
    inputs, _ = next(iter(loader))
    text = tokens.decode(inputs["input"][0].tolist())
    assert text == text.upper()


def test_a_global_batch_that_is_a_schedule_is_refused(data: Path, tmp_path: Path) -> None:
    recipe = data / "schedule.toml"
    recipe.write_text((data / "recipe.toml").read_text().replace("global_batch = 16", "global_batch = [[0, 8], [100, 16]]"))
    with pytest.raises(errors.InvalidArgument, match="is a schedule"):
        build(data, recipe=recipe)


def test_a_checkpoint_within_a_step_is_refused_since_the_trainers_step_is_another(data: Path) -> None:
    loader = build(data)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    state = loader.state_dict()
    next(batches)
    with pytest.raises(errors.InvalidArgument, match="training.global_batch_size is not the recipe's global_batch, 16"):
        loader.state_dict()
    again = build(data)
    again.load_state_dict({})  # TorchTitan gives an empty one where a checkpoint has none
    again.load_state_dict(state)
    assert again.loader.step == 1
