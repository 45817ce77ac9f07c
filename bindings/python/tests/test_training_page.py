"""The programs of docs/training.md, as they stand there."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from ranks import preload, run_ranks

from laneway import Loader

pytest.importorskip("torch", reason="torch is not installed: the programs of docs/training.md were not tried")
PAGE = Path(__file__).resolve().parents[3] / "docs" / "training.md"
PROGRAMS = dict(re.findall(r"^## ([^\n]+)\n\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE))


def in_rank(rank: int, ranks: int, program: str, folder: str) -> dict[str, int]:
    """Runs one of them, in the process group that is there; the steps at which its loaders stand."""
    import torch

    torch.distributed.init_process_group = lambda *_: None
    os.chdir(folder)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(program, names)
    return {name: value.step for name, value in names.items() if isinstance(value, Loader)}


@pytest.fixture
def here(lanes_folder: Path, tmp_path: Path) -> Path:
    """A folder with ``recipe.toml``, of 8 rows a step and 32 tokens a row."""
    for name in ("recipe.toml", "tokenizer.json", "wiki.jsonl", "news"):
        (tmp_path / name).symlink_to(lanes_folder / name)
    return tmp_path


def test_the_page_has_a_program_for_each_trainer() -> None:
    assert list(PROGRAMS) == ["A loop of one's own", "Hugging Face", "Lightning", "TorchTitan", "Megatron Core"]


def test_a_loop_of_ones_own(here: Path, tmp_path: Path) -> None:
    assert run_ranks(in_rank, 2, tmp_path / "ranks", PROGRAMS["A loop of one's own"], str(here)) == [{"loader": 10}] * 2


def test_hugging_face(here: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    run_ranks(in_rank, 2, tmp_path / "ranks", PROGRAMS["Hugging Face"], str(here))
    assert sorted(path.name for path in (here / "out" / "checkpoint-4").glob("laneway-*")) == ["laneway-0-of-2.json", "laneway-1-of-2.json"]


def test_lightning(here: Path, tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning", reason="pytorch_lightning is not installed")
    run_ranks(in_rank, 2, tmp_path / "ranks", PROGRAMS["Lightning"], str(here))
    import torch

    state = torch.load(here / "last.ckpt", weights_only=False)["LanewayDataModule"]
    loader = Loader(here / "recipe.toml")
    loader.load_state_dict(state)
    assert loader.step == 4


def titan(rank: int, ranks: int, program: str, folder: str) -> int:
    """TorchTitan's trainer with the page's configuration, on a CPU, for two steps."""
    os.chdir(folder)
    names: dict[str, Any] = {}
    exec(program, names)
    config = names["llama3_debugmodel_laneway"]()
    from on_cpu import give_attention
    from torchtitan.trainer import Trainer

    config.model_spec.model.layers = config.model_spec.model.layers[:1]
    give_attention(config.model_spec.model)
    config.training.steps, config.training.mixed_precision_param = 2, "float32"
    trainer = Trainer(config)
    trainer.train()
    trainer.close()
    return int(trainer.dataloader.loader.step)


def test_torchtitan(tmp_path: Path) -> None:
    for name in ("torchtitan.components.dataloader", "tokenizers"):
        pytest.importorskip(name, reason=f"{name} cannot be imported")
    from elastic.corpus import prepare

    prepare(tmp_path / "run", 64, 16)
    assert run_ranks(titan, 1, tmp_path / "rank", PROGRAMS["TorchTitan"], str(tmp_path / "run")) == [2]
    assert (tmp_path / "run" / "outputs" / "checkpoint" / "step-2").is_dir()


def megatron(rank: int, ranks: int, program: str, folder: str) -> int:
    """The page's program, on a CPU, in the process group that is there."""
    import torch
    from test_megatron import CpuAttention, on_cpu

    on_cpu()
    from megatron.core.models.gpt import gpt_layer_specs

    def spec() -> Any:
        found = made()
        found.submodules.self_attention.submodules.core_attention = CpuAttention
        return found

    made, gpt_layer_specs.get_gpt_layer_local_spec = gpt_layer_specs.get_gpt_layer_local_spec, spec
    torch.distributed.init_process_group = lambda: None
    os.chdir(folder)
    names: dict[str, Any] = {}
    exec(program, names)
    return int(names["data"].loader.step)


def test_megatron_core(here: Path, tmp_path: Path) -> None:
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    (here / "checkpoint").mkdir()
    assert run_ranks(megatron, 2, tmp_path / "ranks", PROGRAMS["Megatron Core"], str(here)) == [2, 2]


preload("titan_on_cpu", "laneway.torchtitan")
EXAMPLES = PAGE.parents[1] / "examples" / "python"
sys.path[:0] = [str(EXAMPLES / "torchtitan"), str(EXAMPLES)]
