"""Samples of different lengths: true shapes on both sides, batches with masks, gradients that are numbers; and teachers whose output is not as declared."""

import functools
import pickle

import numpy as np
import pytest
from conftest import wait_until
from peers import LENGTHS, RAGGED, ragged_sample

from laneway import BatchConfig, DistillIterableDataset, StudentClient, TaskError, TensorSpec

torch = pytest.importorskip("torch")


def bits(tensor):
    return tensor.view(torch.int16).numpy().view(np.uint16)


def check(sample, step):
    want = ragged_sample(step)
    assert sample["ids"].shape == sample["logits"].shape == want["ids"].shape and sample["tag"] == step
    assert np.array_equal(sample["ids"].numpy(), want["ids"]) and np.array_equal(bits(sample["logits"]), want["logits"])


def test_a_shape_is_written_the_same_everywhere():
    spec = TensorSpec("x", ["seq <= 7", 4], "float32", finite=True)
    assert spec.shape == ("seq<=7", 4) and spec.max_shape == (7, 4) and spec.is_ragged
    assert RAGGED.dims == {"seq": 7} and BatchConfig.from_dict(RAGGED.to_dict()) == RAGGED == pickle.loads(pickle.dumps(RAGGED))
    assert RAGGED.to_dict()["specs"][0] == {"name": "ids", "shape": ["seq<=7", 4], "dtype": "int32", "min": 0, "max": 49}
    # 112 and 56 bytes, each at a multiple of 64, a scalar, and the shapes of two tensors of two dimensions.
    assert RAGGED.offsets == (0, 128, 192) and RAGGED.nbytes() == 256 + 2 * 2 * 8


def test_the_library_reads_what_python_writes():
    from laneway import _native
    from laneway._student import c_layout

    with c_layout(RAGGED) as layout:
        assert _native.lib().lw_layout_nbytes(layout) == RAGGED.nbytes()
        import json

        assert json.loads(_native.text(_native.lib().lw_layout_to_json, layout)) == RAGGED.to_dict()


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ([("x", ["seq"], "int8")], ["'x'", "'seq'", "seq<=2048"]),
        ([("x", ["seq<=0"], "int8")], ["seq<=0"]),
        ([("x", ["s<=4"], "int8"), ("y", ["s<=5"], "int8")], ["'y'", "s<=5", "s<=4", "one maximum"]),
        ([("x", [1], "int8", True)], ["finite is for float"]),
        ([("x", [1], "float32", False, 0)], ["integer types"]),
        ([("x", [1], "uint8", False, 0, 256)], ["max 256", "0 to 255"]),
    ],
)
def test_what_cannot_be_asked_is_refused(specs, words):
    with pytest.raises(ValueError) as error:
        BatchConfig([TensorSpec(*spec) for spec in specs])
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize("step", range(4))
def test_decode_gives_what_encode_took_in_its_true_shape(step):
    sample = ragged_sample(step)
    data = RAGGED.encode(**sample)
    assert len(data) == RAGGED.nbytes() and RAGGED.lengths(data) == {"seq": LENGTHS[step]}
    check(RAGGED.decode(data), step)
    assert np.array_equal(RAGGED.decode_single(data, "ids", "numpy"), sample["ids"])
    assert RAGGED.decode(data, "numpy")["logits"].shape == sample["logits"].shape


def test_lengths_that_do_not_fit_are_refused_by_name():
    sample = ragged_sample(2)
    with pytest.raises(ValueError, match=r"'ids' has shape \(8, 4\); expected \('seq<=7', 4\)"):
        RAGGED.encode(**{**sample, "ids": np.zeros((8, 4), np.int32)})
    with pytest.raises(ValueError, match="'logits' has 7 for dimension 'seq', and another tensor of the sample 3"):
        RAGGED.encode(**{**sample, "ids": sample["ids"][:3]})
    data = bytearray(RAGGED.encode(**sample))
    data[256] = 8
    with pytest.raises(ValueError, match="'?seq'? is 8; expected at most 7"):
        RAGGED.decode(data)
    data[256:264] = b"\xff" * 8
    with pytest.raises(ValueError, match="'seq' was not set"):
        RAGGED.decode(data)


