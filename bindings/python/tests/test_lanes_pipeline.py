"""The builder: the TOML's recipe, fingerprint and bytes; the published form of batches; what cannot be done is said."""

import json
import os
import pickle
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest
from lanes_data import EOS, RECIPE, words

from laneway import Loader, Pipeline, Recipe, errors, global_hash
from laneway.io import Dataset, InMemoryShard
from laneway.work import StaticMixtureWorkSource, TokenEstimation, WorkSource

FINITE = RECIPE.replace('paths = ["wiki.jsonl"]\n', 'paths = ["wiki.jsonl"]\nexhausted = "stop"\n').replace("global_batch = 8", 'global_batch = 8\ntail = "drop"')


def source(folder, **arguments):
    given = dict(mixture={"wiki": 0.5, "news": 0.5}, token_estimation=TokenEstimation(), seed=7) | arguments
    return StaticMixtureWorkSource(datasets=[Dataset.from_path("wiki", str(folder / "wiki.jsonl")), Dataset.from_path("news", folder / "news")], **given)


def pipeline(folder, work=None, microbatch_size=8, **options):
    return (
        Pipeline(work or source(folder))
        .options(io_options={"cache": {"enabled": True}}, framework="numpy", **options)
        .tokenize(tokenizer_id=str(folder / "tokenizer.json"), field="text", special_tokens="eos", parallelism=4)
        .pack_flat(max_length=32, algorithm="wrap")
        .shuffle(buffer_size=64, seed=42)
        .batch(microbatch_size=microbatch_size)
    )


def take(batches, n):
    return [global_hash(b.hashes) for b in islice(batches, n)]


@pytest.fixture(scope="module")
def endless(lanes_folder):
    return take(Loader(lanes_folder / "recipe.toml", framework="numpy"), 60)


def test_the_builder_and_the_toml_are_one_recipe_and_give_the_same_bytes(lanes, lanes_folder):
    built, toml = pipeline(lanes_folder), Recipe.parse(FINITE, lanes_folder)
    assert toml.difference(built.recipe) == "" and built.recipe.fingerprint == toml.fingerprint
    ours, theirs = list(built), list(Loader(toml, framework="numpy"))
    assert take(ours, 10**6) == take(theirs, 10**6) and len(ours) > 10
    seen = {int(p["document"]) for b in ours for p in b.provenance if p["dataset"] == 0}
    assert len(seen) > 290, "the slowest dataset, wiki, is gone through once but for what a last step drops"
    for a, b in zip(ours, theirs, strict=True):
        assert (a.input_ids == b.input_ids).all() and (a.labels == b.labels).all()
    text = built.explain()
    assert "wiki: 300 documents" in text and "cut where a row is full" in text and "it ends" in text
    with Loader(toml, microbatch_size=8) as same:
        assert text == same.explain(), "one text, the library's"


def test_every_dataset_repeats_where_that_is_asked_for(lanes, lanes_folder, endless):
    built = pipeline(lanes_folder, source(lanes_folder, exhausted_policy="repeat"))
    assert "batch.tail" in Recipe.load(lanes).difference(built.recipe), "drop_last is the only difference"
    assert take(built, 60) == endless


def test_checkpoints_go_through_json_to_other_ranks_and_open_choices_are_the_checkpoints(lanes, lanes_folder, endless):
    repeat = source(lanes_folder, exhausted_policy="repeat")
    first = pipeline(lanes_folder, repeat)
    assert take(first, 20) == endless[:20]
    state = json.loads(json.dumps(first.checkpoint()))
    ranks = [pipeline(lanes_folder, repeat, microbatch_size=2, dp_degree=2, dp_group_id=r) for r in range(2)]
    iterators = []
    for rank in ranks:
        rank.restore(state)
        assert rank.recipe.fingerprint == first.recipe.fingerprint
        iterators.append(iter(rank))
    found = [global_hash([next(i).hashes for i in iterators for _ in range(2)]) for _ in range(20)]
    assert found == endless[20:40]
    last = pipeline(lanes_folder, repeat)
    last.restore([rank.checkpoint() for rank in ranks])
    assert take(last, 20) == endless[40:60]
    last.seek(3)
    assert take(last, 2) == endless[3:5]
    fresh = pickle.loads(pickle.dumps(pipeline(lanes_folder, repeat)))
    fresh.seek(7)
    assert take(fresh, 1) == endless[7:8]


