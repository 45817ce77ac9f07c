"""``NodeLoader``: the batches of an in-process ``Loader``, made by one process for all ranks of a node, whoever dies."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from conftest import House, wait_until
from lanes_data import RECIPE

import laneway
from laneway import Function, Loader, NodeLoader, Server, _native, errors

PEER = Path(__file__).with_name("node_peer.py")
PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


@pytest.fixture
def node(folder, lanes):
    """Processes around the recipe ``lanes``, in a LANEWAY_DIR of their own."""
    house = House(folder)
    yield house
    house.end()


def serve(node, recipe, *words, stderr=None):
    """``laneway serve``, which answers."""
    program = _native.find_program()
    server = subprocess.Popen([program, "serve", recipe, *words], env=node.env, stdout=subprocess.PIPE, stderr=stderr, text=True)
    server.log = Path(os.devnull)
    node.processes.append(server)
    assert "node-" in server.stdout.readline()
    return server


def peer(node, recipe, rank=0, ranks=1, batches=20, **given):
    """``node_peer.py`` in a process of its own."""
    asked = {"recipe": str(recipe), "rank": rank, "ranks": ranks, "batches": batches, **given}
    return node.python(str(PEER), json.dumps(asked))


def said(process):
    """What a peer has said so far, line by line, but for the library's warnings, of a server that is gone say; the last may not be whole."""
    text = process.log.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines() if not line.startswith("WARNING ")]


def heard(process, seconds=120):
    """All that a peer said: its batches, and its state at the end."""
    assert process.wait(seconds) == 0, process.log.read_text()
    *batches, last = said(process)
    return batches, last["state"]


def expected(recipe, rank=0, ranks=1, batches=20, state=None, **given):
    """The same from a loader in this process."""
    loader = Loader(recipe, rank, ranks, framework="numpy", **given)
    if state is not None:
        loader.load_state_dict(state)
    found = [[b.step, b.microbatch, b.hashes.tolist()] for b in (next(loader) for _ in range(batches))]
    return found, loader.state_dict()


def test_all_peers_of_all_ranks_get_the_bytes_and_the_states_of_an_in_process_loader(node, lanes):
    serve(node, lanes, "--ranks", "2", "--peers", "4")
    peers = [(rank, peer(node, lanes, rank, 2, batches=40)) for rank in (0, 1) for _ in range(4)]
    for rank, process in peers:
        assert heard(process) == expected(lanes, rank, 2, batches=40)


def test_every_tensor_and_the_provenance_are_those_of_an_in_process_loader(folder, lanes):
    with Server(lanes, name="t", progress=None):
        here, there = Loader(lanes, framework="numpy"), NodeLoader(lanes, name="t", framework="numpy")
        for _ in range(5):
            a, b = next(here), next(there)
            for name in ("input_ids", "labels", "positions", "segment_ids", "loss_mask", "cu_seqlens"):
                np.testing.assert_array_equal(a.numpy(name), b.numpy(name))
            for field in ("step", "microbatch", "num_tokens", "num_valid_tokens", "max_seqlen"):
                assert getattr(a, field) == getattr(b, field), field
            assert (a.provenance == b.provenance).all()
            piece = b.provenance[0]
            assert there.read(int(piece["dataset"]), int(piece["document"])) == here.read(int(piece["dataset"]), int(piece["document"]))
        assert there.info == here.info


def test_a_loader_that_starts_its_server_needs_nothing_else_and_leaves_nothing_behind(node, lanes):
    peers = [peer(node, lanes, batches=5, name="own", peers=4, start=True, threads=1) for _ in range(4)]
    for process in peers:
        assert heard(process)[0] == expected(lanes, batches=5)[0]
    path = node.folder / "node-own.sock"
    wait_until(lambda: not path.exists(), "the end of the server")


def test_a_server_that_is_started_finds_files_that_are_named_from_the_current_directory(node, lanes):
    asked = {"recipe": lanes.name, "batches": 3, "name": "near", "start": True}
    near = node.python(str(PEER), json.dumps(asked), cwd=lanes.parent)
    assert heard(near)[0] == expected(lanes, batches=3)[0]


def test_a_server_that_one_run_has_started_serves_the_next_on_other_ranks(node, lanes):
    for ranks in (2, 4, 1):
        for rank, process in enumerate([peer(node, lanes, rank, ranks, batches=3, name="again", start=True) for rank in range(ranks)]):
            assert heard(process)[0] == expected(lanes, rank, ranks, batches=3)[0]


