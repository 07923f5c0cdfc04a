"""Texts of an example as sequences of tokens, and token ids as text: words of the text itself, or subwords."""

import string
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.pairs import BROKEN_LABEL, INTACT_LABEL, double_template
from pretune.data.sequences import Sequences, spread
from pretune.objectives.base import ModelShape, Objective, PairKind, Vocabulary
from pretune.objectives.mixture import Mixture, build_denoisers
from pretune.objectives.supervised import SupervisedSeq2seq
from pretune.runs.training_data import build_template
from pretune.text.sentences import split_sentences
from pretune.text.template import TEXT_B
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.training import train

PARTY = "Thank you for inviting me to your party last week."
"""Example sentence of Raffel et al. (2020), figure 2."""
DANCE = "We danced until midnight."
OTHER_DOCUMENT = "Penguins cannot fly."
"""Start of another document."""
TRANSLATION = ("Thank you for inviting me.", "Danke, dass du mich eingeladen hast.")
TASK = ("translate English to German: That is good.", "Das ist gut.")
"""First task of figure 1 of the same paper."""
MAX_TOKENS = 512
"""Maximum length of an example."""

Segments = tuple[str, ...]
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
        name = self.names.get(i, self.tokenizer.get_token(i))
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
            is_unspaced = (previous, i) in self.unspaced_pairs or i in self.unspaced_tokens
            parts.append(("" if is_unspaced else " ") + self.format_token(i))
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


def select_default_texts(objective: Objective) -> Segments:
    """Return the default texts of an objective."""
    if isinstance(objective, SupervisedSeq2seq):
        return TASK
    if objective.pairs == "kept":
        return TRANSLATION
    if isinstance(objective, Mixture):
        return (PARTY,) if objective.reads_documents else TASK
    return (PARTY, DANCE) if objective.pairs else (f"{PARTY} {DANCE}" if objective.sentences else PARTY,)


def build_variants(name: str, objective: Objective, texts: Sequence[str]) -> list[tuple[str, Segments, int]]:
    """Return variants to show: title, the text or two segments, and the label of a pair."""
    if any(not text.strip() for text in texts):
        raise UsageError("--text is empty; pass at least one sentence")
    if objective.pairs is None or (isinstance(objective, Mixture) and len(texts) == 1):
        if len(texts) > 1:
            raise UsageError(f"{name} takes one text, got {len(texts)}; pass --text once")
        return [("", tuple(texts), IGNORE_INDEX)]
    first, second = _split_segments(name, objective, texts)
    if objective.pairs in ("kept", "apart"):
        return [("parallel text" if isinstance(objective, Mixture) else "", (first, second), IGNORE_INDEX)]
    if objective.pairs == "swapped":
        return [
            ("label 0: the segments are in order", (first, second), INTACT_LABEL),
            ("label 1: the segments are swapped", (second, first), BROKEN_LABEL),
        ]
    return [
        ("label 0: the second segment follows the first", (first, second), INTACT_LABEL),
        ("label 1: the second segment is from another document", (first, OTHER_DOCUMENT), BROKEN_LABEL),
    ]


def _split_segments(name: str, objective: Objective, texts: Sequence[str]) -> tuple[str, str]:
    """Return two segments: two texts, or one split at the sentence start nearest to its middle."""
    if len(texts) == 2:
        return texts[0], texts[1]
    sides = {"kept": "a text and its translation", "apart": "a source and a target text"}
    expected_texts = sides.get(objective.pairs or "")
    starts = split_sentences(texts[0])[1:] if len(texts) == 1 and expected_texts is None else []
    if not starts:
        expected_texts = expected_texts or "two segments of at least one sentence each"
        raise UsageError(f"{name} needs {expected_texts}; pass --text twice")
    middle = min(starts, key=lambda start: abs(start - len(texts[0]) / 2))
    return texts[0][:middle].strip(), texts[0][middle:].strip()


def build_sequence(
    renderer: TokenRenderer, shape: ModelShape, texts: Segments, label: int, pairs: PairKind | None
) -> Sequences:
    """Build one sequence of a text or two segments, with special tokens."""
    read = renderer.tokenizer.encode_batch(texts, literal=True)
    template = build_template(renderer.tokenizer, renderer.vocabulary, shape)
    side = 0  # start of the second side
    if len(texts) == 2 and pairs == "apart":
        side = len(read[0]) + template.special_count
        template = double_template(template, is_bare=shape != "encoder-decoder")
    elif len(texts) == 2:
        side = len(read[0]) + [token for token, _ in template.pair].index(TEXT_B) - 1
    sequence = template.apply(*(read[number] for number in range(len(texts))))
    words, sentences = np.ones((2, len(sequence.ids)), dtype=bool)
    words[~sequence.is_special], sentences[~sequence.is_special] = read.word_start, False
    start = np.flatnonzero(~sequence.is_special)
    for number, text in enumerate(texts):
        tokens = start[read.offsets[number] : read.offsets[number + 1]]
        words[tokens[:1]] = sentences[tokens[:1]] = True
        sentences[tokens[read.find_tokens(number, split_sentences(text))]] = True
    if sequence.is_special.all():
        raise UsageError(f"this tokenizer has no token for the text '{texts[0][:60]}'; use another")
    if len(sequence.ids) > MAX_TOKENS:
        raise UsageError(f"the text has {len(sequence.ids)} tokens, the maximum is {MAX_TOKENS}")
    return Sequences(
        tokens=sequence.ids,
        offsets=np.array([0, len(sequence.ids)]),
        special=sequence.is_special,
        words=words,
        sentences=sentences,
        segments=sequence.segments if pairs not in (None, "apart") or template.has_segments else None,
        samples=np.zeros(1, dtype=np.int64),
        epochs=np.zeros(1, dtype=np.int64),
        labels=np.array([label]) if pairs in ("other", "swapped") else None,
        sides=np.array([side]),
    )


def repeat_sequence(sequence: Sequences, times: int) -> Sequences:
    """Repeat a sequence as several samples with different random draws."""
    copies = sequence.take(np.zeros(times, dtype=np.int64))
    return replace(copies, samples=np.arange(times))


def find_positions(renderer: TokenRenderer, sequence: Sequences, text: str) -> list[int]:
    """Return the positions of the first occurrence of some words in a sequence."""
    assert sequence.special is not None
    ordinary, read = np.flatnonzero(~sequence.special), sequence.tokens[~sequence.special].tolist()
    for variant in (text, " " + text):  # a leading space may be part of a token
        word_ids = renderer.tokenizer.encode(variant, add_special_tokens=False, literal=True)
        for start in range(len(read) - len(word_ids) + 1 if word_ids else 0):
            if read[start : start + len(word_ids)] == word_ids:
                return ordinary[spread(np.array([start]), np.array([len(word_ids)]))].tolist()  # type: ignore[no-any-return]
    raise UsageError(f"--hide '{text[:60]}' is not in the text; pass words exactly as they occur")
