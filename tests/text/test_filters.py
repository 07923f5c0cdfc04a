import lzma
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.text import cleaning
from pretune.text.cleaning import CLEANERS

texts = st.text(st.characters(), max_size=80)
PAGE = "The first line of a page is this one.\nAnd the second one follows after it.\nA third one ends it all."


@pytest.mark.parametrize("name", CLEANERS.list_names())
@given(text=texts)
def test_once_is_enough(name: str, text: str) -> None:
    """Applied to its own result a filter changes nothing, so their order on a second run does not matter."""
    function = CLEANERS.get(name)
    once = function(text)
    assert once is None or function(once) == once


@pytest.mark.parametrize("name", [name for name in CLEANERS.list_names() if name != "short_pages"])
def test_good_text_passes_unchanged(name: str) -> None:
    assert CLEANERS.get(name)(PAGE) == PAGE


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("nfc", "e\u0301", "é"),
        ("nfc", "ﬁ²", "ﬁ²"),
        ("nfkc", "ﬁ² ＡＢ", "fi2 AB"),
        ("controls", "a\0b\x1b[0mc\ufeff\ud800d\x7f", "ab[0mcd"),
        ("controls", "a\r\nb\rc\x0cd\u2028e\x85f\tg", "a\nb\nc\nd\ne\nf\tg"),
        ("controls", "क्षि\u200dन\u200cम", "क्षि\u200dन\u200cम"),  # joiners are part of words
        ("spaces", "  a \t b\u00a0\u3000c  \n\n\n\n  d \n", "a b c\n\nd"),
        ("citations", "Rome[1] is old[citation needed].[23][note 4]", "Rome is old."),
        ("citations", "a[0] = b[i]", "a = b[i]"),
        (
            "unfinished_lines",
            "Menu\nHe came.\nHome | About\nShe said “no.”\n他走了。",
            "He came.\nShe said “no.”\n他走了。",
        ),
        ("unfinished_lines", "Menu\nHome", None),
        ("short_lines", "He came.\nThis line has just enough words.", "This line has just enough words."),
        ("policy_lines", "Please enable Javascript.\nText.\nOur Privacy Policy.", "Text."),
        ("lorem_ipsum", "Lorem Ipsum dolor", None),
        ("curly_braces", "if (x) { return }", None),
        ("few_sentences", "One. Two.", None),
        ("symbols", "#### $$$ ~~~ | || >>> text", None),
        ("repeated_lines", "a\na\na\nb", None),
        ("language", "Das ist nicht das, was er von der Welt erwartet hat.", None),
    ],
)
def test_each(name: str, text: str, expected: str | None) -> None:
    assert CLEANERS.get(name)(text) == expected


def test_options() -> None:
    assert cleaning.drop_short_pages("one two three", min_words=3) == "one two three"
    assert cleaning.drop_short_pages("one two", min_words=3) is None
    assert cleaning.drop_short_pages("他们走了以后", min_words=3) is not None, "two characters count as a word"
    assert cleaning.drop_other_languages("Das ist nicht das, was er von der Welt hat.", lang="de") is not None
    assert cleaning.drop_repeated_lines("a\na\nb", max_share=0.5) is not None


@pytest.mark.parametrize("lang", ["hin", "tha", "arb", "heb", "jpn", "kor", "ell_monotonic", "vie"])
def test_no_script_counts_as_symbols(shared_data: Path, lang: str) -> None:
    with lzma.open(shared_data / f"corpora/udhr/{lang}.txt.xz", "rt", encoding="utf-8") as file:
        text = file.read()
    for name in ("nfc", "controls", "symbols", "repeated_lines", "short_pages"):
        assert CLEANERS.get(name)(text), name
    kept = CLEANERS.get("controls")(text) or ""
    assert re.sub(r"\s|\u200b|\ufeff", "", kept) == re.sub(r"\s|\u200b|\ufeff", "", text)
