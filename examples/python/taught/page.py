"""What the demonstration leaves behind: `generate.html`, one file with nothing to load, and its picture as `generate.png`."""

from html import escape
from pathlib import Path

from distill.page import STYLE
from elastic.canvas import Png, Svg
from elastic.page import OWN_STYLE

from .picture import WIDTH, draw, height
from .record import Record

TITLE = "Teachers as part of the recipe"


def write_page(record: Record, folder: Path) -> tuple[Path, Path]:
    """Write page and picture to `folder`; give their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    svg, png = Svg(WIDTH, height(record), TITLE), Png(WIDTH, height(record))
    draw(record, svg)
    draw(record, png)
    found = [comparison for _, comparison in record.comparisons]
    first, last = (record.whole.batches.steps[step].loss for step in (0, record.steps - 1))
    figures = [
        (f"{sum(c.identical for c in found)} of {sum(c.steps for c in found)}", "global batches, tokens and answers, are those of the first run"),
        (f"{sum(len(run.losses) for run in record.others)} killed", "workers with rows in hand, which others made again"),
        (f"{first:.2f} → {last:.2f}", "nats a token from the teacher, on the batch of each step"),
        (f"within {max(c.loss_apart for c in found):.2g}", "nats a token: the losses of all runs"),
    ]
    body = f"""
<h1>{TITLE}</h1>
<p class="soft">One recipe makes tokens of Django’s documentation, rows of tokens, and has SmolLM2-135M-Instruct say of each row what comes next; a student
of four blocks learns it. The same recipe is run with one, two and four workers, with workers killed on the way, and from a checkpoint on other numbers of
ranks. Every row is made anew in every run, by whoever is there.</p>
<div class="figures">{"".join(f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>" for value, what in figures)}</div>
{svg}
<h2>What was checked</h2>
<ul class="checks">{_checks(record)}</ul>
"""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{TITLE}</title>'
    page = folder / "generate.html"
    style = f"<style>{STYLE}{OWN_STYLE}</style>"
    page.write_text(f'<!doctype html>\n<html lang="en"><head>{head}{style}</head>\n<body>{body}</body></html>\n', encoding="utf-8")
    return page, png.save(folder / "generate.png")


def _checks(record: Record) -> str:
    faults = [(fault, "fault") for fault in record.faults()]
    held = [("every global batch of every run has the first run’s hash, over tokens and answers", ""), ("the student learns", "")]
    stories = [(f"{run.name}: {loss.words()}", "") for run in record.others for loss in run.losses]
    return "".join(f'<li class="{kind}">{escape(words)}</li>' for words, kind in (faults or held) + stories)
