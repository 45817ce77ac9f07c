"""The smallest distillation: a teacher makes samples, a student learns from them, and a broker brings them together.

python distill_min.py            everything from one command: teacher, student and broker
python distill_min.py worker     a teacher alone: start as many as you like, now or later
python distill_min.py student    a student alone, for `laneway broker` and teachers that run already
"""

import sys

import torch

from laneway import BatchConfig, DistillIterableDataset, StudentClient, Task, TensorSpec, Worker, setup_logging
from laneway.torch import DataLoader

FEATURES = 16

# One sample: what the teacher was shown, and what it answered.
config = BatchConfig([
    TensorSpec("x", (FEATURES,), "float32"),
    TensorSpec("y", (1,), "float32"),
])  # fmt: skip


def teach(tasks: list[Task]) -> None:
    """Makes a batch of samples in place. All randomness comes from each task's seed, so any teacher makes the same."""
    teacher = torch.linspace(-1, 1, FEATURES) * tasks[0].model_cfg["scale"]
    for task in tasks:
        generator = torch.Generator().manual_seed(task.seed)
        task["x"].normal_(generator=generator)
        task["y"][0] = task["x"] @ teacher


def worker() -> Worker:
    return Worker(fill_fn=teach, batch_config=config, batch_size=8)


def student(broker: str | None) -> None:
    with StudentClient(student_rank=0, slot_count=8, batch_config=config, broker=broker) as client:
        client.set_model("linear", {"scale": 1.0})
        dataset = DistillIterableDataset(0, client.generation_value, slot_count=64, batch_config=config)
        model = torch.nn.Linear(FEATURES, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step, batch in enumerate(DataLoader(dataset, batch_size=32)):
            loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"step {step:4d}  loss {loss.item():.6f}")
            if step == 200:
                assert loss.item() < 1e-3, "the student did not learn"
                break


if __name__ == "__main__":
    setup_logging("INFO")
    role = sys.argv[1] if len(sys.argv) > 1 else "both"
    if role == "worker":
        worker().run()
    elif role == "student":
        student(broker=None)
    elif role == "both":
        # The student starts the broker; a worker waits until there is one.
        import threading

        teacher = worker()
        threading.Thread(target=teacher.run, daemon=True).start()
        student(broker="embedded")
        teacher.stop()
    else:
        sys.exit(f"unknown role {role!r}; expected worker, student, or nothing for both")
