"""``Loader`` where torch trains: its distributed checkpoints, DDP, FSDP, compiled functions, StatefulDataLoader, pinned memory."""

from __future__ import annotations

import pickle
from itertools import islice
from pathlib import Path

import pytest
from ranks import run_ranks

from laneway import Loader, errors, global_hash

torch = pytest.importorskip("torch", reason="torch is not installed: tests of training with torch skipped")

STEPS = 6


def row_hashes(loader: Loader, steps: int) -> list[list[int]]:
    return [next(loader).hashes.tolist() for _ in range(steps)]


def joined(parts: list[list[list[int]]]) -> list[int]:
    """Global hashes from what :func:`row_hashes` gave on each rank."""
    return [global_hash([row for part in step for row in part]) for step in zip(*parts, strict=True)]


@pytest.fixture(scope="module")
def uninterrupted(lanes_folder: Path) -> list[int]:
    return joined([row_hashes(Loader(lanes_folder / "recipe.toml", framework="numpy"), 2 * STEPS)])


# --- distributed checkpoint -------------------------------------------------------------------------------------------------------------


def save(rank: int, ranks: int, recipe: str, checkpoint: str) -> list[list[int]]:
    import torch.distributed.checkpoint as dcp

    loader = Loader(recipe, rank, ranks, framework="numpy")
    found = row_hashes(loader, STEPS)
    for _ in range(1 + rank):  # a collective of ours would hang here: the ranks do not call as often
        loader.state_dict()
    dcp.save({"loader": loader, "weight": torch.ones(3)}, checkpoint_id=checkpoint)
    row_hashes(loader, 1)  # saving has changed nothing, but goes on
    return found


def resume(rank: int, ranks: int, recipe: str, checkpoint: str) -> list[list[int]]:
    import torch.distributed.checkpoint as dcp

    loader = Loader(recipe, rank, ranks, framework="numpy")
    dcp.load({"loader": loader, "weight": torch.zeros(3)}, checkpoint_id=checkpoint)
    return row_hashes(loader, STEPS)


def test_a_distributed_checkpoint_of_four_ranks_is_loaded_on_two_and_on_eight(lanes: Path, uninterrupted: list[int], tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    first = joined(run_ranks(save, 4, tmp_path / "save", str(lanes), checkpoint))
    assert first == uninterrupted[:STEPS]
    for ranks in (2, 8):
        later = joined(run_ranks(resume, ranks, tmp_path / f"on-{ranks}", str(lanes), checkpoint))
        assert later == uninterrupted[STEPS:], f"on {ranks} ranks"


def refused(rank: int, ranks: int, recipe: str, checkpoint: str) -> str:
    try:
        resume(rank, ranks, recipe, checkpoint)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"


def test_a_distributed_checkpoint_of_another_recipe_is_refused_by_the_fields_name(lanes: Path, lanes_folder: Path, tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    run_ranks(save, 1, tmp_path / "save", str(lanes), checkpoint)
    other = lanes_folder / "other.toml"
    other.write_text(lanes.read_text().replace("seed = 7", "seed = 8"))
    (said,) = run_ranks(refused, 1, tmp_path / "load", str(other), checkpoint)
    assert "seed" in said and "Refused" in said


# --- DDP, FSDP, compiled functions ------------------------------------------------------------------------------------------------------


def train(rank: int, ranks: int, recipe: str, wrapper: str) -> list[float]:
    """Losses of a few steps; the same for any number of ranks and either wrapper, but for the order of additions."""
    import torch.distributed as dist
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(402, 16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 402))
    if wrapper == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    else:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for batch in islice(Loader(recipe, rank, ranks), STEPS):
        numbers = torch.tensor([0.0, batch.num_valid_tokens], dtype=torch.float64)
        dist.all_reduce(numbers)
        total = nn.functional.cross_entropy(model(batch.input_ids).flatten(0, 1), batch.labels.flatten(), reduction="sum")
        optimizer.zero_grad()
        (total * ranks / numbers[1]).backward()
        optimizer.step()
        summed = total.detach().double()
        dist.all_reduce(summed)
        losses.append((summed / numbers[1]).item())
    return losses


def test_ddp_and_fsdp_train_to_the_same_losses_on_one_rank_and_two(lanes: Path, tmp_path: Path) -> None:
    losses = {(wrapper, ranks): run_ranks(train, ranks, tmp_path / f"{wrapper}-{ranks}", str(lanes), wrapper) for wrapper, ranks in (("ddp", 1), ("ddp", 2), ("fsdp", 2))}
    expected = losses["ddp", 1][0]
    assert len(expected) == STEPS and expected[-1] < expected[0]
    for run, ranks in losses.items():
        for found in ranks:
            assert found == pytest.approx(expected, abs=1e-4), run


def test_a_compiled_function_takes_batches_without_a_break_or_a_second_compilation(lanes: Path) -> None:
    from torch._dynamo.testing import CompileCounter

    counted = CompileCounter()

    @torch.compile(backend=counted, fullgraph=True)
    def mean_id(input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.where(labels != -100, input_ids, 0).double().mean()

    for batch in islice(Loader(lanes), 4):
        expected = float((batch.numpy("input_ids") * (batch.numpy("labels") != -100)).mean())
        assert mean_id(batch.input_ids, batch.labels).item() == pytest.approx(expected)
    assert counted.frame_count == 1


# --- StatefulDataLoader, devices --------------------------------------------------------------------------------------------------------


def test_a_stateful_dataloader_saves_and_goes_on_exactly(lanes: Path, uninterrupted: list[int]) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed: its StatefulDataLoader was not tried")

    def data() -> object:
        return stateful.StatefulDataLoader(Loader(lanes, framework="numpy").to_torch_dataset(), batch_size=None)

    first = data()
    found = [global_hash(batch.hashes) for batch in islice(first, STEPS)]
    state = pickle.loads(pickle.dumps(first.state_dict()))
    second = data()
    second.load_state_dict(state)
    found += [global_hash(batch.hashes) for batch in islice(second, STEPS)]
    assert found == uninterrupted
    # torchdata asks the iterator; others ask the dataset.
    third, fourth = (Loader(lanes, framework="numpy").to_torch_dataset() for _ in range(2))
    next(iter(third))
    fourth.load_state_dict(third.state_dict())
    assert global_hash(next(iter(fourth)).hashes) == uninterrupted[1]


def test_batches_move_to_a_device(lanes: Path) -> None:
    batch = next(Loader(lanes))
    moved = batch.to("meta", non_blocking=True)
    assert {name: tensor.device.type for name, tensor in moved.items()} == dict.fromkeys(batch.keys(), "meta")
    assert moved["labels"].shape == batch.labels.shape and moved["labels"].dtype == batch.labels.dtype
    assert batch.to("cpu")["input_ids"].data_ptr() == batch.input_ids.data_ptr(), "already there: nothing is copied"
    with pytest.raises(errors.Unsupported, match="framework"):
        next(Loader(lanes, framework="numpy")).to("cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: pinned memory and copies to a device were not tried")
def test_pinned_batches_are_copied_to_a_gpu_without_waiting(lanes: Path, uninterrupted: list[int]) -> None:
    data = torch.utils.data.DataLoader(Loader(lanes).to_torch_dataset(), batch_size=None, pin_memory=True)
    for batch, expected in zip(data, uninterrupted, strict=False):
        assert batch.input_ids.is_pinned() and batch.labels.is_pinned() and global_hash(batch.hashes) == expected
        moved = batch.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        assert all(torch.equal(moved[name].cpu(), batch[name]) for name in batch.keys())
