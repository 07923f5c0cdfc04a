"""Frames made from the layouts of tokenizers."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.data.samples import Documents, read_pieces
from pretune.data.sequences import Sequences
from pretune.text.styles import STYLES
from tests.data.corpora import every, opened, split
from tests.selection import keep_quick
from tests.text.tokenizers import COMBINATIONS, template_of, trained

MARKS = {
    mark: 2_000_000 + i for i, mark in enumerate(mark for style in STYLES.values() for mark in style.special_tokens)
}
TEMPLATES = {name: template_of(style, MARKS) for name, style in STYLES.items()}
"""Of every style, with ids that no text has."""


def same(found: Sequences, number: int, laid: Any) -> bool:
    """Whether a sequence is what the template makes of its texts."""
    here = slice(found.offsets[number], found.offsets[number + 1])
    assert found.segments is not None
    pairs = ((found.tokens, laid.ids), (found.special, laid.is_special), (found.segments, laid.segments))
    return all(np.array_equal(ours[here], theirs) for ours, theirs in pairs)


@pytest.mark.parametrize("style", STYLES)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_one_text_is_framed_as_by_the_template(style: str, sizes: list[int]) -> None:
    template, edges = TEMPLATES[style], np.cumsum([0, *sizes])
    with opened([[size] for size in sizes]) as shards:  # every token is its own position
        found = read_pieces(template.wrap(edges[:-1], np.diff(edges)), shards, segments=True)
    for number, (start, end) in enumerate(pairwise(edges.tolist())):
        assert same(found, number, template.apply(range(start, end)))


@pytest.mark.parametrize("style", STYLES)
@given(sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=6))
def test_two_texts_are_framed_as_by_the_template(style: str, sizes: list[tuple[int, int]]) -> None:
    """A second text without tokens is none."""
    template = TEMPLATES[style]
    a, b = (np.array(one) for one in zip(*sizes, strict=True))
    end = np.cumsum(a + b)
    with opened([[int(end[-1])]]) as shards:
        found = read_pieces(template.wrap_pair(end - a - b, a, end - b, b), shards, segments=True)
    for number, (first, second, stop) in enumerate(zip(end - a - b, end - b, end, strict=True)):
        texts = [range(first, second), range(second, stop)]
        assert same(found, number, template.apply(*texts[: 1 if second == stop else 2]))


@pytest.mark.parametrize(("kind", "style"), keep_quick(COMBINATIONS, *list(COMBINATIONS)[::3]))
def test_samples_of_a_tokenizer(kind: str, style: str) -> None:
    """From a trained tokenizer to the sequences that are cut: what the library itself lays around texts."""
    tokenizer = trained(kind, style)
    frame, a, b = tokenizer.template, "Some words.", "And more of them."
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in (a, b)]
    for texts, library in ((ids[:1], tokenizer.raw.encode(a)), (ids, tokenizer.raw.encode(a, b))):
        layout = frame.single if len(texts) == 1 else frame.pair
        laid = [texts[-1 - token] if token < 0 else [token] for token, _ in layout]
        assert [token for part in laid for token in part] == library.ids
        segments = [[segment] * len(part) for part, (_, segment) in zip(laid, layout, strict=True)]
        assert [one for part in segments for one in part] == library.type_ids
    with opened([[3, 4], [5]]) as shards:
        samples = Documents(limit=20).open(shards, frame)
        found = samples.cut(every(samples))
    assert sorted(split(found)) == sorted(
        tokenizer.template.apply(one).ids.tolist() for one in (range(7), range(7, 12))
    )
