"""What the demonstration leaves behind: `elastic.html`, one file with nothing to load, and its picture as `elastic.png`."""

from html import escape
from pathlib import Path

from distill.page import STYLE

from .canvas import Png, Svg
from .picture import HEIGHT, WIDTH, draw
from .record import Comparison, LoaderRecord, Record

TITLE = "The same batches on any number of ranks"
OWN_STYLE = "svg { border-radius: 8px; } svg text { paint-order: normal; stroke: none; fill: revert-layer; }"


def write_page(record: Record, folder: Path) -> tuple[Path, Path]:
    """Write page and picture to `folder`; give their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    svg, png = Svg(WIDTH, HEIGHT, TITLE), Png(WIDTH, HEIGHT)
    draw(record, svg)
    draw(record, png)
    mine, standard = record.laneway.comparisons, record.standard.comparisons
    figures = [
        (_share(mine), "of Laneway’s global batches identical after a resume on 1, 2 and 4 ranks"),
        (f"within {max(found.loss_apart for found in mine):.2g}", "nats a token: its losses beside the uninterrupted run’s"),
        (_share(standard), "of the standard loader’s batches identical"),
        (f"within {max(found.loss_apart for found in standard):.2g}", "nats a token: its losses"),
    ]
    sizes = f"{record.steps} steps, a checkpoint at step {record.save_at}"
    body = f"""
<h1>{TITLE}</h1>
<p class="soft">A small language model learns from Python’s own reference and library, on two ranks: {sizes}. From the checkpoint it goes on
on one, two and four ranks, each rank a process, with Laneway’s loader and with a standard one (torchdata’s StatefulDataLoader over documents that are dealt to
ranks). The losses of equal batches differ only by the order in which numbers are added.</p>
<div class="figures">{"".join(f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>" for value, what in figures)}</div>
{svg}
<h2>Runs</h2>
<div class="scroll"><table><tr><th>loader</th><th>ranks</th><th>identical global batches</th><th>first different step</th><th>losses within</th></tr>
{_rows(record.laneway)}{_rows(record.standard)}</table></div>
<h2>What was checked</h2>
<ul class="checks">{_checks(record)}</ul>
"""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{TITLE}</title>'
    style = f"<style>{STYLE}{OWN_STYLE}</style>"
    page = folder / "elastic.html"
    page.write_text(f'<!doctype html>\n<html lang="en"><head>{head}{style}</head>\n<body>{body}</body></html>\n', encoding="utf-8")
    return page, png.save(folder / "elastic.png")


def _share(comparisons: list[Comparison]) -> str:
    return f"{sum(found.identical for found in comparisons)} of {sum(found.steps for found in comparisons)}"


def _rows(loader: LoaderRecord) -> str:
    rows = ""
    for found in loader.comparisons:
        first = "none" if found.different is None else found.different
        cells = (loader.name, found.ranks, f"{found.identical} of {found.steps}", first, f"{found.loss_apart:.2g}")
        rows += "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>"
    return rows


def _checks(record: Record) -> str:
    faults = record.faults()
    if faults:
        return "".join(f'<li class="fault">{escape(fault)}</li>' for fault in faults)
    return "<li>every global batch of Laneway’s resumed runs has the uninterrupted run’s hash</li><li>the model learns</li>"
