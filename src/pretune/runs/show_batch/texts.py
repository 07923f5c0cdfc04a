"""The texts of an example, and how they become sequences: one text, or two segments that belong together or do not."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.pairs import BROKEN_LABEL, INTACT_LABEL
from pretune.data.parallel import double_template
from pretune.data.ragged import spread
from pretune.data.sequence_template import TEXT_A
from pretune.data.sequences import Sequences
from pretune.objectives.base import ModelShape, Objective, PairKind
from pretune.objectives.mixture import Mixture
from pretune.objectives.supervised import SupervisedSeq2seq
from pretune.runs.show_batch.token_text import TokenRenderer
from pretune.runs.training_data import build_template
from pretune.text.sentences import split_sentences

PARTY = "Thank you for inviting me to your party last week."
"""The sentence of Raffel et al. (2020), figure 2."""
DANCE = "We danced until midnight."
OTHER_DOCUMENT = "Penguins cannot fly."
"""The beginning of another document."""
TRANSLATED = ("Thank you for inviting me.", "Danke, dass du mich eingeladen hast.")
TASK = ("translate English to German: That is good.", "Das ist gut.")
"""The first task of the same paper's figure 1."""
MAX_TOKENS = 512
"""Tokens that can be looked at."""

Segments = tuple[str, ...]


def select_default_texts(objective: Objective) -> Segments:
    """What is shown where no text is given."""
    if isinstance(objective, SupervisedSeq2seq):
        return TASK
    if objective.pairs == "kept":
        return TRANSLATED
    if isinstance(objective, Mixture):
        return (PARTY,) if objective.reads_documents else TASK
    return (PARTY, DANCE) if objective.pairs else (f"{PARTY} {DANCE}" if objective.sentences else PARTY,)


def build_variants(name: str, objective: Objective, texts: Sequence[str]) -> list[tuple[str, Segments, int]]:
    """What is shown of some texts: a title, the text or two segments, and the label of a pair."""
    if any(not text.strip() for text in texts):
        raise UsageError("--text is empty; give a sentence or more")
    if objective.pairs is None or (isinstance(objective, Mixture) and len(texts) == 1):
        if len(texts) > 1:
            raise UsageError(f"{name} reads one text, found {len(texts)}; give --text once")
        return [("", tuple(texts), IGNORE_INDEX)]
    first, second = _split_segments(name, objective, texts)
    if objective.pairs in ("kept", "apart"):
        return [("a document of two sides" if isinstance(objective, Mixture) else "", (first, second), IGNORE_INDEX)]
    if objective.pairs == "swapped":
        return [
            ("label 0: the segments are in order", (first, second), INTACT_LABEL),
            ("label 1: the segments are swapped", (second, first), BROKEN_LABEL),
        ]
    return [
        ("label 0: the second segment follows the first", (first, second), INTACT_LABEL),
        ("label 1: the second segment is another document's", (first, OTHER_DOCUMENT), BROKEN_LABEL),
    ]


def _split_segments(name: str, objective: Objective, texts: Sequence[str]) -> tuple[str, str]:
    """Two segments: two texts, or one that is parted where a sentence starts nearest to its middle."""
    if len(texts) == 2:
        return texts[0], texts[1]
    sides = {"kept": "a text and its translation", "apart": "a text and what is to be written for it"}
    what = sides.get(objective.pairs or "")
    starts = split_sentences(texts[0])[1:] if len(texts) == 1 and what is None else []
    if not starts:
        what = what or "two segments, of a sentence or more each"
        raise UsageError(f"{name} reads {what}; give --text twice")
    middle = min(starts, key=lambda start: abs(start - len(texts[0]) / 2))
    return texts[0][:middle].strip(), texts[0][middle:].strip()


def build_sequence(
    renderer: TokenRenderer, shape: ModelShape, texts: Segments, label: int, pairs: PairKind | None
) -> Sequences:
    """A text, or two segments, in its frame: one sequence."""
    read = renderer.tokenizer.encode_batch(texts, literal=True)
    frame = build_template(renderer.tokenizer, renderer.vocabulary, shape)
    sides = 0  # where the second side begins
    if len(texts) == 2 and pairs == "apart":
        sides = len(read[0]) + frame.special_count
        frame = double_template(frame, is_bare=shape != "encoder-decoder")
    tokens: list[int] = []
    segments: list[int] = []
    special: list[bool] = []
    words: list[bool] = []
    sentences: list[bool] = []
    for token, segment in frame.pair if len(texts) == 2 else frame.single:
        ids, opens, begins = [token], [True], [True]
        if token < 0:
            which = TEXT_A - token  # 0 for the first text, 1 for the second
            ids = read[which].tolist()
            opens = read.word_start[read.offsets[which] : read.offsets[which + 1]].tolist()
            starts = {0, *read.find_tokens(which, split_sentences(texts[which])).tolist()}
            begins = [place in starts for place in range(len(ids))]
            opens[:1] = [True] * len(opens[:1])
            sides = sides or which * len(tokens)
        tokens += ids
        words += opens
        sentences += begins
        special += [token >= 0] * len(ids)
        segments += [segment] * len(ids)
    if all(special):
        raise UsageError(f"this tokenizer has no token for the text '{texts[0][:60]}'; give another")
    if len(tokens) > MAX_TOKENS:
        raise UsageError(f"a text of {len(tokens)} tokens is too long to look at; give one of {MAX_TOKENS} or less")
    return Sequences(
        tokens=np.array(tokens, dtype=np.int64),
        offsets=np.array([0, len(tokens)]),
        special=np.array(special),
        words=np.array(words),
        sentences=np.array(sentences),
        segments=np.array(segments) if pairs not in (None, "apart") or frame.has_segments else None,
        samples=np.zeros(1, dtype=np.int64),
        epochs=np.zeros(1, dtype=np.int64),
        labels=np.array([label]) if pairs in ("other", "swapped") else None,
        sides=np.array([sides]),
    )


def repeat_sequence(sequence: Sequences, times: int) -> Sequences:
    """The same sequence as several samples, each with its own chance."""
    many = sequence.take(np.zeros(times, dtype=np.int64))
    return replace(many, samples=np.arange(times))


def find_positions(renderer: TokenRenderer, sequence: Sequences, text: str) -> list[int]:
    """Where some words stand in a sequence: at the first place that has all of their tokens."""
    assert sequence.special is not None
    ordinary, read = np.flatnonzero(~sequence.special), sequence.tokens[~sequence.special].tolist()
    for spelled in (text, " " + text):  # a space before a word may be part of it
        wanted = renderer.tokenizer.encode(spelled, add_special_tokens=False, literal=True)
        for start in range(len(read) - len(wanted) + 1 if wanted else 0):
            if read[start : start + len(wanted)] == wanted:
                return ordinary[spread(np.array([start]), np.array([len(wanted)]))].tolist()  # type: ignore[no-any-return]
    raise UsageError(f"--hide '{text[:60]}' is not in the text; give words of it as they stand there")
