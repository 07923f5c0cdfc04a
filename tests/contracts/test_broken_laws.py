"""A law that cannot be broken proves nothing: models broken on purpose, and the law that notices."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pretune.nn import attention_mask, stack
from pretune.nn import cache as decoding_step
from tests.contracts import laws
from tests.contracts.tiny import model_of

rule = attention_mask.may_attend


def everybody(q: Tensor, k: Tensor, distance: Tensor, ahead: Any, sight: Any, **how: Any) -> Tensor:
    """Sequences see each other."""
    return rule(torch.zeros_like(q), torch.zeros_like(k), distance, ahead, sight, **how) | (q < 0)


def filler(q: Tensor, k: Tensor, distance: Tensor, ahead: Any, sight: Any, **how: Any) -> Tensor:
    """Filler is seen."""
    return rule(q, k, distance, ahead, sight, **how) | (k < 0)


def future(q: Tensor, k: Tensor, distance: Tensor, ahead: Any, sight: Any, **how: Any) -> Tensor:
    """The next token is seen."""
    return rule(q, k, distance - 1, ahead, sight, **how)


def narrow(q: Tensor, k: Tensor, distance: Tensor, ahead: Any, sight: Any, **how: Any) -> Tensor:
    """Only the token itself."""
    return rule(q, k, distance, ahead, sight, **how) & (distance == 0) | (q < 0)


def closed(q: Tensor, k: Tensor, distance: Tensor, ahead: Any, sight: Any, **how: Any) -> Tensor:
    """The prefix is not seen."""
    return rule(q, k, distance, None, sight, **how)


def longer(q: Tensor, k: Tensor, distance: Tensor, ahead: Any, sight: Any, **how: Any) -> Tensor:
    """The prefix is one longer."""
    more = ahead if ahead is None else ahead | ahead.roll(1, dims=-1)
    return rule(q, k, distance, more, sight, **how)


@pytest.mark.parametrize(
    ("broken", "law", "name"),
    [
        (everybody, laws.sequences_are_apart, "bert-base"),
        (everybody, laws.sequences_are_apart, "mpt-7b"),
        (everybody, laws.sequences_are_apart, "xlnet-base"),
        (everybody, laws.sources_are_apart, "t5-base"),
        (everybody, laws.packed_is_alone, "bert-base"),
        (everybody, laws.packed_is_alone, "llama-7b"),
        (everybody, laws.rows_are_nothing, "bart-base"),
        (filler, laws.sequences_are_apart, "bert-base"),
        (filler, laws.sequences_are_apart, "t5-base"),
        (filler, laws.rows_are_nothing, "gpt2-small"),
        (future, laws.no_future_leak, "gpt2-small"),
        (future, laws.no_future_leak, "mistral-7b"),
        (future, laws.no_future_leak, "bart-base"),
        (narrow, laws.no_future_leak, "gpt2-small"),
        (narrow, laws.both_sides_are_seen, "bert-base"),
        (closed, laws.prefix_is_open, "t5-table-prefix-lm"),
        (closed, laws.prefix_is_open, "llama-7b"),
        (longer, laws.prefix_is_open, "t5-table-prefix-lm"),
    ],
)
def test_another_rule_is_noticed(
    broken: Callable[..., Tensor], law: Callable[..., None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    law(model_of(name))
    monkeypatch.setattr(attention_mask, "may_attend", broken)
    with pytest.raises(AssertionError):
        law(model_of(name))


def every_step(monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change what the layers are told about a step."""
    made = decoding_step.DecodingStep
    monkeypatch.setattr(decoding_step, "DecodingStep", lambda **given: made(**{**given, **change(given)}))


def every_window(monkeypatch: pytest.MonkeyPatch, change: Callable[[int | None], int | None]) -> None:
    """Change the windows of the layers in a step."""
    prepare = stack.prepare_steps

    def prepare_others(*given: Any) -> Callable[..., decoding_step.DecodingStep]:
        build = prepare(*given)
        return lambda window, *rest: build(change(window), *rest)

    monkeypatch.setattr(stack, "prepare_steps", prepare_others)


def no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    every_window(monkeypatch, lambda window: None)


def wider(monkeypatch: pytest.MonkeyPatch) -> None:
    every_window(monkeypatch, lambda window: window and window + 1)


def all_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    every_step(monkeypatch, lambda given: {"source_mask": torch.ones_like(given["source_mask"])})


def late(monkeypatch: pytest.MonkeyPatch) -> None:
    every_step(monkeypatch, lambda given: {"mask": given["mask"].roll(-1, -1)})


def unturned(monkeypatch: pytest.MonkeyPatch) -> None:
    every_step(monkeypatch, lambda given: {"rotation": None})


def unbiased(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = stack.prepare_steps
    monkeypatch.setattr(stack, "prepare_steps", lambda cache, rotations, bias: prepare(cache, rotations, None))


def crossed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stepped is written where another sequence reads."""
    append = decoding_step.DecodingStep.append
    monkeypatch.setattr(
        decoding_step.DecodingStep,
        "append",
        lambda self, cache, k, v: append(self, cache, k.roll(1, 0), v.roll(1, 0)),
    )


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (no_window, "mistral-7b"),
        (wider, "mistral-7b"),
        (all_of_the_source, "t5-base"),
        (all_of_the_source, "bart-base"),
        (late, "gpt2-small"),
        (late, "mpt-7b"),
        (unturned, "llama-7b"),
        (unbiased, "t5-base"),
        (unbiased, "mpt-7b"),
        (crossed, "gpt2-small"),
    ],
)
def test_another_step_is_noticed(
    broken: Callable[[pytest.MonkeyPatch], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ragged = {"prompts": (6, 1, 4), "row": 8}
    laws.cache_is_no_cache(model_of(name), **ragged)
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        laws.cache_is_no_cache(model_of(name), **ragged)
