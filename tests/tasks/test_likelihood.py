"""The perplexity of right answers is that of their tokens, one example at a time or all at once."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import pretune as pt
from pretune.adaptation.adapted import ModelWithHead, adapt
from pretune.adaptation.heads.sequence import Classification
from pretune.adaptation.heads.token import Generation
from pretune.core.errors import UsageError
from pretune.models.model import LanguageModel
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.example import Example
from pretune.tasks.predict import answer_perplexity
from pretune.tasks.task import Task, Template
from tests.contracts.tiny import rough
from tests.runs import tasked

SAID = [("the old sea", "grey"), ("a long road in winter", "salt and stone"), ("night", "the quiet river light")]
EXAMPLES = [Example(text=text, target=target) for text, target in SAID]
TASK = Task(
    name="talk", kind="generation", metrics=("rouge",), splits={}, template=Template(source="{text}", target="{target}")
)


@pytest.fixture(scope="module", params=[("gpt2-small", "bpe", "endoftext"), ("t5-small", "unigram", "sentinels")])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelWithHead:
    family, kind, style = request.param
    body = pt.load(tasked.make_base(tmp_path_factory.mktemp(family), family, kind=kind, style=style))
    assert isinstance(body, LanguageModel)
    return adapt(rough(body), Generation()).eval()


@torch.no_grad()
def by_hand(model: ModelWithHead, encoder: TaskEncoder, example: Example) -> tuple[float, int]:
    sequences = encoder.encode([example]).sequences
    read = sequences.tokens.tolist()
    batch = (
        pt.batch([read])
        if sequences.source is None
        else pt.batch(source=[sequences.source.tokens.tolist()], target=[read])
    )
    assert sequences.targets is not None
    logits, labels = model(batch), torch.from_numpy(sequences.targets).long()
    is_target = labels != -100
    return float(F.cross_entropy(logits[is_target], labels[is_target], reduction="sum")), int(is_target.sum())


def test_it_is_that_of_the_answers_tokens(model: ModelWithHead) -> None:
    encoder = TaskEncoder.from_task(TASK, model, max_length=48)
    values = [by_hand(model, encoder, example) for example in EXAMPLES]
    expected = math.exp(sum(nats for nats, _ in values) / sum(count for _, count in values))
    assert answer_perplexity(model, encoder, EXAMPLES) == pytest.approx(expected, rel=1e-4)
    assert answer_perplexity(model, encoder, EXAMPLES, tokens=1) == pytest.approx(expected, rel=1e-4)
    assert expected != pytest.approx(math.exp(values[0][0] / values[0][1]), rel=1e-3)


def test_who_does_not_write_is_not_asked(tmp_path: Path) -> None:
    base = pt.load(tasked.make_base(tmp_path))
    assert isinstance(base, LanguageModel)
    task = Task(name="own", kind="classification", metrics=("accuracy",), splits={}, labels=("a", "b"))
    with pytest.raises(UsageError):
        classifier = adapt(base, Classification(classes=2))
        answer_perplexity(classifier, TaskEncoder.from_task(task, classifier), EXAMPLES)
