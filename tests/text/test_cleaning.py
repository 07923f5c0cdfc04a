from collections.abc import Iterable

import pytest

from pretune.core.errors import UsageError
from pretune.text.cleaning import CLEANERS, PRESETS, clean, hash_content, resolve_filters
from pretune.text.corpora import Document


def documents(texts: Iterable[str]) -> list[Document]:
    return [Document(text, 0, f"a:{number}") for number, text in enumerate(texts, 1)]


def test_filters_run_in_order_and_count() -> None:
    cleaned = clean(documents(["a  b", "a b", "", "\0", "c", "d e f"]), ["controls", "spaces", "short_pages=2"])
    assert [(document.text, document.location) for document in cleaned] == [("a b", "a:1"), ("d e f", "a:6")]
    assert cleaned.counts == {
        "controls": {"kept": 4, "changed": 0, "dropped": 2},
        "spaces": {"kept": 4, "changed": 1, "dropped": 0},
        "short_pages=2": {"kept": 3, "changed": 0, "dropped": 1},
        "exact_duplicates": {"kept": 2, "changed": 0, "dropped": 1},
    }


def test_nothing_is_dropped_silently() -> None:
    texts = [f"Text {number % 7}. " * (number % 5) for number in range(200)]
    cleaned = clean(documents(texts), ["web"], near_threshold=0.9)
    left = len(list(cleaned))
    assert left + sum(step["dropped"] for step in cleaned.counts.values()) == 200
    for step, following in zip([*cleaned.counts.values()], [*cleaned.counts.values()][1:], strict=False):
        assert step["kept"] == following["kept"] + following["dropped"]


def test_a_document_that_is_not_changed_is_the_same_object() -> None:
    given = documents(["text"])
    assert next(clean(given, ["plain"])) is given[0]


def test_exact_duplicates_differ_in_white_space_and_unicode_form_only() -> None:
    assert hash_content("a  é\n") == hash_content(" a e\u0301")
    assert len(hash_content("")) == 16
    assert hash_content("a") != hash_content("A")
    assert hash_content("a b") != hash_content("ab")
    texts = ["one two", "one  two", "One two", "one two"]
    assert [document.text for document in clean(documents(texts))] == ["one two", "One two"]
    assert len(list(clean(documents(texts), exact=False))) == 4


def test_both_sides_of_a_pair_are_cleaned_and_count() -> None:
    """A side that is dropped takes the other along; a pair is there twice where both sides are."""
    rows = [("a  b", "c d"), ("a b", "c  d"), ("a b", "e f"), ("a b c", "d"), ("x", "y z"), ("y z", "x")]
    given = [Document(one, 0, "a", pair=other) for one, other in rows]
    left = [(document.text, document.pair) for document in clean(given, ["spaces", "short_pages=2"])]
    assert left == [("a b", "c d"), ("a b", "e f")]


def test_near_duplicates() -> None:
    words = [f"word{number}" for number in range(300)]
    other = [f"other{number}" for number in range(300)]
    texts = [" ".join(words), " ".join([*words[:150], "new", *words[150:]]), " ".join(other)]
    cleaned = clean(documents(texts), near_threshold=0.8)
    assert [document.location for document in cleaned] == ["a:1", "a:3"]
    assert cleaned.counts["near_duplicates"] == {"kept": 2, "changed": 0, "dropped": 1}


def test_languages_are_counted_on_request() -> None:
    texts = ["This is the end of it, and that was all.", "Das ist nicht das Ende von der Welt.", "xyz"]
    cleaned = clean(documents(texts), count_languages=True)
    list(cleaned)
    assert cleaned.languages == {"en": 1, "de": 1, "und": 1}


def pieces(texts: str) -> list[Document]:
    """A letter is a piece that goes on, or ends its document when "." follows; "x" will be dropped."""
    return [
        Document(letter, 0, "", is_continued=following != ".")
        for letter, following in zip(texts, texts[1:] + ".", strict=True)
        if letter != "."
    ]


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("a.b.c.", "a.b.c."),
        ("abc.d.", "abc.d."),
        ("axc.d.", "ac.d."),
        ("xbc.d.", "bc.d."),
        ("abx.d.", "ab.d."),
        ("axx.d.", "a.d."),
        ("xxx.d.", "d."),
        ("x.abx.", "ab."),
    ],
)
def test_a_document_in_pieces_ends_where_its_last_kept_piece_ends(given: str, left: str) -> None:
    found = clean(pieces(given), [lambda text: None if text == "x" else text])
    assert "".join(piece.text + "." * (not piece.is_continued) for piece in found) == left


def test_names() -> None:
    assert [name for name, _ in resolve_filters("plain")] == ["nfc", "controls", "spaces"]
    assert all(name in CLEANERS for preset in PRESETS.values() for name in preset)
    ((name, function),) = resolve_filters("language=de")
    assert name == "language=de"
    assert function("Das ist nicht das Ende von der Welt.") is not None
    ((name, function),) = resolve_filters("symbols=0.5")
    assert function("#### ab cd") is not None


def test_a_sample_is_a_share_of_the_documents_and_grows_with_it() -> None:
    given = documents([f"document {number}" for number in range(2000)])
    samples = [{document.text for document in clean(given, [f"sample={share}"])} for share in (0, 0.1, 0.3, 1)]
    assert [*map(len, samples)][::3] == [0, 2000] and samples[1] < samples[2]
    assert 150 < len(samples[1]) < 250 and 540 < len(samples[2]) < 660


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("nfd", ("'nfd'", "'nfc'")),
        ("nfc=1", ("'nfc'", "'nfc=1'")),
        ("short_pages=many", ("'short_pages'", "'many'")),
        ("symbols=", ("'symbols'", "''")),
        ("short_pages=-5", ("'short_pages'", "'-5'")),
        ("symbols=nan", ("'symbols'", "'nan'")),
    ],
)
def test_what_is_no_filter(name: str, values: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        clean([], [name])
    assert all(value in str(caught.value) for value in values)
