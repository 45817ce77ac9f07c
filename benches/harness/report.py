"""What was measured, as a table for people and as JSON for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from harness.session import Result


@dataclass
class Line:
    """One peer in a row: its figures by column, already in the column's unit."""

    title: str
    figures: dict[str, float] = field(default_factory=dict)
    missing: str | None = None


@dataclass
class Aim:
    """A promise, and what came of it. ``value`` is None where a peer is missing."""

    text: str
    value: float | None
    met: bool | None
    unit: str = "×"

    @staticmethod
    def at_least(text: str, value: float | None, wanted: float) -> Aim:
        return Aim(f"{text}: ≥ {wanted:g}×", value, None if value is None else value >= wanted)

    @staticmethod
    def at_most(text: str, value: float | None, wanted: float, unit: str = "×") -> Aim:
        return Aim(f"{text}: ≤ {wanted:g}{unit}", value, None if value is None else value <= wanted, unit)


@dataclass
class Row:
    """One comparison. The first line is Laneway's, by which the others are divided in the column ``by`` (of figures where more is better)."""

    title: str
    lines: list[Line] = field(default_factory=list)
    aims: list[Aim] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)

    def show(self) -> str:
        """The row as text."""
        columns = list(dict.fromkeys(name for line in self.lines for name in line.figures))
        first = max((len(line.title) for line in self.lines), default=0)
        widths = {name: max(len(name), *(len(number(line.figures.get(name))) for line in self.lines)) for name in columns}
        out = [self.title, "  " + " " * first + "".join(f"  {name:>{widths[name]}}" for name in columns)]
        for line in self.lines:
            cells = "".join(f"  {number(line.figures.get(name)):>{widths[name]}}" for name in columns)
            out.append(f"  {line.title:<{first}}" + (f"  not measured: {line.missing}" if line.missing else cells))
        for aim in self.aims:
            verdict = {True: "met", False: "MISSED", None: "not measured"}[aim.met]
            value = "" if aim.value is None else f"{number(aim.value)}{aim.unit}, "
            out.append(f"  aim  {aim.text} → {value}{verdict}")
        out += [f"  note  {note}" for note in self.notes]
        return "\n".join(out) + "\n"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def number(value: float | None) -> str:
    """Three figures that matter."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def lines(results: dict[str, Result], round_trip: bool = False) -> list[Line]:
    """A line for each peer."""
    out = []
    for title, result in results.items():
        if result.failure is not None:
            out.append(Line(title, missing=result.failure.replace("\n", " | ")))
        elif round_trip:
            out.append(Line(title, {"p50 µs": result.p50, "p99 µs": result.p99, "CPU µs/sample": result.cpu}))
        else:
            out.append(Line(title, {"samples/s": result.rate, "CPU µs/sample": result.cpu}))
    return out


def raw(results: dict[str, Result]) -> dict[str, Any]:
    """All windows of all peers."""
    return {title: result.windows for title, result in results.items()}
