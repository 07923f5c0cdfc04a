"""Texts of an example as sequences: one text, or two segments that are related or not."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.pairs import BROKEN_LABEL, INTACT_LABEL, double_template
from pretune.data.sequences import Sequences, spread
from pretune.objectives.base import ModelShape, Objective, PairKind
from pretune.objectives.mixture import Mixture
from pretune.objectives.supervised import SupervisedSeq2seq
from pretune.runs.show_batch.token_text import TokenRenderer
from pretune.runs.training_data import build_template
from pretune.text.sentences import split_sentences
from pretune.text.template import TEXT_A

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
    sides = 0  # start of the second side
    if len(texts) == 2 and pairs == "apart":
        sides = len(read[0]) + template.special_count
        template = double_template(template, is_bare=shape != "encoder-decoder")
    tokens: list[int] = []
    segments: list[int] = []
    special: list[bool] = []
    words: list[bool] = []
    sentences: list[bool] = []
    for token, segment in template.pair if len(texts) == 2 else template.single:
        ids, opens, begins = [token], [True], [True]
        if token < 0:
            text_index = TEXT_A - token  # 0 for the first text, 1 for the second
            ids = read[text_index].tolist()
            opens = read.word_start[read.offsets[text_index] : read.offsets[text_index + 1]].tolist()
            starts = {0, *read.find_tokens(text_index, split_sentences(texts[text_index])).tolist()}
            begins = [place in starts for place in range(len(ids))]
            opens[:1] = [True] * len(opens[:1])
            sides = sides or text_index * len(tokens)
        tokens += ids
        words += opens
        sentences += begins
        special += [token >= 0] * len(ids)
        segments += [segment] * len(ids)
    if all(special):
        raise UsageError(f"this tokenizer has no token for the text '{texts[0][:60]}'; use another")
    if len(tokens) > MAX_TOKENS:
        raise UsageError(f"the text has {len(tokens)} tokens, the maximum is {MAX_TOKENS}")
    return Sequences(
        tokens=np.array(tokens, dtype=np.int64),
        offsets=np.array([0, len(tokens)]),
        special=np.array(special),
        words=np.array(words),
        sentences=np.array(sentences),
        segments=np.array(segments) if pairs not in (None, "apart") or template.has_segments else None,
        samples=np.zeros(1, dtype=np.int64),
        epochs=np.zeros(1, dtype=np.int64),
        labels=np.array([label]) if pairs in ("other", "swapped") else None,
        sides=np.array([sides]),
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
