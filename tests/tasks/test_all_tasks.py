"""Every task whose files are there, on three shapes of model: it is encoded, read, learnt from, and gold is perfect."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from pretune.core.errors import UsageError
from pretune.metrics import get_headline
from pretune.tasks import TASKS
from pretune.tasks.encoder import TaskEncoder, build_head
from pretune.tasks.example import Example
from pretune.tasks.predict import predict
from pretune.tasks.stream import TaskStream
from pretune.tasks.task import Task, sample_subset
from pretune.tasks.types import EVALUATION_ONLY, score
from tests.tasks.oracle import perfect
from tests.tasks.small import model_for, tokenizer

TRAINABLE_TASKS = [name for name in TASKS if TASKS.get(name).kind not in EVALUATION_ONLY]
FAST_TASKS = ("cola", "stsb", "multirc", "squad2", "conll2003", "record", "multi30k")
QUICK = {("multi30k", "gpt2"), ("rte", "t5"), *((name, "bert") for name in FAST_TASKS)}


def cases(*shapes: str) -> list[Any]:
    """All tasks on these shapes; a handful of them are quick to read."""
    pairs = [(name, shape) for name in TRAINABLE_TASKS for shape in shapes]
    return [pytest.param(*pair, marks=[] if pair in QUICK else [pytest.mark.slow]) for pair in pairs]


def sample_examples(task: Task, data: Path, count: int) -> list[Example]:
    """A few examples, of all classes."""
    available = task.find_available(data)
    if not available:
        pytest.skip(f"no files of {task.name}")
    examples = [*islice(next(iter(available.values())).read(), 400)]
    return sample_subset(examples, min(count, len(examples)))


@pytest.mark.parametrize(("name", "shape"), cases("bert", "gpt2", "t5"))
def test_a_task_on_a_model(name: str, shape: str, shared_data: Path) -> None:
    task = TASKS.get(name)
    examples = sample_examples(task, shared_data, 16)
    if shape == "bert" and task.kind == "generation":
        with pytest.raises(UsageError, match="generation"):
            model_for(shape, task)
        return
    model = model_for(shape, task)
    encoder = TaskEncoder.from_task(task, model, max_new_tokens=100)
    stream = TaskStream(encoder.encode(examples), batch=8, fixed_shape=True)
    with torch.no_grad():
        assert torch.isfinite(model.spec.loss(model, stream[0]).mean())
    subset = examples[:4]
    predictions = predict(model, TaskEncoder.from_task(task, model, max_new_tokens=8), subset)
    assert len(predictions) == 4 and 0 <= abs(get_headline(score(task, subset, predictions))) <= 1


def is_whole(example: Example) -> bool:
    """Return whether the first answer of an example is a few whole words."""
    begin, end = example.spans[0]
    passage = example.pair or example.text
    edges = passage[max(begin - 1, 0) : begin] + passage[end : end + 1]
    return end - begin < 80 and not any(letter.isalnum() for letter in edges)


@pytest.mark.parametrize(("name", "shape"), cases("bert", "gpt2"))
def test_gold_is_perfect(name: str, shape: str, shared_data: Path) -> None:
    task = TASKS.get(name)
    examples = sample_examples(task, shared_data, 32)
    if shape == "bert" and task.kind == "generation":
        pytest.skip("it cannot write")
    encoder = TaskEncoder.from_task(task, model_for(shape, task), max_length=128, stride=64, max_new_tokens=100)
    if task.kind in ("tagging", "srl", "dependency"):  # what is cut off cannot be right
        examples = [example for example in examples if not encoder.encode([example]).counts.cut]
    if task.kind == "span":  # some answers of SQuAD lie inside a word ("5" of "50"), or are longer than predictions
        examples = [example for example in examples if not example.spans or is_whole(example)]
    if task.kind == "generation":
        examples = [
            example
            for example in examples
            if len(tokenizer(shape).encode(example.target or "", add_special_tokens=False)) <= 100
        ]
    scores = score(task, examples, perfect(encoder, examples))
    assert get_headline(scores) == pytest.approx(1.0, abs=0.02), scores


@pytest.mark.parametrize(("name", "shape"), cases("t5"))
def test_gold_written_is_perfect(name: str, shape: str, shared_data: Path) -> None:
    task = TASKS.get(name)
    if task.template is None:
        pytest.skip("it has no template")
    model = model_for(shape, task)
    assert build_head(task, model.model).__class__.__name__ == "Generation"
    encoder = TaskEncoder.from_task(task, model, max_new_tokens=600)
    examples = sample_examples(task, shared_data, 32)
    assert get_headline(score(task, examples, perfect(encoder, examples))) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("shape", ["bert", *(pytest.param(one, marks=pytest.mark.slow) for one in ("gpt2", "t5"))])
def test_answers_of_squad_come_back(shape: str, shared_data: Path) -> None:
    """Answers are whole words; a year in "1930s" has no token of its own."""
    task = TASKS.get("squad1")
    examples = [*islice(task.read("dev", shared_data), 300)]
    encoder = TaskEncoder.from_task(task, model_for(shape, task, text_to_text=False), max_length=128, stride=64)
    predictions = perfect(encoder, examples)
    same = [prediction.text in example.answers for prediction, example in zip(predictions, examples, strict=True)]
    lost = encoder.encode(examples).counts.answers_lost
    assert sum(same) >= 0.95 * (len(examples) - lost) and lost < 10
    for example, prediction in zip(examples, predictions, strict=True):
        assert example.pair is not None
        assert prediction.span is None or example.pair[slice(*prediction.span)] == prediction.text
