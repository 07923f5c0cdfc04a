"""Replaced tokens: what is drawn and how often, what counts as replaced, and whom the loss teaches."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import pretune as pt
from pretune.core.errors import UsageError
from pretune.core.seed import extend_mix
from pretune.core.types import IGNORE_INDEX, Batch, Targets
from pretune.data.layout import lay_out
from pretune.data.plan import BatchShape
from pretune.data.sequences import Sequences, compute_offsets
from pretune.models.catalog import resolve
from pretune.models.generator_discriminator import GeneratorDiscriminator, add_generator, build_pair
from pretune.nn.loss import sample_tokens
from pretune.objectives.base import Vocabulary
from pretune.objectives.masked import MaskedLM
from pretune.objectives.replaced_token import _STEP, ReplacedToken, _mix_bits, fill_in, hash_to_uniform
from tests.contracts.tiny import rough
from tests.objectives.texts import corrupt

VOCAB, MASK = 13, 4
WORDS = Vocabulary(size=VOCAB, special=(0, 1, 2, 3, MASK), roles=(("pad", 0), ("cls", 2), ("sep", 3), ("mask", MASK)))


@pytest.fixture(scope="module")
def model() -> GeneratorDiscriminator:
    settings = {"width": 32, "depth": 2, "heads": 2, "vocab": VOCAB, "positions": 40, "table": 12, "dropout": 0.0}
    pair = build_pair(add_generator(resolve("electra-small", settings)))
    rough(pair)  # type: ignore[arg-type]
    return pair.eval()


def texts(count: int, length: int, seed: int = 0) -> Sequences:
    """Between two special tokens, random ones."""
    tokens = np.random.default_rng(seed).integers(5, VOCAB, (count, length))
    tokens[:, 0], tokens[:, -1] = 2, 3
    special = np.zeros_like(tokens, dtype=np.bool_)
    special[:, [0, -1]] = True
    return Sequences(
        tokens=tokens.reshape(-1),
        offsets=compute_offsets(np.full(count, length)),
        special=special.reshape(-1),
        samples=np.arange(count) + 1000 * seed,
        epochs=np.zeros(count, dtype=np.int64),
    )


def lesson(sequences: Sequences, objective: ReplacedToken | None = None) -> Sequences:
    return corrupt(objective or ReplacedToken(), sequences, vocabulary=WORDS)


def laid(sequences: Sequences, per_row: int = 2, slots: int | None = None) -> Batch:
    rows = np.arange(len(sequences)) // per_row
    length = int(sequences.lengths.max()) * per_row + 3
    return lay_out(sequences, rows, BatchShape(rows=int(rows[-1]) + 1, length=length, slots=slots))


def test_worked_example() -> None:
    """The chef cooked the meal: what is drawn right counts as original, whatever the slots that are spare."""
    the, chef, cooked, ate, meal = 6, 7, 8, 9, 10
    batch = pt.batch(
        [[MASK, chef, MASK, the, meal]], labels=[[the, IGNORE_INDEX, cooked, IGNORE_INDEX, IGNORE_INDEX]], row=7
    )
    assert batch.targets is not None
    spare = Targets(index=torch.tensor([0, 2, 0, 0]), labels=torch.tensor([the, cooked, IGNORE_INDEX, IGNORE_INDEX]))
    shown, replaced = fill_in(replace(batch, targets=spare), torch.tensor([the, ate, 11, 12]))
    assert shown.tokens.tolist()[:5] == [the, chef, ate, the, meal]
    assert replaced.tolist() == [False, False, True, False, False, False, False]


def test_the_masked_are_as_in_the_released_code() -> None:
    """15 % are chosen, 85 % of them masked and the rest as they were; nothing random."""
    before = texts(400, 42)
    after = lesson(before)
    assert before.special is not None and after.targets is not None
    chosen = after.targets != IGNORE_INDEX
    ordinary = int((~before.special).sum())
    assert abs(chosen.sum() - 0.15 * ordinary) < 3 * np.sqrt(400 / 4)  # a sequence's count varies by less than 1
    assert (after.tokens[~chosen] == before.tokens[~chosen]).all()
    masked, kept = after.tokens[chosen] == MASK, after.tokens[chosen] == before.tokens[chosen]
    assert (masked | kept).all()
    assert abs(masked.mean() - 0.85) < 3 * np.sqrt(0.85 * 0.15 / chosen.sum())


@torch.no_grad()
def test_the_replaced_share(model: GeneratorDiscriminator) -> None:
    """It is the masked share times the share that the generator gets wrong, within 3 standard deviations."""
    batch = laid(lesson(texts(600, 32)))
    assert batch.targets is not None
    right = _likelihood(model, batch)
    _, drawn = model.propose(batch, hash_to_uniform(batch))
    _, replaced = fill_in(batch, drawn)
    expected, deviation = (1 - right).sum(), (right * (1 - right)).sum().sqrt()
    assert 0.02 < right.mean() < 0.9 and deviation > 5
    assert abs(replaced.sum() - expected) < 3 * deviation
    real, accuracy = int((batch.sequence >= 0).sum()), (drawn == batch.targets.labels).float().mean().item()
    share = len(right) / real
    assert replaced.sum().item() / real == pytest.approx(share * (1 - accuracy))


def _likelihood(model: GeneratorDiscriminator, batch: Batch) -> Tensor:
    """The probability that the generator gives to what was masked."""
    assert batch.targets is not None
    logits = model.generator(batch).logits
    assert logits is not None
    return F.softmax(logits, dim=1).gather(1, batch.targets.labels[:, None]).squeeze(1)


def test_draws_follow_the_softmax() -> None:
    """Also where the head has no bias, and nearly in half precision; what is certain is drawn whatever the chance."""
    torch.manual_seed(0)
    rows, table, bias = torch.randn(1, 8), torch.randn(11, 8), torch.randn(11)
    count = 20_000
    for shift in (bias, None):
        expected = F.softmax(F.linear(rows, table, shift), dim=1)[0]
        drawn = sample_tokens(rows.expand(count, -1), table, shift, torch.rand(count))
        found = torch.bincount(drawn, minlength=11) / count
        assert ((found - expected).abs() < 4 * (expected * (1 - expected) / count).sqrt() + 1e-6).all()
    sure = torch.full((11,), -100.0)
    sure[7] = 100.0
    edge = torch.tensor([0.0, 0.5, 1 - 2**-24])
    assert sample_tokens(torch.zeros(3, 8), table, sure, edge).tolist() == [7, 7, 7]
    with torch.autocast("cpu", torch.bfloat16):
        half = sample_tokens(rows.expand(500, -1), table, bias, torch.linspace(0, 0.999, 500))
    exact = sample_tokens(rows.expand(500, -1), table, bias, torch.linspace(0, 0.999, 500))
    assert (half == exact).float().mean() > 0.9


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from pretune.nn import loss

    rows, table, chance = torch.randn(300, 8), torch.randn(50, 8), torch.rand(300)
    whole = sample_tokens(rows, table, None, chance)
    monkeypatch.setitem(loss.BLOCK_BYTES, "cpu", 1)  # 64 rows at a time
    assert torch.equal(sample_tokens(rows, table, None, chance), whole)


def test_chances_are_even_and_belong_to_their_sequence() -> None:
    corrupted = lesson(texts(800, 32))
    found = hash_to_uniform(laid(corrupted))
    count = len(found)
    assert found.min() >= 0 and found.max() < 1 and len(found.unique()) > 0.99 * count
    assert abs(found.mean() - 0.5) < 3 * (1 / 12 / count) ** 0.5
    tenths = torch.histc(found, 10, 0, 1)
    assert ((tenths - count / 10).abs() < 4 * (0.09 * count) ** 0.5).all()
    neighbours = torch.corrcoef(torch.stack((found[:-1], found[1:])))[0, 1]
    assert abs(neighbours) < 4 / count**0.5
    assert torch.equal(hash_to_uniform(laid(corrupted, per_row=5)), found)  # however it is laid out
    some = corrupted.take(np.arange(300, 320))
    start = int((corrupted.targets[: corrupted.offsets[300]] != IGNORE_INDEX).sum())  # type: ignore[index]
    alone = hash_to_uniform(laid(some))
    assert torch.equal(alone, found[start : start + len(alone)])  # and whatever else is there
    other = hash_to_uniform(laid(lesson(replace(texts(800, 32), epochs=np.ones(800, dtype=np.int64)))))
    assert not np.intersect1d(found.numpy(), other.numpy()).size > 0.02 * count


def test_the_hash_is_that_of_the_seeds() -> None:
    numbers = np.array([0, 1, 2**40 + 17, 2**63 - 1], dtype=np.int64)
    ours = _mix_bits(torch.from_numpy(numbers) + _STEP).numpy().view(np.uint64)
    assert (ours == extend_mix(np.uint64(0), numbers)).all()


def test_loss(model: GeneratorDiscriminator) -> None:
    """The generator's is that of masking; the discriminator's is binary, over all real tokens, and weighs 50."""
    objective, batch = ReplacedToken(), laid(lesson(texts(20, 24)), slots=12)
    loss = objective.loss(model, batch)
    masked = MaskedLM().loss(model.generator, batch)
    torch.testing.assert_close(loss.parts["generator"].sum, masked.sum)
    _, drawn = model.propose(batch, hash_to_uniform(batch))
    shown, replaced = fill_in(batch, drawn)
    real = batch.sequence >= 0
    assert replaced[real].sum() > 0 and not replaced[~real].any() and not real.all()
    expected = F.binary_cross_entropy_with_logits(model.detect(shown)[real], replaced[real].float())
    part = loss.parts["discriminator"]
    torch.testing.assert_close(part.sum / part.count, expected)
    assert int(part.count) == 20 * 24 == int(objective.counts(batch)["discriminator"])
    assert int(loss.count) == int(objective.counts(batch)["generator"]) == int(masked.count)
    torch.testing.assert_close(loss.mean(), masked.mean() + 50 * expected)
    torch.manual_seed(1)
    assert torch.equal(objective.loss(model, batch).mean(), loss.mean())


def test_whom_the_loss_teaches(model: GeneratorDiscriminator) -> None:
    """Nothing of the discriminator's loss reaches the generator, but through what they share."""
    batch = laid(lesson(texts(20, 24)))
    own = {id(p) for p in model.generator.parameters()} - {id(p) for p in model.discriminator.parameters()}
    model.zero_grad()
    ReplacedToken().loss(model, batch).parts["discriminator"].sum.backward()
    assert all(p.grad is None for p in model.parameters() if id(p) in own)
    judge = [p for p in model.discriminator.parameters() if p.grad is not None and p.grad.abs().max() > 0]
    assert len(judge) > 0.9 * len(list(model.discriminator.parameters()))
    model.zero_grad()
    ReplacedToken().loss(model, batch).parts["generator"].sum.backward()
    assert all(p.grad is not None for p in model.generator.parameters())
    assert model.discriminator.detector is not None and model.discriminator.detector.out.weight.grad is None
    model.zero_grad()


def test_refused(model: GeneratorDiscriminator) -> None:
    batch = laid(lesson(texts(2, 24)))
    with pytest.raises(UsageError, match="replaced_token"):
        ReplacedToken().loss(model.discriminator, batch)
    with pytest.raises(UsageError, match=r"\b0\b"):
        ReplacedToken(weight=0)
    hard = ReplacedToken(masking=MaskedLM(rate=0.4, words=True))
    assert hard.words and not hard.to_evaluation().words and hard.to_evaluation() == ReplacedToken()