def test_global_batch_and_lanes_follow_from_what_is_given(lanes, lanes_folder):
    def sizes(**options):
        recipe = pipeline(lanes_folder, source(lanes_folder, exhausted_policy="repeat"), **options).recipe
        return tuple(recipe.fields()[name] for name in ("batch.global_batch", "batch.lanes"))

    assert sizes() == ("8", "8")
    assert sizes(dp_degree=4) == ("32", "32")
    assert sizes(canonical_replicas=16, dp_degree=4) == ("128", "16")
    assert sizes(global_batch=64, canonical_replicas=16) == ("64", "16")


def test_to_training_gives_the_published_form(lanes, lanes_folder):
    batch = next(iter(pipeline(lanes_folder)))
    made = batch.to_training(
        return_labels=True, return_num_valid_tokens=True, return_loss_mask=True, return_cu_seqlens=True, return_padding_mask=True, extra_fields=["segment_ids"]
    )
    tokens = batch.input_ids
    assert made["input_ids"].shape == made["labels"].shape == made["positions"].shape == made["segment_ids"].shape == (8, 31)
    assert (made["input_ids"] == tokens[:, :-1]).all() and (made["labels"] == tokens[:, 1:]).all()
    assert made["num_valid_tokens"] == 8 * 31 == made["loss_mask"].sum() and made["loss_mask"].dtype == np.float32 and not made["padding_mask"].any()
    assert made["texts"] == [""] * 8 and len(made["ids"]) == 8
    for row, (dataset, shard, index) in enumerate(made["ids"]):
        piece = batch.provenance[batch.provenance["row"] == row][0]
        assert (piece["dataset"], piece["shard"]) == (dataset, shard)
        assert piece["document"] == index + (40 if (dataset, shard) == (1, 1) else 0)
        starts = np.flatnonzero(made["positions"][row] == 0)
        bounds = [int(b) for b in made["cu_seqlens"][row]]
        assert bounds[: len(starts)] == starts.tolist() and set(bounds[len(starts) :]) == {31}
        assert made["max_seqlen"][row] == np.diff([*starts, 31]).max()
        ends = np.flatnonzero(tokens[row][:-2] == EOS)
        assert (made["positions"][row][ends + 1] == 0).all()
    flat = batch.to_training(return_cu_seqlens=True, flatten=True, dtype="int32", position_mode="sequence", rename_fields={"input_ids": "input"}, exclude_fields=["texts"])
    assert set(flat) == {"ids", "input", "positions", "cu_seqlens", "max_seqlen"} and flat["input"].dtype == np.int32
    assert flat["input"].shape == (256,) and flat["cu_seqlens"][-1] == 256 and flat["positions"].tolist() == list(range(32)) * 8
    masked = batch.to_training(return_labels=True, eos_mask_loss=True, eos_token_id=EOS, ignore_index=-1, dtype=None)
    assert all((label == -1) == (token == EOS) for r in range(8) for token, label in zip(masked["input_ids"][r], masked["labels"][r], strict=True))


def test_padding_is_masked_and_torch_is_the_default_where_it_is(lanes, lanes_folder):
    torch = pytest.importorskip("torch")
    built = pipeline(lanes_folder, source(lanes_folder, exhausted_policy="repeat")).options(framework="auto").pack_flat(max_length=64, num_bins=2, algorithm="best_fit")
    batch = next(iter(built))
    made = batch.to_training(return_labels=True, return_padding_mask=True, return_cu_seqlens=True, flatten=True)
    padding = batch.numpy("segment_ids") == 0
    assert padding.any() and isinstance(made["labels"], torch.Tensor) and made["labels"].dtype == torch.int64
    assert torch.equal(made["padding_mask"], torch.from_numpy(padding[:, :-1].reshape(-1)))
    assert torch.equal(made["labels"] == -100, torch.from_numpy(padding[:, 1:].reshape(-1)))
    assert made["cu_seqlens"].dtype == torch.int32 and isinstance(made["max_seqlen"], int)