def test_of_sixteen_starts_at_once_one_serves_all(node, lanes):
    peers = [peer(node, lanes, rank=r % 8, ranks=8, batches=3, peers=2, start=True, threads=1) for r in range(16)]
    for r, process in enumerate(peers):
        assert heard(process)[0] == expected(lanes, r % 8, 8, batches=3)[0]


def test_batches_that_are_kept_stay_as_they_are_and_stop_nobody(folder, lanes):
    with Server(lanes, name="t", slots=2, progress=None) as server:
        mine, others = NodeLoader(lanes, name="t", peers=2, framework="numpy"), NodeLoader(lanes, name="t", peers=2, framework="numpy")
        want, _ = expected(lanes, batches=80)
        kept = []
        for _ in range(80):
            batch = mine.next(60)
            kept.append((batch.numpy("input_ids"), batch))
            others.next(60)
        copies = [ids.copy() for ids, _ in kept]
        assert [b.hashes.tolist() for _, b in kept] == [hashes for _, _, hashes in want]
        arrays = [ids for ids, _ in kept]
        del kept, batch
        for _ in range(20):
            next(mine), next(others)
        assert all((a == b).all() for a, b in zip(arrays, copies, strict=True)), "an array keeps its batch"
        mine.close()
        server.stop()
        assert all((a == b).all() for a, b in zip(arrays, copies, strict=True))


def test_states_are_those_of_an_in_process_loader_both_ways_and_on_other_ranks(folder, lanes):
    want, _ = expected(lanes, batches=30)
    with Server(lanes, name="t", progress=None):
        two = [NodeLoader(lanes, rank, 2, name="t", framework="numpy") for rank in (0, 1)]
        for loader in two:
            for _ in range(10):
                next(loader)
        states = [loader.state_dict() for loader in two]
        assert states == [expected(lanes, rank, 2, batches=10)[1] for rank in (0, 1)]
        assert expected(lanes, batches=20, state=states)[0] == want[10:]
        for loader in two:
            loader.close()
        del two, loader
        # The same server, another number of ranks, once those before have left.
        four = [NodeLoader(lanes, rank, 4, name="t", framework="numpy") for rank in range(4)]
        for loader in four:
            loader.load_state_dict(states)
        for step in range(20):
            assert [h for loader in four for h in next(loader).hashes.tolist()] == want[10 + step][2]


@pytest.mark.parametrize("given", [{"microbatch_size": 2}, {"uneven": True, "microbatch_size": 3, "ranks": 3}])
def test_microbatches_and_uneven_ranks(folder, lanes, given):
    ranks = given.pop("ranks", 2)
    with Server(lanes, name="t", progress=None):
        for rank in range(ranks):
            loader = NodeLoader(lanes, rank, ranks, name="t", framework="numpy", **given)
            found = [[b.step, b.microbatch, b.hashes.tolist()] for b in (next(loader) for _ in range(15))]
            assert (found, loader.state_dict()) == expected(lanes, rank, ranks, batches=15, **given)
            # Within a step, too, a state leads back to the same place.
            loader.load_state_dict(expected(lanes, rank, ranks, batches=7, **given)[1])
            assert [[b.step, b.microbatch, b.hashes.tolist()] for b in (next(loader) for _ in range(8))] == found[7:]


def test_a_stream_that_ends(folder, lanes, lanes_folder):
    text = RECIPE.replace("weight = 0.5", 'weight = 0.5\nexhausted = "redistribute"')
    recipe = lanes_folder / "finite.toml"
    recipe.write_text(text)
    here = Loader(recipe, 1, 2, framework="numpy")
    with Server(recipe, name="t", progress=None):
        there = NodeLoader(recipe, 1, 2, name="t", framework="numpy")
        assert [b.hashes.tolist() for b in there] == [b.hashes.tolist() for b in here]
        assert (there.steps, there.next(), there.state_dict()) == (here.steps, None, here.state_dict())
        there.seek(3)
        here.seek(3)
        assert next(there).hashes.tolist() == next(here).hashes.tolist()


def test_a_seek_and_a_load_move_all_peers_of_a_rank_and_who_stays_is_told(folder, lanes):
    want, _ = expected(lanes, batches=60)
    with Server(lanes, name="t", progress=None):
        a, b = (NodeLoader(lanes, name="t", peers=2, framework="numpy") for _ in range(2))
        for _ in range(5):
            next(a), next(b)
        a.seek(50)
        assert next(a).hashes.tolist() == want[50][2]
        with pytest.raises(errors.Stale, match=f"moved to step 50 by process {os.getpid()}"):
            next(b)
        state = expected(lanes, batches=51)[1]
        b.load_state_dict(state)
        assert [next(b).hashes.tolist() for _ in range(2)] == [want[51][2], want[52][2]]
        assert next(a).hashes.tolist() == want[51][2], "a place that is there moves nobody"


