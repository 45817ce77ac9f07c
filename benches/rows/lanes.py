"""Lanes: read → tokenize (GPT-2) → wrap 2048 → shuffle 1024 → batch 8, in tokens for each CPU-second of all processes, beside what else does it
and beside the tokenizer alone; on two threads; and with 256 lanes."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.cargo import NotBuilt, bench
from harness.corpus import Corpus, corpus
from harness.plan import Plan, times
from harness.report import Aim, Line, Row, raw
from harness.session import Peer, Result

OURS, RUST = "laneway, from Python", "laneway, from Rust"
ENCODER = "laneway's encoder alone, from Rust"
ENGINE, SLOW = "tokenizers 1.0 alone, from Rust", "tokenizers 0.23 alone, from Python"
ZEPHON, GRAIN = "zephon 0.2.0", "grain 0.2.18"
ONE, TWO, MANY = "1 thread", "2 threads", "256 lanes"
BURST = 1024 * 2048
"""Tokens of a full shuffle buffer, which grain fills and then empties: whole ones are measured."""


def measure(plan: Plan) -> list[Row]:
    plan.begin("lanes: making the text and the programs")
    text = corpus(plan.progress)
    with TemporaryDirectory(prefix="lw-bench-") as name:
        folder = Path(name)
        try:
            program: Path | NotBuilt = bench("lanes")
        except NotBuilt as error:
            program = error
        return [_pipeline(plan, text, folder, program), _kinds(plan, text, folder, program), _threads(plan, text, folder, program), _many(plan, text, folder)]


def native(title: str, program: Path | NotBuilt, *words: object) -> Peer:
    """A mode of benches/lanes.rs."""
    missing = str(program) if isinstance(program, NotBuilt) else None
    return Peer(title, "lanes_native", {"program": program, "words": "\t".join(map(str, words))}, missing=missing)


def _pipeline(plan: Plan, text: Corpus, folder: Path, program: Path | NotBuilt) -> Row:
    title = "lanes: read, tokenize, wrap 2048, shuffle 1024, batch 8, one thread"
    plan.begin(title)
    recipe = text.recipe(folder, text.folder / "text")
    common = {"data": text.folder / "text", "tokenizer": text.tokenizer}
    slow = _slow(plan)
    results = plan.interleave([
        Peer(OURS, "lanes_laneway", {"recipe": recipe}),
        native(ENGINE, program, "engine", text.tokenizer, *text.files),
        native(ENCODER, program, "encoder", text.tokenizer, *text.files),
        native(RUST, program, "loader", recipe, 1, 8),
        Peer(ZEPHON, "lanes_zephon", common, **slow),
        Peer(GRAIN, "lanes_grain", common, **slow),
        Peer(SLOW, "lanes_tokenizers", common),
    ])  # fmt: skip
    row = Row(title, lines(results), raw=raw(results))
    for line in row.lines:
        value = times(results, line.title, OURS, "cpus")
        if value is not None:
            line.figures["laneway is"] = value
    row.aims = [
        Aim.at_least("tokens per CPU-second of zephon", times(results, ZEPHON, OURS, "cpus"), 60),
        Aim.at_least("tokens per CPU-second of grain", times(results, GRAIN, OURS, "cpus"), 60),
        Aim.at_least("tokens per CPU-second of tokenizers 1.0 alone", times(results, ENGINE, OURS, "cpus"), 0.8),
    ]
    row.notes = ["'laneway is' compares tokens per CPU-second, of all processes; what a peer spends outside its loader's process tree is not seen"]
    return row


def _kinds(plan: Plan, text: Corpus, folder: Path, program: Path | NotBuilt) -> Row:
    title = "lanes: the same by kind of text: the faster the engine encodes, the more everything beside it counts"
    plan.begin(title)
    row = Row(title)
    for file in text.files:
        (data := folder / file.stem / "text").mkdir(parents=True)
        (data / file.name).symlink_to(file)
        recipe = text.recipe(data.parent, data)
        alone, rust, ours, grain = (f"{file.stem}, {peer}" for peer in ("engine alone, from Rust", "loader, from Rust", "loader, from Python", GRAIN))
        results = plan.interleave([
            native(alone, program, "engine", text.tokenizer, file),
            native(rust, program, "loader", recipe, 1, 8),
            Peer(ours, "lanes_laneway", {"recipe": recipe}),
            Peer(grain, "lanes_grain", {"data": data, "tokenizer": text.tokenizer}, **_slow(plan)),
        ])  # fmt: skip
        here = lines(results)
        row.raw |= raw(results)
        for line in here:
            if line.title in (rust, ours) and (share := times(results, alone, line.title, "cpus")) is not None:
                line.figures["of the engine"] = share
            if line.title == grain and (more := times(results, grain, ours, "cpus")) is not None:
                line.figures["from Python is"] = more
        row.lines += here
    return row


def _slow(plan: Plan) -> dict[str, Any]:
    """How peers are measured whose rows come in buffers full."""
    return {"window": {"samples": BURST if plan.seconds >= 0.1 else BURST // 128}, "rounds": 3}


def _threads(plan: Plan, text: Corpus, folder: Path, program: Path | NotBuilt) -> Row:
    title = "lanes: one thread and two, from Rust"
    plan.begin(title)
    recipe = text.recipe(folder, text.folder / "text")
    results = plan.interleave([native(TWO, program, "loader", recipe, 2, 8), native(ONE, program, "loader", recipe, 1, 8)])
    row = Row(title, lines(results), raw=raw(results))
    row.aims = [Aim.at_least("tokens/s of one thread, by two on two free cores", times(results, TWO, ONE), 1.7)]
    return row


def _many(plan: Plan, text: Corpus, folder: Path) -> Row:
    title = "lanes: 256 lanes and one lane on one rank, steps of 256 rows in batches of 8, one thread, from Python"
    plan.begin(title)
    recipes = {}
    for lanes in ("256", "1"):
        (of_it := folder / f"lanes-{lanes}").mkdir()
        recipes[lanes] = text.recipe(of_it, text.folder / "text", lanes=lanes, global_batch="256")
    of = {lanes: {"recipe": recipe, "microbatch": 8} for lanes, recipe in recipes.items()}
    results = plan.interleave([Peer(MANY, "lanes_laneway", of["256"]), Peer("1 lane", "lanes_laneway", of["1"])])
    row = Row(title, lines(results), raw=raw(results))
    row.aims = [Aim.at_least("tokens per CPU-second of one lane, by 256", times(results, "1 lane", MANY, "cpus"), 0.9)]
    if (many := results[MANY]).failure is None:
        peak = max(w["peak_kib"] for w in many.windows) / 1024
        row.aims.append(Aim.at_most("memory of the process with 256 lanes", peak, 500, " MiB"))
    return row


def lines(results: dict[str, Result]) -> list[Line]:
    """A line for each peer, in millions of tokens."""
    out = []
    for title, result in results.items():
        if result.failure is not None:
            out.append(Line(title, missing=result.failure.replace("\n", " | ")))
        else:
            figures = {"M tokens/CPU-s": 1 / result.cpu, "M tokens/s": result.rate / 1e6, "ns CPU/token": result.cpu * 1e3}
            out.append(Line(title, figures | {"peak MiB": max(w["peak_kib"] for w in result.windows) / 1024}))
    return out