@pytest.mark.parametrize(
    ("arguments", "words_of_error"),
    [
        ({"return_loss_mask": True}, "requires return_labels"),
        ({"position_mode": "x"}, "position_mode"),
        ({"extra_fields": ["image"]}, "do not outlive packing"),
        ({"rename_fields": {"nothing": "x"}}, "nothing"),
        ({"eos_mask_loss": True, "return_labels": True}, "requires eos_token_id"),
        ({"tokens_field": "ids"}, "input_ids"),
    ],
)
def test_arguments_of_to_training_that_make_no_sense_are_errors(lanes, lanes_folder, arguments, words_of_error):
    batch = next(iter(pipeline(lanes_folder, source(lanes_folder, exhausted_policy="repeat"))))
    with pytest.raises(ValueError, match=words_of_error):
        batch.to_training(**arguments)


def test_documents_in_memory_are_documents(lanes, lanes_folder):
    shards = {0: InMemoryShard([{"text": words(1, d)} for d in range(40)]), 1: [{"text": words(1, d)} for d in range(40, 70)]}
    work = StaticMixtureWorkSource([Dataset.from_dict("news", shards)], {"news": 1.0}, exhausted_policy="redistribute")
    batches = list(pipeline(lanes_folder, work))
    for batch in batches:
        for piece in batch.provenance:
            document = [int(w[1:]) for w in words(1, int(piece["document"])).split()] + [EOS]
            at, start = int(piece["offset"]), int(piece["start"])
            assert batch.input_ids[piece["row"], at : at + piece["length"]].tolist() == document[start : start + piece["length"]]
    assert len({int(p["document"]) for b in batches for p in b.provenance}) > 60
    with pytest.raises(TypeError, match="row 0 of shard 0 cannot be carried by JSON"):
        Dataset.from_dict("x", {0: [{"text": object()}]}).table()


def test_plain_text_has_no_field_whatever_functions_call_it(lanes, lanes_folder, tmp_path):
    (tmp_path / "plain.txt").write_text("w1 w2 w3\n\nw4 w5\nw6\n")

    def built(field, **how):
        work = StaticMixtureWorkSource([Dataset.from_path("plain", tmp_path / "plain.txt", **how)], {"plain": 1.0}, exhausted_policy="repeat")
        return pipeline(lanes_folder, work).tokenize(tokenizer=lanes_folder / "tokenizer.json", field=field, special_tokens="eos")

    assert take(built("body", fmt="text", text_unit="file"), 5) == take(built("text", fmt="text", text_unit="file"), 5)
    (tmp_path / "rows.jsonl").write_text('{"text": "w1"}\n')
    lines = StaticMixtureWorkSource([Dataset.from_path("rows", tmp_path / "rows.jsonl", text_unit="file")], {"rows": 1.0}, exhausted_policy="repeat")
    with pytest.raises(ValueError, match="text_unit = \"file\" is for plain text, and none of its files is that"):
        next(iter(pipeline(lanes_folder, lines)))


