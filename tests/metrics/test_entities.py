"""Entities and their F1, against seqeval."""

import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.core.errors import DataError, UsageError
from pretune.metrics.entities import SCHEMES, entity_f1, entity_f1_strict, extract_entities, tag_accuracy
from tests.selection import scale_examples


def sentences(letters: str) -> st.SearchStrategy[list[tuple[list[str], list[str]]]]:
    """Pairs of equally long sentences of tags, broken ones most of the time; predictions share much with gold."""
    tags = [f"{letter}-{kind}" for letter in letters.replace("O", "") for kind in ("PER", "LOC")]
    tag = st.sampled_from(["O", *tags])
    word = tag.flatmap(lambda gold: st.tuples(st.just(gold), st.just(gold) | tag))
    sentence = st.lists(word, max_size=9).map(lambda rows: ([g for g, _ in rows], [p for _, p in rows]))
    return st.lists(sentence, min_size=1, max_size=4)


def reference(pairs: list[tuple[list[str], list[str]]], scheme: Any = None) -> list[float]:
    """Seqeval's F1, precision and recall; strict where a scheme is given."""
    seqeval = pytest.importorskip("seqeval.metrics", reason="seqeval is not installed (extra 'peers')")
    settings = {} if scheme is None else {"mode": "strict", "scheme": scheme}
    gold, predicted = [g for g, _ in pairs], [p for _, p in pairs]
    functions = (seqeval.f1_score, seqeval.precision_score, seqeval.recall_score)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [float(function(gold, predicted, zero_division=0, **settings)) for function in functions]


@given(sentences("OBIES"))
def test_the_lenient_reading_is_seqevals_default(pairs: list[tuple[list[str], list[str]]]) -> None:
    ours = entity_f1([g for g, _ in pairs], [p for _, p in pairs])
    assert [*ours.values()] == pytest.approx(reference(pairs))


@pytest.mark.parametrize("scheme", SCHEMES)
@settings(max_examples=scale_examples(50))
@given(data=st.data())
def test_the_strict_readings_are_seqevals(scheme: str, data: st.DataObject) -> None:
    pytest.importorskip("seqeval", reason="seqeval is not installed (extra 'peers')")
    import seqeval.scheme

    pairs = data.draw(sentences(SCHEMES[scheme].letters))
    theirs = getattr(seqeval.scheme, scheme.upper())
    ours = entity_f1_strict([g for g, _ in pairs], [p for _, p in pairs], scheme=scheme)
    assert [*ours.values()] == pytest.approx(reference(pairs, scheme=theirs))
    for sentence in (side for pair in pairs for side in pair):
        found = seqeval.scheme.Tokens(sentence, theirs).entities
        assert extract_entities(sentence, scheme) == [(entity.tag, entity.start, entity.end) for entity in found]


def test_readings_of_one_sentence() -> None:
    tags = ["I-PER", "I-PER", "B-PER", "O", "I-LOC", "B-ORG"]
    assert extract_entities(tags) == [("PER", 0, 2), ("PER", 2, 3), ("LOC", 4, 5), ("ORG", 5, 6)]
    assert extract_entities(tags, "iob1") == [("PER", 0, 2), ("PER", 2, 3), ("LOC", 4, 5)]
    assert extract_entities(tags, "iob2") == [("PER", 2, 3), ("ORG", 5, 6)]
    assert extract_entities(["S-A", "B-A", "I-A", "E-A", "B-B", "O"], "iobes") == [("A", 0, 1), ("A", 1, 4)]
    assert extract_entities(["B", "I", "O"]) == [("_", 0, 2)]
    assert extract_entities([]) == extract_entities([], "iob2") == []


def test_no_entities_at_all_is_0() -> None:
    assert entity_f1([["O", "O"]], [["O", "O"]]) == {"f1": 0.0, "precision": 0.0, "recall": 0.0}


def test_bad_tags_and_lengths_are_named() -> None:
    with pytest.raises(DataError, match=r"'X-PER'.*B, I, E, S"):
        entity_f1([["X-PER"]], [["O"]])
    with pytest.raises(DataError, match=r"'E-PER'.*I, B"):
        entity_f1_strict([["E-PER"]], [["O"]])
    with pytest.raises(DataError, match="'NOUN'"):
        entity_f1([["NOUN"]], [["O"]])
    with pytest.raises(DataError, match=r"\b1\b.*\b2\b.*\b1\b"):
        entity_f1([["O"], ["O", "O"]], [["O"], ["O"]])
    with pytest.raises(DataError):
        tag_accuracy([[]], [[]])
    with pytest.raises(UsageError, match=r"'iobs'.*'iobes'"):
        extract_entities(["O"], "iobs")
