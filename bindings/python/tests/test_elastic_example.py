"""The elastic part of `make demo` in miniature: real ranks, two loaders, a checkpoint, resumes on one, two and four ranks."""

import importlib.util
import os
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "python"
sys.path.insert(0, str(EXAMPLE))

NEEDED = ("torch", "torchdata", "tokenizers", "tqdm", "PIL")
missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if missing:
    reason = f"not installed: {', '.join(missing)} (scripts/setup_venv.sh installs them)"
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(f"tests of the elastic example skipped, {reason}", allow_module_level=True)

from elastic.page import write_page  # noqa: E402
from elastic.record import LoaderRecord, Record, RunRecord, Step, read_run  # noqa: E402

SAVED_AT, STEPS = 3, 6


def python(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(EXAMPLE), *(p for p in sys.path if p)])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *args], env=env, cwd=folder, capture_output=True, text=True, timeout=500)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One demonstration with a spoilt batch, and what it left behind."""
    folder = tmp_path_factory.mktemp("elastic")
    sizes = ["--steps", str(STEPS), "--save-at", str(SAVED_AT), "--width", "32", "--blocks", "1"]
    done = python(folder, "-m", "elastic.play", str(folder), *sizes, "--swap-rows-at", "4")
    (folder / "said").write_text(f"{done.returncode}\n{done.stdout}\n{done.stderr}")
    return folder


def test_one_spoilt_batch_is_named_and_the_exit_status_says_so(folder: Path) -> None:
    said = (folder / "said").read_text()
    assert said.startswith("1\n"), said
    assert "demo: laneway, resumed on 4 ranks: the global batch of step 4 is another (2 of 3 are identical)" in said
    assert said.count("demo: ") == 1, said


def test_all_other_batches_are_identical_and_the_losses_close(folder: Path) -> None:
    whole = read_run(folder / "elastic" / "laneway" / "whole")
    assert list(whole.steps) == list(range(STEPS)) and len({step.hash for step in whole.steps.values()}) == STEPS
    for ranks in (1, 2):
        resumed = read_run(folder / "elastic" / "laneway" / f"on-{ranks}")
        assert resumed.ranks == ranks and list(resumed.steps) == list(range(SAVED_AT, STEPS))
        for number, step in resumed.steps.items():
            assert step.hash == whole.steps[number].hash
            assert step.loss == pytest.approx(whole.steps[number].loss, abs=1e-3)


def test_the_standard_loader_resumes_on_as_many_ranks_and_only_on_those(folder: Path) -> None:
    whole = read_run(folder / "elastic" / "standard" / "whole")
    identical = {}
    for ranks in (1, 2, 4):
        resumed = read_run(folder / "elastic" / "standard" / f"on-{ranks}")
        identical[ranks] = sum(step.hash == whole.steps[number].hash for number, step in resumed.steps.items())
    assert identical == {1: 0, 2: STEPS - SAVED_AT, 4: 0}


def test_a_user_resumes_the_run_with_torchrun(folder: Path) -> None:
    program, run = str(EXAMPLE / "elastic_train.py"), folder / "elastic" / "laneway" / "whole"
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", program]
    sizes = ["--steps", str(STEPS), "--save-at", str(SAVED_AT), "--width", "32", "--blocks", "1"]
    done = python(folder, *torchrun, "by-hand", "--resume", str(run), "--data", str(folder / "elastic" / "data"), *sizes)
    assert done.returncode == 0, done.stderr
    by_hand, whole = read_run(folder / "by-hand"), read_run(run)
    assert {number: step.hash for number, step in by_hand.steps.items()} == {n: whole.steps[n].hash for n in range(SAVED_AT, STEPS)}


def a_record(hashes: str, losses: list[float]) -> Record:
    """A made-up demonstration: four steps, a checkpoint after two, a resumed run with these hashes and losses."""
    whole = RunRecord(2, {i: Step(letter * 64, 4.0 - i) for i, letter in enumerate("abcd")})
    resumed = RunRecord(1, {2 + i: Step(letter * 64, loss) for i, (letter, loss) in enumerate(zip(hashes, losses))})
    loader = LoaderRecord("Laneway", whole, [resumed])
    return Record(loader, LoaderRecord("a standard loader", whole, [resumed]), save_at=2, steps=4)


def test_the_page_and_the_picture_show_a_run_and_are_whole_in_themselves(tmp_path: Path) -> None:
    record = a_record("cd", [2.001, 1.0])
    assert record.faults() == []
    path, picture = write_page(record, tmp_path)
    page = path.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000
    assert not any(word in page for word in ("http:", "https:", "src=", "<link", "<script"))
    drawing = xml.etree.ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    words = [element.text for element in drawing.iter("text")]
    assert {"Laneway", "A standard loader", "uninterrupted", "resumed on 1", "2 of 2 identical"} <= set(words)
    assert "within 0.001" in page


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        (a_record("ce", [2.0, 1.0]), "laneway, resumed on 1 rank: the global batch of step 3 is another (1 of 2 are identical)"),
        (a_record("cd", [2.0, 1.5]), "same batches, but losses 0.5 nats apart; expected at most 0.05"),
        (a_record("c", [2.0]), "took 1 steps from 2, expected 2 from 2"),
    ],
    ids=["another batch", "losses apart", "a step short"],
)
def test_what_laneway_did_not_keep_is_a_fault_and_on_the_page(record: Record, fault: str, tmp_path: Path) -> None:
    assert any(fault in words for words in record.faults())
    assert fault in write_page(record, tmp_path)[0].read_text()


def test_the_demo_fails_if_any_part_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed: the demo as a whole was not tried")
    spec = importlib.util.spec_from_file_location("demo", EXAMPLE.parent / "demo.py")
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    names = list(demo.PARTS)
    assert names == ["distill", "generate", "elastic"]
    for ends, part, status in [((0, 0, 0), [], 0), ((1, 0, 0), [], 1), ((0, 1, 0), [], 1), ((0, 0, 1), [], 1), ((1, 1, 0), ["--part", "elastic"], 0)]:
        monkeypatch.setattr(demo, "PARTS", {name: lambda _, end=end: end for name, end in zip(names, ends, strict=True)})
        monkeypatch.setattr(sys, "argv", ["demo.py", str(tmp_path), *part])
        assert demo.main() == status
