import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.text.corpora import Document
from pretune.text.corpora.document import find_cut, split_pieces

texts = st.text(st.sampled_from("ab \n\u0301é漢😀\u200d\ufe0f"), max_size=60)


@given(texts, st.integers(1, 20))
def test_the_pieces_are_the_text(text: str, longest: int) -> None:
    found = list(split_pieces(text, longest))
    assert "".join(piece for piece, _ in found) == text
    assert [more for _, more in found] == [True] * (len(found) - 1) + [False]
    assert all(1 <= len(piece) <= longest for piece, _ in found) or text == ""


@given(texts, texts, st.integers(1, 20))
def test_a_cut_depends_on_the_beginning_alone(text: str, more: str, longest: int) -> None:
    if len(text) > longest:
        assert find_cut(text, longest) == find_cut(text[: longest + 1] + more, longest)


@pytest.mark.parametrize(
    ("text", "longest", "first"),
    [
        ("one two three", 8, "one two"),  # before the space: some tokenizers attach it to the word after it
        ("one two three", 7, "one two"),
        ("onetwothree", 4, "onet"),
        ("abce\u0301f", 4, "abc"),  # a letter keeps its accent
        ("ab👩\u200d🚀c", 4, "ab"),  # and an emoji its parts
        ("\u0301" * 200, 100, "\u0301" * 100),  # unless there is nothing else
    ],
)
def test_where_it_is_cut(text: str, longest: int, first: str) -> None:
    assert next(iter(split_pieces(text, longest))) == (first, True)


def test_a_document_is_a_value() -> None:
    document = Document("text", 0, "a.txt:1")
    assert not document.is_continued
    assert pickle.loads(pickle.dumps(document)) == document
    with pytest.raises(AttributeError):
        document.text = "other"  # type: ignore[misc]