def test_map_transform_maps_and_leaves_out_and_an_edited_one_is_another_recipe(lanes, lanes_folder):
    def clean(payload):
        return {"text": payload["text"] + " w0"} if len(payload["text"].split()) < 30 else None

    def other(payload):
        return {"text": payload["text"] + " w1"}

    def built(function, **arguments):
        start = Pipeline(source(lanes_folder, exhausted_policy="repeat")).options(framework="numpy").map_transform(function, **arguments)
        return start.tokenize(lanes_folder / "tokenizer.json", field="text", special_tokens="eos").pack_flat(32, algorithm="wrap").batch(8)

    first = built(clean)
    for batch, _ in zip(first, range(5), strict=False):
        ends = batch.input_ids[:, 1:] == EOS
        assert (batch.input_ids[:, :-1][ends] == 0).all(), "w0 comes before each end"
        assert all(len(words(p["dataset"], int(p["document"])).split()) < 30 for p in batch.provenance)
    assert "functions" in first.recipe.difference(built(other).recipe)
    assert built(clean, name="clean 1").recipe.fields()["functions"] == '["clean 1 keeps", "clean 1"]'
    with pytest.raises(errors.DataError, match="KeyError"):
        next(iter(built(lambda payload: {"text": payload["body"]})))


SIGNED = """
import functools
from laneway._builder import signature

def plain(payload, suffix=" w0", *, most=7):
    return payload if payload["text"] in {"alpha", "beta", "gamma", ("delta", 1)} else None

class Callable:
    def __call__(self, payload):
        return payload if payload["text"] not in {"alpha", "beta", "gamma"} else None

print([signature(f) for f in (plain, functools.partial(plain, suffix="x", key=object()), Callable(), str.upper)])
"""


def test_a_functions_name_is_the_same_in_every_process_and_another_for_other_code():
    def names(program, seed):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True).stdout

    first = names(SIGNED, "1")
    assert first == names(SIGNED, "2") == names(SIGNED, "3")
    for old, new in [("gamma", "omega"), ('" w0"', '" w1"'), ("not in", "in"), ("most=7", "most=8"), ('"x"', '"y"')]:
        assert names(SIGNED.replace(old, new), "1") != first, f"{new} instead of {old}"


def test_map_batch_sees_each_batch_and_may_leave_it_out(lanes, lanes_folder):
    built = pipeline(lanes_folder, source(lanes_folder, exhausted_policy="repeat")).map_batch(lambda b: b.step if b.step % 2 else None)
    assert [step for step, _ in zip(built, range(3), strict=False)] == [1, 3, 5]


def test_a_source_of_ones_own_says_what_the_recipe_shall_say(lanes, lanes_folder):
    class Curriculum(WorkSource):
        def tables(self, text_field):
            tables = source(lanes_folder, exhausted_policy="repeat").tables(text_field)
            tables["mixture"]["schedule"] = [{"from_step": 5, "weights": {"wiki": 1.0, "news": 0.0}}]
            return tables

    last = [batch for batch, _ in zip(pipeline(lanes_folder, Curriculum()), range(60), strict=False)][-1]
    assert {int(p["dataset"]) for p in last.provenance} == {0}
    with pytest.raises(errors.Unsupported, match=r"Chunks hands out samples by itself \(next_chunk, state_dict\).*stateful_transform"):

        class Chunks(WorkSource):
            def tables(self, text_field):
                return {}

            def next_chunk(self):
                return None

            def state_dict(self):
                return {}

    class Nothing(WorkSource):
        def tables(self, text_field):
            return None

    with pytest.raises(TypeError, match=r"Nothing.tables\(\) returned a NoneType; expected a dict"):
        _ = pipeline(lanes_folder, Nothing()).recipe
    with pytest.raises(TypeError, match="StaticMixtureWorkSource say"):
        Pipeline(Curriculum)


def test_a_tokenizer_id_is_found_in_the_local_hub_cache_and_else_the_path_form_is_shown(lanes, lanes_folder, tmp_path, monkeypatch):
    snapshot = tmp_path / "models--openai-community--gpt2" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "tokenizer.json").write_bytes((lanes_folder / "tokenizer.json").read_bytes())
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repeat = source(lanes_folder, exhausted_policy="repeat")
    by_id = pipeline(lanes_folder, repeat).tokenize(tokenizer_id="gpt2", field="text", special_tokens="eos")
    assert take(by_id, 3) == take(pipeline(lanes_folder, repeat), 3)
    with pytest.raises(errors.NotFound, match=r"tokenizer\.json"):
        next(iter(pipeline(lanes_folder, repeat).tokenize(tokenizer_id="nobody/nothing", field="text")))


