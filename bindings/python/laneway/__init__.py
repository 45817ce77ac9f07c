"""Laneway feeds PyTorch trainers: students ask for samples, workers make them, and the bytes cross through shared memory.

Start here:

- :class:`BatchConfig` and :class:`TensorSpec` say what a sample holds;
- a :class:`Broker` introduces students and workers to each other;
- a :class:`Worker` makes samples, a teacher model for example;
- a :class:`StudentClient` sets the model and asks for samples one by one;
- a :class:`DistillIterableDataset` feeds a ``DataLoader``; ``laneway.torch.DataLoader`` is the one that never mixes models.

Or, without a teacher:

- a :class:`Loader` turns a recipe into batches, the same global batches on any number of ranks;
- a :class:`Pipeline` is the same from calls instead of a file;
- a :class:`NodeLoader` reads batches that one process makes for all ranks of a node: ``laneway serve``, or a :class:`Server`.

Or both: a recipe with a ``[generate]`` has teachers make a sample for each row of its batches, and
:class:`Rows`, or ``Worker(recipe=…)``, gives them the rows.

NumPy is needed, torch is not: where torch can be imported tensors are torch tensors, else NumPy arrays. torch is imported when
first needed, not by ``import laneway``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import io, work
from ._device import DeviceTensor
from ._functions import Function
from ._metrics import MetricsServer, metrics, metrics_text, serve_metrics
from ._operators import Operator, SampleMeta, SampleRecord
from ._version import __version__
from .batch import Batch, global_hash
from .batch_config import BatchConfig, TensorSpec
from .broker import Broker, BrokerStats
from .errors import LanewayError, TaskError
from .generate import GenerateOptions
from .loader import Loader
from .logs import setup_logging
from .node_loader import NodeLoader
from .pipeline import Pipeline
from .recipe import Recipe
from .rows import Rows
from .server import Server
from .student import GenerationValue, SampleRef, StudentClient
from .worker import Task, Worker

if TYPE_CHECKING:
    from .dataset import DistillIterableDataset

__all__ = [
    "Batch",
    "BatchConfig",
    "Broker",
    "BrokerStats",
    "DeviceTensor",
    "DistillIterableDataset",
    "Function",
    "GenerateOptions",
    "GenerationValue",
    "LanewayError",
    "Loader",
    "MetricsServer",
    "NodeLoader",
    "Operator",
    "Pipeline",
    "Recipe",
    "Rows",
    "SampleMeta",
    "SampleRecord",
    "SampleRef",
    "Server",
    "StudentClient",
    "Task",
    "TaskError",
    "TensorSpec",
    "Worker",
    "__version__",
    "global_hash",
    "io",
    "metrics",
    "metrics_text",
    "serve_metrics",
    "setup_logging",
    "work",
]


def __getattr__(name: str) -> Any:
    # The dataset derives from a class of torch's, so it is loaded when first named.
    if name == "DistillIterableDataset":
        from .dataset import DistillIterableDataset

        globals()[name] = DistillIterableDataset
        return DistillIterableDataset
    raise AttributeError(f"module 'laneway' has no attribute '{name}'")
