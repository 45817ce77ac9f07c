"""Layouts: what a sample holds, how tensors become bytes and come back. Needs no library."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

from laneway import BatchConfig, TensorSpec

torch = pytest.importorskip("torch")

DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


@pytest.fixture
def images() -> BatchConfig:
    return BatchConfig([TensorSpec("x", (3, 224, 224), "float32"), TensorSpec("y", (1000,), "float32")])


def test_sizes_are_the_published_ones(images):
    hidden = BatchConfig([TensorSpec("hidden", (512, 768), "bfloat16"), TensorSpec("labels", (512,), "int64")])
    assert hidden.nbytes() == 790528
    assert images.nbytes() == 606112
    assert images.get_spec("x").nbytes == 3 * 224 * 224 * 4
    assert images.tensor_names == ["x", "y"]


def test_tensors_start_at_multiples_of_64_and_the_tail_is_not_padded():
    config = BatchConfig([TensorSpec("a", (1,), "int8"), TensorSpec("b", (3,), "int16"), TensorSpec("c", (), "bool")])
    assert config.offsets == (0, 64, 128)
    assert config.nbytes() == 129


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (5,), (2, 0), (3, 4)])
def test_torch_tensors_of_every_dtype_come_back_equal(dtype, shape):
    config = BatchConfig([TensorSpec("pad", (1,), "uint8"), TensorSpec("x", shape, dtype)])
    spec = config.get_spec("x")
    x = (torch.arange(spec.nbytes or 1).sum() + torch.ones(shape) * 3).to(spec.torch_dtype)
    data = config.encode(pad=torch.ones(1, dtype=torch.uint8), x=x)
    assert type(data) is bytes and len(data) == config.nbytes()
    for back in (config.decode(data)["x"], config.decode_single(data, "x"), config.decode(bytearray(data))["x"]):
        assert back.dtype == spec.torch_dtype and back.shape == shape and torch.equal(back, x)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bfloat16"])
def test_numpy_arrays_of_every_dtype_come_back_equal(dtype):
    config = BatchConfig([TensorSpec("x", (4, 3), dtype)])
    x = np.arange(12).reshape(4, 3).astype(dtype)
    back = config.decode(config.encode(x=x), framework="numpy")["x"]
    assert back.dtype == x.dtype and (back == x).all()


def test_bfloat16_without_torch_is_its_bits():
    config = BatchConfig([TensorSpec("x", (2,), "bfloat16")])
    bits = np.array([0x3F80, 0x4000], dtype=np.uint16)
    data = config.encode(x=bits)
    assert torch.equal(config.decode(data)["x"], torch.tensor([1.0, 2.0], dtype=torch.bfloat16))
    assert (config.decode(data, framework="numpy")["x"].view(np.uint16) == bits).all()


def test_views_that_are_not_contiguous_and_tensors_that_need_grad_are_encoded():
    config = BatchConfig([TensorSpec("x", (3, 2), "float32"), TensorSpec("b", (3, 2), "bfloat16")])
    x = torch.arange(6.0, requires_grad=True).reshape(2, 3).T
    back = config.decode(config.encode(x=x, b=x.to(torch.bfloat16)))
    assert torch.equal(back["x"], x.detach()) and torch.equal(back["b"], x.detach().to(torch.bfloat16))
    big_endian = np.arange(6, dtype=">f4").reshape(3, 2)
    back = config.decode(config.encode(x=big_endian, b=torch.zeros(3, 2, dtype=torch.bfloat16)), framework="numpy")
    assert (back["x"] == big_endian).all()


def test_a_writable_buffer_is_viewed_and_bytes_are_never_written(images):
    data = bytearray(images.nbytes())
    images.decode(data)["y"][0] = 7
    assert images.decode_single(data, "y")[0] == 7
    frozen = bytes(data)
    images.decode(frozen)["y"][0] = 8
    assert images.decode_single(frozen, "y")[0] == 7
    assert not images.decode(frozen, framework="numpy")["y"].flags.writeable


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (dict(x=np.zeros((2, 3), "f4")), ["missing", "'y'"]),
        (dict(x=np.zeros((2, 3), "f4"), y=np.zeros(4, "i8"), yy=1), ["unknown tensor 'yy'", "did you mean 'y'"]),
        (dict(x=np.zeros((3, 2), "f4"), y=np.zeros(4, "i8")), ["'x'", "(3, 2)", "(2, 3)"]),
        (dict(x=torch.zeros(2, 3), y=torch.zeros(4, dtype=torch.int32)), ["'y'", "int32", "int64"]),
        (dict(x=np.zeros((2, 3), "f8"), y=np.zeros(4, "i8")), ["'x'", "float64", "float32"]),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tensors, words):
    config = BatchConfig([TensorSpec("x", (2, 3), "float32"), TensorSpec("y", (4,), "int64")])
    with pytest.raises(ValueError) as error:
        config.encode(**tensors)
    assert all(word in str(error.value) for word in words), error.value


def test_a_list_is_no_tensor():
    config = BatchConfig([TensorSpec("x", (2,), "float32")])
    with pytest.raises(TypeError, match="'x' is a list; expected a torch tensor or a NumPy array"):
        config.encode(x=[1.0, 2.0])


def test_a_wrong_number_of_bytes_is_refused_with_both_numbers(images):
    with pytest.raises(ValueError, match="got 5 bytes; .* 606112"):
        images.decode(b"12345")
    with pytest.raises(KeyError, match="no tensor 'z'"):
        images.decode_single(bytes(images.nbytes()), "z")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TensorSpec("x", (1,), "float33"), ["float33", "did you mean 'float32'"]),
        (lambda: TensorSpec("x", (1,), "complex64"), ["complex64", "float64"]),
        (lambda: TensorSpec("x", (-1,), "int8"), ["negative"]),
        (lambda: TensorSpec("", (1,), "int8"), ["empty"]),
        (lambda: TensorSpec("x", (1,) * 33, "int8"), ["33 dimensions", "32"]),
        (lambda: TensorSpec("x", (2**40, 2**40), "int8"), ["more than"]),
        (lambda: BatchConfig([]), ["at least one tensor"]),
        (lambda: BatchConfig([TensorSpec("x", (), "int8")] * 2), ["'x'", "twice"]),
        (
            lambda: BatchConfig([{"name": "x", "shape": [1], "dtyp": "int8"}]),
            ["specs[0]", "dtyp", "did you mean 'dtype'"],
        ),
        (lambda: BatchConfig([{"name": "x", "shape": [1]}]), ["specs[0]", "'dtype' is missing"]),
        (lambda: BatchConfig.from_dict({"spec": []}), ["'spec'", "did you mean 'specs'"]),
        (lambda: BatchConfig.from_dict({}), ["'specs' is missing"]),
    ],
)
def test_a_wrong_layout_is_refused_with_what_was_meant(make, words):
    with pytest.raises(ValueError) as error:
        make()
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize("shape", [3, "12", (1.5,), (True,), None])
def test_a_shape_is_a_sequence_of_ints(shape):
    with pytest.raises(TypeError, match="shape"):
        TensorSpec("x", shape, "int8")


def test_dtypes_of_torch_and_numpy_are_taken_by_their_names():
    assert TensorSpec("x", [np.int64(2)], torch.bfloat16) == TensorSpec("x", (2,), "bfloat16")
    assert TensorSpec("x", torch.Size([2]), np.float32).dtype == "float32"
    assert TensorSpec("x", (2,), np.dtype("bool")).torch_dtype is torch.bool


def test_it_comes_from_dicts_yaml_hydra_and_omegaconf(tmp_path, images):
    specs = [
        {"name": "x", "shape": [3, 224, 224], "dtype": "float32"},
        {"name": "y", "shape": [1000], "dtype": "float32"},
    ]
    assert BatchConfig.from_dict({"specs": specs}) == images
    assert BatchConfig.from_dict(images.to_dict()) == images
    flow = "[{name: x, shape: [3, 224, 224], dtype: float32}, {name: y, shape: [1000], dtype: float32}]"
    (tmp_path / "plain.yaml").write_text(f"specs: {flow}\n")
    (tmp_path / "hydra.yaml").write_text(f"batch_config:\n  _target_: laneway.BatchConfig\n  specs: {flow}\n")
    assert BatchConfig.from_yaml(tmp_path / "plain.yaml") == BatchConfig.from_yaml(str(tmp_path / "hydra.yaml")) == images
    omegaconf = pytest.importorskip("omegaconf")
    hydra = pytest.importorskip("hydra.utils")
    node = omegaconf.OmegaConf.load(tmp_path / "hydra.yaml").batch_config
    assert hydra.instantiate(node) == BatchConfig(node.specs) == images


def test_a_wrong_yaml_file_is_named(tmp_path):
    (tmp_path / "a.yaml").write_text("specs: [")
    (tmp_path / "b.yaml").write_text("specs: [{name: x, shape: [1], dtype: int}]")
    for name in "ab":
        with pytest.raises(ValueError, match=f"{name}.yaml"):
            BatchConfig.from_yaml(tmp_path / f"{name}.yaml")


def test_it_is_a_value(images):
    assert pickle.loads(pickle.dumps(images)) == copy.deepcopy(images) == images
    assert len({images, pickle.loads(pickle.dumps(images))}) == 1
    assert eval(repr(images)) == images


def test_importing_laneway_does_not_import_torch():
    code = "import sys, laneway; from laneway import Worker, StudentClient; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
