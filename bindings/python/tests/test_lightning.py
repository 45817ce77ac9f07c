"""Lightning's own ``Trainer`` with Laneway's data module: the same global batches after a resume on other ranks, though Lightning fetches ahead."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from ranks import preload, run_ranks

from laneway import Loader, errors

torch = pytest.importorskip("torch", reason="torch is not installed: the adapter for Lightning was not tried")
pytest.importorskip("pytorch_lightning", reason="pytorch_lightning is not installed: the adapter for it was not tried")

preload("laneway.integrations.lightning")
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "python" / "integrations"
sys.path.insert(0, str(EXAMPLE))
EACH = 2  # steps of a stage


def train(rank: int, ranks: int, folder: str, recipe: str, until: int, node: str | None) -> dict[str, Any]:
    """One rank of the example, from the last checkpoint if there is one; the rows that its model was given, and its losses. ``node``: where the server of the node
    lies, if one makes the batches."""
    os.environ.update({"LANEWAY_DIR": node} if node else {})
    sys.path.insert(0, str(EXAMPLE))
    import lightning_trainer as example
    from pytorch_lightning.strategies import DDPStrategy

    example.pl.seed_everything(0)
    model = example.Model()
    rows: list[Any] = []
    model.predictor.register_forward_pre_hook(lambda _, args: rows.append([args[0].tolist(), args[1].tolist()]))
    strategy = DDPStrategy(process_group_backend="gloo") if ranks > 1 else "auto"
    trainer = example.make_trainer(Path(folder), ranks, until, EACH, strategy)
    data = example.make_data(Path(recipe), "lightning" if node else None)
    resume = example.last_checkpoint(Path(folder)) if until > EACH else None
    trainer.fit(model, data, ckpt_path=resume)
    return {"rows": rows, "losses": model.losses}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import lightning_trainer as example

    return example.prepare(tmp_path_factory.mktemp("lightning"), 32, example.GLOBAL_BATCH)


def test_a_run_on_two_then_one_then_four_ranks_takes_the_same_batches_through_lightnings_checkpoints(recipe: Path, folder: Path, tmp_path: Path) -> None:
    """A server makes the batches of the first and the last stage, the ranks themselves those of the second: their checkpoints are the same."""
    expected = Loader(recipe)
    losses = []
    for stage, (ranks, node) in enumerate([(2, str(folder)), (1, None), (4, str(folder))]):
        found = run_ranks(train, ranks, tmp_path / f"on-{ranks}", str(tmp_path / "run"), str(recipe), (stage + 1) * EACH, node)
        assert (node is None) or list(folder.glob("node-lightning*")), "a server has made them"
        each = len(found[0]["rows"]) // EACH
        for step in range(EACH):
            batch = next(expected)
            taken = [rank["rows"][at] for rank in found for at in range(step * each, (step + 1) * each)]
            assert [row for ids, _ in taken for row in ids] == batch.input_ids.tolist(), f"step {batch.step} on {ranks} ranks"
            assert [row for _, labels in taken for row in labels] == batch.labels.tolist()
        losses += found[0]["losses"]
    assert len(losses) == 3 * EACH and losses[-1] < losses[0]


def fit(recipe: Path, folder: Path, microbatch_size: int = 4, checkpoint: Path | None = None, **changes: Any) -> None:
    import lightning_trainer as example

    settings = {"max_steps": 2, "accumulate_grad_batches": 4, "logger": False, "enable_progress_bar": False, "enable_checkpointing": False} | changes
    trainer = example.pl.Trainer(default_root_dir=folder, accelerator="cpu", devices=1, **settings)
    trainer.fit(example.Model(), example.LanewayDataModule(recipe, microbatch_size=microbatch_size), ckpt_path=checkpoint)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accumulate_grad_batches": 1}, "accumulate_grad_batches is 1: set it to 4"),
        ({"max_steps": -1, "max_epochs": 1}, "max_steps is not set, and the recipe's stream has no end"),
        ({"microbatch_size": 3}, "microbatch_size 3 does not divide the 16 rows"),
    ],
    ids=["accumulation", "no end", "batch size"],
)
def test_a_setting_that_contradicts_the_loader_is_named(recipe: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=message):
        fit(recipe, tmp_path, **changes)


def test_a_checkpoint_without_the_loaders_state_and_one_of_another_recipe_are_refused(recipe: Path, tmp_path: Path) -> None:
    import lightning_trainer as example

    trainer = example.make_trainer(tmp_path, 1, EACH, EACH)
    trainer.fit(example.Model(), example.LanewayDataModule(recipe, microbatch_size=example.MICROBATCH))
    checkpoint = example.last_checkpoint(tmp_path)
    other = recipe.with_name("other.toml")
    other.write_text(recipe.read_text().replace("seed = 42", "seed = 43"))
    with pytest.raises(errors.Refused, match="seed"):
        fit(other, tmp_path, checkpoint=checkpoint, max_steps=4)
    content = torch.load(checkpoint, weights_only=False)
    del content["LanewayDataModule"]
    torch.save(content, checkpoint)
    with pytest.raises(errors.NotFound, match="the trainer is at step 2, but its checkpoint has no state of a LanewayDataModule"):
        fit(recipe, tmp_path, checkpoint=checkpoint, max_steps=4)


def test_validation_on_the_way_leaves_the_place_alone(recipe: Path, tmp_path: Path) -> None:
    import lightning_trainer as example

    class Validated(example.Model):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            validated.append(batch)

    class Data(example.LanewayDataModule):
        def val_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(range(2))

    validated: list[Any] = []
    data = Data(recipe, microbatch_size=4)
    settings = {"max_steps": 3, "accumulate_grad_batches": 4, "val_check_interval": 4, "check_val_every_n_epoch": None, "logger": False, "enable_progress_bar": False}
    trainer = example.pl.Trainer(default_root_dir=tmp_path, accelerator="cpu", devices=1, **settings)
    trainer.fit(Validated(), data)
    trainer.save_checkpoint(tmp_path / "after.ckpt")
    assert len(validated) >= 4
    loader = Loader(recipe)
    loader.load_state_dict(torch.load(tmp_path / "after.ckpt", weights_only=False)[Data.__qualname__])
    assert loader.step == 3


def test_a_second_fit_goes_on_where_the_first_one_ended(recipe: Path, tmp_path: Path) -> None:
    import lightning_trainer as example

    data = example.LanewayDataModule(recipe, microbatch_size=example.MICROBATCH)
    seen: list[Any] = []
    for steps in (1, 2):
        model = example.Model()
        model.predictor.register_forward_pre_hook(lambda _, args: seen.extend(args[0].tolist()))
        trainer = example.make_trainer(tmp_path / str(steps), 1, 1, EACH)
        trainer.fit(model, data)
    expected = Loader(recipe)
    assert seen == [row for _ in range(2) for row in next(expected).input_ids.tolist()]
