"""A Llama-style decoder, small enough to read: the teacher and the student are both one.

Shapes: B samples of T tokens, width D, V vocabulary entries. The names of the parts
follow the GGUF file's (`attn_q`, `ffn_gate` …), so that its tensors load by name.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes of one model."""

    blocks: int
    width: int
    feed_forward: int
    heads: int
    kv_heads: int
    vocabulary: int
    rope_base: float
    norm_epsilon: float

    @property
    def head_width(self) -> int:
        return self.width // self.heads


def rotate_pairs(x: Tensor, base: float) -> Tensor:
    """Rotary position embedding of x (B, heads, T, head width).

    GGUF files hold Llama's query and key rows reordered so that each *consecutive pair* of channels is
    rotated together, unlike Hugging Face's layout, where channel i turns with channel i + width / 2.
    """
    steps, width = x.shape[-2:]
    frequency = base ** (-torch.arange(0, width, 2, dtype=torch.float32, device=x.device) / width)
    angle = torch.arange(steps, dtype=torch.float32, device=x.device)[:, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and added to the residual stream."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        kv_width = config.kv_heads * config.head_width
        self.attn_norm = nn.RMSNorm(config.width, eps=config.norm_epsilon)
        self.attn_q = nn.Linear(config.width, config.width, bias=False)
        self.attn_k = nn.Linear(config.width, kv_width, bias=False)
        self.attn_v = nn.Linear(config.width, kv_width, bias=False)
        self.attn_output = nn.Linear(config.width, config.width, bias=False)
        self.ffn_norm = nn.RMSNorm(config.width, eps=config.norm_epsilon)
        self.ffn_gate = nn.Linear(config.width, config.feed_forward, bias=False)
        self.ffn_up = nn.Linear(config.width, config.feed_forward, bias=False)
        self.ffn_down = nn.Linear(config.feed_forward, config.width, bias=False)

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, self.config.head_width)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        c = self.config
        h = self.attn_norm(x)
        q = rotate_pairs(self._split(self.attn_q(h), c.heads), c.rope_base)
        k = rotate_pairs(self._split(self.attn_k(h), c.kv_heads), c.rope_base)
        v = self._split(self.attn_v(h), c.kv_heads)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.attn_output(attended.transpose(1, 2).flatten(-2))
        h = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))


class Llama(nn.Module):
    """Token ids (B, T) int64 to hidden states (B, T, D) and logits (B, T, V), float32."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embd = nn.Embedding(config.vocabulary, config.width)
        self.blk = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.output_norm = nn.RMSNorm(config.width, eps=config.norm_epsilon)

    def hidden(self, input_ids: Tensor, depth: int) -> Tensor:
        """The residual stream after the first `depth` blocks."""
        x = self.token_embd(input_ids)
        for block in self.blk[:depth]:
            x = block(x)
        return x

    def logits(self, input_ids: Tensor) -> Tensor:
        """Scores of the next token; the output matrix is the embedding's (tied weights)."""
        return F.linear(self.output_norm(self.hidden(input_ids, len(self.blk))), self.token_embd.weight)
