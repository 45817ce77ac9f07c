"""Pictures of the results, as SVG drawn without a library: samples a second over the size of a sample, a curve for each peer; tokens for each
CPU-second, a bar for each peer."""

from __future__ import annotations

import html
import math

from harness.report import Row

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 420, 70, 250, 40, 40
COLOURS = ("#0b6e4f", "#c1292e", "#235789", "#e36414", "#777777", "#5fad56", "#92c9b1")


def throughput(rows: list[Row]) -> str | None:
    """The picture of the throughput rows, or None where there is none."""
    rows = [row for row in rows if "prefetch on" in row.title]
    sizes = [row.title.split(",")[0] for row in rows]
    curves: dict[str, list[tuple[int, float]]] = {}
    for i, row in enumerate(rows):
        for line in row.lines:
            if "samples/s" in line.figures:
                curves.setdefault(line.title, []).append((i, line.figures["samples/s"]))
    if not curves:
        return None
    rates = [rate for curve in curves.values() for _, rate in curve]
    low, high = math.floor(math.log10(min(rates))), math.ceil(math.log10(max(rates)))

    def x(i: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (i + 0.5) / len(sizes)

    def y(rate: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - math.log10(rate)) / max(1, high - low)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="14">samples a second, one worker, one student (logarithmic)</text>',
    ]
    for power in range(low, high + 1):
        at = y(10**power)
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{10**power:,}</text>')
    out += [f'<text x="{x(i):.1f}" y="{HEIGHT - 14}" text-anchor="middle">{size}</text>' for i, size in enumerate(sizes)]
    for number, (title, curve) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x(i):.1f},{y(rate):.1f}" for i, rate in curve)
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x(i):.1f}" cy="{y(rate):.1f}" r="3" fill="{colour}"/>' for i, rate in curve]
        at = TOP + 10 + 20 * number
        out.append(f'<rect x="{WIDTH - RIGHT + 20}" y="{at - 9}" width="12" height="12" fill="{colour}"/>')
        out.append(f'<text x="{WIDTH - RIGHT + 40}" y="{at + 2}">{html.escape(title)}</text>')
    return "\n".join([*out, "</svg>", ""])


BAR, GAP = 26, 14


def lanes(rows: list[Row]) -> str | None:
    """The picture of tokens for each CPU-second by peer, or None where they were not measured. Bars are to scale, from 0."""
    row = next((row for row in rows if row.title.startswith("lanes: read, tokenize")), None)
    rates = {line.title: line.figures["M tokens/CPU-s"] for line in row.lines if "M tokens/CPU-s" in line.figures} if row else {}
    if row is None or not rates:
        return None
    left, top, most = 260, TOP + 8, max(rates.values())
    height = top + len(row.lines) * (BAR + GAP) + GAP
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        '<text x="20" y="22" font-size="14">million tokens for each CPU-second of all processes</text>',
        f'<text x="20" y="40" fill="#666">{html.escape(row.title.removeprefix("lanes: "))}</text>',
    ]
    for number, line in enumerate(row.lines):
        at = top + GAP + number * (BAR + GAP)
        rate = rates.get(line.title)
        length = 0.0 if rate is None else (WIDTH - left - 80) * rate / most
        said = "not measured" if rate is None else f"{rate:.2f}" if rate < 10 else f"{rate:.1f}"
        colour = COLOURS[0] if line.title.startswith("laneway") else "#9aa5b1"
        out.append(f'<text x="{left - 10}" y="{at + 17}" text-anchor="end">{html.escape(line.title)}</text>')
        out.append(f'<rect x="{left}" y="{at}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>')
        out.append(f'<text x="{left + length + 8:.1f}" y="{at + 17}">{said}</text>')
    return "\n".join([*out, "</svg>", ""])
