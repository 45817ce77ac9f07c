"""Operators of the user's with a state: the same batches on any number of ranks and over any cut, with the state in the checkpoint."""

import json
import pickle
import random
import subprocess
import sys
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from lanes_data import EOS, words
from test_lanes_pipeline import source, take

from laneway import Loader, Operator, Pipeline, SampleRecord, errors, global_hash


def start(folder, microbatch_size=8, **options):
    work = source(folder, exhausted_policy=options.pop("exhausted_policy", "repeat"))
    return (
        Pipeline(work)
        .options(framework="numpy", global_batch=8, canonical_replicas=8, **options)
        .tokenize(tokenizer_id=str(folder / "tokenizer.json"), field="text", special_tokens="eos")
        .batch(microbatch_size=microbatch_size)
    )


def end(pipeline):
    return pipeline.pack_flat(max_length=32, algorithm="wrap").shuffle(buffer_size=64, seed=42)


def by_budget(state, records, most=100):
    """Holds documents back until they fill a budget, as the published documentation does, then the longest first; cuts them at 40 tokens."""
    state["tokens"] += sum(len(r.payload["input_ids"]) for r in records)
    for record in records:
        record.payload["input_ids"] = record.payload["input_ids"][:40]
    state["buffer"] += records
    if state["tokens"] <= most:
        return state, []
    out = sorted(state["buffer"], key=lambda r: (-len(r), r.meta.dataset, r.meta.document))
    return {"buffer": [], "tokens": 0}, out


def budgeted(pipeline):
    return pipeline.stateful_transform(
        "by_budget", init_state=lambda: {"buffer": [], "tokens": 0}, push=lambda state, records: by_budget(state, records), flush=lambda state: state["buffer"]
    )


def recent(pipeline):
    """Leaves out what was among the last 50 documents of its dataset."""

    def push(state, records):
        seen, counts = state
        out = [r for r in records if (r.meta.dataset, r.meta.document) not in seen]
        seen.extend((r.meta.dataset, r.meta.document) for r in records)
        counts[records[0].meta.dataset] = counts.get(records[0].meta.dataset, 0) + 1
        return (seen, counts), out

    return pipeline.stateful_transform("recent", init_state=lambda: (deque(maxlen=50), {}), push=push, version="1")


@pytest.fixture(scope="module")
def expected(lanes_folder):
    return take(end(recent(budgeted(start(lanes_folder)))), 40)


