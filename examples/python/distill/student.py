"""The student: a Llama of a few blocks that starts as some of the teacher's."""

from collections.abc import Sequence

from torch import Tensor, nn

from .llama import Llama
from .teacher import read_llama


class Student(nn.Module):
    """The teacher's embedding and output, kept as they are, around a few trainable blocks.

    Block i starts as block `start_blocks[i]` of the teacher. `depth` is how many blocks are run, and trained:
    layer-by-layer distillation raises it from 1 to all of them.
    """

    def __init__(self, start_blocks: Sequence[int]) -> None:
        super().__init__()
        self.llama: Llama = read_llama(start_blocks)
        self.train_depth(len(start_blocks))

    def train_depth(self, depth: int) -> None:
        """Run and train the first `depth` blocks; the embedding and the output norm stay the teacher's."""
        if not 1 <= depth <= len(self.llama.blk):
            raise ValueError(f"depth {depth}: the student has {len(self.llama.blk)} blocks")
        self.depth = depth
        self.requires_grad_(False)
        self.llama.blk[:depth].requires_grad_(True)

    def forward(self, input_ids: Tensor, logits: bool) -> Tensor:
        """Hidden states (B, T, D) after `depth` blocks, or with `logits` the next token's scores (B, T, V)."""
        return self.llama.logits(input_ids) if logits else self.llama.hidden(input_ids, self.depth)
