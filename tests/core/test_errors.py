import pytest

from pretune.core.errors import PretuneError, nearest


def test_exit_codes_are_the_documented_ones_and_differ() -> None:
    codes = {cls.__name__: cls.exit_code for cls in PretuneError.__subclasses__()}
    assert codes == {
        "UsageError": 2,
        "DataError": 3,
        "CheckpointError": 4,
        "DivergedError": 5,
        "ResourceError": 6,
        "Stopped": 75,
        "Interrupted": 130,
    }


@pytest.mark.parametrize(
    ("word", "options", "expected"),
    [
        ("brt", ["gpt2", "bert", "roberta"], "; did you mean 'bert'?"),
        ("BERT", ["bert"], "; did you mean 'bert'?"),
        ("width", ["Width"], "; did you mean 'Width'?"),
        ("zzz", ["bert"], ""),
        ("bert", [], ""),
    ],
)
def test_nearest(word: str, options: list[str], expected: str) -> None:
    assert nearest(word, options) == expected


def test_nearest_stays_fast_on_a_hostile_word() -> None:
    assert nearest("a" * 10_000_000, ["bert", "a" * 300]) in ("", f"; did you mean '{'a' * 300}'?")