def test_a_server_of_another_recipe_in_the_place_of_one_is_refused_wherever_a_peer_goes(folder, lanes, lanes_folder):
    other = lanes_folder / "other.toml"
    other.write_text(RECIPE.replace("max_length = 32", "max_length = 64"))
    with Server(lanes, name="t", progress=None):
        loader = NodeLoader(lanes, name="t", framework="numpy")
        assert next(loader).step == 0
        state = loader.state_dict()
    with Server(other, name="t", progress=None):
        for go in (lambda: loader.seek(3), lambda: loader.load_state_dict(state), lambda: loader.next(60)):
            with pytest.raises(errors.Refused, match=r"pack\.max_length is 64 there and 32 here"):
                go()
    with Server(lanes, name="t", progress=None):
        loader.seek(3)
        assert next(loader).hashes.tolist() == expected(lanes, batches=4)[0][3][2]


def starve(loader):
    """Takes batches until none comes any more; how many, and what it says then."""
    for count in range(1000):
        try:
            loader.next(2)
        except errors.Timeout as error:
            return count, str(error)
    raise AssertionError("it goes on")


def test_a_new_run_waits_for_the_peers_of_the_one_before(folder, lanes):
    with Server(lanes, name="t", progress=None):
        # Nobody has said that there are two.
        a, b = (NodeLoader(lanes, name="t", framework="numpy") for _ in range(2))
        kept = next(a)  # so that its slot is not written over before the other comes
        assert (kept.step, next(b).step) == (0, 0)
        a.seek(50)
        count, said = starve(a)
        assert 1 <= count <= 3 and "1 peers of this rank have not come yet" in said
        b.seek(50)
        assert [next(loader).step for loader in (b, b, b, b, a)] == [50, 51, 52, 53, 50 + count]


def test_a_peer_that_takes_its_place_twice_is_not_the_second_peer(folder, lanes):
    with Server(lanes, name="t", peers=2, progress=None):
        a = NodeLoader(lanes, name="t", peers=2, framework="numpy")
        assert next(a).step == 0
        a.seek(0)
        count, said = starve(a)
        assert 1 <= count <= 3 and "1 peers of this rank have not come yet" in said
        b = NodeLoader(lanes, name="t", peers=2, framework="numpy")
        assert [next(loader).step for loader in (b, b, b, b, a)] == [0, 1, 2, 3, count]


def test_a_state_with_other_weights_is_another_run_though_its_place_is_there(folder, lanes):
    here = Loader(lanes, framework="numpy")
    with Server(lanes, name="t", progress=None):
        there = NodeLoader(lanes, name="t", framework="numpy")
        for _ in range(5):
            assert next(there).hashes.tolist() == next(here).hashes.tolist()
        here.set_mixture({"wiki": 0.1, "news": 0.9}, 5)
        there.load_state_dict(here.state_dict())
        found = [next(there).hashes.tolist() for _ in range(40)]
        assert found == [next(here).hashes.tolist() for _ in range(40)]
        assert found != [hashes for _, _, hashes in expected(lanes, batches=45)[0][5:]]


def test_the_weights_of_the_mixture_can_be_set_for_all_ranks(folder, lanes):
    def run(loaders, steps):
        return [[h for loader in loaders for h in next(loader).hashes.tolist()] for _ in range(steps)]

    here = [Loader(lanes, framework="numpy")]
    here[0].set_mixture({"wiki": 0.1, "news": 0.9}, 30)
    want = run(here, 60)
    assert want != [hashes for _, _, hashes in expected(lanes, batches=60)[0]]
    with Server(lanes, name="t", progress=None):
        there = [NodeLoader(lanes, rank, 2, name="t", framework="numpy") for rank in (0, 1)]
        found = run(there, 10)
        with pytest.raises(errors.InvalidArgument, match="can still be set is"):
            there[0].set_mixture([0.1, 0.9], 8)
        for loader in there:
            loader.set_mixture([0.1, 0.9], 30)
        found += run(there, 15)
        states = [loader.state_dict() for loader in there]
        assert found + run(there, 35) == want
        assert states[0]["meta"]["mixture"] == [[30, [0.1, 0.9]]]
        [again] = [Loader(lanes, framework="numpy")]
        again.load_state_dict(states)
        assert run([again], 35) == want[25:]