def test_a_batch_has_lengths_and_masks():
    samples = [RAGGED.decode(RAGGED.encode(**ragged_sample(step))) for step in range(4)]
    batch = RAGGED.collate(samples, padding={"ids": -1})
    assert batch["ids"].shape == (4, 7, 4) and batch["seq_lengths"].tolist() == list(LENGTHS) and batch["tag"].tolist() == [0, 1, 2, 3]
    assert batch["seq_mask"].tolist() == [[i < n for i in range(7)] for n in LENGTHS]
    for row, sample in enumerate(samples):
        n = LENGTHS[row]
        assert torch.equal(batch["ids"][row, :n], sample["ids"]) and (batch["ids"][row, n:] == -1).all()
        assert torch.equal(batch["logits"][row, :n], sample["logits"]) and (batch["logits"][row, n:] == 0).all()
    short = samples[:2]
    assert RAGGED.collate(short)["ids"].shape == (2, 1, 4)
    assert RAGGED.collate(short, pad_to="max")["ids"].shape == (2, 7, 4)
    assert RAGGED.collate(short, pad_to={"seq": 4}, masks=False).keys() == {"ids", "logits", "tag", "seq_lengths"}
    assert RAGGED.collate(short, pad_to=4)["ids"].shape == (2, 4, 4)
    as_numpy = RAGGED.collate([RAGGED.decode(RAGGED.encode(**ragged_sample(step)), "numpy") for step in range(4)])
    assert isinstance(as_numpy["seq_mask"], np.ndarray) and np.array_equal(as_numpy["ids"][2], batch["ids"][2].numpy())
    for bad, word in [({"pad_to": "most"}, "pad_to"), ({"padding": {"idz": 1}}, "idz")]:
        with pytest.raises((ValueError, KeyError), match=word):
            RAGGED.collate(samples, **bad)
    with pytest.raises(ValueError, match="no samples"):
        RAGGED.collate([])


def test_a_batch_is_where_its_samples_are():
    """Here on torch's device without memory: shapes and places are all that can be seen."""
    samples = [{name: value.to("meta") for name, value in RAGGED.decode(RAGGED.encode(**ragged_sample(step))).items()} for step in range(4)]
    batch = RAGGED.collate([{**sample, "_step": step} for step, sample in enumerate(samples)])
    assert {name: (tuple(value.shape), value.device.type) for name, value in batch.items()} == {
        "ids": ((4, 7, 4), "meta"),
        "logits": ((4, 7, 4), "meta"),
        "tag": ((4,), "meta"),
        "seq_lengths": ((4,), "meta"),
        "seq_mask": ((4, 7), "meta"),
        "_step": ((4,), "meta"),
    }


@pytest.mark.parametrize("lengths", [(0, 1, 7), (0, 0), (7,)])
@pytest.mark.parametrize("ragged_k", [False, True])
def test_top_k_logits_of_different_lengths_give_gradients_that_are_numbers(lengths, ragged_k):
    from laneway.torch import topk_kl

    k = "k<=4" if ragged_k else 4
    config = BatchConfig([TensorSpec("ids", ["seq<=7", k], "int64", min=0, max=10), TensorSpec("top", ["seq<=7", k], "float32", finite=True)])
    torch.manual_seed(1)
    samples = []
    for n in lengths:
        width = n % 5 if ragged_k else 4
        samples.append(config.decode(config.encode(ids=torch.randint(11, (n, width)), top=torch.randn(n, width) * 30)))
    batch = config.collate(samples)
    size = batch["top"].shape[1]
    weights = torch.randn(11, 11, requires_grad=True)
    logits = torch.randn(len(lengths), size, 11) @ weights
    logits.retain_grad()
    k_mask = batch["k_mask"][:, None, :] if ragged_k else None
    loss = topk_kl(logits, batch["top"], batch["ids"], batch["seq_mask"], k_mask, temperature=2.0)
    loss.backward()
    assert loss.isfinite() and logits.grad.isfinite().all() and weights.grad.isfinite().all()
    assert (logits.grad[~batch["seq_mask"]] == 0).all()
    # The same from each sample alone, by torch's own divergence, without any padding.
    total = torch.zeros(())
    for row, sample in enumerate(samples):
        n = len(sample["ids"])
        if sample["ids"].numel():
            q = torch.log_softmax(logits[row, :n].detach() / 2, -1).gather(-1, sample["ids"])
            total += torch.nn.functional.kl_div(q, torch.log_softmax(sample["top"] / 2, -1), reduction="sum", log_target=True)
    assert torch.allclose(loss.detach(), total / max(1, sum(lengths)) * 4, atol=1e-5)


