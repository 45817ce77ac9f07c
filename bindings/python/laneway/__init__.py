"""Laneway feeds PyTorch trainers: students ask for samples, workers make them, and the bytes cross through shared memory.

Start here:

- :class:`BatchConfig` and :class:`TensorSpec` say what a sample holds;
- a :class:`Broker` introduces students and workers to each other;
- a :class:`Worker` makes samples, a teacher model for example;
- a :class:`StudentClient` sets the model and asks for samples one by one;
- a :class:`DistillIterableDataset` feeds a ``DataLoader``; ``laneway.torch.DataLoader`` is the one that never mixes models.

NumPy is needed, torch is not: where torch can be imported tensors are torch tensors, else NumPy arrays. torch is imported when
first needed, not by ``import laneway``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import __version__
from .batch_config import BatchConfig, TensorSpec
from .broker import Broker, BrokerStats
from .errors import LanewayError, TaskError
from .logs import setup_logging
from .student import GenerationValue, SampleRef, StudentClient
from .worker import Task, Worker

if TYPE_CHECKING:
    from .dataset import DistillIterableDataset

__all__ = [
    "BatchConfig",
    "Broker",
    "BrokerStats",
    "DistillIterableDataset",
    "GenerationValue",
    "LanewayError",
    "SampleRef",
    "StudentClient",
    "Task",
    "TaskError",
    "TensorSpec",
    "Worker",
    "__version__",
    "setup_logging",
]


def __getattr__(name: str) -> Any:
    # The dataset derives from a class of torch's, so it is loaded when first named.
    if name == "DistillIterableDataset":
        from .dataset import DistillIterableDataset

        globals()[name] = DistillIterableDataset
        return DistillIterableDataset
    raise AttributeError(f"module 'laneway' has no attribute '{name}'")