def test_what_does_not_fit_is_refused_by_its_name(node, lanes, lanes_folder):
    serve(node, lanes, "--ranks", "2")
    other = lanes_folder / "other.toml"
    other.write_text(RECIPE.replace("max_length = 32", "max_length = 64"))
    with pytest.raises(errors.Refused, match=r"pack\.max_length is 32 there and 64 here"):
        next(NodeLoader(other, 0, 2))
    with pytest.raises(errors.Refused, match="serves 2 ranks"):
        next(NodeLoader(lanes, 0, 4))
    first = NodeLoader(lanes, 0, 2)
    next(first)
    with pytest.raises(errors.Refused, match="batches of 1 rows"):
        next(NodeLoader(lanes, 1, 2, microbatch_size=1))
    with pytest.raises(errors.InvalidArgument, match="microbatch_size 3 does not divide"):
        next(NodeLoader(lanes, 1, 2, microbatch_size=3))
    for _ in range(10):
        next(first)
    with pytest.raises(errors.Refused, match="its beginning is gone"):
        next(NodeLoader(lanes, 0, 2))
    with pytest.raises(errors.NotFound, match="laneway serve RECIPE --name nobody"):
        next(NodeLoader(lanes, name="nobody", patience_s=0.1))
    with pytest.raises(errors.InvalidArgument, match="letters"):
        next(NodeLoader(lanes, name="a/b"))
    stranger = NodeLoader(lanes, 1, 2)
    stranger.load_state_dict(first.state_dict())
    with pytest.raises(errors.NotFound, match="no state of lane 4"):
        next(stranger)
    assert next(first).step == 11, "and nothing of it disturbed anybody"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_does_not_get_in_even_where_the_directory_lets_it(node, lanes):
    serve(node, lanes)
    path = node.folder / "node-default.sock"
    node.folder.chmod(0o755)
    path.chmod(0o777)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.settimeout(20)
                connection.connect(str(path))
                code = 0 if b"belongs to another user" in connection.recv(4096) and connection.recv(4096) == b"" else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    node.folder.chmod(0o700)
    assert next(NodeLoader(lanes, framework="numpy")).step == 0


def test_functions_are_served_by_a_server_of_ones_own(node, lanes, lanes_folder):
    recipe = lanes_folder / "shout.toml"
    recipe.write_text('functions = ["twice 1"]\n' + RECIPE)
    done = subprocess.run([_native.find_program(), "serve", recipe], env=node.env, capture_output=True, text=True)
    assert done.returncode == 2 and "twice 1" in done.stderr and "laneway.Server" in done.stderr
    functions = [Function("twice 1", map=lambda text: f"{text} {text}")]
    here = Loader(recipe, functions=functions, framework="numpy")
    with Server(recipe, functions=functions, name="t", progress=None):
        process = peer(node, recipe, batches=10, name="t")
        assert heard(process)[0] == [[b.step, 0, b.hashes.tolist()] for b in (next(here) for _ in range(10))]
    assert not (node.folder / "node-t.sock").exists()


@pytest.mark.parametrize(("ways", "server_peers"), [((None, None, None), ()), (("seek", "load", None), ("--peers", "3"))], ids=["by reading", "by seeking, loading and reading"])
def test_peers_whose_server_is_killed_again_and_again_come_back_to_where_they_are_and_miss_no_batch(node, lanes, ways, server_peers):
    want, state = expected(lanes, 0, 2, batches=150)
    words = ("--ranks", "2", "--threads", "1", "--slots", "2", *server_peers)
    server = serve(node, lanes, *words)
    peers = [peer(node, lanes, 0, 2, batches=150, peers=3, pause_s=0.02, comes_by=way) for way in ways]
    chance = random.Random(8)
    while any(p.poll() is None for p in peers):
        time.sleep(chance.uniform(0.1, 0.6))
        server.send_signal(signal.SIGKILL)
        server.wait()
        server = serve(node, lanes, *words)
    for process in peers:
        assert heard(process) == (want, state)


