"""What the student is asked to match: the teacher's hidden states, or its most likely next tokens."""

import torch
from torch import Tensor

ROUNDING = 1e-6  # keeps a logarithm finite where the top tokens hold all of the probability


def hidden_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """1 - cosine of the two residual streams (…, D), averaged over positions: 0 when they point the same way.

    Only the direction is compared. Every reader of the stream normalises it first, and its length
    varies a thousandfold between positions, so a plain squared error would see just a few of them.
    """
    return (1 - torch.cosine_similarity(student.float(), teacher.float(), dim=-1)).mean()


def logits_loss(student_logits: Tensor, top_logits: Tensor, top_ids: Tensor, rest: Tensor) -> Tensor:
    """KL divergence from teacher to student in nats a token, all tokens outside the teacher's top k as one.

    Shapes: student_logits (…, V); top_logits and top_ids (…, k); rest (…), the logsumexp of the
    teacher's other logits. Merging the tail gives a lower bound of the full divergence, and tells the
    student how much probability belongs outside the top k without sending all V numbers.
    """
    whole = torch.logaddexp(top_logits.float().logsumexp(dim=-1), rest.float())
    teacher_log = top_logits.float() - whole[..., None]
    teacher_rest_log = rest.float() - whole
    student_log = student_logits.float().log_softmax(dim=-1).gather(-1, top_ids.long())
    student_rest = (1 - student_log.exp().sum(dim=-1)).clamp_min(ROUNDING)
    top = (teacher_log.exp() * (teacher_log - student_log)).sum(dim=-1)
    tail = teacher_rest_log.exp() * (teacher_rest_log - student_rest.log())
    return (top + tail).mean()
