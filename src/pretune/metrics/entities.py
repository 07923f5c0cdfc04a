"""Entities read out of tags, and their F1, equal to seqeval's and to conlleval's.

A tag is `O` or a prefix and a type (`B-PER`); a bare prefix is an entity of type `_`. Two readings:

    lenient   any of IOB1, IOB2 (BIO) and IOBES, mixed too: a broken sequence still gives entities   O I-PER -> PER
    strict    by one scheme: what the scheme does not allow is no entity                             O I-PER -> none

An entity is right where its sentence, type, start and end are. Counts are summed over all types (micro average).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from pretune.core.errors import DataError, UsageError, suggest
from pretune.metrics.checks import check_pairs, harmonic_mean, ratio

Entity = tuple[str, int, int]
"""Type, start and end (exclusive) in its sentence."""


@dataclass(frozen=True)
class TaggingScheme:
    """Which pairs of neighbouring tags start, continue and end an entity: "BI=" is B then I of one type, "≠" of two.

    Every pair is written out with its sign.
    """

    letters: str
    start: frozenset[str]
    inside: frozenset[str]
    end: frozenset[str]


def _build_scheme(letters: str, start: str, inside: str, end: str) -> TaggingScheme:
    def pairs(text: str) -> frozenset[str]:
        """The pairs with "." for any letter and no sign for any relation, all written out."""
        found = set[str]()
        for pair in text.split():
            first, second = (letters if letter == "." else letter for letter in (pair[0], pair[1]))
            found |= {a + b + relation for a in first for b in second for relation in pair[2:] or "=≠"}
        return frozenset(found)

    return TaggingScheme(letters=letters, start=pairs(start), inside=pairs(inside), end=pairs(end))


SCHEMES = {
    # NOTE: by seqeval's rules for IOB1, a B that follows no entity of its type starts none; the next I does.
    "iob1": _build_scheme("IOB", "OI II≠ BI IB= BB=", "BI= II=", "II≠ IO IB BO BI≠ BB="),
    "iob2": _build_scheme("IOB", ".B", "BI= II=", "IO II≠ IB BO BI≠ BB"),
    "iobes": _build_scheme("IOBES", ".B .S", "BI= BE= II= IE=", "S. E."),
}


def extract_entities(tags: Sequence[str], scheme: str | None = None) -> list[Entity]:
    """The entities of a sentence, read leniently, or strictly by a scheme: iob1, iob2 or iobes.

    >>> extract_entities(["B-PER", "I-PER", "O", "I-LOC"])
    [('PER', 0, 2), ('LOC', 3, 4)]
    >>> extract_entities(["B-PER", "I-PER", "O", "I-LOC"], "iob2")
    [('PER', 0, 2)]
    """
    if scheme is None:
        return _extract_lenient([_split_tag(tag, "OBIES") for tag in tags])
    if scheme not in SCHEMES:
        raise UsageError(f"unknown scheme '{scheme[:40]}'{suggest(scheme, SCHEMES)} (allowed: {', '.join(SCHEMES)})")
    return _extract_strict([_split_tag(tag, SCHEMES[scheme].letters) for tag in tags], SCHEMES[scheme])


def entity_f1(
    gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]], *, scheme: str | None = None
) -> dict[str, float]:
    """Entity F1 with precision and recall, read leniently as conlleval and seqeval do by default.

    Each is 0 where nothing can be counted: F1 also of perfect predictions where no sentence has an entity.

    >>> entity_f1([["B-PER", "I-PER", "O"]], [["B-PER", "O", "O"]])
    {'f1': 0.0, 'precision': 0.0, 'recall': 0.0}
    """
    counts = _count_entities(gold, predicted, scheme)
    return _compute_scores(*(sum(part.values()) for part in counts))


def entity_f1_strict(
    gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]], *, scheme: str = "iob2"
) -> dict[str, float]:
    """Entity F1 with precision and recall, read strictly by one scheme (iob2), as seqeval's strict mode."""
    return entity_f1(gold, predicted, scheme=scheme)


