"""Length schedules: the steps of each phase."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.core.errors import UsageError
from pretune.data.plan import LengthSchedule, Phase


@given(st.integers(1, 10**6), st.lists(st.integers(1, 9), min_size=1))
def test_phases_follow_each_other(steps: int, parts: list[int]) -> None:
    total = sum(parts)
    counts = LengthSchedule(phases=tuple(Phase(share=part / total, length=64) for part in parts)).divide(steps)
    assert sum(counts) == steps and min(counts) >= 0
    for last, done in zip(itertools.accumulate(counts), itertools.accumulate(parts), strict=True):
        assert abs(last - steps * done / total) <= 0.5 + 1e-6


def test_what_cannot_be() -> None:
    with pytest.raises(UsageError, match=r"0\.9"):
        LengthSchedule(phases=(Phase(share=0.9, length=128),))
    with pytest.raises(UsageError, match=r"\b0\b"):
        LengthSchedule(phases=())
    for share, length, field in ((0, 128, "share"), (1.5, 128, "share"), (0.5, 0, "length")):
        with pytest.raises(UsageError, match=rf"^Phase\.{field} "):
            Phase(share=share, length=length)