def test_who_moves_a_rank_after_its_server_was_killed_has_the_others_told(node, lanes):
    server = serve(node, lanes, "--peers", "2")
    one, other = (NodeLoader(lanes, peers=2, framework="numpy") for _ in range(2))
    for _ in range(4):
        assert one.next(60).step == other.next(60).step
    server.send_signal(signal.SIGKILL)
    server.wait()
    serve(node, lanes, "--peers", "2")
    one.seek(50)
    with pytest.raises(errors.Stale, match=f"moved to step 50 by process {os.getpid()}"):
        while other.next(60).step < 8:
            pass
    other.seek(50)
    assert [loader.next(60).step for loader in (one, other, one, other)] == [50, 50, 51, 51]


def test_peers_that_are_killed_harm_nobody_and_come_back_to_their_place(node, lanes):
    want, _ = expected(lanes, batches=200)
    serve(node, lanes, "--threads", "1")
    steady, found = NodeLoader(lanes, framework="numpy"), []

    def read(count):
        for _ in range(count):
            batch = steady.next(60)
            found.append([batch.step, batch.microbatch, batch.hashes.tolist()])

    chance = random.Random(6)
    for _ in range(10):
        read(5)
        # Each joins where the steady one is, and dies somewhere on the way: as it starts, as it reads, as it waits for the steady one.
        victim = peer(node, lanes, batches=100_000, state=steady.state_dict())
        time.sleep(chance.uniform(0.05, 1.0))
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        read(10)
        assert all(line in want for line in said(victim))
    assert found == want[: len(found)]


def test_a_rank_that_dies_alone_comes_back_with_its_state(node, lanes):
    want, _ = expected(lanes, batches=60)
    serve(node, lanes)
    first = peer(node, lanes, batches=1000, pause_s=0.01)
    wait_until(lambda: len(said(first)) >= 12, "twelve batches")
    first.send_signal(signal.SIGKILL)
    first.wait()
    again = peer(node, lanes, batches=40, state=expected(lanes, batches=10)[1])
    assert heard(again)[0] == want[10:50]


def test_forked_children_are_told_so_and_harm_nobody(folder, lanes):
    with Server(lanes, name="t", progress=None):
        loader = NodeLoader(lanes, name="t", framework="numpy")
        batch = next(loader)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                try:
                    next(loader)
                except errors.Forked:
                    code = 0
                del batch
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert batch.hashes.tolist() == expected(lanes, batches=1)[0][0][2]
        assert next(loader).step == 1


def test_the_commands_show_and_stop_it(node, lanes):
    server = serve(node, lanes, "--name", "x")
    again = subprocess.run([_native.find_program(), "serve", lanes, "--name", "x"], env=node.env, capture_output=True, text=True)
    assert again.returncode == 3 and "runs already" in again.stderr
    server.send_signal(signal.SIGKILL)
    server.wait()
    swept = subprocess.run([_native.find_program(), "clean"], env=node.env, capture_output=True, text=True)
    assert "node-x.sock: of a node loader that was killed" in swept.stdout and "node-x.lock" in swept.stdout
    assert not list(node.folder.glob("node-x*"))
    server = serve(node, lanes, "--name", "x")
    swept = subprocess.run([_native.find_program(), "clean"], env=node.env, capture_output=True, text=True)
    assert swept.stdout == "" and sorted(p.name for p in node.folder.glob("node-x*")) == ["node-x.lock", "node-x.sock"], "it lives"
    stopped = subprocess.run([_native.find_program(), "stop", "--node", "x"], env=node.env, capture_output=True, text=True)
    assert stopped.returncode == 0 and server.wait(30) == 0
    assert not list(node.folder.glob("node-x*"))


