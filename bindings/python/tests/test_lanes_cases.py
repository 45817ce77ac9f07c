"""What users of loaders have met, tried from outside: long documents, odd weights, few documents, a damaged file among many."""

import gzip
import json

import numpy as np
import pytest
from lanes_data import EOS, write_tokenizer

from laneway import Loader, errors, global_hash


def house(folder, lengths, **pack):
    """A recipe over documents of so many words, each with words of its own, in their order, each once; no special tokens unless asked."""
    write_tokenizer(folder / "tokenizer.json")
    texts = [" ".join(f"w{d * 10 + i % 10}" for i in range(n)) for d, n in enumerate(lengths)]
    (folder / "data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    special = pack.pop("special_tokens", "none")
    return {
        "dataset": [{"name": "d", "paths": [str(folder / "data.jsonl")], "exhausted": "stop"}],
        "tokenizer": {"path": str(folder / "tokenizer.json"), "special_tokens": special},
        "pack": {"max_length": 3, **pack},
        "shuffle": {"documents": "none", "buffer_size": 0},
        "batch": {"global_batch": 1},
    }


def rows(loader):
    """Documents and lengths of the pieces of each row, and what was left out."""
    found = [[(int(p["document"]), int(p["start"]), int(p["length"])) for p in batch.provenance] for batch in loader]
    return found, {name: loader.stats[name] for name in ("truncated_tokens", "dropped", "dropped_tokens")}


@pytest.mark.parametrize(
    ("policy", "expected", "lost"),
    [
        ("split", [[(0, 0, 3)], [(0, 3, 1), (1, 0, 2)], [(2, 0, 3)], [(3, 0, 1)]], (0, 0, 0)),
        ("truncate", [[(0, 0, 3)], [(1, 0, 2), (2, 0, 1)], [(2, 1, 2), (3, 0, 1)]], (1, 0, 0)),
        ("drop", [[(1, 0, 2), (2, 0, 1)], [(2, 1, 2), (3, 0, 1)]], (0, 1, 4)),
    ],
)
def test_documents_longer_than_a_row_follow_the_policy_and_what_is_lost_is_counted(tmp_path, policy, expected, lost):
    found, counts = rows(Loader(house(tmp_path, [4, 2, 3, 1], long_documents=policy), framework="numpy"))
    assert found == expected
    assert tuple(counts.values()) == lost


def test_a_document_longer_than_a_row_can_be_an_error_that_names_it_and_what_to_do(tmp_path):
    recipe = house(tmp_path, [2, 1, 4], long_documents="error")
    recipe["dataset"][0]["exhausted"] = "repeat"
    loader = Loader(recipe, framework="numpy")
    with pytest.raises(errors.DataError, match=r"dataset 'd': document 2 \(\S+data\.jsonl line 3\) has 4 tokens and a row 3; set pack.long_documents to split, truncate or drop, or raise"):
        for _ in range(5):
            next(loader)


def test_a_row_of_one_token_predicts_nothing_and_is_refused(tmp_path):
    with pytest.raises(errors.InvalidArgument, match="max_length is 1; it must be from 2"):
        Loader(house(tmp_path, [1], max_length=1))


def test_121_tokens_are_rows_of_60_and_60_and_1(tmp_path):
    assert rows(Loader(house(tmp_path, [121], max_length=60), framework="numpy"))[0] == [[(0, 0, 60)], [(0, 60, 60)], [(0, 120, 1)]]


@pytest.mark.parametrize("algorithm", ["wrap", "first_fit", "best_fit", "best_fit_wrap", "none"])
def test_empty_documents_leave_no_trace_and_exact_ones_fill_rows(tmp_path, algorithm):
    loader = Loader(house(tmp_path, [0, 3, 0, 3, 2, 0, 1, 0, 0], algorithm=algorithm), framework="numpy")
    found, _ = rows(loader)
    together = [[(1, 0, 3)], [(3, 0, 3)], [(4, 0, 2), (6, 0, 1)]]
    assert sorted(found) == ([[(1, 0, 3)], [(3, 0, 3)], [(4, 0, 2)], [(6, 0, 1)]] if algorithm == "none" else together)
    assert (loader.stats["empty"], loader.stats["documents"]) == (5, 4), "also those behind the last row"


def test_an_end_that_falls_alone_into_the_next_row_goes_on_counting(tmp_path):
    loader = Loader(house(tmp_path, [3, 1], special_tokens="eos"), framework="numpy")
    first, second = next(loader), next(loader)
    end = EOS
    assert first.input_ids.tolist() == [[0, 1, 2]] and first.labels.tolist() == [[1, 2, -100]]
    assert second.input_ids.tolist() == [[end, 10, end]] and second.positions.tolist() == [[3, 0, 1]]
    assert second.labels.tolist() == [[-100, end, -100]], "nothing follows a document's end"


def mixed(folder, weights):
    write_tokenizer(folder / "tokenizer.json")
    for s, name in enumerate(weights):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": f"w{s} w{d}"}) + "\n" for d in range(50)))
    return {
        "dataset": [{"name": n, "paths": [str(folder / f"{n}.jsonl")], "weight": w} for n, w in weights.items()],
        "tokenizer": {"path": str(folder / "tokenizer.json"), "special_tokens": "eos"},
        "pack": {"max_length": 8},
        "batch": {"global_batch": 4},
    }


def taken(recipe, steps=30):
    loader = Loader(recipe, framework="numpy")
    batches = [next(loader) for _ in range(steps)]
    return {int(d) for b in batches for d in b.provenance["dataset"]}, [global_hash(b.hashes) for b in batches]


def test_weight_0_leaves_a_dataset_out_and_only_proportions_count(tmp_path):
    assert taken(mixed(tmp_path, {"a": 1.0, "b": 0.0}))[0] == {0}
    sources, hashes = taken(mixed(tmp_path, {"a": 1.0, "b": 3.0}))
    assert sources == {0, 1}
    assert taken(mixed(tmp_path, {"a": 0.25, "b": 0.75}))[1] == hashes == taken(mixed(tmp_path, {"a": 1e300, "b": 3e300}))[1]


@pytest.mark.parametrize(("weights", "said"), [((0.0, 0.0), "all weights are 0"), ((1.0, -1.0), "weight of dataset 'b' is -1"), ((1.0, float("nan")), "'b' is NaN")])
def test_weights_that_mean_nothing_are_errors(tmp_path, weights, said):
    with pytest.raises(errors.InvalidArgument, match=said):
        Loader(mixed(tmp_path, dict(zip("ab", weights, strict=True))))


def test_a_dataset_without_documents_is_named(tmp_path):
    recipe = mixed(tmp_path, {"a": 1.0, "b": 1.0})
    (tmp_path / "b.jsonl").write_text("\n\n")
    with pytest.raises(errors.InvalidArgument, match="dataset 'b' has no documents"):
        next(Loader(recipe))


@pytest.mark.parametrize(("documents", "ranks", "batch"), [(40, 8, 8), (5, 2, 2)])
def test_few_documents_in_one_file_give_every_rank_as_many_batches(tmp_path, documents, ranks, batch):
    recipe = house(tmp_path, [2] * documents, algorithm="none")
    recipe["batch"] = {"global_batch": batch}
    counts = [sum(1 for _ in Loader(recipe, rank, ranks, framework="numpy")) for rank in range(ranks)]
    assert len(set(counts)) == 1 and counts[0] == -(-documents // batch)


def test_a_damaged_file_among_eight_is_named_or_left_out_alike_on_every_number_of_ranks(tmp_path):
    recipe = house(tmp_path, [1])
    shards = tmp_path / "shards"
    shards.mkdir()
    for s in range(8):
        lines = "".join(json.dumps({"text": " ".join(f"w{(s * 50 + d + i) % 400}" for i in range(1 + d % 5))}) + "\n" for d in range(50))
        packed = gzip.compress(lines.encode())
        (shards / f"{s}.jsonl.gz").write_bytes(packed[:-30] if s == 5 else packed)
    recipe["dataset"] = [{"name": "d", "paths": [str(shards)]}]
    recipe["batch"] = {"global_batch": 8}
    with pytest.raises(errors.DataError, match=r"5\.jsonl\.gz: the gzip stream is cut off at byte \d+ .*on_error = \"skip\""):
        next(Loader(recipe))
    recipe["dataset"][0]["on_error"] = "skip"

    def hashes(ranks):
        loaders = [Loader(recipe, rank, ranks, framework="numpy") for rank in range(ranks)]
        return [global_hash(np.concatenate([next(loader).hashes for loader in loaders])) for _ in range(60)]

    one = hashes(1)
    assert hashes(2) == one and hashes(8) == one


def test_a_stream_that_ends_before_its_first_row_says_what_was_left_out(tmp_path):
    for lengths, said in (([0, 0, 0], "fill no row: .* 0 documents are packed, 3 left out as empty"), ([4, 5], "fill no row: .* and 2 as longer than 3 tokens")):
        with pytest.raises(errors.DataError, match=said):
            next(Loader(house(tmp_path, lengths, algorithm="first_fit")))
    recipe = house(tmp_path, [3, 3, 4], algorithm="first_fit")
    recipe["batch"] = {"global_batch": 4, "tail": "drop"}
    with pytest.raises(errors.DataError, match=r"fill 2 rows, which is less than one global batch of 4 \(.* 2 documents are packed, .* 1 as longer than 3 tokens\); lower"):
        next(Loader(recipe))
