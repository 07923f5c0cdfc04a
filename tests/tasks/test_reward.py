"""Rewards: sampled answers and their advantages, the policy gradient, forms of tables, and rows that are refused."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pretune.adaptation.adapted import ModelWithHead, adapt
from pretune.adaptation.heads.token import Generation
from pretune.adaptation.peft.prefix import PromptTuning
from pretune.adaptation.policy_gradient import GRPO, PolicyGradient, compute_facts
from pretune.core.errors import DataError, PretuneError, UsageError
from pretune.core.types import IGNORE_INDEX, Batch
from pretune.data.layout import pack_in_order
from pretune.data.sequences import reserve
from pretune.inference import decoding_state
from pretune.metrics import METRICS
from pretune.metrics.rewards import read_reward, register_reward
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.example import Prediction
from pretune.tasks.rollouts import Rollouts, join_answers
from pretune.tasks.stream import TaskStream
from pretune.tasks.task import Task
from pretune.tasks.types import score
from pretune.tasks.types.instruction import build_example
from pretune.tasks.types.reward import REWARD, compute_reward
from pretune.tasks.user_table import build_user_task
from tests.inference.speakers import chatter
from tests.text.chat_templates import chat


def count_letters(answer: str, reference: str) -> float:
    return sum(letter in reference for letter in answer) / max(len(answer), 1)


TASK = Task(name="own", kind="reward", metrics=("exact",), splits={})
EXAMPLES = [
    build_example(chat(text), "e", str(row)) for row, text in enumerate(["a", "The cat sat", "no", "Why?", "x"])
]


@pytest.fixture(autouse=True)
def clean_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions are registered for one test."""
    monkeypatch.setattr(METRICS, "_registered", {})
    monkeypatch.setattr(METRICS, "_cache", {})


@pytest.fixture(scope="module")
def model() -> ModelWithHead:
    return adapt(copy.deepcopy(chatter("llama-7b")), Generation())


def rollouts(model: ModelWithHead, **settings: Any) -> Rollouts:
    task = replace(TASK, metrics=(register_reward(count_letters),))
    encoder = TaskEncoder.from_task(task, model, max_length=40, max_new_tokens=6)
    stream = TaskStream(encoder.encode(EXAMPLES), batch=4, seed=5)
    grpo = GRPO(**{"samples": 3, **settings})
    return Rollouts(stream=stream, examples=EXAMPLES, encoder=encoder, model=model, settings=grpo, seed=7)


def write_out(batch: Batch) -> list[tuple[torch.Tensor, torch.Tensor, int]]:
    """Each answer with its prompt: the tokens, the targets, and its cell."""
    assert batch.targets is not None and batch.labels is not None
    targets = torch.full_like(batch.tokens, IGNORE_INDEX)
    targets[batch.targets.index] = batch.targets.labels
    answers, parents = [], torch.arange(batch.cells) if batch.parents is None else batch.parents
    for cell in batch.find_sequence_cells().tolist():
        if batch.labels[cell, 0] != IGNORE_INDEX:
            cells = sorted({int(parents[cell]), cell})
            places = torch.cat([torch.arange(*batch.offsets[part : part + 2].tolist()) for part in cells])
            answers.append((batch.tokens[places], targets[places], cell))
    return answers


def list_answers(batches: list[Batch]) -> set[tuple[Any, ...]]:
    """The answers of batches with their prompts, targets and labels."""
    found = [
        (*tokens.tolist(), *targets.tolist(), *batch.labels[cell].tolist())  # type: ignore[index]
        for batch in batches
        for tokens, targets, cell in write_out(batch)
    ]
    assert len(found) == 12
    return {*found}


def test_advantages_by_hand() -> None:
    rewards = np.array([[1.0, 0.0, 0.0, 1.0], [0.5, 0.5, 0.5, 0.5], [3.0, 1.0, 1.0, 1.0]])
    whole, raw = (compute_facts(rewards, divide=divide).reshape(3, 4, 3) for divide in (True, False))
    assert raw[..., 0].tolist() == [[0.5, -0.5, -0.5, 0.5], [0.0] * 4, [1.5, -0.5, -0.5, -0.5]]
    np.testing.assert_allclose(whole[0, :, 0], [1, -1, -1, 1])
    np.testing.assert_allclose(whole[2, :, 0], np.array([1.5, -0.5, -0.5, -0.5]) / np.sqrt(0.75), rtol=1e-6)
    assert (whole[..., 1] == rewards).all() and whole[..., 2].tolist() == [[0.0] * 4, [1.0] * 4, [0.0] * 4]


@given(arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(2, 6)), elements=st.floats(-9, 9, width=16)))
def test_advantages_of_a_group_cancel(rewards: Any) -> None:
    facts = compute_facts(rewards, divide=True).reshape(*rewards.shape, 3)
    assert np.isfinite(facts).all()
    np.testing.assert_allclose(facts[..., 0].sum(1), 0, atol=1e-4)
    equal = rewards.max(1) == rewards.min(1)
    np.testing.assert_allclose(facts[..., 0].std(1), np.where(equal, 0, 1), atol=1e-4)


