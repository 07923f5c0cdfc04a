"""Lessons against the collators of transformers: the same rules, and shares that agree within chance."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pretune.core.types import IGNORE_INDEX
from pretune.data.sampling import Counters
from pretune.objectives.masked import MaskedLM
from tests.objectives.texts import MASK, PAD, SPECIAL, VOCABULARY, text

transformers = pytest.importorskip("transformers")


class Tokenizer(SimpleNamespace):
    """The tokenizer methods that the collators call."""

    mask_token, mask_token_id, pad_token, pad_token_id, is_fast = "[MASK]", MASK, "[PAD]", PAD, True

    def __len__(self) -> int:
        return VOCABULARY.size

    def convert_tokens_to_ids(self, token: str) -> int:
        return MASK

    def get_special_tokens_mask(self, ids: list[int], already_has_special_tokens: bool) -> list[int]:
        return [int(token in SPECIAL) for token in ids]


def shares(before: np.ndarray, shown: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return the replacements of the target tokens."""
    chosen = labels != IGNORE_INDEX
    return {
        "chosen": chosen.sum() / (~np.isin(before, SPECIAL)).sum(),
        "masked": (shown[chosen] == MASK).mean(),
        "kept": (shown[chosen] == before[chosen]).mean(),
        "replaced": ((shown[chosen] != MASK) & (shown[chosen] != before[chosen])).mean(),
    }


@pytest.mark.parametrize(("rate", "split"), [(0.15, (0.8, 0.1, 0.1)), (0.4, (0.5, 0.4, 0.1)), (0.15, (1.0, 0.0, 0.0))])
def test_masked(rate: float, split: tuple[float, float, float]) -> None:
    before = text(2000, 64)
    ids = before.tokens.reshape(-1, 64)
    collator = transformers.DataCollatorForLanguageModeling(
        tokenizer=Tokenizer(),
        mlm_probability=rate,
        mask_replace_prob=split[0],
        random_replace_prob=split[1],
        seed=0,
    )
    collator.create_rng()
    theirs = [part.numpy() for part in collator.torch_mask_tokens(torch.tensor(ids))]
    made = (
        MaskedLM(rate=rate, split=split).bind(VOCABULARY, "encoder").corrupt(before, Counters.from_sequences(0, before))
    )
    assert made.targets is not None
    ours = [made.tokens.reshape(-1, 64), made.targets.reshape(-1, 64)]

    count = rate * 2000 * 62
    expected = {
        "chosen": rate,
        "masked": split[0],
        "replaced": split[1] * 999 / 1000,
        "kept": split[2] + split[1] / 1000,
    }
    for shown, labels in (theirs, ours):  # one rule for labels: what was there, where it is asked, and -100 elsewhere
        chosen = labels != IGNORE_INDEX
        assert (labels[chosen] == ids[chosen]).all() and (labels[~chosen] == -100).all()
        assert (shown[~chosen] == ids[~chosen]).all()
        assert not chosen[np.isin(ids, SPECIAL)].any()
        for name, share in shares(ids, shown, labels).items():
            draws = 2000 * 62 if name == "chosen" else count
            sigma = np.sqrt(expected[name] * (1 - expected[name]) / draws)
            # Theirs draws from all of the vocabulary, special tokens included: 7 of 1,007 here, some of them the mask.
            slack = split[1] * 7 / 1007 if labels is theirs[1] and name != "chosen" else 0
            assert abs(share - expected[name]) <= 3 * sigma + slack + 1e-9, (name, share, expected[name])
    # Theirs tosses a coin for every token; ours asks of every text what it can give, so that no batch runs out of room.
    per_text = [(labels != IGNORE_INDEX).sum(1) for _, labels in (theirs, ours)]
    assert per_text[0].std() == pytest.approx(np.sqrt(62 * rate * (1 - rate)), rel=0.1)
    assert np.ptp(per_text[1]) <= 1
    # And ours never shows a special token that it drew, where theirs does.
    drawn = ours[0][(ours[0] != ids) & (ours[0] != MASK)]
    assert not np.isin(drawn, SPECIAL).any()


def test_whole_words() -> None:
    """Words are hidden whole by both. Theirs takes each word with the rate; so does ours, but to the exact share."""
    before = text(1000, 64)
    ids, words = before.tokens.reshape(-1, 64), np.cumsum(before.words).reshape(-1, 64)
    special = before.special.reshape(-1, 64).astype(int)
    starts = 3 * words + 2 * np.arange(64)  # a gap before every word, none inside one
    with warnings.catch_warnings(action="ignore"):  # of a tokenizer that is none
        collator = transformers.DataCollatorForLanguageModeling(tokenizer=Tokenizer(), whole_word_mask=True, seed=0)
    collator.create_rng()
    _, theirs = collator.torch_mask_tokens(
        torch.tensor(ids), special_tokens_mask=special, offset_mapping=np.stack((starts, starts + 2), axis=-1)
    )
    made = MaskedLM(words=True).bind(VOCABULARY, "encoder").corrupt(before, Counters.from_sequences(0, before))
    assert made.targets is not None
    for labels in (theirs.numpy(), made.targets.reshape(-1, 64)):
        hidden = np.bincount(words.ravel(), weights=(labels != IGNORE_INDEX).ravel()) / np.bincount(words.ravel()).clip(
            1
        )
        assert set(hidden) == {0.0, 1.0}
        share = (labels != IGNORE_INDEX).sum() / (1000 * 62)
        assert abs(share - 0.15) < 3 * np.sqrt(0.15 * 0.85 * 2.8 / (1000 * 62))  # tokens come in words of 1.7
