import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.text.corpora.tables import SEPARATORS, split_documents

texts = st.text(st.sampled_from("ab \n\n\né😀"), max_size=80)


def expected(text: str, by: str) -> list[tuple[str, int]]:
    """The obviously right answer: (text, line) of every document, empty lines of `line` included."""
    body = text.rstrip("\n")
    if by == "line":
        return [(line, number) for number, line in enumerate(body.split("\n"), 1)] if body else []
    found = [match.span() for match in re.finditer(r"[^\n](?:.|\n(?!\n))*", body)] if by == "block" else []
    if by == "file" and body:
        found = [(len(body) - len(body.lstrip("\n")), len(body))]
    return [(body[start:end], 1 + body.count("\n", 0, start)) for start, end in found]


def chunked(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in itertools.pairwise(places)]


@pytest.mark.parametrize("by", SEPARATORS)
@given(text=texts, cuts=st.lists(st.integers(0, 100), max_size=8))
def test_it_is_right_however_the_text_arrives(by: str, text: str, cuts: list[int]) -> None:
    found = list(split_documents(chunked(text, cuts), SEPARATORS[by]))
    assert [(piece, line) for piece, line, _ in found] == expected(text, by)
    assert not any(more for _, _, more in found)


@pytest.mark.parametrize("by", SEPARATORS)
@given(text=texts, cuts=st.lists(st.integers(0, 100), max_size=8), longest=st.integers(1, 12))
def test_long_documents_come_in_pieces_that_do_not_depend_on_the_chunks(
    by: str, text: str, cuts: list[int], longest: int
) -> None:
    if "\n" * (longest + 1) in text:
        return  # runs of newlines longer than a piece are cut short; see below
    found = list(split_documents(chunked(text, cuts), SEPARATORS[by], max_characters=longest))
    assert found == list(split_documents([text], SEPARATORS[by], max_characters=longest))
    assert all(len(piece) <= longest for piece, _, _ in found)
    whole: list[tuple[str, int]] = []
    goes_on = False
    for piece, line, more in found:
        if goes_on:
            whole[-1] = (whole[-1][0] + piece, whole[-1][1])
        else:
            whole.append((piece, line))
        goes_on = more
    assert not goes_on
    assert whole == expected(text, by)


def test_a_line_of_spaces_does_not_end_a_block() -> None:
    """As in WikiText and the UDHR, where such lines part the paragraphs of one document."""
    assert [text for text, _, _ in split_documents(["a\n \nb\n\nc"], "\n\n")] == ["a\n \nb", "c"]


def test_lines_are_counted_from_where_one_says() -> None:
    assert list(split_documents(["\n\na\nb\n\n\nc"], "\n\n", line=10)) == [("a\nb", 12, False), ("c", 16, False)]


def test_megabytes_of_newlines_take_no_memory() -> None:
    chunks = ["a", *["\n" * 1000] * 100, "b"]
    assert list(split_documents(chunks, "\n\n", max_characters=50)) == [("a", 1, False), ("b", 100_001, False)]
    assert sum(len(text) for text, _, _ in split_documents(chunks, "", max_characters=50)) == 52
