"""The picture: how far the student is from its teacher in every run, and for each run a barcode of its global batches (a stripe is a step, its colour
the hash of its rows' tokens and answers) over the makers of their rows (a cell is a row, its colour the worker)."""

from distill.picture import Axis
from elastic.canvas import Canvas
from elastic.picture import GOOD, INK, RED, RULE, SOFT, WHOLE, colour_of

from .record import Record, TaughtRun

RUNS = ("#1f5fbf", "#c8572d", "#2a9d8f", "#e9a23b", "#8a5fbf")
WORKERS = ("#2a9d8f", "#e9a23b", "#5b7fc7", "#b96ba8", "#7a8f3c", "#c98a5b", "#4f5d75", "#9a8c98")
WIDTH, LEFT, PANEL = 1240, 300, 860
LOSS_TOP, LOSS_HEIGHT = 76, 220
BARS_TOP, BAR_HEIGHT, MAKERS_HEIGHT, STRIDE = LOSS_TOP + LOSS_HEIGHT + 70, 28, 26, 74
LEGEND = 46


def height(record: Record) -> int:
    """Pixels, for so many runs."""
    return BARS_TOP + (1 + len(record.others)) * STRIDE + LEGEND


def draw(record: Record, on: Canvas) -> None:
    """The whole picture; `on` is `WIDTH` by `height(record)`."""
    steps = Axis(0, record.steps, LEFT, LEFT + PANEL)
    on.text(LEFT, 30, "Batches with a teacher's answers, whoever makes them", INK, 20)
    on.text(LEFT, 50, f"a checkpoint at step {record.save_at}, resumed on other numbers of ranks", SOFT, 13)
    _losses(record, steps, on)
    lanes = 1 + max(lane for lane, _ in record.whole.makers)
    on.text(LEFT, BARS_TOP - 12, "global batches by hash of tokens and answers: the same colour in a column is the same; below, who made each row", SOFT, 12)
    _barcode(record, record.whole, None, 0, lanes, steps, on)
    for number, (run, found) in enumerate(record.comparisons, 1):
        verdict = f"{found.identical} of {found.steps} identical"
        _barcode(record, run, (verdict, GOOD if found.same else RED), number, lanes, steps, on)
    bottom = height(record) - LEGEND
    for tick in steps.ticks(7):
        on.text(steps(tick), bottom + 4, f"step {tick:g}", SOFT, 12, "middle")
    for worker in range(1 + max(max(run.makers.values()) for run in (record.whole, *record.others))):
        on.box(LEFT + 100 * worker, bottom + 20, 12, 12, WORKERS[worker % len(WORKERS)])
        on.text(LEFT + 18 + 100 * worker, bottom + 31, f"worker {worker}", SOFT, 12)


def _losses(record: Record, steps: Axis, on: Canvas) -> None:
    runs = (record.whole, *record.others)
    highest = max(step.loss for run in runs for step in run.batches.steps.values())
    loss = Axis(0, highest * 1.05, LOSS_TOP + LOSS_HEIGHT, LOSS_TOP)
    for tick in loss.ticks(4):
        on.line([(LEFT, loss(tick)), (LEFT + PANEL, loss(tick))], RULE)
        on.text(LEFT - 8, loss(tick) + 4, f"{tick:g}", SOFT, 12, "end")
    on.text(LEFT - 38, LOSS_TOP - 10, "KL divergence of the student from its teacher, nats a token", SOFT, 12)
    for number, run in enumerate(runs):
        points = [(steps(step + 0.5), loss(taken.loss)) for step, taken in sorted(run.batches.steps.items())]
        colour, width = (RUNS[number % len(RUNS)], 1.5) if number else (WHOLE, 6)
        on.line(points, colour, width)
        y = LOSS_TOP + 16 + 18 * number
        on.line([(LEFT + PANEL - 250, y - 4), (LEFT + PANEL - 228, y - 4)], colour, 3)
        on.text(LEFT + PANEL - 220, y, run.name, SOFT, 12)
    at = steps(record.save_at)
    on.line([(at, LOSS_TOP), (at, LOSS_TOP + LOSS_HEIGHT)], SOFT)
    on.text(at - 6, LOSS_TOP + LOSS_HEIGHT - 8, "checkpoint", SOFT, 12, "end")


def _barcode(record: Record, run: TaughtRun, verdict: tuple[str, str] | None, number: int, lanes: int, steps: Axis, on: Canvas) -> None:
    top = BARS_TOP + number * STRIDE
    on.text(LEFT - 10, top + 13, run.name, INK, 12, "end")
    if verdict:
        on.text(LEFT - 10, top + 30, verdict[0], verdict[1], 12, "end")
    wide = steps(1) - steps(0) - 1.5
    for step, taken in run.batches.steps.items():
        on.box(steps(step), top, wide, BAR_HEIGHT, colour_of(taken.hash))
        if taken.hash != record.whole.batches.steps[step].hash:
            on.box(steps(step), top - 4, wide, 3, RED)
    tall = MAKERS_HEIGHT / lanes
    for (lane, row), worker in run.makers.items():
        if run.first <= row < record.steps:
            on.box(steps(row), top + BAR_HEIGHT + 3 + lane * tall, wide, tall - 1, WORKERS[worker % len(WORKERS)])
    for loss in run.losses:
        for lane, row in loss.tickets:
            y, low = top + BAR_HEIGHT + 3 + lane * tall, top + BAR_HEIGHT + 2 + (lane + 1) * tall
            on.line([(steps(row), y), (steps(row) + wide, y), (steps(row) + wide, low), (steps(row), low), (steps(row), y)], RED, 1.5)
        on.text(steps(loss.tickets[0][1]), top + BAR_HEIGHT + MAKERS_HEIGHT + 15, f"worker {loss.worker} killed", RED, 11)
