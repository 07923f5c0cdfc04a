"""Masked next-token prediction: targets one position before, attention to both sides, rates by epoch, scoring."""

from pathlib import Path

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch
from pretune.data.layout import lay_out
from pretune.data.plan import BatchShape
from pretune.data.sequences import Sequences
from pretune.inference.scoring import ScoringConfig, compute_token_logprobs
from pretune.inference.scoring_queries import encode_passages
from pretune.models.catalog import resolve
from pretune.models.model import build
from pretune.objectives.base import Vocabulary
from pretune.objectives.causal import CausalLM
from pretune.objectives.masked import MaskedLM
from pretune.objectives.masked_next import MaskedNextToken
from pretune.objectives.mixture import Mixture, Part
from tests.objectives.texts import corrupt
from tests.text.tokenizers import trained

VOCABULARY = Vocabulary(size=50, special=(0, 1, 2), roles=(("mask", 1),))


def sequences(epochs: int = 0, count: int = 400, length: int = 30) -> Sequences:
    tokens = np.random.default_rng(0).integers(3, 50, count * length)
    offsets = np.arange(0, count * length + 1, length)
    number = np.arange(count)
    return Sequences(tokens=tokens, offsets=offsets, samples=number, epochs=np.full(count, epochs))


def test_the_position_before_a_masked_token_predicts_it() -> None:
    before = sequences()
    after = corrupt(MaskedNextToken(masking=MaskedLM(rate=0.4, split=(1.0, 0.0, 0.0))), before, vocabulary=VOCABULARY)
    assert after.targets is not None and after.prefix is not None
    masked = np.flatnonzero(after.tokens == 1)
    assert (masked % 30 > 0).all() and len(masked) / len(before.tokens) == pytest.approx(0.4 * 29 / 30, abs=0.01)
    expected = np.full(len(before.tokens), IGNORE_INDEX)
    expected[masked - 1] = before.tokens[masked]
    assert (after.targets == expected).all() and (after.prefix == 30).all()
    assert (np.delete(after.tokens, masked) == np.delete(before.tokens, masked)).all()


@pytest.mark.parametrize(("epoch", "rate"), [(0, 0.3), (2, 0.2), (4, 0.1), (9, 0.1)])
def test_the_rate_falls_by_epoch(epoch: int, rate: float) -> None:
    masking = MaskedLM(rate=0.3, final_rate=0.1, rate_epochs=5)
    after = corrupt(masking, sequences(epoch), vocabulary=VOCABULARY)
    assert (after.targets != IGNORE_INDEX).mean() == pytest.approx(rate, abs=0.001)


def test_masked_texts_are_read_from_both_sides_and_causal_ones_from_the_left() -> None:
    """In one batch of a hybrid mixture."""
    parts = (Part(objective=CausalLM()), Part(objective=MaskedNextToken()))
    after = corrupt(Mixture(parts=parts), sequences(count=8, length=6), vocabulary=VOCABULARY)
    assert after.prefix is not None and {*after.prefix.tolist()} == {0, 6}
    batch = lay_out(after, np.arange(8) // 2, BatchShape(rows=4, length=12))
    changes = {"width": 32, "depth": 2, "heads": 2, "vocab": 50, "positions": 32, "dropout": 0.0}
    model = build(resolve("gpt2", changes), seed=0).eval()
    tokens = batch.tokens.clone()
    last = torch.arange(5, 48, 6)
    tokens[last] = (tokens[last] + 1) % 50
    with torch.no_grad():
        change = (model.states(batch) - model.states(Batch(**{**_fields(batch), "tokens": tokens}))).abs()
    is_changed = (change[last - 5].amax(-1) > 1e-6).tolist()  # the first state, by the last token
    assert is_changed == (after.prefix == 6).tolist()


def _fields(batch: Batch) -> dict[str, object]:
    return {name: getattr(batch, name) for name in Batch.__dataclass_fields__}


def test_scores_from_both_sides_by_hand() -> None:
    tokenizer = trained("bpe", "s-mask")
    changes = {"width": 32, "depth": 2, "heads": 2, "vocab": tokenizer.vocab, "positions": 64, "dropout": 0.0}
    model = build(resolve("gpt2", changes), seed=1).eval()
    model.assets.tokenizer = tokenizer
    texts = ["The old man lived there.", "Nobody had a quiet story"]
    config = ScoringConfig(bidirectional=True, rest=False)
    result = compute_token_logprobs(model, encode_passages(tokenizer, texts), config)
    mask = tokenizer.special["mask"]
    for number, text in enumerate(texts):
        ids = [
            tokenizer.special["bos"],
            *tokenizer.encode_batch([text], literal=True).ids.tolist(),
            tokenizer.special["eos"],
        ]
        expected = []
        for place in range(1, len(ids) - 1):
            row = torch.tensor([*ids[:place], mask, *ids[place + 1 :]])
            batch = pt.batch([row.tolist()], prefix=[len(ids)])
            with torch.no_grad():
                logits = model(batch).logits[place - 1]
            expected.append(float(torch.log_softmax(logits, -1)[ids[place]]))
        np.testing.assert_allclose(result[number], expected, rtol=1e-4)
    causal = compute_token_logprobs(model, encode_passages(tokenizer, texts))
    assert not np.allclose(causal.logprobs, result.logprobs)


def test_scoring_from_both_sides_needs_a_mask_and_a_decoder(tmp_path: Path) -> None:
    tokenizer = trained("bpe", "endoftext")
    changes = {"width": 32, "depth": 1, "heads": 2, "vocab": tokenizer.vocab}
    model = build(resolve("gpt2", {**changes, "positions": 64}))
    model.assets.tokenizer = tokenizer
    config = ScoringConfig(bidirectional=True)
    with pytest.raises(UsageError, match="needs a mask token"):
        compute_token_logprobs(model, encode_passages(tokenizer, ["a text"]), config)
    model = build(resolve("t5", changes))
    model.assets.tokenizer = tokenizer
    with pytest.raises(UsageError, match="not a decoder"):
        compute_token_logprobs(model, encode_passages(tokenizer, ["a text"]), config)
