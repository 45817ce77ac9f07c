"""The drawing of a run: losses above, the workers' throughput below, on one axis of time. Plain SVG."""

from collections.abc import Iterable
from html import escape

from .record import Run, StageRecord, StudentRecord

WIDTH, LEFT, RIGHT = 1120, 64, 64
LOSS_TOP, LOSS_HEIGHT = 64, 300
STRIP_TOP, STRIP_HEIGHT = LOSS_TOP + LOSS_HEIGHT + 60, 120
HEIGHT = STRIP_TOP + STRIP_HEIGHT + 44
BIN_SECONDS = 2.0


class Axis:
    """A linear map from data to pixels."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high, self._start, self._scale = low, high, start, (end - start) / ((high - low) or 1)

    def __call__(self, value: float) -> float:
        return round(self._start + (value - self.low) * self._scale, 1)

    def ticks(self, about: int) -> list[float]:
        """Round values, `about` as many as asked."""
        rough = (self.high - self.low) / about or 1
        power = 10.0 ** (len(f"{rough:.0f}") - 1) if rough >= 1 else 0.01 if rough < 0.1 else 0.1
        step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough)
        return [round(i * step, 6) for i in range(round(self.low / step), int(self.high / step + 1e-9) + 1) if i * step >= self.low - 1e-9]


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="{kind}"/>'


def path(points: Iterable[tuple[float, float]], kind: str) -> str:
    joined = " L".join(f"{x} {y}" for x, y in points)
    return f'<path d="M{joined}" class="{kind}"/>' if joined else ""


def draw(run: Run) -> str:
    """The SVG element of the whole picture."""
    began = run.students[0].began
    time = Axis(0, run.students[-1].ended - began, LEFT, WIDTH - RIGHT)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Losses and throughput of the run over time">']
    parts += _stages(run, time, began)
    for student, on_right in zip(run.students, (False, True)):
        parts += _losses(student, time, began, on_right)
    parts += _throughput(run, time, began)
    parts += _marks(run, time, began)
    return "\n".join([*parts, "</svg>"])


def _stages(run: Run, time: Axis, began: float) -> list[str]:
    """A band for each model id, from its `set_model` to the next."""
    parts, label_end = [], 0.0
    for student in run.students:
        ends = [stage.began for stage in student.stages[1:]] + [student.ended]
        for number, (stage, end) in enumerate(zip(student.stages, ends)):
            left, right = time(stage.began - began), time(end - began)
            band = "band odd" if number % 2 else "band"
            parts.append(f'<rect x="{left}" y="{LOSS_TOP}" width="{right - left:.1f}" height="{LOSS_HEIGHT}" class="{band}"/>')
            parts.append(line(left, LOSS_TOP - 8, left, STRIP_TOP + STRIP_HEIGHT, "switch"))
            row = 1 if left < label_end else 0  # a stage too short for its name: the next one's goes above
            label_end = left + 12 + 9 * len(stage.model)
            parts.append(text(left + 6, LOSS_TOP - 12 - 18 * row, stage.model, "model", "start"))
    return parts


def _losses(student: StudentRecord, time: Axis, began: float, on_right: bool) -> list[str]:
    """One student's losses against its own vertical axis."""
    highest = max(loss for stage in student.stages for *_, loss in _points(stage))
    loss = Axis(0, highest * 1.08, LOSS_TOP + LOSS_HEIGHT, LOSS_TOP)
    start, end = time(student.stages[0].began - began), time(student.ended - began)
    edge, anchor, nudge = (end, "start", 8) if on_right else (start, "end", -8)
    unit = "KL divergence, nats a token" if on_right else "1 − cosine of hidden states"
    middle = LOSS_TOP + LOSS_HEIGHT / 2
    turn_x = edge + (46 if on_right else -46)
    parts = [f'<g transform="rotate(-90 {turn_x} {middle})">{text(turn_x, middle, unit, "axis")}</g>']
    for tick in loss.ticks(5):
        parts.append(line(start, loss(tick), end, loss(tick), "grid"))
        parts.append(text(edge + nudge, loss(tick) + 4, f"{tick:g}", "tick", anchor))
    for stage in student.stages:
        parts.append(path(((time(t - began), loss(value)) for t, value in stage.train), "train"))
        held_out = [(time(t - began), loss(value)) for t, value, _ in stage.held_out]
        parts.append(path(held_out, "held-out"))
        for (x, y), (_, value, agreement) in zip(held_out, stage.held_out):
            note = f"{stage.model}, held-out loss {value:.3f}" + (f", agreement {agreement:.0%}" if agreement is not None else "")
            parts.append(f'<circle cx="{x}" cy="{y}" r="3.5" class="point"><title>{escape(note)}</title></circle>')
        if held_out:
            (first_x, first_y), (last_x, last_y) = held_out[0], held_out[-1]
            parts.append(text(first_x + 8, first_y + 3, f"{stage.held_out[0][1]:.2f}", "value", "start"))
            parts.append(text(last_x, last_y + 19, f"{stage.held_out[-1][1]:.2f}", "value", "end"))
    return parts