def world(folder, ranks, **options):
    return [end(recent(budgeted(start(folder, 8 // ranks, dp_degree=ranks, dp_group_id=r, **options)))) for r in range(ranks)]


def steps(pipelines, n):
    iterators = [iter(p) for p in pipelines]
    return [global_hash([next(i).hashes for i in iterators]) for _ in range(n)]


def test_the_same_batches_over_any_cut_ranks_and_threads_and_without_saves(lanes, lanes_folder, expected):
    assert len(set(expected)) == 40
    (one,) = world(lanes_folder, 1)
    assert "user operators run: by_budget " in one.explain() and "recent 1\n" in one.explain()
    state, done = None, []
    for i, (ranks, n) in enumerate([(2, 5), (1, 1), (4, 7), (8, 9), (2, 1), (1, 3), (4, 14)]):
        pipelines = world(lanes_folder, ranks, max_workers=[0, 2, 5][i % 3], prefetch_batches=i)
        if state is not None:
            for pipeline in pipelines:
                pipeline.restore(state)
        done += steps(pipelines, n)
        parts = [json.loads(json.dumps(p.checkpoint())) for p in pipelines]
        state = {"meta": parts[0]["meta"], "lanes": {k: v for part in parts for k, v in part["lanes"].items()}}
        for pipeline in pipelines:
            pipeline.close()
    assert done == expected


def test_a_new_process_goes_on_from_every_step(lanes, lanes_folder, expected, tmp_path):
    pipelines = world(lanes_folder, 2)
    states = []
    for step in range(12):
        assert steps(pipelines, 1) == expected[step : step + 1], "saving changes nothing"
        states.append([p.checkpoint() for p in pipelines])
    (tmp_path / "states.json").write_text(json.dumps(states))
    program = f"""
import json, sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from test_operators import world, steps
states = json.loads(Path({str(tmp_path / "states.json")!r}).read_text())
for state in states:
    (one,) = world(Path({str(lanes_folder)!r}), 1)
    one.restore(state)
    print(*steps([one], 3))
"""
    out = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120).stdout.splitlines()
    assert [[int(h) for h in line.split()] for line in out] == [expected[s + 1 : s + 4] for s in range(12)]


def test_what_is_handed_on_are_slices_of_documents(lanes, lanes_folder):
    def middle(state, records):
        record = records[0]
        return state + 1, [record.part(1, len(record)), record.part(0, 1)] if len(record) > 1 else []

    rows = end(start(lanes_folder).stateful_transform("middle", init_state=lambda: 0, push=middle))
    for batch, _ in zip(rows, range(10), strict=False):
        for piece in batch.provenance:
            document = [int(w[1:]) for w in words(int(piece["dataset"]), int(piece["document"])).split()] + [EOS]
            at, first = int(piece["offset"]), int(piece["start"])
            assert batch.input_ids[piece["row"], at : at + piece["length"]].tolist() == document[first : first + piece["length"]]


def test_a_stream_that_ends_is_flushed_and_counted(lanes, lanes_folder):
    batches = list(end(budgeted(start(lanes_folder, exhausted_policy="redistribute"))))
    kept = {(int(p["dataset"]), int(p["document"])) for b in batches for p in b.provenance}
    assert len(kept) > 350, "of 370 documents; only rows that fill no step are left out"
    (one,) = [end(budgeted(start(lanes_folder, exhausted_policy="redistribute")))]
    one.seek(len(batches) - 2)
    assert take(one, 5) == [global_hash(b.hashes) for b in batches[-2:]]


def test_should_flush_ends_a_state_and_transform_sees_what_goes_on(lanes, lanes_folder):
    seen = []

    def twos(records):
        seen.append(len(records))
        return records[::-1]

    made = start(lanes_folder).stateful_transform(
        "pairs", init_state=list, push=lambda s, r: (s + r, []), flush=lambda s: s, should_flush=lambda s: len(s) == 2, transform=twos, parallelism=4
    )
    plain = start(lanes_folder).stateful_transform("pairs", init_state=list, push=lambda s, r: ([], (s + r)[::-1]) if s else (r, []))
    assert take(end(made), 10) == take(end(plain), 10) and set(seen) == {2}


def test_a_loader_takes_operators_by_the_recipes_names(lanes, lanes_folder):
    text = 'functions = ["some 1"]\n' + (lanes_folder / "recipe.toml").read_text()
    recipe = lanes_folder / "operators.toml"
    recipe.write_text(text)
    some = Operator("some 1", random_state, chosen, save=random.Random.getstate, load=restored)
    expected = take(Loader(recipe, framework="numpy", operators=[some]), 12)
    with Loader(recipe, framework="numpy", operators=[some]) as loader:
        assert take(loader, 5) == expected[:5]
        state = loader.state_dict()
    fresh = pickle.loads(pickle.dumps(Loader(recipe, framework="numpy", operators=[some])))
    fresh.load_state_dict(state)
    assert take(fresh, 7) == expected[5:]
    with pytest.raises(errors.InvalidArgument, match="'some 1', which was not given"):
        _ = Loader(recipe).step
    with pytest.raises(errors.InvalidArgument, match="'other 1' was given"):
        _ = Loader(recipe, operators=[some, Operator("other 1", list, lambda s, r: (s, r))]).step
    with pytest.raises(TypeError, match="laneway.Operator"):
        Loader(recipe, operators=[chosen])


def random_state():
    return random.Random(5)


def chosen(state, records):
    return state, records if state.random() < 0.5 else []


def restored(plain):
    made = random.Random()
    made.setstate(plain)
    return made


def test_an_edited_operator_is_another_recipe_and_its_checkpoint_is_refused(lanes, lanes_folder):
    def with_limit(limit):
        # Two different codes: a limit that is closed over would not be seen.
        push = (lambda s, r: (s, r[:1])) if limit else (lambda s, r: (s, r[1:] or r))
        return end(start(lanes_folder).stateful_transform("cut", init_state=lambda: None, push=push))

    first, second = with_limit(True), with_limit(False)
    assert "functions" in first.recipe.difference(second.recipe)
    next(iter(first))
    second.restore(first.checkpoint())
    with pytest.raises(errors.Refused, match="functions"):
        next(iter(second))


def kept_outside(state, records, held=[]):  # noqa: B006
    held += records
    return state, held[-2:-1]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"push": lambda s, r: r}, errors.DataError, "(?s)operator 'x 1'.*tuple"),
        ({"push": lambda s, r: (s, [1])}, errors.DataError, "SampleRecord"),
        ({"push": lambda s, r: (s, 1 / 0)}, errors.DataError, "ZeroDivisionError"),
        ({"init_state": lambda: [][0], "push": print}, errors.DataError, "IndexError"),
        ({"push": lambda s, r: (s, [SampleRecord(r[0].meta, {"input_ids": r[0].meta.tokens + 1})])}, errors.DataError, "makes no tokens"),
        ({"push": lambda s, r: (s, [SampleRecord(r[0].meta, {**r[0].payload, "x": 1})])}, errors.DataError, "only 'input_ids'"),
        ({"push": kept_outside}, errors.DataError, "another lane's"),
        ({"init_state": object, "push": lambda s, r: (s, r)}, errors.DataError, "give save= and load="),
        ({"push": lambda s, r: ((s or "") + "x" * 9999, r)}, errors.Unsupported, "65536 are kept"),
        ({"push": lambda s, r: (s, [])}, errors.DataError, "hands nothing on: lane . has given it 4837 documents"),
    ],
)
def test_an_operator_that_goes_wrong_fails_the_run_with_its_reason(lanes, lanes_folder, arguments, kind, message):
    kept_outside.__defaults__[0].clear()
    pipeline = end(start(lanes_folder).stateful_transform("x", **({"init_state": lambda: None} | arguments), version="1"))
    with pytest.raises(kind, match=message):
        take(pipeline, 200)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda p: Pipeline(p.source).stateful_transform("x", init_state=list, push=print), "before tokenize"),
        (lambda p: end(p).stateful_transform("x", init_state=list, push=print), "after pack_flat"),
    ],
)
def test_an_operator_in_a_place_that_it_cannot_have_is_refused(lanes, lanes_folder, build, message):
    with pytest.raises(errors.Unsupported, match=message):
        build(start(lanes_folder))


