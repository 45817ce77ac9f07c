"""Megatron Core's own model, microbatches and distributed checkpoints with Laneway's data iterator, as far as CPUs go.

Megatron puts small buffers on "the current device" and waits for it: here that is the CPU. Its attention wants random numbers of a GPU, so the model has another.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from conftest import wait_until
from ranks import memory_of, preload, run_ranks

from laneway import Loader, errors

torch = pytest.importorskip("torch", reason="torch is not installed: the adapter for Megatron Core was not tried")
pytest.importorskip("megatron.core", reason="megatron-core is not installed: the adapter for it was not tried")

preload("laneway.integrations.megatron", "megatron.core.models.gpt.gpt_model")
EACH = 2  # steps of a stage


def on_cpu() -> None:
    """Lets Megatron Core run where there is no GPU."""
    torch.cuda.current_device, torch.cuda.synchronize = lambda: torch.device("cpu"), lambda *_: None
    zeros = torch.zeros
    torch.zeros = lambda *sizes, device=None, **settings: zeros(*sizes, device=None if device == "cuda" else device, **settings)


def start(ranks: int, global_batch: int = 8, micro_batch: int = 1, **parallel: int) -> None:
    """What a program that uses Megatron Core does first. ``ranks``: of data parallelism."""
    on_cpu()
    from megatron.core import num_microbatches_calculator, parallel_state

    parallel_state.initialize_model_parallel(create_gloo_process_groups=True, **parallel)
    num_microbatches_calculator.init_num_microbatches_calculator(0, None, global_batch, micro_batch, ranks)


class CpuAttention(torch.nn.Module):
    """In the place of Megatron's. Queries are length × batch × heads × width."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any) -> Any:
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=~attention_mask)
        return out.permute(2, 0, 1, 3).flatten(2)


