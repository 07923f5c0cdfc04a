"""Translation language modelling: both sides are masked, each at the rate."""

from dataclasses import replace

import numpy as np
import pytest

from pretune.core.types import IGNORE_INDEX
from pretune.objectives.translation import Translation
from tests.objectives.texts import MASK, corrupt, text


@pytest.mark.parametrize("rate", [0.15, 0.3])
def test_each_side_keeps_the_rate(rate: float) -> None:
    before = text(4000, 43, pairs=True)  # [CLS], 20 tokens, [SEP], 20 tokens, [SEP]
    chosen = (corrupt(Translation(rate=rate), before).targets != IGNORE_INDEX).reshape(-1, 43)
    for side in (chosen[:, 1:21], chosen[:, 22:42]):
        assert set(side.sum(1)) == {round(20 * rate)}
    assert not chosen[:, [0, 21, 42]].any()


def test_short_and_unequal_sides() -> None:
    """The shorter side is not starved: 15 % of one token is one time in seven."""
    before = text(20_000, 14, pairs=True)
    special = before.special.reshape(-1, 14).copy()
    special[:, 8:13] = True  # one token is left on the second side
    special[:, 12] = False
    before = replace(before, special=special.ravel())
    chosen = (corrupt(Translation(), before).targets != IGNORE_INDEX).reshape(-1, 14)
    assert abs(chosen[:, 12].mean() - 0.15) < 3 * np.sqrt(0.15 * 0.85 / 20_000)
    assert abs(chosen[:, 1:7].sum(1).mean() - 0.9) < 3 * np.sqrt(0.09 / 20_000)


def test_a_single_text_is_one_side() -> None:
    after = corrupt(Translation(split=(1.0, 0.0, 0.0)), text(100, 22))
    assert set((after.tokens == MASK).reshape(-1, 22).sum(1)) == {3}


def test_evaluation() -> None:
    assert Translation(rate=0.5, copies=4).to_evaluation() == Translation()
    assert Translation().pairs == "kept"
