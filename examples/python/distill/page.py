"""The page that `make demo` leaves behind: one HTML file with nothing to load, legible in light and in dark."""

from html import escape
from pathlib import Path

from .picture import draw
from .record import Run, StageRecord
from .teacher import load_tokenizer

STYLE = """
:root { --paper: #fdfdfb; --ink: #1d2430; --soft: #667085; --rule: #e4e7ec; --band: #f6f7f9; --band2: #eef1f5;
  --blue: #1f5fbf; --pale: #9dbce6; --teal: #2a9d8f; --sand: #e9a23b; --red: #c8372d; --good: #d9f2e3; --bad: #fbe3e0; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181f; --ink: #e6e9ef; --soft: #98a2b3; --rule: #2b3240; --band: #1a1f29;
  --band2: #202634; --blue: #7fb2ff; --pale: #47618a; --teal: #3fb8a8; --sand: #d9983a; --red: #ff7a6e; --good: #1d4a33; --bad: #512722; } }
body { margin: 0 auto; max-width: 1160px; padding: 32px 20px 64px; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif; }
h1 { font-size: 28px; margin: 0 0 4px; } h2 { font-size: 19px; margin: 36px 0 10px; } p { max-width: 76ch; margin: 6px 0; }
.soft { color: var(--soft); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 12px; margin: 22px 0; }
.figures div { border: 1px solid var(--rule); border-radius: 8px; padding: 12px 16px; }
.figures b { display: block; font-size: 24px; line-height: 1.25; font-variant-numeric: tabular-nums; } .figures span { color: var(--soft); font-size: 14px; }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 13px; paint-order: stroke; stroke: var(--paper); stroke-width: 3px; stroke-linejoin: round; }
svg .tick, svg .axis { fill: var(--soft); } svg .model { font-weight: 600; } svg .value { font-size: 12px; fill: var(--blue); font-weight: 600; }
.band { fill: var(--band); } .odd { fill: var(--band2); } .grid { stroke: var(--rule); } .base { stroke: var(--soft); }
.switch { stroke: var(--soft); stroke-dasharray: 2 4; } .kill { stroke: var(--red); stroke-width: 2; } .back { stroke: var(--red); stroke-width: 1.5; stroke-dasharray: 6 4; }
svg .kill-label, svg .back-label { fill: var(--red); font-weight: 600; }
.train { fill: none; stroke: var(--pale); stroke-width: 1.5; } .held-out { fill: none; stroke: var(--blue); stroke-width: 2.5; } .point { fill: var(--blue); }
.worker0 { fill: var(--teal); } .worker1 { fill: var(--sand); }
.key { display: flex; flex-wrap: wrap; gap: 4px 22px; font-size: 14px; color: var(--soft); margin: 6px 0 0; }
.key i { display: inline-block; width: 18px; height: 0; border-top: 3px solid; vertical-align: middle; margin-right: 7px; }
.key i.box { height: 12px; width: 12px; border: 0; border-radius: 2px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 5px 18px 5px 0; border-bottom: 1px solid var(--rule); } th { color: var(--soft); font-weight: 500; font-size: 14px; }
th:first-child, td:first-child { text-align: left; }
ul.checks { list-style: none; padding: 0; } ul.checks li::before { content: "✓"; color: var(--teal); font-weight: 700; margin-right: 10px; }
ul.checks li.fault::before { content: "✕"; color: var(--red); }
.passage { font: 15px/2 ui-monospace, "DejaVu Sans Mono", monospace; max-width: 100ch; white-space: pre-wrap; }
.passage span { border-radius: 3px; padding: 2px 1px; } .same { background: var(--good); } .other { background: var(--bad); }
"""


def write_page(run: Run, path: Path) -> Path:
    """Write the page of a run to `path`."""
    first, last = run.stages[-1].held_out[0], run.stages[-1].held_out[-1]
    figures = [
        (f"{first[1]:.2f} → {last[1]:.2f}", "nats a token from the teacher, on unseen text"),
        (f"{first[2]:.0%} → {last[2]:.0%}", "of next tokens as the teacher’s"),
        (f"{run.samples:,}", "tickets, " + ("with faults: see below" if run.faults() else "each once and in order")),
        (f"{run.samples / run.seconds:.1f} samples/s", f"{run.bytes / 1e6:.0f} MB in {run.seconds:.0f} s, two workers"),
    ]
    key = [
        ('style="border-color: var(--blue)"', "held-out loss (left: hidden states; right: logits)"),
        ('style="border-color: var(--pale)"', "training loss"),
        ('class="box" style="background: var(--teal)"', run.workers[0].name),
        ('class="box" style="background: var(--sand)"', run.workers[1].name),
    ]
    body = f"""
<h1>A language model, distilled through Laneway</h1>
<p class="soft">SmolLM2-135M-Instruct (30 blocks) teaches a student of four blocks on Django’s documentation. Two workers hold the
teacher and write its answers straight into the student’s memory; <code>set_model</code> moves them from layer to layer.</p>
<div class="figures">{"".join(f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>" for value, what in figures)}</div>
{draw(run)}
<div class="key">{"".join(f"<span><i {mark}></i>{escape(what)}</span>" for mark, what in key)}</div>
<h2>Stages</h2>
<div class="scroll"><table><tr><th>model id</th><th>generation</th><th>steps</th><th>held-out loss before</th><th>after</th></tr>
{"".join(map(_stage_row, run.stages))}</table></div>
{_passages(run.stages[-1])}
<h2>What was checked</h2>
<ul class="checks">{_checks(run)}</ul>
"""
    title = "A language model, distilled through Laneway"
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title><style>{STYLE}</style>'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n', encoding="utf-8")
    return path


def _stage_row(stage: StageRecord) -> str:
    before, after = stage.held_out[0][1], stage.held_out[-1][1]
    cells = (stage.model, stage.generation, stage.steps, f"{before:.3f}", f"{after:.3f}")
    return "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>"


def _passages(stage: StageRecord) -> str:
    """One unseen passage, before and after, each token coloured by whether the student expected what the teacher did."""
    if len(stage.passages) < 2:
        return ""
    tokenizer = load_tokenizer()
    parts = [
        "<h2>One unseen passage</h2>",
        '<p class="soft">Green: having read this far, student and teacher expect the same next token. Hover to see which.</p>',
    ]
    for when, passage in (("before", stage.passages[0]), ("after", stage.passages[-1])):
        spans = []
        for token, teacher, student in zip(passage["input_ids"], passage["teacher"], passage["student"]):
            note = f"teacher: {tokenizer.decode([teacher])!r}, student: {tokenizer.decode([student])!r}"
            kind = "same" if teacher == student else "other"
            shown = escape(tokenizer.decode([token], skip_special_tokens=False).replace("\n", "⏎"))
            spans.append(f'<span class="{kind}" title="{escape(note)}">{shown}</span>')
        parts.append(f'<p class="soft">{when} this stage</p><div class="passage">{"".join(spans)}</div>')
    return "\n".join(parts)


def _checks(run: Run) -> str:
    faults = run.faults()
    items = [(fault, "fault") for fault in faults]
    if not faults:
        items.append((f"{run.samples:,} tickets (lane, step): each delivered once, in order, never of an older generation", ""))
        items.append(("the held-out loss fell in every stage", ""))
    items += [(story, "") for story in run.kill_story]
    return "".join(f'<li class="{kind}">{escape(words)}</li>' for words, kind in items)