def make_model(tensor_parallel: int = 1) -> Any:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    torch.manual_seed(0)
    sizes = {"num_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "attention_dropout": 0.0, "hidden_dropout": 0.0}
    spec = get_gpt_layer_local_spec()
    spec.submodules.self_attention.submodules.core_attention = CpuAttention
    config = TransformerConfig(use_cpu_initialization=True, tensor_model_parallel_size=tensor_parallel, pipeline_dtype=torch.float32, **sizes)
    return GPTModel(config=config, transformer_layer_spec=spec, vocab_size=512, max_sequence_length=32)


def train(rank: int, ranks: int, recipe: str, folder: str, stage: int, tensor_parallel: int, node: str | None) -> dict[str, Any]:
    """Some steps of Megatron's model, from the last stage's checkpoint if there is one; the rows that it was given, where they lay, and the losses. ``node``: where
    the server of the node lies, if one makes the batches."""
    import torch.distributed as dist
    from megatron.core import dist_checkpointing, num_microbatches_calculator, parallel_state

    from laneway.integrations.megatron import DataIterator

    start(ranks // tensor_parallel, tensor_model_parallel_size=tensor_parallel)
    os.environ.update({"LANEWAY_DIR": node} if node else {})
    from_server = {"server": "megatron", "start": True} if node else {}
    model, data = make_model(tensor_parallel), DataIterator(recipe, attention_mask=True, **from_server)
    if stage:
        last = dist_checkpointing.load({"model": model.sharded_state_dict(), "data": data.sharded_state_dict()}, f"{folder}/{stage - 1}")
        model.load_state_dict(last["model"])
        data.load_state_dict(last["data"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    replicas = parallel_state.get_data_parallel_group()
    rows, memory, losses = [], [], []
    for _ in range(EACH):
        sums = torch.zeros(2)
        for _ in range(num_microbatches_calculator.get_num_microbatches()):
            batch = next(data)
            memory.append(memory_of(batch["tokens"]))
            rows.append([batch["tokens"].tolist(), batch["labels"].tolist(), batch["loss_mask"].tolist()])
            loss = model(batch["tokens"], batch["position_ids"], batch["attention_mask"], labels=batch["labels"])
            summed = (loss * batch["loss_mask"]).sum()
            summed.backward()
            sums += torch.stack([summed.detach(), batch["loss_mask"].sum()])
        dist.all_reduce(sums, group=replicas)
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=replicas)
                parameter.grad /= sums[1]
        optimizer.step()
        optimizer.zero_grad()
        losses.append((sums[0] / sums[1]).item())
    Path(folder, str(stage)).mkdir(parents=True, exist_ok=True)
    dist.barrier()
    dist_checkpointing.save({"model": model.sharded_state_dict(), "data": data.sharded_state_dict()}, f"{folder}/{stage}")
    return {"replica": parallel_state.get_data_parallel_rank(), "rows": rows, "memory": memory, "losses": losses}


def test_a_run_on_two_then_one_then_four_ranks_takes_the_same_batches_through_megatrons_checkpoints(lanes: Path, folder: Path, tmp_path: Path) -> None:
    """The ranks themselves make the batches of the first stage, a server those of the others. Of the last four each two split the model's tensors between them, and
    read the same memory."""
    expected, losses = Loader(lanes), []
    for stage, (ranks, tensor_parallel, node) in enumerate([(2, 1, None), (1, 1, str(folder)), (4, 2, str(folder))]):
        found = run_ranks(train, ranks, tmp_path / f"on-{ranks}", str(lanes), str(tmp_path / "checkpoints"), stage, tensor_parallel, node)
        assert [rank["replica"] for rank in found] == [rank // tensor_parallel for rank in range(ranks)]
        for rank in found:
            same = found[rank["replica"] * tensor_parallel]
            assert rank["rows"] == same["rows"] and rank["memory"] == same["memory"]
        found = found[::tensor_parallel]
        if node is not None:
            assert len({tuple(rank["memory"][0]) for rank in found}) == len(found), "replicas read other memory"
        each = len(found[0]["rows"]) // EACH
        for step in range(EACH):
            batch = next(expected)
            taken = [rank["rows"][at] for rank in found for at in range(step * each, (step + 1) * each)]
            assert [row for tokens, _, _ in taken for row in tokens] == batch.input_ids.tolist(), f"step {batch.step} on {ranks} ranks"
            labels, counts = torch.tensor([row for _, labels, _ in taken for row in labels]), torch.tensor([row for _, _, mask in taken for row in mask]) == 1
            assert torch.equal(torch.where(counts, labels, -100), batch.labels)
        losses += found[0]["losses"]
    assert len(losses) == 3 * EACH and losses[-1] < losses[0]


def peer(rank: int, ranks: int, recipe: str, node: str, folder: str) -> dict[str, Any]:
    """One of four: two stages of a pipeline, each with two halves of the context, of one data-parallel rank."""
    from megatron.core import dist_checkpointing, num_microbatches_calculator, parallel_state

    from laneway.integrations import _common
    from laneway.integrations.megatron import DataIterator

    start(1, pipeline_model_parallel_size=2, context_parallel_size=2)
    os.environ["LANEWAY_DIR"] = node
    begun = Path(node, "begun")
    taken: list[Any] = []
    if rank == 3:  # comes when the others have read as much as they can, who must not have gone on without it
        connect = _common.NodeLoader
        _common.NodeLoader = lambda *given, **options: (wait_until(begun.exists, "the first batches"), connect(*given, **options))[1]
    data = DataIterator(recipe, server="peers", start=True)
    if rank != 3:
        with contextlib.suppress(errors.Timeout):
            while len(taken) < 20:
                taken.append(data.loader.next(timeout_s=1).input_ids)
        begun.touch()
    while len(taken) < 3 * num_microbatches_calculator.get_num_microbatches():
        taken.append(next(data)["tokens"])
    os.makedirs(folder, exist_ok=True)
    state = {"data": data.sharded_state_dict()}
    dist_checkpointing.save(state, folder)  # which would refuse lanes that nobody writes, or that two do
    data.load_state_dict(dist_checkpointing.load(state, folder)["data"])
    taken.append(next(data)["tokens"])
    place = [parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_context_parallel_rank()]
    return {"place": place, "rows": [row for tokens in taken for row in tokens.tolist()], "memory": [memory_of(tokens) for tokens in taken]}


def test_peers_of_a_pipeline_and_of_a_context_read_one_memory_and_save_each_lane_once(lanes: Path, folder: Path, tmp_path: Path) -> None:
    found = run_ranks(peer, 4, tmp_path / "peers", str(lanes), str(folder), str(tmp_path / "checkpoint"))
    assert sorted(rank["place"] for rank in found) == [[0, 0], [0, 1], [1, 0], [1, 1]]
    expected = Loader(lanes, microbatch_size=1)
    assert found[0]["rows"] == [next(expected).input_ids[0].tolist() for _ in range(3 * 8 + 1)]
    for rank in found:
        assert rank["rows"] == found[0]["rows"] and rank["memory"][0] is not None and rank["memory"][:7] == found[0]["memory"][:7]


def one_of_two(rank: int, ranks: int, recipe: str, node: str) -> Any:
    """The first of two tensor-parallel ranks reads, and tells the other."""
    import torch.distributed as dist

    from laneway.integrations.megatron import DataIterator

    start(1, tensor_model_parallel_size=2)
    os.environ["LANEWAY_DIR"] = node
    tokens = next(DataIterator(recipe, server="one", start=True, peers=1))["tokens"] if rank == 0 else torch.empty(1, 32, dtype=torch.int64)
    dist.broadcast(tokens, 0)
    return tokens.tolist()


def test_one_peer_may_read_for_all(lanes: Path, folder: Path, tmp_path: Path) -> None:
    found = run_ranks(one_of_two, 2, tmp_path / "one", str(lanes), str(folder))
    assert found[0] == found[1] == next(Loader(lanes, microbatch_size=1)).input_ids.tolist()


def look(rank: int, ranks: int, recipe: str) -> list[Any]:
    from laneway.integrations.megatron import DataIterator

    start(ranks, micro_batch=8)
    batch = next(DataIterator(recipe, attention_mask=True))
    return [batch[name].squeeze(1).tolist() for name in ("attention_mask", "position_ids", "labels", "loss_mask")]


def test_a_batch_is_what_megatrons_model_takes_and_its_mask_keeps_documents_apart(lanes: Path, tmp_path: Path) -> None:
    ((masks, positions, labels, counting),) = run_ranks(look, 1, tmp_path / "look", str(lanes))
    batch = next(Loader(lanes))
    assert torch.tensor(counting).bool().tolist() == batch.loss_mask.tolist()
    assert labels == torch.where(batch.loss_mask, batch.labels, 0).tolist(), "0 where none counts, an id that Megatron can look up"
    for mask, places, segments in zip(masks, positions, batch.segment_ids.tolist(), strict=True):
        for i, row in enumerate(mask):
            assert [not hidden for hidden in row] == [j <= i and segments[j] == segments[i] for j in range(len(row))]
            assert places[i] == i - segments.index(segments[i])


def refused(rank: int, ranks: int, recipe: str, global_batch: int, micro_batch: int) -> str:
    from laneway.integrations.megatron import DataIterator

    start(ranks, global_batch, micro_batch)
    try:
        DataIterator(recipe)
    except ValueError as error:
        return str(error)
    return "not refused"


@pytest.mark.parametrize(
    ("global_batch", "micro_batch", "message"),
    [(16, 1, "the number of microbatches is 16: set it to 8"), (9, 3, "microbatch_size 3 does not divide the 8 rows")],
)
def test_microbatches_that_are_not_the_recipes_are_named(lanes: Path, tmp_path: Path, global_batch: int, micro_batch: int, message: str) -> None:
    (said,) = run_ranks(refused, 1, tmp_path / "refused", str(lanes), global_batch, micro_batch)
    assert message in said


def test_a_checkpoint_within_a_step_is_refused(lanes: Path, tmp_path: Path) -> None:
    (said,) = run_ranks(within, 1, tmp_path / "within", str(lanes))
    assert "within step 0: take all of a step's microbatches first" in said


def within(rank: int, ranks: int, recipe: str) -> str:
    from laneway.integrations.megatron import DataIterator

    start(ranks)
    data = DataIterator(recipe)
    next(data)
    try:
        data.sharded_state_dict()
    except ValueError as error:
        return str(error)
    return "not refused"