def _points(stage: StageRecord) -> list[tuple[float, float]]:
    return stage.train + [(t, loss) for t, loss, _ in stage.held_out]


def _throughput(run: Run, time: Axis, began: float) -> list[str]:
    """Samples a second, a stacked bar for each two seconds, a colour for each worker."""
    bins = int(time.high / BIN_SECONDS) + 1
    rates = [[0.0] * bins for _ in run.workers]
    for worker, row in zip(run.workers, rates):
        for end, seconds, samples in worker.made:
            _spread(row, end - seconds - began, end - began, samples)
    rate = Axis(0, max(max(map(sum, zip(*rates))), 1) * 1.1, STRIP_TOP + STRIP_HEIGHT, STRIP_TOP)
    middle = STRIP_TOP + STRIP_HEIGHT / 2
    parts = [f'<g transform="rotate(-90 {LEFT - 46} {middle})">{text(LEFT - 46, middle, "samples/s", "axis")}</g>']
    for tick in rate.ticks(3):
        parts.append(line(LEFT, rate(tick), WIDTH - RIGHT, rate(tick), "grid"))
        parts.append(text(LEFT - 8, rate(tick) + 4, f"{tick:g}", "tick", "end"))
    for column in range(bins):
        left = time(column * BIN_SECONDS)
        width = min(time((column + 1) * BIN_SECONDS), WIDTH - RIGHT) - left - 1
        base = 0.0
        for number, (worker, row) in enumerate(zip(run.workers, rates)):
            if row[column] and width > 0:
                height = rate(base) - rate(base + row[column])
                note = f"{worker.name}: {row[column]:.1f} samples/s"
                parts.append(
                    f'<rect x="{left:.1f}" y="{rate(base + row[column])}" width="{width:.1f}" height="{height:.1f}" class="worker{number}">'
                    f"<title>{escape(note)}</title></rect>"
                )
                base += row[column]
    bottom = STRIP_TOP + STRIP_HEIGHT
    parts.append(line(LEFT, bottom, WIDTH - RIGHT, bottom, "base"))
    for tick in time.ticks(8):
        parts.append(text(time(tick), bottom + 18, f"{tick:g} s", "tick"))
    return parts


def _spread(row: list[float], begin: float, end: float, samples: int) -> None:
    """Add a batch to the bins that it was made in, as samples a second."""
    pace = samples / max(end - begin, 1e-3) / BIN_SECONDS
    for number in range(max(0, int(begin / BIN_SECONDS)), min(len(row) - 1, int(end / BIN_SECONDS)) + 1):
        overlap = min(end, (number + 1) * BIN_SECONDS) - max(begin, number * BIN_SECONDS)
        row[number] += pace * max(overlap, 0)


def _marks(run: Run, time: Axis, began: float) -> list[str]:
    """What was done to a worker, across both charts."""
    parts = []
    for moment, _, what in run.marks:
        x, kind = time(moment - began), "kill" if what == "killed" else "back"
        parts.append(line(x, LOSS_TOP, x, STRIP_TOP + STRIP_HEIGHT, kind))
        label = "✕ SIGKILL" if kind == "kill" else "↻ started again"
        parts.append(text(x - 5 if kind == "kill" else x + 5, STRIP_TOP - 8, label, f"{kind}-label", "end" if kind == "kill" else "start"))
    return parts