def entity_report(
    gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]], *, scheme: str | None = None
) -> dict[str, dict[str, float]]:
    """The same for each type of entity, with `support`, its number in gold."""
    right, found, wanted = _count_entities(gold, predicted, scheme)
    return {
        kind: {**_compute_scores(right[kind], found[kind], wanted[kind]), "support": float(wanted[kind])}
        for kind in sorted({*found, *wanted})
    }


def tag_accuracy(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> float:
    """The share of words whose tag is right, over all sentences, as for parts of speech.

    >>> tag_accuracy([["DET", "NOUN"], ["VERB"]], [["DET", "VERB"], ["VERB"]])
    0.6666666666666666
    """
    left, right = _check_sentences(gold, predicted)
    pairs = list(zip(chain(*left), chain(*right), strict=True))
    if not pairs:
        raise DataError("nothing to score: no sentence has a word; a metric needs at least one")
    return sum(bool(g == p) for g, p in pairs) / len(pairs)


def _check_sentences(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> tuple[list[Any], list[Any]]:
    left, right = check_pairs(gold, predicted)
    for at, (g, p) in enumerate(zip(left, right, strict=True)):
        if len(g) != len(p):
            raise DataError(f"sentence {at} has {len(g)} gold and {len(p)} predicted tags; give one for each word")
    return left, right


def _count_entities(
    gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]], scheme: str | None
) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """How many entities of each type are right, predicted, and in gold."""
    right, found, wanted = Counter[str](), Counter[str](), Counter[str]()
    for g, p in zip(*_check_sentences(gold, predicted), strict=True):
        true, guessed = {*extract_entities(g, scheme)}, {*extract_entities(p, scheme)}
        right.update(kind for kind, _, _ in true & guessed)
        found.update(kind for kind, _, _ in guessed)
        wanted.update(kind for kind, _, _ in true)
    return right, found, wanted


def _compute_scores(n_correct: int, n_predicted: int, n_gold: int) -> dict[str, float]:
    precision, recall = ratio(n_correct, n_predicted), ratio(n_correct, n_gold)
    return {"f1": harmonic_mean(precision, recall), "precision": precision, "recall": recall}


def _split_tag(tag: str, letters: str) -> tuple[str, str]:
    letter, kind = tag[:1], tag[1:].removeprefix("-")
    if not letter or letter not in letters or (letter == "O" and kind) or (kind and tag[1] != "-"):
        raise DataError(
            f"'{tag[:40]}' is no entity tag here; allowed: O, and {', '.join(letters.replace('O', ''))} with -TYPE"
        )
    return letter, kind or "_"


def _extract_lenient(tags: list[tuple[str, str]]) -> list[Entity]:
    found: list[Entity] = []
    before, kind, start = "O", "", 0
    for at, (letter, other) in enumerate([*tags, ("O", "_")]):
        new = kind != other
        if before != "O" and (before in "ES" or letter in "OBS" or new):
            found.append((kind, start, at))
        if letter != "O" and (letter in "BS" or before in "OES" or new):
            start = at
        before, kind = letter, other
    return found


def _extract_strict(tags: list[tuple[str, str]], scheme: TaggingScheme) -> list[Entity]:
    found: list[Entity] = []
    closed = [*tags, ("O", "_")]

    def step(at: int) -> str:
        """The pair of tags that meets before position `at`."""
        before, kind = closed[at - 1] if at else ("O", "_")
        letter, other = closed[at]
        return before + letter + ("=" if kind == other else "≠")

    at = 0
    while at < len(closed):
        start, at = at, at + 1
        if step(start) in scheme.start:
            while at < len(closed) and step(at) in scheme.inside:
                at += 1
            if at < len(closed) and step(at) in scheme.end:
                found.append((closed[start][1], start, at))
    return found
