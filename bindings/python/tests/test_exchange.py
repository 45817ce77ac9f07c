"""Students and workers in different processes, through a broker: what the published design promises, and what it lacked."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import wait_until
from peers import CONFIG, expected

from laneway import BatchConfig, StudentClient, TaskError, TensorSpec, Worker, errors
from laneway.mediums import SharedMemoryManager

torch = pytest.importorskip("torch")


@pytest.fixture
def client(house):
    with StudentClient(student_rank=0, slot_count=8, batch_config=CONFIG) as client:
        yield client


def check(sample, generation):
    ticket = [sample.lane, sample.step, generation, sample.seed & 0x7FFF_FFFF]
    assert sample.generation == generation and sample.tensors["ticket"].tolist() == ticket
    assert np.array_equal(sample.tensors["x"].numpy(), expected(sample.lane, sample.step, generation))


def test_each_ticket_comes_once_and_in_order(house, client):
    house.worker("fill", "4")
    house.worker("fill")
    assert client.set_model("m") == 1
    for step in range(200):
        sample = client.request_sample(timeout_ms=60_000)
        assert (sample.lane, sample.step) == (0, step)
        check(sample, 1)
        client.release_slot(sample.slot_id)


def test_several_samples_come_in_one_call(house, client):
    house.worker("fill", "4")
    client.set_model("m")
    steps = []
    while len(steps) < 100:
        samples = client.next_samples(4, timeout_ms=60_000)
        assert 1 <= len(samples) <= 4
        for sample in samples:
            check(sample, 1)
            steps.append(sample.step)
            sample.release()
    assert steps == list(range(len(steps)))


def test_a_generator_gets_the_model_and_its_config_whole(house, client):
    house.worker("generate")
    name = "läyer/" * 170_000
    for model_id, config in [("m", None), ("n", {"layers": [1, 2], "name": "é"}), (name, {"big": "y" * 1_000_000})]:
        client.set_model(model_id, config)
        sample = client.request_sample(timeout_ms=60_000)
        assert sample.tensors["ticket"][:2].tolist() == [len(model_id), len(str(config))]


def test_an_omegaconf_node_is_a_config(house, client):
    omegaconf = pytest.importorskip("omegaconf")
    house.worker("generate")
    client.set_model("m", omegaconf.OmegaConf.create({"a": {"b": "${c}"}, "c": 3}))
    assert client.request_sample(timeout_ms=60_000).tensors["ticket"][1] == len(str({"a": {"b": 3}, "c": 3}))


@pytest.mark.parametrize("bad", [[1], "text", {"a": object()}, {"a": float("nan")}])
def test_a_config_that_json_cannot_carry_is_refused(client, bad):
    with pytest.raises((TypeError, ValueError), match="model_cfg"):
        client.set_model("m", bad)


def test_without_model_or_worker_a_request_times_out_and_keeps_its_ticket(house, client):
    start = time.monotonic()
    assert client.request_sample(timeout_ms=150) is None
    assert 0.14 < time.monotonic() - start < 5
    client.set_model("m")
    assert client.request_sample(timeout_ms=50) is None
    house.worker("fill")
    assert client.request_sample(timeout_ms=60_000).step == 0


def test_after_set_model_no_older_sample_is_delivered_and_none_is_skipped(house):
    house.worker("fill", "4")
    with StudentClient(0, 8, CONFIG, prefetch=8) as client:
        step = 0
        for generation in range(1, 11):
            assert client.set_model(f"m{generation}") == generation == client.generation
            for _ in range(20):
                sample = client.request_sample(timeout_ms=60_000)
                assert sample.step == step
                check(sample, generation)
                sample.release()
                step += 1


def test_a_failing_ticket_is_an_error_with_the_whole_traceback_and_its_neighbours_are_not(house):
    worker = house.worker("raise")
    with StudentClient(0, 8, CONFIG, prefetch=8, max_attempts=2) as client:
        client.set_model("m")
        steps = [client.request_sample(timeout_ms=60_000).step for _ in range(2)]
        with pytest.raises(TaskError) as raised:
            client.request_sample(timeout_ms=60_000)
        steps += [client.request_sample(timeout_ms=60_000).step for _ in range(5)]
    error = raised.value
    assert steps == [0, 1, 3, 4, 5, 6, 7]
    assert (error.lane, error.step, error.attempts, error.status) == (0, 2, 2, 1013)
    assert error.text.startswith("Traceback") and "RuntimeError: step 2 is bad luck" in error.text
    assert "step 2 is bad luck" in worker.log.read_text()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("wrong-size", f"generator_fn returned 3 bytes for .*; expected slot_size, {CONFIG.nbytes()}"),
        ("wrong-count", "fill_fn returned 2 samples for 1 tasks"),
    ],
)
def test_what_does_not_fit_fails_the_task(house, kind, words):
    house.worker(kind)
    with StudentClient(0, 4, CONFIG, max_attempts=1) as client:
        client.set_model("m")
        with pytest.raises(TaskError, match=words):
            client.request_sample(timeout_ms=60_000)


def test_a_worker_with_another_layout_is_refused_and_the_field_named(house, client):
    code = """if True:
        from laneway import *
        setup_logging("INFO")
        c = BatchConfig([TensorSpec("ticket", (4,), "int64"), TensorSpec("x", (1024,), "float16")])
        Worker(fill_fn=print, batch_config=c).run()"""
    worker = house.python("-c", code)
    client.set_model("m")
    assert client.request_sample(timeout_ms=1500) is None
    wait_until(lambda: "'x' has dtype" in worker.log.read_text(), "the reason in the worker's log")


def inside(tensor, nbytes):
    """Whether the memory lies in a shared mapping of this process that is large enough."""
    at = tensor.data_ptr()
    for line in open("/proc/self/maps"):
        low, high = (int(n, 16) for n in line.split()[0].split("-"))
        if low <= at and at + nbytes <= high:
            return "s" in line.split()[1]
    return False


def test_reads_are_views_that_keep_their_slot_until_they_die(house):
    house.worker("fill", "4")
    with StudentClient(0, 4, CONFIG) as client:
        client.set_model("m")
        sample = client.request_sample(timeout_ms=60_000)
        x = sample.tensors["x"]
        assert inside(x, 4096) and x.data_ptr() % 64 == 0 and not sample.copied
        part = x[5:10]
        slot, at, step = sample.slot_id, x.data_ptr(), sample.step
        client.release_slot(slot)
        del x
        for _ in range(40):
            other = client.request_sample(timeout_ms=60_000)
            assert other.slot_id != slot and not at <= other.tensors["x"].data_ptr() < at + 4096
            other.release()
        assert np.array_equal(part.numpy(), expected(0, step, 1)[5:10])
        assert client.stats["held"] == 1
        del part
        assert client.stats["held"] == 0
        seen = set()
        wait_until(lambda: seen.add((s := client.request_sample(60_000)).slot_id) or s.release() or slot in seen, "the slot's next use")


def test_a_sample_that_is_forgotten_is_released(house, client):
    house.worker("fill")
    client.set_model("m")
    for _ in range(50):
        client.request_sample(timeout_ms=60_000)
        client.request_sample(timeout_ms=60_000).tensors["x"].sum()
    assert client.stats["held"] == 0 and client.stats["copied"] == 0


def test_where_holding_one_more_would_stop_the_rest_samples_are_counted_copies(house):
    house.worker("fill", "4")
    with StudentClient(0, 4, CONFIG) as client:
        client.set_model("m")
        samples = [client.request_sample(timeout_ms=60_000) for _ in range(20)]
        assert client.stats["copied"] == sum(s.copied for s in samples) >= 16
        for sample in samples:
            check(sample, 1)
        for sample in samples:
            client.release_slot(sample.slot_id)


def test_tensors_stay_readable_after_close_and_collection(house):
    house.worker("fill")
    client = StudentClient(0, 4, CONFIG)
    client.set_model("m")
    sample = client.request_sample(timeout_ms=60_000)
    x, ticket = sample.tensors["x"], sample.tensors["ticket"]
    client.close()
    with pytest.raises(errors.Closed):
        client.request_sample()
    del client, sample
    gc.collect()
    assert np.array_equal(x.numpy(), expected(0, 0, 1)) and ticket[1] == 0


def test_a_released_sample_says_so_when_read(house, client):
    house.worker("fill")
    client.set_model("m")
    sample = client.request_sample(timeout_ms=60_000)
    sample.release()
    sample.release()
    with pytest.raises(errors.Closed, match="lane 0, step 0.* was released"):
        sample.tensors
    with pytest.raises(ValueError, match="slot 12345 was not handed out"):
        client.release_slot(12345)


def test_bytes_and_numpy_are_to_be_had_too(house):
    house.worker("fill")
    with StudentClient(0, 4, CONFIG, framework="numpy") as client:
        client.set_model("m")
        sample = client.request_sample(timeout_ms=60_000)
        assert type(sample.tensors["x"]) is np.ndarray
        assert np.array_equal(CONFIG.decode(sample.data)["x"].numpy(), sample["x"])
        assert len(bytes(sample.data)) == CONFIG.nbytes()


def test_hello_says_what_was_agreed_and_a_living_rank_is_refused(house, client):
    hello = client.hello()
    assert hello["student_rank"] == 0 and hello["slot_size"] == CONFIG.nbytes() and hello["pid"] == os.getpid()
    with pytest.raises(errors.InUse, match=str(os.getpid())):
        StudentClient(0, 4, CONFIG).hello()
    with StudentClient(0, 4, CONFIG, group="another") as other:
        assert other.generation == 0


def test_only_rank_0_sets_the_model_and_all_see_it(house, client):
    with StudentClient(1, 4, CONFIG) as follower:
        follower.start_sub_listener()
        with pytest.raises(errors.NotLeader, match="rank 0"):
            follower.set_model("m")
        client.set_model("m")
        assert follower.generation == follower.generation_value.value == client.generation_value.value == 1
        house.worker("fill")
        assert follower.request_sample(timeout_ms=60_000).lane == 1


def test_without_a_broker_the_error_says_what_to_start(folder):
    with pytest.raises(errors.Timeout, match="laneway broker"):
        StudentClient(0, 4, CONFIG).hello(timeout_s=0.3)


def test_an_embedded_broker_makes_one_process_enough(folder):
    with StudentClient(0, 4, CONFIG, broker="embedded") as client:
        with Worker(fill_fn=lambda tasks: [t["x"].fill_(7) for t in tasks] and None, batch_config=CONFIG, batch_size=2):
            client.set_model("m")
            for _ in range(20):
                assert (client.request_sample(timeout_ms=60_000).tensors["x"] == 7).all()


def test_a_worker_fills_torch_tensors_in_place_and_knows_the_model(house, client):
    seen = []
    worker = Worker(
        fill_fn=lambda tasks: [seen.append((t.model_id, t.model_cfg, t.attempt)) or t["x"].fill_(t.step) for t in tasks] and None,
        batch_config=CONFIG,
        batch_size=4,
        worker_id=17,
    )
    assert (worker.generation, worker.model_id) == (0, None)
    worker.start()
    assert worker.hello()["worker_id"] == 17
    client.set_model("teacher", {"k": 1})
    assert (client.request_sample(timeout_ms=60_000).tensors["x"] == 0).all()
    assert seen[0] == ("teacher", {"k": 1}, 0) and (worker.generation, worker.model_id) == (1, "teacher")
    worker.stop()
    assert client.request_sample(timeout_ms=200) is None


@pytest.mark.parametrize("where", ["broker", "worker", "student"])
def test_ctrl_c_ends_a_wait_at_once(house, where):
    code = {
        "broker": None,
        "worker": "Worker(lambda i, c: b'', slot_size=8).run()",
        "student": "StudentClient(0, 4, BatchConfig([TensorSpec('x', (2,), 'int8')])).request_sample(timeout_ms=60000)",
    }[where]
    process = house.broker if code is None else house.python("-c", f"from laneway import *; print(1, flush=True); {code}")
    if code is not None:
        wait_until(lambda: process.log.read_text(), "its start")
        time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == (0 if where != "student" else -signal.SIGINT), house.logs()


def test_ctrl_c_ends_a_switch_that_no_broker_takes(house):
    code = """if True:
        from laneway import *
        client = StudentClient(0, 4, BatchConfig([TensorSpec("x", (2,), "int8")]))
        client.hello()
        print(1, flush=True)
        input()
        client.set_model("m", timeout_s=60)"""
    process = house.python("-c", code, stdin=subprocess.PIPE)
    wait_until(lambda: process.log.read_text(), "its registration")
    house.broker.kill()
    house.broker.wait()
    process.stdin.write("\n")
    process.stdin.flush()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == -signal.SIGINT, house.logs()


def test_ctrl_c_in_the_middle_of_a_task_gives_it_to_another_worker(house, client):
    slow = house.worker("slow", "1000")
    client.set_model("m")
    assert client.request_sample(timeout_ms=3000) is None
    slow.send_signal(signal.SIGINT)
    assert slow.wait(timeout=60) == 0
    house.worker("fill")
    check(client.request_sample(timeout_ms=60_000), 1)


def test_a_forked_child_gets_an_error_and_never_a_hang_and_the_parent_goes_on(house, client):
    house.worker("fill")
    client.set_model("m")
    sample = client.request_sample(timeout_ms=60_000)
    x = sample.tensors["x"]
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            assert client.generation_value.value == 1
            for call in (client.hello, client.request_sample, lambda: client.set_model("n")):
                with pytest.raises(errors.Forked):
                    call()
            assert np.array_equal(x.numpy(), expected(0, 0, 1))
            sample.release()
            del x
            client.close()
            with StudentClient(3, 4, CONFIG) as own:
                assert own.request_sample(timeout_ms=60_000).lane == 3
            code = 0
        finally:
            os._exit(code)
    end = time.monotonic() + 120
    while (done := os.waitpid(pid, os.WNOHANG))[0] == 0:
        assert time.monotonic() < end, "the child hangs"
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(done[1]) == 0
    assert np.array_equal(x.numpy(), expected(0, 0, 1)), "the child did not give the parent's slot back"
    assert client.request_sample(timeout_ms=60_000).step == 1


def test_a_broker_that_is_killed_and_replaced_loses_nothing(house):
    house.worker("fill", "2")
    with StudentClient(0, 8, CONFIG, prefetch=8) as client:
        client.set_model("m")
        for step in range(300):
            if step % 100 == 50:
                house.broker.kill()
                house.broker.wait()
                house.start_broker()
            sample = client.request_sample(timeout_ms=60_000)
            assert sample.step == step
            check(sample, 1)
            sample.release()
        assert client.set_model("n") == 2


def test_killed_workers_lose_nothing(house):
    with StudentClient(0, 8, CONFIG, prefetch=8, max_attempts=100) as client:
        client.set_model("m")
        workers = [house.worker("fill", "2") for _ in range(2)]
        for step in range(400):
            if step % 50 == 25:
                workers.pop(0).kill()
                workers.append(house.worker("fill", "2"))
            sample = client.request_sample(timeout_ms=60_000)
            assert sample.step == step
            check(sample, 1)
            sample.release()


def test_one_client_serves_several_threads(house):
    house.worker("fill", "4")
    with StudentClient(0, 16, CONFIG, prefetch=16) as client:
        client.set_model("m")
        steps, lock = [], threading.Lock()

        def take():
            for _ in range(100):
                sample = client.request_sample(timeout_ms=60_000)
                check(sample, 1)
                with lock:
                    steps.append(sample.step)
                sample.release()

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(steps) == list(range(400))


def test_the_broker_counts_and_refuses_a_second_one(folder):
    from laneway import Broker

    with Broker() as broker:
        with StudentClient(0, 4, CONFIG):
            wait_until(lambda: broker.stats.students == 1, "the student in the statistics")
            assert json.dumps(broker.stats) and broker.stats["workers"] == 0
        with pytest.raises(errors.InUse, match=str(os.getpid())):
            Broker().start()
    assert not (folder / "frontend.sock").exists()


def test_an_exit_without_close_leaves_no_message_and_no_file(house, tmp_path):
    code = """if True:
        import sys
        from laneway import *
        from laneway.mediums import SharedMemoryManager
        setup_logging("DEBUG")
        from own_mediums import FileMedium
        import threading
        shm = SharedMemoryManager(2, 64, read_only=True, run_id="left by the exit test")
        Broker(*[f"ipc://{sys.argv[1]}/{name}" for name in "abcd"]).start()
        c = BatchConfig([TensorSpec("x", (4,), "int8")])
        client = StudentClient(0, 4, c, medium=FileMedium(80, c.nbytes(), f"{sys.argv[1]}/slots"))
        w = Worker(fill_fn=lambda tasks: [t["x"].fill_(1) for t in tasks] and None, batch_config=c, medium=FileMedium)
        threading.Thread(target=w.run, daemon=True).start()
        client.set_model("m")
        kept = client.request_sample(timeout_ms=60_000).tensors["x"]
        assert kept.tolist() == [1, 1, 1, 1]"""
    command = [sys.executable, "-c", code, tmp_path]
    done = subprocess.run(command, env=house.env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and os.listdir(tmp_path) == [] and "Traceback" not in done.stderr and "Error" not in done.stderr, (
        done.stderr
    )
    with pytest.raises(errors.NotFound):
        SharedMemoryManager(2, 64, read_only=False, run_id="left by the exit test")


def test_options_that_make_no_sense_are_refused(folder):
    config = BatchConfig([TensorSpec("x", (4,), "int8")])
    for make, words in [
        (lambda: StudentClient(-1, 4, config), "student_rank is -1"),
        (lambda: StudentClient(0, 0, config), "slot_count is 0"),
        (lambda: StudentClient(0, 4, config, broker="yes"), "broker is 'yes'"),
        (lambda: StudentClient(0, 4, config, "localhost"), "frontend_endpoint is 'localhost'"),
        (lambda: StudentClient(0, 4, config, medium="disk").hello(), "medium is 'disk'"),
        (lambda: Worker(print, slot_size=0), "slot_size is 0"),
        (lambda: StudentClient(0, 4, config, spin_us=-1), "spin_us is -1"),
        (lambda: Worker(print, slot_size=5, batch_config=config), "slot_size is 5; batch_config has 4"),
        (lambda: Worker(print, slot_size=4, batch_size=2), "batch_size needs fill_fn"),
    ]:
        with pytest.raises(ValueError, match=words):
            make()
    for make, words in [
        (lambda: StudentClient(0, 4, {"specs": []}), "batch_config is a dict"),
        (lambda: Worker(), "either generator_fn or fill_fn"),
        (lambda: Worker(fill_fn=print), "fill_fn needs batch_config"),
        (lambda: Worker(print), "slot_size is missing"),
        (lambda: StudentClient(0, 4, config, slots=3), "slots"),
    ]:
        with pytest.raises(TypeError, match=words):
            make()