@pytest.mark.parametrize(
    ("call", "kind", "words_of_error"),
    [
        (lambda p: p.options(dp_degre=2), TypeError, "did you mean 'dp_degree'"),
        (lambda p: p.options(io_options={"cash": {}}), TypeError, "did you mean 'cache'"),
        (lambda p: p.options(io_options={"cache": {"rot": "x"}}), TypeError, "did you mean 'cache.root'"),
        (lambda p: p.options(io_options={"cache": True}), TypeError, r"io_options\.cache is True; expected a dict"),
        (lambda p: p.options(io_options="cache"), TypeError, "io_options is 'cache'; expected a dict"),
        (lambda p: p.options(dp_degree="2"), TypeError, "dp_degree is '2'; expected an int"),
        (lambda p: p.options(dp_degree=0), ValueError, "dp_degree is 0; expected 1 to"),
        (lambda p: p.options(dp_degree=2, dp_group_id=2).recipe and p.loader, ValueError, "rank is 2; expected 0 to 1"),
        (lambda p: p.tokenise(), AttributeError, "did you mean 'tokenize'"),
        (lambda p: p.tokenize("t", field=None), TypeError, r"tokenize\(field=None\): expected the name of the field"),
        (lambda p: Pipeline(p.source).shuffle(8), errors.InvalidArgument, "comes after pack_flat"),
        (lambda p: p.restore(None), errors.InvalidArgument, "a checkpoint is a dict with 'meta' and 'lanes'"),
        (lambda p: Dataset.from_path("x", None), TypeError, "dataset 'x': path is None; expected a path"),
        (lambda p: Dataset.from_path("x", []), TypeError, "a list of at least one"),
        (lambda p: Dataset.from_path("x", ".", text_unit="word"), ValueError, "text_unit is 'word'; expected one of line, paragraph, file"),
        (lambda p: Dataset.from_path("x", ".", on_error="ignore"), ValueError, "on_error is 'ignore'; expected one of error, skip, replace"),
        (lambda p: Dataset.from_dict("x", [{"text": "a"}]), TypeError, "shards is a list; expected a dict of numbers and rows"),
        (lambda p: Dataset.from_dict("x", {0: ["a"]}).table(), TypeError, "row 0 of shard 0 is a str; expected a dict"),
        (lambda p: StaticMixtureWorkSource(["wiki"], {"wiki": 1}), TypeError, "expected a list of laneway.io.Dataset"),
        (lambda p: StaticMixtureWorkSource(p.source.datasets, [0.5, 0.5]), TypeError, r"mixture is \[0.5, 0.5\]; expected a weight for each dataset"),
        (lambda p: StaticMixtureWorkSource(p.source.datasets, {"wiki": "a", "news": 1}), TypeError, "expected a weight for each dataset"),
        (lambda p: p.add_op(print), errors.Unsupported, "stateful_transform"),
        (lambda p: p.ensure_mixture(mixture={"wiki": 1.0}), errors.Unsupported, "shares are the source's"),
        (lambda p: p.ensure_mixture(weight_by="samples"), errors.Unsupported, "mixes by tokens"),
        (lambda p: p.decode_text(encoding="latin-1"), errors.Unsupported, "UTF-8"),
        (lambda p: p.tokenize_chat(), errors.Unsupported, "chat"),
        (lambda p: p.pack_flat(32, flush_strategy="fulest").recipe, ValueError, "flush_strategy is 'fulest'; expected 'fifo' or 'fullest'"),
        (lambda p: p.pack_flat(32, algorithm="wrap", flush_strategy="fulest"), ValueError, "flush_strategy is 'fulest'"),
        (lambda p: p.pack_flat(32, algorithm="wrap", min_sequence_length=-1), ValueError, "min_sequence_length is -1"),
        (lambda p: p.pack_flat(-1).recipe, errors.InvalidArgument, r"^pack\.max_length is -1"),  # and names no line: there is no file
        (lambda p: p.pack_flat(32, max_sequences_per_bin=0).recipe, ValueError, "max_sequences_per_bin is 0"),
        (lambda p: p.pack_flat(32, shuffle_strategy="random"), errors.Unsupported, "shuffle"),
        (lambda p: p.pack_flat(32, algorithm="wrap", num_bins=4), ValueError, "num_bins"),
        (lambda p: p.pack_flat(32, algorithm="wrap", candidate_pool_size=9).recipe, ValueError, "candidate_pool_size belongs to best_fit_wrap, not to wrap"),
        (lambda p: p.pack_flat(32, algorithm="none", homogeneity="full").recipe, ValueError, "homogeneity belongs to .* not to none"),
        (lambda p: p.shuffle(0, seed=5).recipe, ValueError, "seed is 5, and with buffer_size = 0 no rows are shuffled"),
        (lambda p: p.tokenize(tokenizer_id="x", field="text", truncation=True), ValueError, "both or neither"),
        (lambda p: p.tokenize(tokenizer_id="x", field="text", truncation=True, max_length=7).recipe, errors.Unsupported, "same max_length"),
        (lambda p: p.tokenize(tokenizer=object(), field="text"), errors.Unsupported, "no fast tokenizer"),
        (lambda p: p.shuffle(8, algorithm="blok"), errors.Unsupported, "blok"),
        (lambda p: p.map_transform(lambda x: x), errors.Unsupported, "before tokenize"),
        (lambda p: p.nonsense, AttributeError, "nonsense"),
        (lambda p: p.pack_flat(32, algorithm="rap").recipe, ValueError, "rap"),
        (lambda p: Dataset.from_path("x", "hf://a/b"), errors.Unsupported, "local files only"),
        (lambda p: Dataset.from_path("x", "/nowhere"), errors.NotFound, "/nowhere"),
        (lambda p: StaticMixtureWorkSource(p.source.datasets, {"wiki": 1.0}), ValueError, "news"),
        (lambda p: StaticMixtureWorkSource(p.source.datasets, p.source.weights, reshuffle_on_repeat=False), errors.Unsupported, "reshuffle"),
        (lambda p: StaticMixtureWorkSource(p.source.datasets, p.source.weights, stop_after_passes=1, max_repeats=1), ValueError, "not both"),
        (lambda p: TokenEstimation(measure=len), errors.Unsupported, "measure"),
        (lambda p: Pipeline(p.source).batch(8).recipe, ValueError, r"lacks \.tokenize"),
        (lambda p: p.restore({}), ValueError, "checkpoint"),
    ],
)
def test_what_cannot_be_done_is_an_error_that_names_it(lanes_folder, call, kind, words_of_error):
    with pytest.raises(kind, match=words_of_error):
        call(pipeline(lanes_folder))


