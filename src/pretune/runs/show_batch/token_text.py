"""Text of token ids: words of the text itself, or subwords of a tokenizer."""

import string
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pretune.core.errors import UsageError
from pretune.objectives.base import ModelShape, Objective, Vocabulary
from pretune.objectives.mixture import Mixture, build_denoisers
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.training import train

STYLES: dict[ModelShape, tuple[str, ...]] = {
    "encoder": ("cls-sep",),
    "decoder": ("plain", "s-mask", "sentinels"),
    "encoder-decoder": ("s-mask", "sentinels"),
    "two-way": ("plain",),
    "generator-discriminator": ("cls-sep",),
    "two-stream": ("cls-last",),
}
"""Styles of special tokens by shape; the first that an objective supports is used."""
SENTINEL_LETTERS = "XYZ" + string.ascii_uppercase[-4::-1]
"""Letters of sentinels: <X>, <Y>, <Z> as in the paper (Raffel et al., 2020), then backwards from <W>."""


@dataclass(frozen=True, slots=True)
class TokenRenderer:
    """Tokenizer with display names of its tokens and the spacing of a line of text."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary
    has_word_tokens: bool  # tokens are words
    names: Mapping[int, str] = field(default_factory=dict)  # that differ from the tokenizer's
    unspaced_pairs: frozenset[tuple[int, int]] = frozenset()  # without a space between them in the text
    unspaced_tokens: frozenset[int] = frozenset()  # never with a space before them

    def format_token(self, i: int) -> str:
        """Return a token as printable text."""
        name = self.names.get(i)
        if name is None:
            name = self.tokenizer.get_token(i)
        return "".join(c if c.isprintable() else "?" for c in name).replace(" ", "_") or "?"

    def format_tokens(self, ids: Iterable[int]) -> tuple[str, ...]:
        """Return tokens as text; "" for negative ids."""
        return tuple("" if i < 0 else self.format_token(i) for i in ids)

    def format_line(self, ids: Sequence[int]) -> str:
        """Return tokens as a line of text, with mask and sentinels but without other special tokens."""
        visible_special = {*self.vocabulary.sentinels, self.vocabulary.find("mask")}
        visible_ids = [i for i in ids if i >= 0 and (i in visible_special or i not in self.vocabulary.special)]
        if not self.has_word_tokens:
            text = self.tokenizer.decode(visible_ids) if visible_ids else ""
            return " ".join("".join(c if c.isprintable() or c.isspace() else "?" for c in text).split())
        parts = [self.format_token(i) for i in visible_ids[:1]]
        for previous, i in pairwise(visible_ids):
            parts.append(
                self.format_token(i)
                if (previous, i) in self.unspaced_pairs or i in self.unspaced_tokens
                else " " + self.format_token(i)
            )
        return "".join(parts)


def build_piece_renderer(tokenizer: Tokenizer) -> TokenRenderer:
    """Build the renderer of a tokenizer's subwords."""
    return TokenRenderer(tokenizer, Vocabulary.from_tokenizer(tokenizer), has_word_tokens=False)


def build_word_renderer(texts: Sequence[str], objective: Objective, shape: ModelShape) -> TokenRenderer:
    """Build the renderer of words, with the special tokens that the objective needs."""
    first_error: UsageError | None = None
    for style in STYLES[shape]:
        tokenizer = train("words", texts, vocab=2**20, style=style, min_frequency=1)
        vocabulary = Vocabulary.from_tokenizer(tokenizer)
        if not len(vocabulary.list_ordinary_ids()):
            raise UsageError("--text has no words; pass at least one sentence")
        try:
            objective.bind(vocabulary, shape)
        except UsageError as error:
            first_error = first_error or error
            continue
        close, unspaced_set = _find_unspaced(tokenizer, texts)
        return TokenRenderer(tokenizer, vocabulary, True, _name_sentinels(vocabulary, objective), unspaced_set, close)
    assert first_error is not None
    raise first_error


def _name_sentinels(vocabulary: Vocabulary, objective: Objective) -> dict[int, str]:
    """Return the names of sentinels; the last may be mode tokens of a mixture (Tay et al., 2023: [R], [S], [X])."""
    names = {
        sentinel: f"<{SENTINEL_LETTERS[number] if number < len(SENTINEL_LETTERS) else number + 1}>"
        for number, sentinel in enumerate(vocabulary.sentinels)
    }
    if isinstance(objective, Mixture):
        labels = "RSX" if objective.parts[:7] == build_denoisers() else string.digits
        mark_ids = {part.mark for part in objective.parts if part.mark is not None and part.mark < len(labels)}
        names |= {vocabulary.sentinels[-1 - mark]: f"[{labels[mark]}]" for mark in mark_ids}
    return names


def _find_unspaced(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[frozenset[int], frozenset[tuple[int, int]]]:
    """Return tokens that never follow a space, and pairs of tokens without a space between them."""
    encoding = tokenizer.encode_batch(texts, literal=True)
    unspaced_set: set[tuple[int, int]] = set()
    open_or_not: dict[int, set[bool]] = defaultdict(set)
    for number, text in enumerate(texts):
        low, high = int(encoding.offsets[number]), int(encoding.offsets[number + 1])
        ids, starts = encoding.ids[low:high].tolist(), encoding.starts[low:high].tolist()
        for place in range(1, len(ids)):
            space = text[starts[place] - 1].isspace()
            open_or_not[ids[place]].add(space)
            if not space:
                unspaced_set.add((ids[place - 1], ids[place]))
    return frozenset(i for i, kinds in open_or_not.items() if kinds == {False}), frozenset(unspaced_set)
