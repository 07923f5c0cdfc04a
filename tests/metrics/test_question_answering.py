"""SQuAD's exact match and F1, its threshold, MultiRC, ReCoRD and parity."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.core.errors import DataError
from pretune.metrics.classification import gender_parity, group_values, multirc
from pretune.metrics.question_answering import exact_match, normalise, record, squad, squad2, token_f1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Denver Broncos", "denver broncos"),
        ("a  an the\tAn", ""),
        ("Santa Clara, California.", "santa clara california"),
        ("U.S. -- $1,000", "us 1000"),
        ("theatre another", "theatre another"),
        ("Beyoncé’s", "beyoncé’s"),  # only ASCII punctuation goes
        ("the-end", "theend"),  # punctuation goes first, so this article is no word of its own
    ],
)
def test_normalisation(text: str, expected: str) -> None:
    assert normalise(text) == expected
    assert normalise(expected) == expected


# Super Bowl 50, the first questions of the dev set of SQuAD 1.1, with their three annotators' answers.
BOWL = [
    ["Denver Broncos", "Denver Broncos", "Denver Broncos"],
    [
        "Santa Clara, California",
        "Levi's Stadium",
        "Levi's Stadium in the San Francisco Bay Area at Santa Clara, California.",
    ],
    ["gold", "gold", "gold"],
    ['"golden anniversary"', "gold-themed", '"golden anniversary'],
]


def test_questions_of_squad() -> None:
    guesses = ["The Broncos", "levis stadium", "the color gold", "golden anniversary!"]
    found = squad(BOWL, guesses)
    assert found["exact_match"] == exact_match(BOWL, guesses) == 0.5
    # broncos: precision 1, recall 1/2; gold: precision 1/2 without its article, recall 1
    assert found["f1"] == pytest.approx((2 / 3 + 1 + 2 / 3 + 1) / 4)
    # the longest answer has ten words without its article, all of them said, and one more
    guess = "at Levi's Stadium in the San Francisco Bay Area at Santa Clara, California"
    assert token_f1(BOWL[1][2], guess) == pytest.approx(2 * 11 / (11 + 12))
    assert record(BOWL, guesses) == {"average": (found["f1"] + 0.5) / 2, **found}


def test_words_are_counted_as_often_as_both_have_them() -> None:
    assert token_f1("new new york", "new york york") == pytest.approx(2 / 3)


def test_the_two_versions_differ_where_nothing_is_left() -> None:
    assert squad([["The"]], ["the"]) == {"f1": 0.0, "exact_match": 1.0}
    assert squad2([["The"]], ["a"]) == {"f1": 1.0, "exact_match": 1.0}  # an answer without words is none
    assert squad2([[], None, ["x"]], ["", "x", ""]) == {"f1": pytest.approx(1 / 3), "exact_match": pytest.approx(1 / 3)}


@given(
    st.lists(
        st.tuples(
            st.sampled_from([[], ["paris"], ["the red house", "red"]]),
            st.sampled_from(["", "paris", "red", "a red house", "blue house"]),
            st.sampled_from([-2.0, -1.0, 0.0, 0.5, 3.0]) | st.floats(-5, 5),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_the_best_threshold_is_the_best_of_all(rows: list[tuple[list[str], str, float]]) -> None:
    gold, guesses, doubts = ([row[i] for row in rows] for i in range(3))
    found = squad2(gold, guesses, no_answer=doubts)

    def at(threshold: float) -> dict[str, float]:
        kept = ["" if doubt > threshold else guess for guess, doubt in zip(guesses, doubts, strict=True)]
        return squad2(gold, kept)

    for name in ("f1", "exact_match"):
        best = max(at(threshold)[name] for threshold in [-math.inf, *doubts])
        assert found[f"best_{name}"] == pytest.approx(best)
        assert at(found[f"best_{name}_threshold"])[name] == pytest.approx(best)
        assert found[name] == squad2(gold, guesses)[name] <= best + 1e-9


@given(st.lists(st.text(max_size=12), min_size=1, max_size=5))
def test_any_text_is_exactly_itself(texts: list[str]) -> None:
    assert squad2([[text] for text in texts], texts) == {"f1": 1.0, "exact_match": 1.0}
    assert exact_match(texts, texts) == 1.0


def test_multirc_is_by_question() -> None:
    labels, guesses = [1, 0, 1, 1, 0], [1, 0, 1, 0, 0]
    questions = ["p0q0", "p0q0", "p0q1", "p0q1", "p0q0"]
    assert group_values(labels, questions) == [[1, 0, 0], [1, 1]]
    found = multirc(group_values(labels, questions), group_values(guesses, questions))
    assert found == {"average": pytest.approx(0.65), "f1a": pytest.approx(0.8), "exact_match": 0.5}
    assert multirc([[0, 0]], [[0, 0]])["f1a"] == 0.0


def test_parity_asks_for_the_same_answer_not_the_right_one() -> None:
    assert gender_parity([["yes", "yes"], ["no", "no"]], [["no", "no"], ["no", "yes"]]) == 0.5


def test_bad_input_is_named() -> None:
    with pytest.raises(DataError, match=r"\b1\b"):
        squad([["a b"], []], ["a b", ""])
    with pytest.raises(DataError, match=r"\b0\b.*nan"):
        squad2([[]], [""], no_answer=[math.nan])
    with pytest.raises(DataError, match=r"\b1\b.*\b2\b.*\b1\b"):
        multirc([[1], [1, 0]], [[1], [1]])