def test_records_are_let_go_of_when_nobody_has_them(lanes, lanes_folder):
    """A window of the last three documents: a checkpoint holds three a lane, not all that ever were."""
    pipeline = end(start(lanes_folder).stateful_transform("last", init_state=lambda: deque(maxlen=3), push=lambda s, r: (s.extend(r) or s, [s[0]]), version="1"))
    sizes = []
    for _ in range(4):
        take(pipeline, 25)
        sizes.append(len(json.dumps(pipeline.checkpoint())))
    assert max(sizes) < 1.2 * sizes[0]


def test_plain_values_come_back_as_they_were():
    from laneway._plain import decode, encode

    value = {
        "a": [1, 2.5, None, True, "é\ud800"], (1, "x"): {3, 1, 2}, 7: frozenset({("y", 1)}), "b": b"\0\xff", "q": deque([1, [2]], maxlen=4),
        "n": np.float32(0.1), "m": np.arange(6, dtype=np.int16).reshape(2, 3), "inf": float("-inf"), "big": 2**80, "r": 0.1 + 0.2,
    }  # fmt: skip
    back = decode(json.loads(encode(value, None, [])), [])
    assert {k: v for k, v in back.items() if k != "m"} == {k: v for k, v in value.items() if k != "m"}
    assert (back["m"] == value["m"]).all() and back["m"].dtype == np.int16 and back["q"].maxlen == 4 and type(back["n"]) is np.float32
    assert encode({2, 1, 3}, None, []) == encode({3, 2, 1}, None, [])
    with pytest.raises(TypeError, match=r"state\['x'\]\[1\] is a pathlib"):
        encode({"x": [0, Path()]}, None, [])