@pytest.mark.parametrize("how", ["place", "assign", "bytes"])
def test_true_shapes_arrive(house, how):
    house.worker("ragged", how)
    with StudentClient(0, 4, RAGGED) as client:
        client.set_model("m")
        for step in range(8):
            with client.request_sample(timeout_ms=60_000) as sample:
                check(sample.tensors, step)


def test_a_loader_pads_and_torchs_own_can(house):
    from laneway.torch import DataLoader

    house.worker("ragged", "place")
    with StudentClient(0, 4, RAGGED) as client:
        client.set_model("m")
        dataset = DistillIterableDataset(0, client.generation_value, 4, RAGGED)
        batch = next(iter(DataLoader(dataset, batch_size=4)))
        assert batch["seq_lengths"].tolist() == list(LENGTHS) and batch["ids"].shape == (4, 7, 4) and batch["tag"].tolist() == [0, 1, 2, 3]
        dataset.close()
        collate = functools.partial(RAGGED.collate, pad_to="max")
        batch = next(iter(torch.utils.data.DataLoader(dataset, batch_size=2, collate_fn=collate)))
        assert batch["ids"].shape == (2, 7, 4) and batch["seq_mask"].sum(1).tolist() == batch["seq_lengths"].tolist()
        dataset.close()


def test_a_sample_that_is_not_as_declared_fails_its_task_with_tensor_index_and_value(house):
    worker = house.worker("ragged", "bad")
    with StudentClient(0, 4, RAGGED) as client:
        client.set_model("m")
        for step in (0, 1):
            check(client.request_sample(timeout_ms=60_000).tensors, step)
        with pytest.raises(TaskError, match=r"step 2\) failed after 3 attempts.*'logits': element \[3, 2\] is -inf; expected finite"):
            client.request_sample(timeout_ms=60_000)
        check(client.request_sample(timeout_ms=60_000).tensors, 3)
        for word in ["'ids': element [3, 2] is 50; expected 0 to 49", "'logits': element [3, 2] is NaN", "step 2"]:
            wait_until(lambda word=word: word in worker.log.read_text(), word)


def test_a_length_that_was_never_set_fails_the_task(house):
    house.worker("ragged", "forget")
    with StudentClient(0, 4, RAGGED, max_attempts=2) as client:
        client.set_model("m")
        with pytest.raises(TaskError, match="failed after 2 attempts.*the length of 'seq' was not set"):
            client.request_sample(timeout_ms=60_000)


def test_a_teacher_with_another_vocabulary_is_refused_by_name(house):
    worker = house.worker("ragged", "place")
    other = BatchConfig([TensorSpec("ids", ["seq<=7", 4], "int32", min=0, max=99), *RAGGED.specs[1:]])
    with StudentClient(0, 4, other) as client:
        client.set_model("m")
        wait_until(lambda: "'ids' has max 99 for the student and 49 for the worker" in worker.log.read_text(), "the refusal")
        assert client.request_sample(timeout_ms=100) is None
