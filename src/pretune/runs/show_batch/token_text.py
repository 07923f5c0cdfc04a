"""How ids are spelled: by the words of the text itself, which are then the tokens, or by the pieces of a tokenizer."""

import string
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pretune.core.errors import UsageError
from pretune.objectives.base import ModelShape, Objective, Vocabulary
from pretune.objectives.mixture import Mixture, build_denoisers
from pretune.text.tokenizer import Tokenizer, train

STYLES: dict[ModelShape, tuple[str, ...]] = {
    "encoder": ("cls-sep",),
    "decoder": ("plain", "s-mask", "sentinels"),
    "encoder-decoder": ("s-mask", "sentinels"),
    "two-way": ("plain",),
    "generator-discriminator": ("cls-sep",),
    "two-stream": ("cls-last",),
}
"""The special tokens of models of a shape; the first are taken that an objective can do with."""
SENTINEL_LETTERS = "XYZ" + string.ascii_uppercase[-4::-1]
"""Sentinels are called <X>, <Y>, <Z> as in the paper (Raffel et al., 2020), then backwards from <W>."""


@dataclass(frozen=True, slots=True)
class TokenRenderer:
    """A tokenizer with names for its tokens, and how they are joined to a line of text."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary
    has_word_tokens: bool  # words are the tokens
    names: Mapping[int, str] = field(default_factory=dict)  # where they are not the tokenizer's
    unspaced_pairs: frozenset[tuple[int, int]] = frozenset()  # no space stood between these in the text
    unspaced_tokens: frozenset[int] = frozenset()  # no space ever stood before these

    def format_token(self, i: int) -> str:
        """One token, printable."""
        name = self.names.get(i)
        if name is None:
            name = self.tokenizer.get_token(i)
        return "".join(c if c.isprintable() else "?" for c in name).replace(" ", "_") or "?"

    def format_tokens(self, ids: Iterable[int]) -> tuple[str, ...]:
        """Several, "" for what is no token."""
        return tuple("" if i < 0 else self.format_token(i) for i in ids)

    def format_line(self, ids: Sequence[int]) -> str:
        """Tokens as text: without the frame, with the mask and sentinels, and with spaces where they belong."""
        shown = {*self.vocabulary.sentinels, self.vocabulary.find("mask")}
        kept = [i for i in ids if i >= 0 and (i in shown or i not in self.vocabulary.special)]
        if not self.has_word_tokens:
            text = self.tokenizer.decode(kept) if kept else ""
            return " ".join("".join(c if c.isprintable() or c.isspace() else "?" for c in text).split())
        parts = [self.format_token(i) for i in kept[:1]]
        for before, i in pairwise(kept):
            parts.append(
                self.format_token(i)
                if (before, i) in self.unspaced_pairs or i in self.unspaced_tokens
                else " " + self.format_token(i)
            )
        return "".join(parts)


def build_piece_renderer(tokenizer: Tokenizer) -> TokenRenderer:
    """The pieces of a tokenizer."""
    return TokenRenderer(tokenizer, Vocabulary.from_tokenizer(tokenizer), has_word_tokens=False)


def build_word_renderer(texts: Sequence[str], objective: Objective, shape: ModelShape) -> TokenRenderer:
    """The words and marks of some texts as a vocabulary, with the special tokens that the objective needs."""
    refused: UsageError | None = None
    for style in STYLES[shape]:
        tokenizer = train("words", texts, vocab=2**20, style=style, min_frequency=1)
        vocabulary = Vocabulary.from_tokenizer(tokenizer)
        if not len(vocabulary.list_ordinary_ids()):
            raise UsageError("--text has no words; give a sentence or more")
        try:
            objective.bind(vocabulary, shape)
        except UsageError as error:
            refused = refused or error
            continue
        close, glued = _find_unspaced(tokenizer, texts)
        return TokenRenderer(tokenizer, vocabulary, True, _name_sentinels(vocabulary, objective), glued, close)
    assert refused is not None
    raise refused


def _name_sentinels(vocabulary: Vocabulary, objective: Objective) -> dict[int, str]:
    """What the sentinels are called; the last ones may be the marks of a mixture (Tay et al., 2023: [R], [S], [X])."""
    found = {
        sentinel: f"<{SENTINEL_LETTERS[number] if number < len(SENTINEL_LETTERS) else number + 1}>"
        for number, sentinel in enumerate(vocabulary.sentinels)
    }
    if isinstance(objective, Mixture):
        called = "RSX" if objective.parts[:7] == build_denoisers() else string.digits
        used = {part.mark for part in objective.parts if part.mark is not None and part.mark < len(called)}
        found |= {vocabulary.sentinels[-1 - mark]: f"[{called[mark]}]" for mark in used}
    return found


def _find_unspaced(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[frozenset[int], frozenset[tuple[int, int]]]:
    """Where no space stands in some texts: before which tokens at no time, and between which two."""
    found = tokenizer.encode_batch(texts, literal=True)
    glued: set[tuple[int, int]] = set()
    open_or_not: dict[int, set[bool]] = defaultdict(set)
    for number, text in enumerate(texts):
        low, high = int(found.offsets[number]), int(found.offsets[number + 1])
        ids, starts = found.ids[low:high].tolist(), found.starts[low:high].tolist()
        for place in range(1, len(ids)):
            space = text[starts[place] - 1].isspace()
            open_or_not[ids[place]].add(space)
            if not space:
                glued.add((ids[place - 1], ids[place]))
    return frozenset(i for i, kinds in open_or_not.items() if kinds == {False}), frozenset(glued)
