"""`make bench` in miniature: it runs, measures what it says, and tells a missed aim without failing. No speed is asserted here."""

import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

BENCHES = Path(__file__).parents[3] / "benches"


def run(tmp_path: Path, *rows: str, **env: str) -> tuple[str, list[dict]]:
    """What was printed, and the rows of the JSON file."""
    command = [sys.executable, BENCHES / "run.py", "--rounds", "1", "--seconds", "0.02", "--results", tmp_path, "--only", *rows]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(next(tmp_path.glob("*.json")).read_text())["rows"]


@pytest.fixture
def harness(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHES))
    return importlib.import_module


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the benchmarks need two cores")
def test_the_exchange_is_measured_beside_its_peers(tmp_path):
    printed, rows = run(tmp_path, "in_place", "scaling")
    for row in rows:
        assert row["title"] in printed
        for line in row["lines"]:
            assert line["missing"] is None and line["figures"]["samples/s"] > 0 and line["figures"]["CPU µs/sample"] > 0, line
        assert all(aim["value"] > 0 and aim["met"] is not None for aim in row["aims"])
        for windows in row["raw"].values():
            assert all(w["samples"] > 0 and w["wall_s"] > 0 for w in windows) and len(windows) == 1


def small_corpus(folder: Path) -> Path:
    """Text and a tokenizer laid out as benches/harness/corpus.py does it: some hundred documents, byte-pairs of their own."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    texts = [f"document {i}: " + " ".join(f"word{i * j % 97}" for j in range(60)) + "\n" for i in range(600)]
    (folder / "text").mkdir(parents=True)
    for part in range(2):
        (folder / "text" / f"{part}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[part::2]))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=500, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False))
    (folder / "gpt2").mkdir()
    tokenizer.save(str(folder / "gpt2" / "tokenizer.json"))
    return folder


# zephon takes ten seconds to its first batch, and longer on a busy machine.
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the benchmarks need two cores")
def test_lanes_are_measured_beside_their_peers_and_without_cargo_the_rest_still_is(tmp_path):
    path = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if not (Path(p) / "cargo").exists())
    printed, rows = run(tmp_path, "lanes", "lanes_state", PATH=path, LANEWAY_BENCH_CORPUS=str(small_corpus(tmp_path / "corpus")))
    lines = {(row["title"], line["title"]): line for row in rows for line in row["lines"]}
    for (title, name), line in lines.items():
        assert title in printed
        if "Rust" in title + name or name in ("2 threads", "1 thread", "benches/lanes.rs"):
            assert line["missing"] is not None and "cargo is not on the PATH" in line["missing"], line
        else:
            assert line["missing"] is None and all(value > 0 for value in line["figures"].values()), line
    measured = {name for (_, name), line in lines.items() if line["missing"] is None}
    assert measured >= {"laneway, from Python", "zephon 0.2.0", "grain 0.2.18", "256 lanes", "Python, NumPy only", "C"}
    aims = {aim["text"]: aim for row in rows for aim in row["aims"]}
    assert aims["tokens per CPU-second of grain: ≥ 60×"]["met"] is not None
    assert aims["tokens per CPU-second of tokenizers 1.0 alone: ≥ 0.8×"]["met"] is None, "what was not measured is neither met nor missed"


def test_the_node_loader_is_measured_beside_an_in_process_loader(tmp_path):
    printed, rows = run(tmp_path, "node", LANEWAY_BENCH_CORPUS=str(small_corpus(tmp_path / "corpus")))
    (row,) = rows
    assert row["title"] in printed and [line["figures"]["of in-process"] > 0 for line in row["lines"]] == [True] * 3
    assert row["lines"][0]["figures"]["of in-process"] == 1 and [aim["met"] is not None for aim in row["aims"]] == [True] * 2


def test_ranks_are_measured_beside_one_and_a_picture_shows_the_peers(tmp_path, harness):
    if shutil.which("cargo") is None:
        pytest.skip("needs cargo")
    _, rows = run(tmp_path, "lanes_ranks", LANEWAY_BENCH_CORPUS=str(small_corpus(tmp_path / "corpus")))
    (row,) = rows
    assert [line["title"] for line in row["lines"]] == ["1 rank", "2 ranks", "4 ranks", "8 ranks"]
    assert [len(turns[0]) for turns in row["raw"].values()] == [1, 2, 4, 8], "every rank ran"
    tokens = [sum(found["tokens"] for found in turns[0]) for turns in row["raw"].values()]
    assert len(set(tokens)) == 1, "all ranks together did the same"
    assert not list(tmp_path.glob("*-lanes.svg")), "nothing to draw"

    report, picture = harness("harness.report"), harness("harness.picture")
    lines = [report.Line("laneway, from Python", {"M tokens/CPU-s": 50.0}), report.Line("grain", {"M tokens/CPU-s": 1.0}), report.Line("<zephon>", missing="no")]
    drawn = picture.lanes([report.Row("lanes: read, tokenize, wrap 2048", lines)])
    (_, *bars) = ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}rect")
    widths = [float(bar.get("width")) for bar in bars]
    assert widths[0] == pytest.approx(50 * widths[1], rel=0.01) and widths[2] == 0 and "&lt;zephon&gt;" in drawn and "not measured" in drawn


def test_cpu_of_another_process_is_what_that_process_used(harness):
    process_cpu = harness("harness.serve").process_cpu
    with subprocess.Popen([sys.executable, "-c", "input(); import time\nwhile time.process_time() < 0.5: pass\ninput()"], stdin=subprocess.PIPE) as busy:
        assert busy.stdin is not None
        busy.stdin.write(b"\n")
        busy.stdin.flush()
        end = time.monotonic() + 60
        while process_cpu(busy.pid) < 0.5 and time.monotonic() < end:
            time.sleep(0.01)
        before = process_cpu(busy.pid)
        time.sleep(0.2)
        assert process_cpu(busy.pid) - before < 0.1, "it sleeps by now"
        assert 0.5 <= process_cpu(busy.pid) < 1.0
        busy.kill()


def test_a_peer_that_fails_is_told_and_leaves_the_others_alone(harness):
    session, report, plan = map(harness, ("harness.session", "harness.report", "harness.plan"))
    peers = [session.Peer("memcpy", "memcpy", {"bytes": 64, "slots": 2}), session.Peer("broken", "memcpy", {"bytes": "many", "slots": 2})]
    results = plan.Plan(1, 0.01).interleave(peers)
    assert plan.times(results, "memcpy", "broken") is None
    row = report.Row("row", report.lines(results), [report.Aim.at_least("of broken", None, 2)])
    assert "invalid int value: 'many'" in row.show() and "not measured" in row.show()
    assert results["memcpy"].rate > 0


def test_an_aim_is_met_at_its_very_value(harness):
    aim = harness("harness.report").Aim
    assert aim.at_least("x", 30.0, 30).met and not aim.at_least("x", 29.9, 30).met
    assert aim.at_most("x", 1.2, 1.2).met and not aim.at_most("x", 1.21, 1.2).met