def test_ends_are_translated_to_the_recipes(lanes_folder, lanes):
    def ends(**arguments):
        return [(t.get("exhausted", "repeat"), t.get("epochs", 1)) for t in source(lanes_folder, **arguments).tables("text")["dataset"]]

    assert ends() == [("stop", 1), ("repeat", 1)]
    assert ends(mixture={"wiki": 0.99, "news": 0.01}) == [("repeat", 1), ("stop", 1)]
    assert ends(stop_after_passes=3, token_estimation=None) == [("stop", 3), ("repeat", 1)]
    assert ends(exhausted_policy={"wiki": "redistribute", "news": "repeat"}) == [("redistribute", 1), ("repeat", 1)]
    assert ends(exhausted_policy="repeat", max_repeats={"news": 2}) == [("repeat", 1), ("stop", 3)]


def test_published_arguments_that_change_nothing_here_change_nothing(lanes, lanes_folder, endless):
    # Four times too many tokens a byte of the one, four times too few of the other: there is nothing to estimate.
    wrong = TokenEstimation({"wiki": 1.2, "news": 0.07}, calibration_samples=7)
    work = source(lanes_folder, exhausted_policy="repeat", chunk_size=99, lane_assignment="modulo", shuffle_block_size=64, token_estimation=wrong)
    io = {"cache": {"enabled": True, "limit_bytes": 10**9}, "arrow": {"cpu_threads": 2}, "metadata_cache_entries": 9}
    built = pipeline(lanes_folder, work, deterministic=False, mapping_strategy="interleaved", runner="threads", flush_every_k_chunks=3, max_workers=2, prefetch_batches=4)
    built.options(io_options=io).fetch_parallelism(3).fetch(2, 64).prefetch(512, 8).ensure_mixture(max_buffer_size=10).materialize().decode_text(normalize_newlines=False)
    built.shuffle(buffer_size=64, seed=42, algorithm="block_warmup", warmup_growth=1.2).pack_flat(32, algorithm="wrap", min_sequence_length=5, flush_strategy="fullest")
    assert take(built, 20) == endless[:20]
    assert (work.component_ids(), work.chunk_size_hint(), [d.name for d in work.datasets_by_id.values()]) == ({"wiki": 0, "news": 1}, 99, ["wiki", "news"])


