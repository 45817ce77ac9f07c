"""The programs of the published design run as written, but for the name of the package and an end to its endless loop."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch")
EXAMPLES = Path(__file__).parents[3] / "examples" / "python"

FORMAT = """
from laneway import BatchConfig, TensorSpec

config = BatchConfig([
    TensorSpec("x", (3, 224, 224), "float32"),
    TensorSpec("y", (1000,), "float32"),
])
"""

BROKER = """
from laneway import Broker, setup_logging

setup_logging("INFO")
Broker().run()
"""

WORKER = (
    FORMAT
    + """
import torch
from laneway import Worker, setup_logging

setup_logging("INFO")

def generate_sample(model_id: str, model_cfg: dict | None) -> bytes:
    # Your generation logic - runs once per sample
    x = torch.randn(3, 224, 224)
    y = torch.randn(1000)
    return config.encode(x=x, y=y)

Worker(
    generator_fn=generate_sample,
    slot_size=config.nbytes(),
).run()
"""
)

STUDENT = (
    FORMAT
    + """
from laneway import StudentClient, DistillIterableDataset, setup_logging

setup_logging("INFO")

client = StudentClient(
    student_rank=0,
    slot_count=16,
    batch_config=config,
)
client.hello()
client.set_model("my_model")

dataset = DistillIterableDataset(
    student_rank=0,
    generation_value=client.generation_value,
    slot_count=8,
    batch_config=config,
)

seen = 0
for batch in dataset:
    x, y = batch["x"], batch["y"]
    assert x.shape == (3, 224, 224) and y.shape == (1000,) and 0.9 < x.std() < 1.1
    seen += 1
    if seen == 50:
        break

client.close()
"""
)

RANKS = (
    FORMAT
    + """
import os
from laneway import StudentClient

rank = int(os.environ["RANK"])
with StudentClient(student_rank=rank, slot_count=4, batch_config=config) as client:
    if rank == 0:
        client.set_model("layer_0")
    else:
        client.start_sub_listener()
    ref = client.request_sample(timeout_ms=60_000)
    assert ref.generation == client.generation == client.generation_value.value == 1
    client.release_slot(ref.slot_id)
"""
)


@pytest.mark.parametrize("order", ["as listed", "backwards"])
def test_quick_start(folder, order, request):
    from conftest import House

    house = House(folder)
    request.addfinalizer(house.end)
    programs = [BROKER, WORKER, STUDENT] if order == "as listed" else [WORKER, BROKER, STUDENT]
    processes = [house.python("-c", program) for program in programs]
    assert processes[-1].wait(timeout=120) == 0, house.logs()


def test_ranks_under_torchrun(house, tmp_path):
    house.python("-c", WORKER)
    (tmp_path / "student.py").write_text(RANKS)
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    subprocess.run([*run, tmp_path / "student.py"], env=house.env, check=True, timeout=120)


@pytest.mark.parametrize("example", ["distill_min.py", "custom_medium.py"])
def test_examples_run(folder, example, request):
    from conftest import House

    house = House(folder)
    request.addfinalizer(house.end)
    process = house.python(str(EXAMPLES / example))
    assert process.wait(timeout=120) == 0, house.logs()


def test_the_example_runs_as_separate_programs(house):
    worker = house.python(str(EXAMPLES / "distill_min.py"), "worker")
    student = house.python(str(EXAMPLES / "distill_min.py"), "student")
    assert student.wait(timeout=120) == 0, house.logs()
    assert worker.poll() is None


def test_the_five_lines_of_the_documentation_run(house):
    """The Python blocks of docs/python.md, with a teacher, inputs and a trainer to be called."""
    text = (EXAMPLES.parents[1] / "docs" / "python.md").read_text()
    layout, broker, worker, student = (block.split("```")[0] for block in text.split("```python\n")[1:5])
    compile(broker, "broker", "exec")
    teacher = """
import torch
teacher = lambda inputs: inputs.sum(1, keepdim=True).expand(-1, 1000)
inputs_from = lambda seeds: torch.tensor(seeds, dtype=torch.float64)[:, None].float()
"""
    trainer = """
import torch
seen = []
class Done(Exception): pass
def train(x, y):
    assert x.shape == (32, 3, 224, 224) and y.shape == (32, 1000)
    seen.append(1)
    if len(seen) == 2: raise Done
"""
    house.python("-c", layout + teacher + worker)
    program = layout + trainer + "try:\n" + textwrap.indent(student, "    ") + "except Done: pass\n"
    assert house.python("-c", program).wait(timeout=120) == 0, house.logs()