def numbers_of(node):
    """What ``laneway metrics --json`` says of servers and loaders, once a file was written."""
    done = subprocess.run([_native.find_program(), "metrics", "--json"], env=node.env, capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else {"nodes": [], "loaders": []}


def test_server_and_peers_are_counted_in_their_processes_and_told_to_others(node, lanes):
    log = node.folder / "serve.log"
    server = serve(node, lanes, "--ranks", "2", "--peers", "3", "--metrics-port", "0", stderr=log.open("w"))
    page = re.search(r"metrics at (http://127.0.0.1:\d+/metrics)", log.read_text())[1]
    here, there = Loader(lanes, 0, 2, framework="numpy"), NodeLoader(lanes, 0, 2, peers=3, framework="numpy")
    rank = lambda: next((e["counters"] for e in numbers_of(node)["nodes"] if e.get("rank") == 0), {})  # noqa: E731
    wait_until(lambda: next(there) is not None and rank().get("awaited") == 2, "the rank's first numbers")
    assert rank()["peers"] == 1 and rank()["slots_in_use"] >= 1
    victim = peer(node, lanes, 0, 2, batches=100_000, state=there.state_dict(), pause_s=0.01)
    short = peer(node, lanes, 0, 2, batches=1, state=there.state_dict())
    wait_until(lambda: said(victim) and next(there) and rank().get("left") == 1, "one that leaves")
    assert short.wait(60) == 0 and rank()["deaths"] == 0
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    wait_until(lambda: next(there) and rank().get("deaths") == 1, "one that is killed")
    step = next(there).step
    for _ in range(step + 1):
        next(here)
    # The peer counts what it got, as an in-process loader does.
    entries = laneway.metrics()["loaders"]
    at = [e for e in entries if e["ranks"] == 2 and e["counters"]["step"] == step + 1]
    [mine], [own] = ([e for e in at if e.get("node") == name] for name in ("default", None))
    same = ("batches", "rows", "tokens", "padding", "dataset_tokens", "step")
    assert [mine["counters"][key] for key in same] == [own["counters"][key] for key in same]
    assert mine["counters"].keys() == {*same, "waited_ns"} and mine["counters"]["waited_ns"] > 0
    assert f'laneway_loader_batches_total{{node="default",rank="0",ranks="2",pid="{os.getpid()}"}} {step + 1}\n' in laneway.metrics_text()
    # The server counts what it made: that, and what lies ready.
    numbers = rank()
    made = numbers["batches"]
    assert step < made <= step + 1 + 3 and numbers["ready"] <= 3 and numbers["ready"] < numbers["slots"]
    assert numbers["tokens"] == sum(numbers["dataset_tokens"].values()) and numbers["rows"] == 4 * made
    assert (numbers["runs"], numbers["joined"], numbers["peers"], numbers["awaited"]) == (1, 3, 1, 0)
    assert min(numbers["making_ns"], numbers["full_ns"], numbers["documents"]) > 0
    [process] = [e["counters"] for e in numbers_of(node)["nodes"] if "rank" not in e]
    listed = re.findall(r"^\| `(\w+)` \| `laneway_node_", PAGE.read_text(), re.MULTILINE)
    assert process.keys() | numbers.keys() == set(listed) and process["connections"] >= 1 and process["bytes_read"] > 0
    with urllib.request.urlopen(page, timeout=20) as answer:
        text = answer.read().decode()
    assert f'laneway_node_peers{{node="default",rank="0",ranks="2",pid="{server.pid}"}} 1\n' in text and "laneway_loader" not in text
    shown = subprocess.run([_native.find_program(), "top", "--once"], env=node.env, capture_output=True, text=True).stdout
    assert re.search(rf"^default +{server.pid} +0/2 +\d+ ", shown, re.MULTILINE), shown
    wait_until(lambda: next(there) and any(e.get("node") for e in numbers_of(node)["loaders"]), "the peer's own file")
    server.terminate()
    assert server.wait(30) == 0 and not list((node.folder / "nodes").iterdir())


def test_a_server_that_is_told_to_ends_when_nobody_has_been_there_for_so_long(node, lanes):
    server = serve(node, lanes, "--exit-when-idle", "1.5")
    loader = NodeLoader(lanes, framework="numpy")
    assert next(loader).step == 0
    time.sleep(4)
    assert server.poll() is None and next(loader).step == 1, "somebody is there, though it asks for nothing"
    loader.close()
    assert server.wait(60) == 0


def test_ctrl_c_ends_a_wait_for_a_server_and_for_a_batch(node, lanes):
    waiting = node.python("-c", "from laneway import NodeLoader; next(NodeLoader(name='nobody'))")
    serve(node, lanes, "--peers", "2")
    starving = node.python("-c", "from laneway import NodeLoader; [b for b in NodeLoader(peers=2)]")
    time.sleep(1.5)
    for process in (waiting, starving):
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        assert process.wait(20) != 0 and "KeyboardInterrupt" in process.log.read_text()
        assert time.monotonic() - start < 15


def test_the_steps_of_peers_rise_by_one(node, lanes):
    """The hand-over loses nothing and repeats nothing at full speed."""
    serve(node, lanes, "--slots", "1")
    batches, _ = heard(peer(node, lanes, batches=500))
    assert all(b[0] == a[0] + 1 for a, b in pairwise(batches))


def test_the_benchmark_runs_in_miniature(folder):
    script = Path(__file__).parents[3] / "benches" / "node_loader.py"
    done = subprocess.run([sys.executable, script, "--steps", "5"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.count("ms of CPU a step") == 3, done.stderr
