"""What every model must keep, written once: each law takes a model and fails with an AssertionError.

They are functions, so that `test_broken_laws` can hold them against models that were broken on purpose.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

import pretune as pt
from pretune.models.model import LanguageModel
from tests.contracts.tiny import VOCAB, lay, sources_of, text

CLOSE = 1e-5
SAME = 1e-6
SEEN = 1e-4
"""A change above this is one that was meant; what should not change stays far below."""


def equal(found: Tensor, expected: Tensor, atol: float = CLOSE) -> None:
    torch.testing.assert_close(found, expected, rtol=0.0, atol=atol)


def moved(found: Tensor, expected: Tensor) -> None:
    """Every row differs visibly."""
    assert ((found - expected).abs().amax(-1) > SEEN).all(), "a change went unnoticed"


@torch.no_grad()
def read(
    model: LanguageModel, sequences: Sequence[list[int]], sources: Sequence[list[int]] | None = None, **more: object
) -> list[Tensor]:
    """The logits of every sequence; of a model of two directions its states, as logits are the forward one's."""
    batch = lay(model.spec, sequences, sources, **more)
    return batch.split(answer(model, batch))


def answer(model: LanguageModel, batch: pt.Batch) -> Tensor:
    out = model(batch)
    return out.states if model.shape == "two-way" else out.logits


def changed(tokens: list[int], *at: int) -> list[int]:
    return [(token + 1 + i % 7) % VOCAB if i in at else token for i, token in enumerate(tokens)]


def no_future_leak(model: LanguageModel) -> None:
    """A token at t changes nothing before t, itself and its next neighbour visibly. All variants lie in one batch."""
    (base,) = text(9)
    sequences = [base, *(changed(base, t) for t in range(9))]
    logits = read(model, sequences, sources_of(1) * 10, row=21)
    for t, variant in enumerate(logits[1:]):
        equal(variant[:t], logits[0][:t])
        moved(variant[t : t + 2], logits[0][t : t + 2])


def both_sides_are_seen(model: LanguageModel) -> None:
    """In an encoder a token at t changes its neighbours on both sides."""
    (base,) = text(7)
    logits = read(model, [base, *(changed(base, t) for t in range(7))], row=15)
    for t, variant in enumerate(logits[1:]):
        near = slice(max(t - 1, 0), t + 2)
        moved(variant[near], logits[0][near])


def prefix_is_open(model: LanguageModel) -> None:
    """The prefix sees itself both ways, what follows is causal, and a prefix of 0 is none at all."""
    (base,) = text(9)
    sequences = [base, *(changed(base, t) for t in range(9))]
    logits = read(model, sequences, row=21, prefix=[3] * 10)
    for t, variant in enumerate(logits[1:]):
        equal(variant[: t if t >= 3 else 0], logits[0][: t if t >= 3 else 0])
        start = 0 if t < 3 else t
        moved(variant[start : t + 2], logits[0][start : t + 2])
    causal, none = read(model, [base], row=12), read(model, [base], row=12, prefix=[0])
    equal(none[0], causal[0], SAME)
    mixed = read(model, [base, base, base], row=21, prefix=[3, 0, 9])  # each sequence has its own
    equal(mixed[0], logits[0])
    equal(mixed[1], causal[0])
    equal(mixed[2], read(model, [base], prefix=[9])[0])


def sequences_are_apart(model: LanguageModel) -> None:
    """Another sequence, its length kept, and other filler: nobody else notices."""
    sequences, row = text(6, 3, 8, 1, 5), 11
    before = read(model, sequences, row=row)
    for s in (1, 2, 4):  # the second of its row, one with its row to itself but for filler, the last
        other = [*sequences[:s], changed(sequences[s], *range(8)), *sequences[s + 1 :]]
        for i, (found, expected) in enumerate(zip(read(model, other, row=row), before, strict=True)):
            moved(found, expected) if i == s else equal(found, expected, SAME)
    batch = lay(model.spec, sequences, row=row)
    assert (batch.sequence < 0).any()
    stirred = stir(batch)
    if batch.source is not None:
        assert (batch.source.sequence < 0).any()
        stirred = replace(stirred, source=stir(batch.source))
    with torch.no_grad():
        equal(torch.cat(batch.split(answer(model, stirred))), torch.cat(before), SAME)


