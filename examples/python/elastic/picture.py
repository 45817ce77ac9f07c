"""The picture of the demonstration: for each loader the losses of all runs, how far they are from the uninterrupted run's, and the barcode of their
global batches. A stripe is a step, its colour the hash of the step's rows: columns of one colour are the same batch."""

import colorsys
import math

from distill.picture import Axis

from .canvas import Canvas
from .record import Comparison, LoaderRecord, Record, RunRecord

INK, SOFT, RULE, RED, GOOD, WHOLE = "#1d2430", "#667085", "#e4e7ec", "#c8372d", "#1d7a4d", "#b9c4d6"
COLOURS = {1: "#1f5fbf", 2: "#2a9d8f", 4: "#e9a23b"}  # of the runs, by their number of ranks
WIDTH, LEFT, GAP, PANEL = 1240, 118, 150, 470
LOSS_TOP, LOSS_HEIGHT = 88, 250
APART_TOP, APART_HEIGHT = LOSS_TOP + LOSS_HEIGHT + 56, 110
BARS_TOP, BAR_HEIGHT, BAR_STRIDE = APART_TOP + APART_HEIGHT + 62, 30, 40
HEIGHT = BARS_TOP + 4 * BAR_STRIDE + 30
LEAST = 1e-7  # nats; smaller differences are drawn here


def draw(record: Record, on: Canvas) -> None:
    """The whole picture; `on` is `WIDTH` by `HEIGHT`."""
    highest = max(step.loss for loader in (record.laneway, record.standard) for run in (loader.whole, *loader.resumed) for step in run.steps.values())
    for column, loader in enumerate((record.laneway, record.standard)):
        left = LEFT + column * (PANEL + GAP)
        steps = Axis(0, record.steps, left, left + PANEL)
        on.text(left, 30, loader.name[0].upper() + loader.name[1:], INK, 20)
        on.text(left, 50, f"a checkpoint on {loader.whole.ranks} ranks at step {record.save_at}, resumed on 1, 2 and 4", SOFT, 13)
        _losses(loader, steps, Axis(0, highest * 1.05, LOSS_TOP + LOSS_HEIGHT, LOSS_TOP), on)
        _apart(loader, steps, on)
        _barcode(loader, steps, on)
        at = steps(record.save_at)
        on.line([(at, LOSS_TOP), (at, APART_TOP + APART_HEIGHT)], SOFT)
        on.text(at - 6, LOSS_TOP + 14, "checkpoint", SOFT, 12, "end")


def _losses(loader: LoaderRecord, steps: Axis, loss: Axis, on: Canvas) -> None:
    left, right = steps(steps.low), steps(steps.high)
    for tick in loss.ticks(5):
        on.line([(left, loss(tick)), (right, loss(tick))], RULE)
        on.text(left - 8, loss(tick) + 4, f"{tick:g}", SOFT, 12, "end")
    on.text(left - 38, LOSS_TOP - 10, "loss, nats a token", SOFT, 12)
    _curve(loader.whole, steps, loss, WHOLE, 5, on)
    for run in loader.resumed:
        _curve(run, steps, loss, COLOURS[run.ranks], 1.5, on)
    keys = [("uninterrupted, 2 ranks", WHOLE)] + [(f"resumed on {run.ranks}", COLOURS[run.ranks]) for run in loader.resumed]
    for line, (words, colour) in enumerate(keys):
        y = LOSS_TOP + LOSS_HEIGHT - 66 + 18 * line
        on.line([(left + 14, y - 4), (left + 36, y - 4)], colour, 3)
        on.text(left + 44, y, words, SOFT, 12)


def _curve(run: RunRecord, steps: Axis, loss: Axis, colour: str, width: float, on: Canvas) -> None:
    on.line([(steps(step + 0.5), loss(taken.loss)) for step, taken in sorted(run.steps.items())], colour, width)


def _apart(loader: LoaderRecord, steps: Axis, on: Canvas) -> None:
    """How far each resumed run's loss is from the uninterrupted one's, in powers of ten."""
    left, right = steps(steps.low), steps(steps.high)
    apart = Axis(math.log10(LEAST), 1.0, APART_TOP + APART_HEIGHT, APART_TOP)
    on.text(left - 38, APART_TOP - 10, "distance from the uninterrupted run's loss", SOFT, 12)
    for power in (-7, -5, -3, -1, 1):
        on.line([(left, apart(power)), (right, apart(power))], RULE)
        on.text(left - 8, apart(power) + 4, f"1e{power}", SOFT, 12, "end")
    for run in loader.resumed:
        points = [(step, max(abs(taken.loss - loader.whole.steps[step].loss), LEAST)) for step, taken in sorted(run.steps.items())]
        on.line([(steps(step + 0.5), apart(math.log10(size))) for step, size in points], COLOURS[run.ranks], 1.5)


def _barcode(loader: LoaderRecord, steps: Axis, on: Canvas) -> None:
    left = steps(steps.low)
    on.text(left, BARS_TOP - 12, "global batches by hash: the same colour in a column is the same batch", SOFT, 12)
    rows: list[tuple[RunRecord, str, Comparison | None]] = [(loader.whole, "uninterrupted", None)]
    rows += [(run, f"resumed on {run.ranks}", found) for run, found in zip(loader.resumed, loader.comparisons)]
    for number, (run, words, found) in enumerate(rows):
        top = BARS_TOP + number * BAR_STRIDE
        on.text(left - 10, top + BAR_HEIGHT / 2 + 4, words, INK, 12, "end")
        for step, taken in run.steps.items():
            on.box(steps(step), top, steps(step + 1) - steps(step) - 0.8, BAR_HEIGHT, colour_of(taken.hash))
            if found and taken.hash != loader.whole.steps[step].hash:
                on.box(steps(step), top + BAR_HEIGHT + 1, steps(step + 1) - steps(step), 3, RED)
        if found:
            verdict = f"{found.identical} of {found.steps} identical"
            on.text(steps(found.first) - 10, top + BAR_HEIGHT / 2 + 4, verdict, GOOD if found.same else RED, 12, "end")
    for tick in steps.ticks(4):
        on.text(steps(tick), BARS_TOP + len(rows) * BAR_STRIDE + 12, f"step {tick:g}", SOFT, 12, "middle")


def colour_of(digest: str) -> str:
    """A colour that a hash picks."""
    number = int(digest[:12], 16)
    red, green, blue = colorsys.hls_to_rgb(number % 360 / 360, 0.32 + number // 360 % 40 / 100, 0.45 + number // 14_400 % 40 / 100)
    return f"#{int(red * 255):02x}{int(green * 255):02x}{int(blue * 255):02x}"
