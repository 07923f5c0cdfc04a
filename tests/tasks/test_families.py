"""Every family with the tokenizer it is trained with, on every kind of task: batches, losses and predictions."""

from functools import cache

import pytest
import torch

from pretune.adaptation.adapted import adapt
from pretune.core.errors import UsageError
from pretune.models.catalog import list_settings, resolve
from pretune.models.families import FAMILIES
from pretune.models.model import LanguageModel, build
from pretune.tasks.encoder import TaskEncoder, build_head
from pretune.tasks.predict import predict
from pretune.tasks.stream import TaskStream
from pretune.tasks.types import score
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.training import train
from tests.tasks.small import KINDS, TEXT, examples_of, task_of

SMALL = {
    "width": 32,
    "depth": 2,
    "heads": 4,
    "vocab": 408,
    "positions": 128,
    "kv_heads": 2,
    "head_width": 8,
    "hidden": 64,
}


@cache
def tokenizer_of(kind: str, style: str) -> Tokenizer:
    return train(kind, TEXT * 3, vocab=400, style=style)


def tiny(family: str) -> LanguageModel:
    entry = FAMILIES.get(family)
    kind, style, _ = entry.training.tokenizer if entry.training else ("wordpiece", "cls-sep", 0)
    model = build(resolve(family, {knob: SMALL[knob] for knob in list_settings(entry) if knob in SMALL}))
    model.assets.tokenizer = tokenizer_of(kind, style)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_on_every_kind(family: str) -> None:
    body = tiny(family)
    for kind in KINDS:
        task, examples = task_of(kind), examples_of(kind)
        if kind == "generation" and body.spec.decoder is None:
            with pytest.raises(UsageError, match="generation"):
                build_head(task, body)
            continue
        model = adapt(body, build_head(task, body))
        encoder = TaskEncoder.from_task(task, model, max_length=64, max_new_tokens=4)
        stream = TaskStream(encoder.encode(examples), batch=8, fixed_shape=True)
        loss = model.spec.loss(model, stream[0])
        loss.mean().backward()
        assert torch.isfinite(loss.mean()) and int(loss.count) > 0
        slopes = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        assert slopes and all(torch.isfinite(slope).all() for slope in slopes) and any(slope.any() for slope in slopes)
        scores = score(task, examples[:3], predict(model, encoder, examples[:3]))
        assert scores and all(-1 <= value <= 1 for value in scores.values())