def test_the_packers_published_bounds_hold(lanes, lanes_folder):
    def rows(**arguments):
        built = pipeline(lanes_folder, source(lanes_folder, exhausted_policy="repeat")).pack_flat(max_length=64, **arguments)
        for batch, _ in zip(built, range(12), strict=False):
            for row in range(8):
                yield batch.provenance[batch.provenance["row"] == row]["length"]

    for algorithm in ("wrap", "first_fit", "best_fit", "best_fit_wrap"):
        counts = [len(lengths) for lengths in rows(algorithm=algorithm, max_sequences_per_bin=2)]
        assert max(counts) == 2 and min(counts) >= 1, algorithm
    assert max(len(lengths) for lengths in rows(algorithm="wrap")) > 2
    closed = [int(lengths.sum()) for lengths in rows(algorithm="first_fit", num_bins=400, min_sequence_length=16)]
    assert min(closed) > 64 - 16 and min(closed) < 64, "open rows are many, so that none has to go before it is nearly full"


def test_truncation_is_the_packers(lanes, lanes_folder):
    built = pipeline(lanes_folder, source(lanes_folder, exhausted_policy="repeat")).tokenize(
        tokenizer_id=str(lanes_folder / "tokenizer.json"), field="text", special_tokens="eos", truncation=True, max_length=32
    )
    assert built.recipe.fields()["pack.long_documents"] == '"truncate"'
    batches = [batch for batch, _ in zip(built, range(10), strict=False)]
    assert built.stats["truncated_tokens"] > 0 and all(int(p["start"]) + int(p["length"]) <= 32 for b in batches for p in b.provenance)


def test_a_tokenizer_object_is_as_good_as_its_file(lanes, lanes_folder, endless):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(lanes_folder / "tokenizer.json"))
    built = pipeline(lanes_folder, source(lanes_folder, exhausted_policy="repeat")).tokenize(tokenizer, field="text", special_tokens="eos")
    assert take(built, 3) == endless[:3]


def test_decode_text_does_what_its_arguments_say(lanes, tmp_path, lanes_folder):
    shards = {0: [{"text": "w1\r\nW2"}] * 40}
    work = StaticMixtureWorkSource([Dataset.from_dict("d", shards)], {"d": 1.0}, exhausted_policy="repeat")
    built = Pipeline(work).options(framework="numpy").decode_text(lowercase=True, fields=("text",))
    built.tokenize(lanes_folder / "tokenizer.json", field="text", special_tokens="eos").pack_flat(32, algorithm="wrap").batch(8)
    assert next(iter(built)).input_ids[0, :3].tolist() == [1, 2, EOS]
    with pytest.raises(errors.InvalidArgument, match="does not name 'text'"):
        _ = pipeline(lanes_folder).decode_text(fields=["body"], normalize_newlines=False).recipe
