"""Adapters for trainers, each importing its framework only when it is imported itself:

- ``laneway.integrations.transformers``: Hugging Face's ``Trainer``;
- ``laneway.integrations.lightning``: Lightning;
- ``laneway.integrations.megatron``: Megatron Core;
- ``laneway.torchtitan``: TorchTitan.

What they share: a batch in the form that models of the framework expect, and a loader's state beside the framework's own checkpoint, so that a run goes on
with the same global batches on another number of ranks.
"""
