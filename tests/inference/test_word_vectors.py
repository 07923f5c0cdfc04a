"""Words of texts in any script."""

import unicodedata

import numpy as np
import pytest

from pretune.core.errors import UsageError
from pretune.inference.word_vectors import WordVectors, split_words


@pytest.mark.parametrize("count", [0, -1, -3])
def test_a_number_of_neighbors_below_one_is_no_slice(count: int) -> None:
    vectors = WordVectors(["a", "b", "c"], np.eye(3, dtype=np.float32))
    with pytest.raises(UsageError, match=str(count)):
        vectors.find_nearest("a", count)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't stop: it’s naïve_5!", ["don't", "stop", "it’s", "naïve_5"]),
        ("हिन्दी किताब, கன்னி", ["हिन्दी", "किताब", "கன்னி"]),
        ("re\u0301sume\u0301 d\u0327\u0307", ["r\u00e9sum\u00e9", "\u1e11\u0307"]),
        ("我喜欢cats、日本のが。", ["我", "喜", "欢", "cats", "日", "本", "の", "が"]),
        ("ที่ ๕", ["ที่", "๕"]),
        ("\U00020000\U00020001 \u0301x ❤\ufe0f", ["\U00020000", "\U00020001", "x"]),
    ],
)
def test_words_of_any_script(text: str, words: list[str]) -> None:
    assert split_words(text) == words
    assert split_words(unicodedata.normalize("NFD", text)) == words
