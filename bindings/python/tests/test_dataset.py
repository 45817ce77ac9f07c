"""The dataset under torch's own DataLoader: without processes, forked and spawned."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import wait_until
from peers import CONFIG, expected

from laneway import DistillIterableDataset, StudentClient, errors
from laneway.mediums import SharedMemoryManager

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, IterableDataset


@pytest.fixture
def client(house):
    house.worker("fill", "4")
    with StudentClient(student_rank=0, slot_count=16, batch_config=CONFIG) as client:
        client.set_model("m")
        yield client


def dataset(client, slot_count=8, rank=0, **options):
    return DistillIterableDataset(rank, client.generation_value, slot_count, CONFIG, **options)


def check(sample, generation=1):
    lane, step, made_by, _ = sample["ticket"].tolist()
    assert made_by == generation
    assert np.array_equal(sample["x"].numpy(), expected(lane, step, generation))
    return lane, step


def test_it_yields_dicts_of_tensors_without_end_and_in_order(client):
    data = dataset(client)
    assert isinstance(data, IterableDataset)
    samples = iter(data)
    for step in range(300):
        assert check(next(samples)) == (0, step)


def test_a_new_iterator_goes_on_where_the_last_one_ended(client):
    data = dataset(client)
    steps = []
    for _ in range(3):
        for sample in data:
            steps.append(check(sample)[1])
            if len(steps) % 10 == 0:
                break
    assert steps == list(range(30))


@pytest.mark.parametrize(("workers", "start"), [(0, "fork"), (2, "fork"), (2, "spawn")])
def test_torchs_dataloader_with_more_samples_in_a_batch_than_slots(client, workers, start):
    context = multiprocessing.get_context(start) if workers else None
    loader = DataLoader(dataset(client), batch_size=32, num_workers=workers, multiprocessing_context=context)
    steps = {lane: [] for lane in range(max(1, workers))}
    for i, batch in enumerate(loader):
        assert batch["x"].shape == (32, 1024) and batch["ticket"].shape == (32, 4)
        for row in range(32):
            lane, step = check({name: batch[name][row] for name in batch})
            steps[lane].append(step)
        if i == 7:
            break
    for lane, seen in steps.items():
        assert seen == list(range(len(seen))) and len(seen) == 256 // len(steps), lane


def test_without_batches_the_views_come_through(client):
    for i, sample in enumerate(DataLoader(dataset(client), batch_size=None, num_workers=2)):
        check(sample)
        if i == 50:
            break


def test_lanes_are_numbered_by_rank_and_worker(client):
    lanes = set()
    for i, batch in enumerate(DataLoader(dataset(client, rank=3), batch_size=4, num_workers=2)):
        lanes |= set(batch["ticket"][:, 0].tolist())
        if i == 5:
            break
    assert lanes == {6, 7}


def test_tags_say_ticket_and_generation(client):
    for i, batch in enumerate(DataLoader(dataset(client, tags=True), batch_size=4, num_workers=0)):
        assert torch.equal(batch["_step"], batch["ticket"][:, 1]) and (batch["_generation"] == 1).all() and (batch["_lane"] == 0).all()
        if i == 3:
            break


def test_samples_beyond_the_slots_are_counted_copies(client):
    data = dataset(client, slot_count=4)
    samples = iter(data)
    kept = [next(samples) for _ in range(20)]
    assert data.stats["copied"] >= 16
    for step, sample in enumerate(kept):
        assert check(sample) == (0, step)


def test_a_slot_is_free_once_its_tensors_die(client):
    data = dataset(client)
    samples = iter(data)
    for _ in range(50):
        next(samples)
    assert data.stats["copied"] == 0 and data.stats["held"] == 0


def test_the_generation_value_crosses_processes(client):
    value = client.generation_value
    with value.get_lock():
        assert value.value == 1
    copy = pickle.loads(pickle.dumps(value))
    assert copy.value == 1
    client.set_model("n")
    assert copy.value == value.value == 2
    data = pickle.loads(pickle.dumps(dataset(client)))
    assert check(next(iter(data)), 2) == (0, 0)


def test_a_process_without_a_student_is_told_what_to_do_for_the_generation(client):
    with multiprocessing.get_context("spawn").Pool(1) as pool, pytest.raises(errors.Closed, match="iterate the dataset, or call"):
        pool.apply(read_value, [client.generation_value])


def read_value(value):
    return value.value


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_switch_reaches_data_workers(client, start):
    loader = DataLoader(dataset(client), batch_size=4, num_workers=2, multiprocessing_context=start, prefetch_factor=2)
    newest = 0
    for i, batch in enumerate(loader):
        newest = max(newest, int(batch["ticket"][:, 2].max()))
        if i == 4:
            client.set_model("n")
        if i > 4 + 4 + 2:  # torch's own queues hold workers × prefetch_factor older batches
            assert (batch["ticket"][:, 2] == 2).all()
        if i == 20:
            break
    assert newest == 2


def test_the_first_contact_is_tried_so_often_and_no_more(folder):
    data = DistillIterableDataset(0, None, 4, CONFIG, max_retries=1, retry_delay=0.01)
    start = time.monotonic()
    with pytest.raises(errors.Timeout, match="tried 2 times"):
        next(iter(data))
    assert time.monotonic() - start < 20


def test_a_slow_teacher_is_waited_for(house):
    house.worker("slow", "1.5")
    with StudentClient(0, 4, CONFIG) as client:
        client.set_model("m")
        samples = iter(dataset(client, max_retries=0, retry_delay=0))
        assert check(next(samples)) == (0, 0)


def test_a_broker_that_restarts_later_is_waited_for(client, house):
    samples = iter(dataset(client, max_retries=0))
    for step in range(40):
        if step == 20:
            house.broker.kill()
            house.broker.wait()
        if step == 30:
            house.start_broker()
        assert check(next(samples)) == (0, step)


def test_an_iterator_that_waits_ends_with_ctrl_c(house):
    code = """if True:
        from peers import CONFIG
        from laneway import *
        print(1, flush=True)
        next(iter(DistillIterableDataset(0, None, 4, CONFIG)))"""
    process = house.python("-c", code)
    wait_until(lambda: process.log.read_text(), "its start")
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == -signal.SIGINT


def test_data_workers_end_with_a_killed_trainer(house):
    code = """if True:
        import sys
        from peers import CONFIG
        from laneway import *
        from torch.utils.data import DataLoader, get_worker_info
        import multiprocessing
        if __name__ == "__main__":
            loader = DataLoader(DistillIterableDataset(0, None, 4, CONFIG), batch_size=4, num_workers=2)
            batches = iter(loader)
            print(*[w.pid for w in batches._workers], flush=True)
            next(batches)"""
    process = house.python("-c", code)
    wait_until(lambda: process.log.read_text().strip(), "the data workers")
    pids = [int(pid) for pid in process.log.read_text().split()]
    time.sleep(1)
    process.kill()
    process.wait()
    wait_until(lambda: not any(alive(pid) for pid in pids), "the data workers' end")


def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_two_processes_on_one_lane_are_refused_with_what_to_do(client, house):
    samples = iter(dataset(client))
    next(samples)
    code = """if True:
        from peers import CONFIG
        from laneway import *
        next(iter(DistillIterableDataset(0, None, 4, CONFIG, max_retries=1)))"""
    done = subprocess.run([sys.executable, "-c", code], env=house.env, capture_output=True, text=True, timeout=120)
    assert "InUse" in done.stderr and str(os.getpid()) in done.stderr and "dataset.close()" in done.stderr


def test_files_and_mediums_of_ones_own_hold_samples_too(client, house, tmp_path):
    for workers, path in [(0, "slots"), (2, "slots-{lane}")]:
        loader = DataLoader(dataset(client, medium=f"file:{tmp_path}/{path}"), batch_size=4, num_workers=workers)
        for i, batch in enumerate(loader):
            for row in range(4):
                check({name: batch[name][row] for name in batch})
            if i == 5:
                break
    made = []

    def medium(lane):
        made.append(lane)
        return SharedMemoryManager(80, CONFIG.nbytes(), read_only=True)

    house.python("-c", "import peers; from laneway import *; from laneway.mediums import *\n"
                 "Worker(fill_fn=peers.fill, batch_config=peers.CONFIG, medium=SharedMemoryManager, framework='numpy').run()")  # fmt: skip
    assert check(next(iter(dataset(client, rank=9, medium=medium)))) == (9, 0) and made == [9]
    with pytest.raises(ValueError, match="each needs a file of its own"):
        next(iter(DataLoader(dataset(client, medium=f"file:{tmp_path}/slots"), num_workers=2)))
    assert os.listdir(tmp_path) == []
