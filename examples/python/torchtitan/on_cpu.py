"""What lets TorchTitan's trainer run without a GPU, so that its configuration, loop and checkpoints can be tried anywhere.

TorchTitan 0.3 takes the accelerator that torch sees, else "cuda", and fails at the trainer's first line without one. Nothing in its configuration says otherwise, so its
idea of a device is replaced here, before its other modules ask for it. Its attention has no gradients on CPUs, and is replaced in the model's configuration.
"""

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch


def use_cpu() -> None:
    """Makes CPUs TorchTitan's devices. To be called before anything else imports its trainer."""
    from torchtitan.tools import utils

    torch._dynamo.config.disable = True  # compiling how masks are made takes longer than a short run
    utils.device_type, utils.device_module = "cpu", _Cpu("cpu")
    with _stand_ins(triton="torchtitan.distributed.minimal_async_ep.kernels", datasets="datasets", tensorboard="torch.utils.tensorboard"):
        import torchtitan.models.llama3.config_registry  # noqa: F401


def give_attention(model: Any) -> None:
    """Replaces the attention in a model's configuration."""
    from torch.nn.attention.flex_attention import create_mask
    from torchtitan.models.common.attention import FlexAttention

    class CpuAttention(FlexAttention):
        """In the place of TorchTitan's, which makes the mask that this one reads; it keeps documents of a row apart."""

        @dataclass(kw_only=True, slots=True)
        class Config(FlexAttention.Config):
            pass

        def forward(self, q_BLNH: Any, k_BLNH: Any, v_BLNH: Any, *, attention_masks: Any, scale: float | None = None, enable_gqa: bool = False, **_: Any) -> Any:
            q, k, v = (x.transpose(1, 2) for x in (q_BLNH, k_BLNH, v_BLNH))
            seen = create_mask(attention_masks.mask_mod, q.shape[0], None, q.shape[2], k.shape[2], device="cpu")
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=enable_gqa).transpose(1, 2)

    for layer in model.layers:
        layer.attention.inner_attention = CpuAttention.Config()


class _Cpu(ModuleType):
    """`torch.cpu`, and what the trainer asks an accelerator besides."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def current_device(self) -> int:
        return 0

    def get_device_name(self, _: Any = None) -> str:
        return "CPU"

    def get_device_properties(self, _: Any = None) -> Any:
        return SimpleNamespace(total_memory=1 << 30)

    def memory_stats(self, _: Any = None) -> dict[str, int]:
        return {}

    def reset_peak_memory_stats(self) -> None: ...

    def empty_cache(self) -> None: ...


@contextlib.contextmanager
def _stand_ins(**modules: str) -> Iterator[None]:
    """For packages that are not installed, modules that need them and have every name: what the trainer imports, and a run on CPUs never calls."""
    finder = _Finder({module for package, module in modules.items() if importlib.util.find_spec(package) is None})
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if finder.covers(name)]:
            del sys.modules[name]  # nobody else shall take it for the real one


class _Finder(MetaPathFinder, Loader):
    def __init__(self, names: set[str]) -> None:
        self._names = names

    def covers(self, name: str) -> bool:
        return any(name == absent or name.startswith(f"{absent}.") for absent in self._names)

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if self.covers(name) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Anything(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


class _Anything(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()
