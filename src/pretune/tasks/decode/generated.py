"""Answers that a model writes, and what they stand for."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from pretune.inference.decode import generate_tokens
from pretune.inference.generation_config import BeamSearch, GenerationConfig, GreedySearch
from pretune.inference.generation_tokens import GenerationTokens
from pretune.metrics.question_answering import normalise
from pretune.tasks.decode.logits import ProgressCallback
from pretune.tasks.decode.prediction import Prediction
from pretune.tasks.encode.base import EncodingRules
from pretune.tasks.encode.encoder import TaskEncoder
from pretune.tasks.encode.text_to_text import count_answer_specials, get_end_tokens, get_start_token
from pretune.tasks.example import Example

GROUP_SIZE = 256
"""Examples between two reports."""


def generate_texts(
    model: nn.Module,
    encoder: TaskEncoder,
    examples: Sequence[Example],
    *,
    beams: int = 1,
    precision: torch.dtype | None = None,
    on_progress: ProgressCallback | None = None,
) -> list[Prediction]:
    """What the model writes for each example."""
    rules = encoder.rules
    bare = replace(encoder, slots=0)  # decoding reserves them itself
    items = bare.encode(examples, training=False).sequences
    side = items if items.source is None else items.source
    prompts = [side.tokens[low:high].tolist() for low, high in zip(side.offsets[:-1], side.offsets[1:], strict=True)]
    marks = GenerationTokens(
        start=get_start_token(rules) if rules.spec.is_encoder_decoder else None, eos=get_end_tokens(rules)
    )
    search = GreedySearch() if beams == 1 else BeamSearch(beams=beams)
    decoding = GenerationConfig(max_new_tokens=rules.new_tokens + count_answer_specials(rules), search=search)
    device = next(model.parameters()).device
    found: list[Prediction] = []
    for first in range(0, len(prompts), GROUP_SIZE):
        with torch.autocast(device.type, precision, enabled=precision is not None):
            written = generate_tokens(model, prompts[first : first + GROUP_SIZE], decoding, generation_tokens=marks)
        said = [rules.tokenizer.decode(one[0].tokens, special=False).strip() for one in written]
        found += [parse_answer(rules, example, text) for example, text in zip(examples[first:], said, strict=False)]
        if on_progress is not None:
            on_progress(len(found), len(examples))
    return found


def parse_answer(rules: EncodingRules, example: Example, text: str) -> Prediction:
    """What a written answer stands for; one that stands for nothing has no label, and is never right."""
    task, template = rules.task, rules.task.template
    if task.kind == "regression":
        return Prediction(text=text, value=_parse_number(text, rules.scale))
    label = None
    if template is not None and template.targets:
        label = template.parse_label(text)
    elif task.kind == "choice":
        same = [at for at, option in enumerate(example.choices) if normalise(option) == normalise(text)]
        label = same[0] if same else None
    if task.kind == "choice":
        scores = tuple(float(at == label) for at in range(len(example.choices)))
        return Prediction(text=text, label=label, scores=scores)
    return Prediction(text=text, label=label)


def _parse_number(text: str, scale: tuple[float, float] | None) -> float:
    """A score that was written; where it is none, the middle of the scale."""
    low, high = scale or (-math.inf, math.inf)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        value = (low + high) / 2 if scale else 0.0
    return min(max(value, low), high)
