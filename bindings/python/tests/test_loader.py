"""``laneway.torch.DataLoader``: exact when the model is switched, in one process and under torchrun."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from peers import CONFIG, expected

from laneway import DistillIterableDataset, StudentClient, TaskError, errors

torch = pytest.importorskip("torch")
from laneway.torch import DataLoader


@pytest.fixture
def client(house):
    house.worker("fill", "4")
    with StudentClient(student_rank=0, slot_count=16, batch_config=CONFIG) as client:
        client.set_model("m")
        yield client


def loader(client, batch_size=4, slot_count=8, rank=0, num_workers=0, tags=False, **options):
    data = DistillIterableDataset(rank, client.generation_value, slot_count, CONFIG, tags=tags)
    return DataLoader(data, batch_size=batch_size, num_workers=num_workers, **options)


def rows(batch):
    """(lane, step, generation) of each row, after checking every word of it."""
    for ticket, x in zip(batch["ticket"].tolist(), batch["x"].numpy(), strict=True):
        assert np.array_equal(x, expected(*ticket[:3]))
        yield tuple(ticket[:3])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_those_of_torchs_loader(client, num_workers):
    torchs = torch.utils.data.DataLoader(
        DistillIterableDataset(5, client.generation_value, 8, CONFIG), batch_size=4, num_workers=num_workers
    )
    theirs = [[*rows(batch)] for batch, _ in zip(torchs, range(6), strict=False)]
    with StudentClient(0, 4, CONFIG, group="again") as other:  # a group of its own, so that cursors start at 0
        other.set_model("m")
        ours = [[*rows(batch)] for batch, _ in zip(loader(other, rank=5, num_workers=num_workers), range(6), strict=False)]
    assert ours == theirs


def test_a_switch_loses_nothing_and_mixes_nothing(client):
    steps = {0: [], 1: []}
    generation = 1
    for i, batch in enumerate(loader(client, num_workers=2)):
        tickets = list(rows(batch))
        assert {t[2] for t in tickets} == {generation}
        assert len({t[0] for t in tickets}) == 1
        steps[tickets[0][0]] += [t[1] for t in tickets]
        if i % 5 == 4:  # every 20 samples
            generation = client.set_model(f"m{i}")
        if i == 99:
            break
    assert all(seen == list(range(200)) for seen in steps.values())


def test_a_new_epoch_goes_on_where_the_last_one_ended(client):
    batches = loader(client, num_workers=2)
    seen = []
    for length in (3, 2, 1, 4):
        for i, batch in enumerate(batches):
            seen += [t[:2] for t in rows(batch)]
            if i == length - 1:
                break
    assert seen == [(lane, 4 * turn + row) for turn in range(5) for lane in (0, 1) for row in range(4)]


def test_views_samples_and_collate_functions(client):
    for i, sample in enumerate(loader(client, batch_size=None)):
        assert sample["x"].shape == (1024,) and sample["ticket"][1] == i
        if i == 20:
            break
    for i, batch in enumerate(loader(client, batch_size=3, tags=True, collate_fn=lambda samples: samples)):
        assert [s["_step"] for s in batch] == [s["ticket"][1] for s in batch] == [21 + 3 * i + k for k in range(3)]
        if i == 5:
            break
    batch = next(iter(loader(client, batch_size=64, tags=True)))
    assert batch["_generation"].tolist() == [1] * 64 and torch.equal(batch["_step"], batch["ticket"][:, 1])


def test_a_batch_that_times_out_is_gone_on_with(house):
    with StudentClient(0, 4, CONFIG) as client:
        client.set_model("m")
        batches = iter(loader(client, batch_size=8, timeout=0.2))
        with pytest.raises(errors.Timeout, match="lane 0"):
            next(batches)
        house.worker("slow", "0.15")
        for _ in range(100):
            try:
                batch = next(batches)
                break
            except errors.Timeout:
                pass
        assert [t[1] for t in rows(batch)] == list(range(8))


def test_a_failed_ticket_is_raised_and_its_neighbours_are_kept(house):
    house.worker("raise")
    with StudentClient(0, 4, CONFIG) as client:
        client.set_model("m")
        data = DistillIterableDataset(0, client.generation_value, 8, CONFIG, max_attempts=1)
        batches = iter(DataLoader(data, batch_size=4))
        with pytest.raises(TaskError, match="step 2 is bad luck"):
            next(batches)
        assert [t[1] for t in rows(next(batches))] == [0, 1, 3, 4]


def test_a_half_filled_batch_is_given_back(client):
    data = DistillIterableDataset(0, client.generation_value, 8, CONFIG)
    batches = iter(DataLoader(data, batch_size=4, collate_fn=list))
    next(batches)
    batch = batches._new_batch(batches._students[0], 4)
    batches._batch = batch
    batch.add(batches._students[0].take(1, 2**62)[0])
    batches.close()
    assert [t[1] for t in rows(next(iter(DataLoader(data, batch_size=4))))] == [4, 5, 6, 7]


def test_options_of_torchs_loader_are_honoured_or_refused(client):
    loader(client, persistent_workers=True, prefetch_factor=4, drop_last=True, multiprocessing_context="spawn", shuffle=False)
    for options, words in [
        (dict(shuffle=True), "shuffle=True cannot be honoured: the order is that of the tickets"),
        (dict(worker_init_fn=print), "there are no worker processes"),
        (dict(bach_size=3), "unknown option 'bach_size'"),
    ]:
        with pytest.raises(TypeError, match=words):
            loader(client, **options)
    with pytest.raises(TypeError, match="expected a DistillIterableDataset"):
        DataLoader([1, 2, 3])


def test_two_ranks_under_torchrun_with_a_switch_every_20_samples(house, tmp_path):
    """Payloads encode ticket and generation: no gap, nothing stale, no mixed batch, on either rank."""
    for _ in range(2):
        house.worker("fill", "4")
    script = Path(__file__).with_name("ddp_student.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0", str(script), str(tmp_path)]
    command[4:5] = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=laneway-test"]
    subprocess.run(command, env=house.env, check=True, timeout=300)
    for rank in range(2):
        report = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert report["stale"] == report["mixed"] == report["wrong"] == 0
        assert report["generations"] == list(range(1, 11))
        lanes = {int(lane): steps for lane, steps in report["steps"].items()}
        assert set(lanes) == {2 * rank, 2 * rank + 1}
        for steps in lanes.values():
            assert steps == list(range(len(steps))) and len(steps) == 100
