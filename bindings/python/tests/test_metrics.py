"""Numbers of everything that is open: asked for in the process, over HTTP, and by the ``laneway`` program, with and without a broker."""

import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from conftest import wait_until
from peers import CONFIG

import laneway
from laneway import Loader, StudentClient, _native

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def listed(noun):
    """The keys that the page lists for ``Loaders``, say."""
    section = PAGE.read_text().split(f"## {noun}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)` \| `laneway_", section, re.MULTILINE))


def program() -> str:
    found = os.environ.get("LANEWAY_BIN") or _native.find_library().parent / "laneway"
    assert Path(found).exists(), f"{found} is missing: cargo build --release"
    return str(found)


def run(*words):
    return subprocess.run([program(), *words], capture_output=True, text=True, check=False)


def fetch(port, path="/metrics"):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return answer.read().decode()


def test_students_and_workers_are_counted(house):
    house.worker("fill")
    with StudentClient(0, 4, CONFIG, group="numbers") as client:
        client.set_model("m")
        for _ in range(5):
            client.request_sample(timeout_ms=60_000).release()
        (student,) = laneway.metrics()["students"]
        assert (student["group"], student["rank"], student["role"], student["lane"], student["pid"]) == ("numbers", 0, "client", 0, os.getpid())
        assert student["counters"]["delivered"] == 5 and student["counters"]["generation"] == 1 and student["counters"]["waited_ns"] > 0
        assert student["counters"].pop("refusals") == [], "in JSON alone: it is no number"
        assert student["counters"].keys() == listed("Students")
        line = 'laneway_student_samples_total{group="numbers",rank="0",role="client",lane="0",pid="%d"} 5\n' % os.getpid()
        assert line in laneway.metrics_text()
        with laneway.serve_metrics() as server:
            assert line in fetch(server.port)
            with pytest.raises(urllib.error.HTTPError, match="404"):
                fetch(server.port, "/")
            with pytest.raises(OSError, match=str(server.port)):
                laneway.serve_metrics(server.port)
        with pytest.raises(urllib.error.URLError):
            fetch(server.port)

        def from_the_broker():
            numbers = json.loads(run("metrics", "--json").stdout)
            workers, students = numbers["workers"], numbers["students"]
            return workers and workers[0]["report"] and students[0]["report"] and students[0]["report"]["counters"]["delivered"] == 5 and numbers

        wait_until(from_the_broker, "both reports")
        numbers = from_the_broker()
        assert numbers["workers"][0]["report"]["counters"].keys() == listed("Workers") and numbers["broker"]["pairs"] == 1
        text = run("metrics").stdout
        assert 'laneway_student_samples_total{group="numbers"' in text and "laneway_worker_samples_total{worker_id=" in text
    assert laneway.metrics()["students"] == []


def test_a_forked_child_tells_nothing_of_its_parents_handles(house):
    with StudentClient(0, 4, CONFIG):
        assert len(laneway.metrics()["students"]) == 1
        child = os.fork()
        if child == 0:
            os._exit(0 if laneway.metrics()["students"] == [] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_loader_counts_what_it_delivered(lanes, folder):
    loader = Loader(lanes, framework="numpy")
    tokens = rows = 0
    for _ in range(30):
        batch = next(loader)
        rows += len(batch.input_ids)
        tokens += int(batch.provenance["length"].sum())
    (entry,) = [e for e in laneway.metrics()["loaders"] if e["counters"]["batches"] == 30]
    counters = entry["counters"]
    assert (entry["rank"], entry["ranks"]) == (0, 1) and counters.keys() == listed("Loaders")
    assert counters["rows"] == rows and counters["step"] == 30 and counters["waited_ns"] > 0
    assert counters["tokens"] == tokens == sum(counters["dataset_tokens"].values()) and counters["padding"] == rows * 32 - tokens
    shares = {name: n / tokens for name, n in counters["dataset_tokens"].items()}
    assert shares.keys() == {"wiki", "news"} and all(0.3 < share < 0.7 for share in shares.values()), shares
    assert 'dataset="wiki"} ' in laneway.metrics_text()
    loader.close()


def test_top_shows_loaders_of_other_processes_without_a_broker(lanes, folder):
    loader = Loader(lanes, framework="numpy")
    assert "is a broker running" in run("top", "--once").stderr
    files = folder / "loaders"
    end = time.monotonic() + 30
    while not list(files.glob("*.json")):
        assert time.monotonic() < end, "no file"
        next(loader)
        time.sleep(0.02)
    shown = run("top", "--once").stdout
    assert "no broker" in shown and "LOADER" in shown and re.search(r"^0/1 +%d " % os.getpid(), shown, re.MULTILINE), shown
    (entry,) = json.loads(run("metrics", "--json").stdout)["loaders"]
    assert entry["pid"] == os.getpid() and entry["counters"]["batches"] > 0
    assert 'laneway_loader_batches_total{rank="0",ranks="1",pid="%d"} ' % os.getpid() in run("metrics").stdout
    # What a process leaves that was killed is neither shown nor kept.
    (file,) = files.glob("*.json")
    (files / "7fffffff_1_2.json").write_text(file.read_text())
    assert len(json.loads(run("top", "--once", "--json").stdout)["loaders"]) == 1
    assert "7fffffff_1_2.json: of the dead process" in run("clean").stdout
    assert [f.name for f in files.iterdir()] == [file.name]
    loader.close()
    assert list(files.iterdir()) == []


def test_a_broker_answers_prometheus(folder):
    log = open(folder / "broker.log", "w")
    broker = subprocess.Popen([program(), "broker", "--metrics-port", "0"], stderr=log, stdout=log)
    try:
        address = re.compile(r"metrics at http://127.0.0.1:(\d+)/metrics")
        wait_until(lambda: address.search((folder / "broker.log").read_text()), "the address in the log")
        port = int(address.search((folder / "broker.log").read_text())[1])
        with StudentClient(3, 4, CONFIG):
            text = fetch(port)
            assert "laneway_broker_students 1\n" in text and 'laneway_broker_messages_total{kind="' in text
            assert listed("Brokers") >= {"uptime_s", "messages"}
    finally:
        broker.terminate()
    assert broker.wait(20) == 0
    bad = run("broker", "--metrics-port", "many")
    assert bad.returncode == 2 and "--metrics-port 'many'" in bad.stderr
