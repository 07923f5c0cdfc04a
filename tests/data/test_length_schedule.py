"""Length schedules: boundaries in steps, and the same tokens in each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.core.errors import UsageError
from pretune.data.plan import LengthSchedule, Phase

BERT = LengthSchedule(phases=(Phase(share=0.9, length=128), Phase(share=0.1, length=512)))


def test_the_boundary() -> None:
    stages = BERT.build_stages(steps=1000, tokens=65_536)
    assert [tuple(stage) for stage in stages] == [(0, 900, 128, 512), (900, 1000, 512, 128)]


@given(st.integers(1, 10**6), st.lists(st.tuples(st.integers(1, 9), st.sampled_from([64, 128, 512])), min_size=1))
def test_stages_follow_each_other(steps: int, phases: list[tuple[int, int]]) -> None:
    total = sum(part for part, _ in phases)
    made = LengthSchedule(phases=tuple(Phase(share=part / total, length=length) for part, length in phases))
    stages = made.build_stages(steps=steps, tokens=65_536, multiple=4)
    assert stages[0].first == 0 and stages[-1].last == steps
    done = 0
    for stage, (part, length), after in zip(stages, phases, [*stages[1:], None], strict=True):
        assert stage.length == length and stage.rows * length == 65_536 and stage.rows % 4 == 0
        done += part
        assert abs(stage.last - steps * done / total) <= 0.5 + 1e-6
        assert after is None or after.first == stage.last >= stage.first


def test_a_budget_that_does_not_divide() -> None:
    (stage,) = LengthSchedule(phases=(Phase(share=1, length=100),)).build_stages(steps=10, tokens=4096, multiple=8)
    assert stage.rows == 40  # 4,000 tokens: never more than the budget


def test_what_cannot_be() -> None:
    with pytest.raises(UsageError, match=r"0\.9"):
        LengthSchedule(phases=(Phase(share=0.9, length=128),))
    with pytest.raises(UsageError, match=r"\b0\b"):
        LengthSchedule(phases=())
    with pytest.raises(UsageError, match=r"2000.*\b4\b.*512"):
        BERT.build_stages(steps=10, tokens=2000, multiple=4)
    for share, length, field in ((0, 128, "share"), (1.5, 128, "share"), (0.5, 0, "length")):
        with pytest.raises(UsageError, match=rf"^Phase\.{field} "):
            Phase(share=share, length=length)
