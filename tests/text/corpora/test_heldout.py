import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.core.errors import UsageError
from pretune.text.corpora import is_held_out

TEXTS = [f"text number {number}" for number in range(20_000)]


def test_the_cut_is_pinned() -> None:
    """A model is judged on what it has not seen: another cut would let old runs be judged on their training data."""
    found = [number for number, text in enumerate(TEXTS[:300]) if is_held_out(text, 0.02)]
    assert found == [24, 42, 45, 81, 212, 219, 228, 298]


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.3, 1.0])
def test_the_share_is_right(share: float) -> None:
    found = np.mean([is_held_out(text, share) for text in TEXTS])
    assert abs(found - share) <= 4 * np.sqrt(share * (1 - share) / len(TEXTS))


@given(st.text(st.characters()), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_holds_what_a_smaller_one_held(text: str, one: float, other: float) -> None:
    if is_held_out(text, min(one, other)):
        assert is_held_out(text, max(one, other))


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_what_is_no_share(share: float) -> None:
    with pytest.raises(UsageError, match=str(share)):
        is_held_out("text", share)
