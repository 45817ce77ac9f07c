"""Hugging Face's own ``Trainer`` with Laneway's loader: the same global batches and losses after a resume on other ranks; wrong settings are named."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ranks import preload, run_ranks

from laneway import Loader, errors

torch = pytest.importorskip("torch", reason="torch is not installed: the adapter for Hugging Face's Trainer was not tried")
pytest.importorskip("transformers", reason="transformers is not installed: the adapter for its Trainer was not tried")
pytest.importorskip("accelerate", reason="accelerate is not installed: the adapter for Hugging Face's Trainer was not tried")

preload("laneway.integrations.transformers", "transformers.models.llama.modeling_llama")
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "python" / "integrations"
sys.path.insert(0, str(EXAMPLE))
SAVED, STEPS = 2, 4


def train(rank: int, ranks: int, folder: str, recipe: str, steps: int, resume: bool, node: str | None) -> dict[str, Any]:
    """One rank of the example; the rows that its model was given, and the losses that the trainer wrote down. ``node``: where the server of the node lies, if one
    makes the batches."""
    os.environ.update({"LANEWAY_DIR": node} if node else {})
    sys.path.insert(0, str(EXAMPLE))
    import hf_trainer

    trainer = hf_trainer.make_trainer(Path(folder), Path(recipe), steps, SAVED, "hf" if node else None)
    rows: list[Any] = []

    def watch(model: Any, args: Any, kwargs: Any) -> None:
        rows.extend([kwargs["input_ids"].tolist(), kwargs["labels"].tolist(), kwargs["position_ids"].tolist()])

    trainer.model.register_forward_pre_hook(watch, with_kwargs=True)
    trainer.train(resume_from_checkpoint=resume)
    return {"rows": rows, "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]}


def global_rows(found: list[dict[str, Any]], steps: int) -> list[list[Any]]:
    """For every step its rows in order, as (ids, labels, positions): a rank's microbatches, then the next rank's."""
    each = len(found[0]["rows"]) // (3 * steps)
    result = []
    for step in range(steps):
        rows: list[Any] = []
        for rank in found:
            for at in range(step * each, (step + 1) * each):
                rows += zip(*rank["rows"][3 * at : 3 * at + 3], strict=True)
        result.append(rows)
    return result


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import hf_trainer

    return hf_trainer.prepare(tmp_path_factory.mktemp("hf"), 32, hf_trainer.GLOBAL_BATCH)


def test_a_resume_on_one_and_on_four_ranks_takes_the_same_batches_to_the_same_losses(recipe: Path, folder: Path, tmp_path: Path) -> None:
    """A server makes the batches of the first and the last run, the rank itself those of the one on its own: their checkpoints are the same."""
    run = tmp_path / "run"
    whole = run_ranks(train, 2, tmp_path / "whole", str(run), str(recipe), STEPS, False, str(folder))
    assert list(folder.glob("node-hf*")), "a server has made them"
    expected = global_rows(whole, STEPS)
    loader = Loader(recipe)
    for rows in expected:
        batch = next(loader)
        assert [ids for ids, _, _ in rows] == batch.input_ids.tolist()
        for (ids, labels, positions), ours, segments in zip(rows, batch.labels.tolist(), batch.segment_ids.tolist(), strict=True):
            # The model shifts labels itself, and attends within stretches of positions.
            assert labels[1:] == ours[:-1] and ours[-1] == labels[0] == -100
            assert all(label in (-100, token) for label, token in zip(labels, ids, strict=True))
            starts = [i for i in range(len(ids)) if i == 0 or segments[i] != segments[i - 1]]
            assert [i for i, position in enumerate(positions) if position == 0] == starts
    shutil.rmtree(run / f"checkpoint-{STEPS}")
    for ranks, node in [(1, None), (4, str(folder))]:
        again = tmp_path / f"run-{ranks}"
        shutil.copytree(run, again)
        resumed = run_ranks(train, ranks, tmp_path / f"on-{ranks}", str(again), str(recipe), STEPS, True, node)
        assert global_rows(resumed, STEPS - SAVED) == expected[SAVED:], f"on {ranks} ranks"
        assert resumed[0]["losses"] == pytest.approx(whole[0]["losses"], abs=1e-3)
        assert sorted(path.name for path in (again / f"checkpoint-{STEPS}").glob("laneway-*")) == [f"laneway-{r}-of-{ranks}.json" for r in range(ranks)]


def trainer(recipe: Path, folder: Path, loader: dict[str, Any] | None = None, **changes: Any) -> Any:
    import hf_trainer
    from transformers import TrainingArguments

    from laneway.integrations.transformers import Trainer

    settings = {"max_steps": 4, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "use_cpu": True, "report_to": []} | changes
    extra = {name: settings.pop(name) for name in ("train_dataset",) if name in settings}
    args = TrainingArguments(str(folder), **settings)
    return Trainer(model=hf_trainer.small_llama(), args=args, loader=Loader(recipe, **({"microbatch_size": 4} | (loader or {}))), **extra)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"per_device_train_batch_size": 8}, "per_device_train_batch_size is 8: open it with microbatch_size=8"),
        ({"gradient_accumulation_steps": 1}, "gradient_accumulation_steps is 1: set it to 4"),
        ({"loader": {"rank": 1, "ranks": 2}}, "rank 1 of 2, but the process group makes this rank 0 of 1"),
        ({"max_steps": -1}, "max_steps is not set"),
        ({"dataloader_num_workers": 2}, "dataloader_num_workers is 2: set it to 0"),
        ({"train_dataset": [1]}, "train_dataset is given"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_setting_that_contradicts_the_loader_is_named(recipe: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=message):
        trainer(recipe, tmp_path, **changes)


def test_processes_that_would_train_each_on_its_own_are_refused(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(errors.InvalidArgument, match="torchrun started 2 processes, but TrainingArguments found 1.*use_cpu=True"):
        trainer(recipe, tmp_path, use_cpu=False)


def test_a_checkpoint_without_the_loaders_state_or_with_some_of_it_is_refused(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgument, match="has no checkpoint"):
        trainer(recipe, tmp_path).train(resume_from_checkpoint=True)
    checkpoint = tmp_path / "checkpoint-2"
    checkpoint.mkdir()
    with pytest.raises(errors.NotFound, match="without Laneway's loader"):
        trainer(recipe, tmp_path).train(resume_from_checkpoint=str(checkpoint))
    (checkpoint / "laneway-1-of-2.json").write_text("{}")
    with pytest.raises(errors.NotFound, match="expected the files of all ranks"):
        trainer(recipe, tmp_path).train(resume_from_checkpoint=str(checkpoint))


def test_a_save_on_other_ranks_replaces_what_an_earlier_one_left_there(recipe: Path, tmp_path: Path) -> None:
    from laneway.integrations._common import read_states, save_state

    for ranks in (4, 2):
        for rank in reversed(range(ranks)):
            save_state(tmp_path, Loader(recipe, rank, ranks))
        assert len(read_states(tmp_path)) == ranks


def test_a_global_batch_that_is_a_schedule_is_refused(recipe: Path) -> None:
    from laneway.integrations._common import check_trainer

    fields = SimpleNamespace(fields=lambda: {"batch.global_batch": "[[0, 8], [100, 16]]"})
    with pytest.raises(errors.InvalidArgument, match="is a schedule"):
        check_trainer(SimpleNamespace(recipe=fields), rank=0, ranks=1, microbatch_size=1, accumulation=1, names=("", "", ""))