def stir(batch: pt.Batch) -> pt.Batch:
    """Other tokens in the filler."""
    return replace(batch, tokens=torch.where(batch.sequence < 0, VOCAB - 1, batch.tokens))


def sources_are_apart(model: LanguageModel) -> None:
    """The source of sequence s reaches target s, all of it, and no other."""
    targets, sources = text(6, 3, 8, 1, 5), text(4, 7, 2, 9, 3, seed=9)
    before = read(model, targets, sources, row=11)
    for s in (0, 2, 4):
        other = [*sources[:s], changed(sources[s], *range(9)), *sources[s + 1 :]]
        for i, (found, expected) in enumerate(zip(read(model, targets, other, row=11), before, strict=True)):
            moved(found, expected) if i == s else equal(found, expected, SAME)


def packed_is_alone(model: LanguageModel) -> None:
    """Sequences packed in rows and read one at a time say the same."""
    sequences, sources = text(6, 3, 8, 1, 5), sources_of(5)
    packed = read(model, sequences, sources, row=11)
    for sequence, source, found in zip(sequences, sources, packed, strict=True):
        equal(found, read(model, [sequence], [source])[0])


def rows_are_nothing(model: LanguageModel) -> None:
    """Whatever the row length, and whether rows are exactly filled."""
    sequences = text(6, 3, 9, 6, 5, 4, 9)
    first = torch.cat(read(model, sequences, row=9))
    for row in (10, 42):
        equal(torch.cat(read(model, sequences, row=row)), first)
    even = text(6, 6, 6)
    equal(torch.cat(read(model, even, row=6)), torch.cat(read(model, even, row=7)))


@torch.no_grad()
def cache_is_no_cache(
    model: LanguageModel, prompts: Sequence[int], *, steps: int = 5, spare: int = 0, row: int | None = None
) -> None:
    """Reading prompts into a cache and then token by token gives the logits of reading all at once."""
    sequences, sources = text(*(n + steps for n in prompts)), sources_of(len(prompts))
    expected = read(model, sequences, sources)
    cache = model.new_cache(
        len(prompts), max(prompts) + steps + spare, source=9 + spare if model.spec.is_encoder_decoder else 0
    )
    starts = [sequence[:n] for sequence, n in zip(sequences, prompts, strict=True)]
    if any(prompts):
        batch = lay(model.spec, starts, sources, row=row)
        for found, all_of_it in zip(batch.split(model(batch, cache=cache).logits), expected, strict=True):
            equal(found, all_of_it[: len(found)])
    for j in range(steps):
        assert cache.lengths.tolist() == [n + j for n in prompts]
        tokens = torch.tensor([sequence[n + j] for sequence, n in zip(sequences, prompts, strict=True)])
        equal(model.step(tokens, cache), torch.stack([e[n + j] for e, n in zip(expected, prompts, strict=True)]))


@torch.no_grad()
def cache_keeps_the_prefix(model: LanguageModel) -> None:
    """A prompt that was read both ways stays so while the rest is stepped through."""
    prompts, steps = (6, 1, 4), 4
    sequences = text(*(n + steps for n in prompts))
    expected = read(model, sequences, prefix=prompts)
    cache = model.new_cache(3, 12)
    model(pt.batch([s[:n] for s, n in zip(sequences, prompts, strict=True)], row=8, prefix=prompts), cache=cache)
    for j in range(steps):
        tokens = torch.tensor([sequence[n + j] for sequence, n in zip(sequences, prompts, strict=True)])
        equal(model.step(tokens, cache), torch.stack([e[n + j] for e, n in zip(expected, prompts, strict=True)]))
