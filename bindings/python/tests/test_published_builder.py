"""The program of the published design's article, as written but for its package's name and its datasets' place, and with the tokenizer in a hub cache."""

import json
import os
from pathlib import Path

import pytest

from laneway import Loader, Recipe, global_hash

# As published.
PROGRAM = """
from zephon import Pipeline
from zephon.io import Dataset
from zephon.work import StaticMixtureWorkSource, TokenEstimation

source = StaticMixtureWorkSource(
    datasets=[
        Dataset.from_path("wiki", "hf://Salesforce/wikitext/wikitext-2-raw-v1/train"),
        Dataset.from_path("news", "hf://fancyzhx/ag_news/default/train"),
    ],
    mixture={"wiki": 0.5, "news": 0.5},   # a token ratio, not a sample ratio
    token_estimation=TokenEstimation(),
    seed=42,
)
pipeline = (
    Pipeline(source)
    .options(io_options={"cache": {"enabled": True}})
    .tokenize(tokenizer_id="gpt2", field="text", parallelism=4)
    .pack_flat(max_length=2048, algorithm="wrap")
    .shuffle(buffer_size=1024, seed=42)
    .batch(microbatch_size=8)
)
for batch in pipeline:
    train_step(batch.to_training())
"""
ARTICLE = {
    "zephon": "laneway",
    "hf://Salesforce/wikitext/wikitext-2-raw-v1/train": "wiki",
    "hf://fancyzhx/ag_news/default/train": "news",
}

TOML = """
seed = 42

[[dataset]]
name = "wiki"
paths = "wiki"
weight = 0.5
exhausted = "stop"

[[dataset]]
name = "news"
paths = "news"
weight = 0.5

[mixture]
unit = "tokens"

[tokenizer]
path = "gpt2"

[pack]
max_length = 2048

[shuffle]
buffer_size = 1024
seed = 42

[batch]
global_batch = 8
tail = "drop"
"""


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder with both datasets, and a hub cache that holds the tokenizer."""
    fixtures = Path(os.environ.get("LANEWAY_FIXTURES", Path(__file__).parents[3] / ".." / "shared" / "fixtures"))
    tokenizer = fixtures / "tokenizers" / "gpt2.json"
    if not tokenizer.is_file():
        pytest.skip(f"no {tokenizer}; set LANEWAY_FIXTURES to the folder of fixtures")
    folder = tmp_path_factory.mktemp("published")
    snapshot = folder / "hub" / "models--openai-community--gpt2" / "snapshots" / "607a30d783dfa663caf39e06633721c8d4cfcd7e"
    snapshot.mkdir(parents=True)
    (snapshot / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    text = (fixtures / "tokenizers" / "mixed_input.txt").read_text(encoding="utf-8").split("\n")
    for name, documents, lines in (("wiki", 150, 40), ("news", 400, 6)):
        (folder / name).mkdir()
        with open(folder / name / "train.jsonl", "w", encoding="utf-8") as file:
            for d in range(documents):
                start = d * 17 % max(1, len(text) - lines)
                file.write(json.dumps({"text": f"{name} {d}. " + "\n".join(text[start : start + lines])}) + "\n")
    return folder


@pytest.fixture
def here(published, monkeypatch):
    monkeypatch.chdir(published)
    monkeypatch.setenv("HF_HUB_CACHE", str(published / "hub"))
    monkeypatch.setenv("LANEWAY_CACHE", str(published / "cache"))
    return published


def program():
    text = PROGRAM
    for theirs, ours in ARTICLE.items():
        assert theirs in text
        text = text.replace(theirs, ours)
    seen = []
    names = {"train_step": seen.append}
    exec(text, names)  # noqa: S102
    return seen, names["pipeline"]


def test_the_published_program_runs_and_its_recipe_is_the_tomls(here):
    seen, pipeline = program()
    recipe = Recipe.parse(TOML, here)
    assert recipe.difference(pipeline.recipe) == "" and recipe.fingerprint == pipeline.recipe.fingerprint
    with Loader(recipe) as loader:
        batches = list(loader)
        assert loader.info["tokenizer"]["fingerprint"] == pipeline.loader.info["tokenizer"]["fingerprint"]
    assert len(seen) == len(batches) > 3
    for theirs, batch in zip(seen, batches, strict=True):
        assert set(theirs) == {"ids", "texts", "input_ids", "positions"}
        assert (theirs["input_ids"] == batch.input_ids).all() and tuple(theirs["input_ids"].shape) == (8, 2048)
    pipeline.restore(json.loads(json.dumps(pipeline.checkpoint())))
    assert list(pipeline) == []
    pipeline.seek(2)
    assert [global_hash(b.hashes) for b in pipeline] == [global_hash(b.hashes) for b in batches[2:]]
    assert "gpt2" in pipeline.explain()


def test_every_published_argument_of_to_training_and_of_options_is_taken(here):
    names = {}
    text = PROGRAM[: PROGRAM.index("for batch")]
    for theirs, ours in ARTICLE.items():
        text = text.replace(theirs, ours)
    exec(text, names)  # noqa: S102
    pipeline = names["pipeline"].options(
        dp_degree=2, dp_group_id=1, canonical_replicas=16, global_batch=32, io_options={"cache": {"enabled": True, "root": here / "indexes"}}, deterministic=True
    )
    pipeline.map_batch(lambda batch: batch)
    batch = next(iter(pipeline))
    made = batch.to_training(
        tokens_field="auto", return_labels=True, dtype="auto", extra_fields=("segment_ids", "attention_mask"), ignore_index=-100, rename_fields={"ids": "sample_ids"},
        flatten=False, exclude_fields=("texts",), return_num_valid_tokens=True, return_loss_mask=True, return_cu_seqlens=True, return_padding_mask=True,
        eos_mask_loss=True, eos_token_id=50256, position_mode="preserve",
    )  # fmt: skip
    fields = {"input_ids", "labels", "loss_mask", "positions", "segment_ids", "attention_mask", "padding_mask", "num_valid_tokens", "cu_seqlens", "max_seqlen"}
    assert set(made) == {"sample_ids"} | fields
    assert int((made["labels"] != -100).sum()) == made["num_valid_tokens"]
    info = pipeline.loader.info
    assert (info["lanes"], info["global_batch"], info["first_lane"], info["end_lane"]) == (16, 32, 8, 16)
    assert any((here / "indexes").iterdir())


def test_a_map_and_an_operator_in_the_published_chain(here):
    clean = """    .stateful_transform("every_second", init_state=int, push=lambda n, records: (n + 1, records if n % 2 else []))
"""
    text = PROGRAM.replace("    .tokenize(", "    .map_transform(lambda p: {**p, 'text': p['text'].lower()})\n    .tokenize(").replace("    .pack_flat(", clean + "    .pack_flat(")
    for theirs, ours in ARTICLE.items():
        text = text.replace(theirs, ours)
    seen = []
    exec(text, names := {"train_step": seen.append})  # noqa: S102
    whole, _ = program()
    assert 0.3 * len(whole) < len(seen) < 0.7 * len(whole)
    assert len(json.loads(names["pipeline"].recipe.fields()["functions"])) == 3, "keeps, map, operator"