def test_answers_depend_on_seed_step_and_row_alone(model: ModelWithHead) -> None:
    """Whole or in parts, in any order, in training or evaluation: the same answers."""
    source = rollouts(model)
    whole = list_answers([source.batch(2)])
    source.batch(0)
    assert list_answers([source.batch(2, part=part, parts=2) for part in (1, 0)]) == whole
    model.train()
    assert list_answers([source.batch(2)]) == whole
    assert all(module.training for module in model.modules())
    assert list_answers([source.batch(4)]) != whole
    empty = source.batch(1, part=0, parts=2)  # one prompt is left for the last step of an epoch
    assert not len(empty.find_sequence_cells())
    loss = PolicyGradient(GRPO()).loss(model, empty).mean()
    loss.backward()
    assert float(loss.detach()) == 0.0


@pytest.mark.parametrize(("temperature", "slots"), [(1.0, 0), (0.6, 0), (1.0, 3)])
def test_sampled_probabilities_are_those_of_training(
    temperature: float, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoding step with its cache, and the packed forward pass; also with virtual tokens."""
    model = adapt(copy.deepcopy(chatter("llama-7b")), Generation())
    if slots:
        PromptTuning(count=slots).apply(model.model)
    steps: list[torch.Tensor] = []

    def spy(logits: torch.Tensor, *arguments: Any) -> torch.Tensor:
        tokens = sample(logits, *arguments)
        steps.append((logits / temperature).log_softmax(-1).gather(1, tokens[:, None])[:, 0])
        return tokens

    sample = decoding_state.sample_next
    monkeypatch.setattr(decoding_state, "sample_next", spy)
    source = rollouts(model, temperature=temperature)
    source.encoder = replace(source.encoder, rules=replace(source.encoder.rules, slots=slots))
    (row,) = source.stream.select(0)[:1]
    ((*answers,),) = source.sample(0, np.array([row]))
    sequences = join_answers([source._prompts[row]] * 3, answers, compute_facts(np.eye(1, 3), divide=True))
    batch = pack_in_order(reserve(sequences, slots))
    with torch.no_grad():
        logprobs = PolicyGradient(source.settings).compute_logprobs(model, batch)
    sampled = torch.stack(steps, dim=1)  # [answers, tokens]
    lengths = [len(answer.tokens) + (answer.end is not None) for answer in answers]
    expected = torch.cat([values[:length] for values, length in zip(sampled, lengths, strict=True)])
    torch.testing.assert_close(logprobs, expected, atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "divide": False}, {"kl_weight": 0.3}], ids=str)
def test_the_gradient_is_that_of_reinforce(settings: dict[str, Any], parts: int) -> None:
    """By hand: one answer at a time, the mean over all tokens of -advantage * log p, and of the divergence."""
    grpo, base = GRPO(samples=3, **settings), adapt(copy.deepcopy(chatter("llama-7b")), Generation())
    model = copy.deepcopy(base)
    objective, source = PolicyGradient.from_model(grpo, model), rollouts(model, **settings)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.add_(0.03 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    whole = source.batch(0)
    assert whole.labels is not None and whole.parents is not None, "prompts are shared"
    sums, total, cells = [], 0, [cell for _, _, cell in write_out(whole)]
    for tokens, labels, cell in write_out(whole):
        batch, is_token = Batch.from_sequences([tokens.tolist()]), labels != IGNORE_INDEX
        own, reference = (
            (part(batch) / grpo.temperature).log_softmax(-1)[is_token, labels[is_token]] for part in (model, base)
        )
        difference = reference.detach() - own
        sums.append((grpo.kl_weight * (difference.exp() - difference - 1) - whole.labels[cell, 0] * own).sum())
        total += len(own)
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    expected = torch.autograd.grad(torch.stack(sums).sum() / total, weights)
    batches = [source.batch(0, part=part, parts=parts) for part in range(parts)]
    counts = [objective.counts(batch) for batch in batches]
    totals = {name: torch.stack([count[name] for count in counts]).sum() for name in counts[0]}
    losses = [objective.loss(model, batch) for batch in batches]
    loss = torch.stack([part.normalize(totals) for part in losses]).sum()
    divergence = sum(float(part.parts["kl"].sum.detach()) for part in losses) / total if grpo.kl_weight else 0.0
    rewards = whole.labels[cells, 1]
    assert len({*rewards.tolist()}) > 1 and (divergence > 0) == (grpo.kl_weight > 0)
    assert float(loss.detach()) == pytest.approx(grpo.kl_weight * divergence - float(rewards.mean()), rel=1e-5)
    for gradient, reference in zip(torch.autograd.grad(loss, weights), expected, strict=True):
        torch.testing.assert_close(gradient, reference, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("rewards", [[[1, 0, 0], [1, 1, 1], [0, 0, 0]], [[1, 1, 1]] * 3], ids=["some", "all"])
def test_groups_without_advantages_are_left_out(rewards: list[list[float]], model: ModelWithHead) -> None:
    """Of the pass, not of the counts: the same loss, gradients and figures, but for the entropy."""
    source, objective = rollouts(model), PolicyGradient(GRPO(samples=3))
    rows = source.stream.select(0)[:3]
    facts = compute_facts(np.array(rewards, dtype=np.float64), divide=True)
    prompts = [source._prompts[row] for row in rows for _ in range(3)]
    answers = [answer for group in source.sample(0, rows) for answer in group]
    parts = [join_answers(prompts, answers, facts, can_skip=can_skip) for can_skip in (False, True)]
    assert len(parts[1].tokens) < len(parts[0].tokens) and len(parts[1]) == 9
    weights, results = [part for part in model.parameters() if part.requires_grad], []
    for batch in map(pack_in_order, parts):
        loss = objective.loss(model, batch)
        figures = {name: (float(part.sum.detach()), int(part.count)) for name, part in loss.parts.items()}
        results.append((figures, torch.autograd.grad(loss.mean(), weights)))
    (whole, expected), (short, actual) = results
    assert {**short, "entropy": whole["entropy"]} == whole
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-5)
    assert any(part.any() for part in actual) == (len({*map(tuple, rewards)}) > 1)


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    file = folder / "own.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.parametrize(
    ("row", "text", "reference"),
    [
        ({"question": "What is 2 + 3?", "answer": 5}, "What is 2 + 3?", "5"),
        ({"problem": "Sort 3, 1.", "answer": [1, 3]}, "Sort 3, 1.", "[1, 3]"),
        ({"prompt": "Say 1", "completion": "1"}, "Say 1", "1"),
        ({"instruction": "Add.", "input": "2 and 3", "output": "5"}, "Add.\n\n2 and 3", "5"),
        ({"messages": chat("Say 2", "2")}, "Say 2", "2"),
    ],
)
def test_forms_of_tables(row: dict[str, Any], text: str, reference: str, tmp_path: Path) -> None:
    task = build_user_task({"train": write(tmp_path, [row] * 2)}, reward="number")
    assert (task.kind, task.metrics) == ("reward", ("number",))
    example, _ = task.read("train")
    assert (example.text, example.target) == (text, reference)
    answers = [Prediction(text=reference), Prediction(text="x"), Prediction(text="x", value=1.0)]
    assert score(task, [example] * 2, answers[:2]) == {"number": 0.5}
    assert score(task, [example] * 2, answers[1:]) == {"number": 0.5}, "rewards are computed once"
    assert REWARD.outputs.combine(task, answers).text == "x"


def fail(answer: str, reference: str) -> float:
    if reference == "7":
        raise ValueError("two\nlines")
    return {"8": float("nan"), "9": float("-inf")}.get(reference, 1.0)


@pytest.mark.parametrize(
    ("reward", "answer", "kind", "parts"),
    [
        (None, "5", UsageError, ("no reward", "number", "FILE.py:function")),
        ("nmber", "5", UsageError, ("'nmber'", "'number'")),
        ("number", "five", DataError, ("row 1", "'five'", "no number")),
        ("regex", "(", DataError, ("row 1", "'('")),
        ("number", [1, float("nan")], DataError, ("own.jsonl:1", "'answer'", "not finite")),
        ("reward.fail", "7", DataError, ("row 1", "reward.fail", "ValueError: two lines")),
        ("reward.fail", "8", DataError, ("row 1", "finite", "nan")),
        ("reward.fail", "9", DataError, ("row 1", "finite", "-inf")),
    ],
)
def test_bad_rewards_are_one_line(
    reward: str | None, answer: Any, kind: type[PretuneError], parts: tuple[str, ...], tmp_path: Path
) -> None:
    register_reward(fail)
    with pytest.raises(kind) as error:
        build_user_task({"train": write(tmp_path, [{"question": "?", "answer": answer}])}, type="reward", reward=reward)
    assert all(part in str(error.value) for part in parts) and "\n" not in str(error.value)


def test_functions_of_files(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("def half(answer, reference):\n    return len(answer) / 2\nvalue = 1\n")
    name = read_reward(f"{file}:half")
    assert compute_reward(replace(TASK, metrics=(name,)), EXAMPLES[0], "abc") == 1.5 and read_reward("exact") == "exact"
    (tmp_path / "bad.py").write_text("1 / 0")
    for text, part in (("own.py:other", "half"), ("none.py:f", "none.py"), ("bad.py:f", "ZeroDivisionError")):
        with pytest.raises(UsageError, match=part):
            read_reward(f"{tmp_path}/{text}")
    with pytest.raises(UsageError, match="lambda"):
        register_reward(lambda answer, reference: 1.0)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="classification"):
        build_user_task(
            {"train": write(tmp_path, [{"question": "?", "answer": "5"}])}, type="classification", reward="exact"
        )
