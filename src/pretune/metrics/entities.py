"""Words: entities from tags and their F1, equal to seqeval's and conlleval's, and attachment of dependency trees.

A tag is `O` or a prefix and a type (`B-PER`); a bare prefix is an entity of type `_`. Two modes:

    lenient   any of IOB1, IOB2 (BIO) and IOBES, even mixed: invalid sequences still give entities    O I-PER -> PER
    strict    one scheme: a sequence that it does not allow is no entity                             O I-PER -> none

An entity is correct if sentence, type, start and end agree. Counts are summed over all types (micro average).
"""

from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import Any

from pretune.core.errors import DataError, UsageError, suggest
from pretune.metrics import check_pairs, harmonic_mean, ratio

Entity = tuple[str, int, int]
"""Type, start and end (exclusive) in a sentence."""


@dataclass(frozen=True)
class TaggingScheme:
    """Pairs of adjacent tags that start, continue and end an entity: "BI=" is B then I of one type, "≠" of two.

    Every pair is listed with its relation.
    """

    letters: str
    start: frozenset[str]
    inside: frozenset[str]
    end: frozenset[str]


def _build_scheme(letters: str, start: str, inside: str, end: str) -> TaggingScheme:
    def expand(text: str) -> frozenset[str]:
        """Expand pairs: "." stands for any letter, a missing sign for any relation."""
        expanded_pairs = set[str]()
        for pair in text.split():
            first, second = (letters if letter == "." else letter for letter in (pair[0], pair[1]))
            expanded_pairs |= {
                left + right + relation for left in first for right in second for relation in pair[2:] or "=≠"
            }
        return frozenset(expanded_pairs)

    return TaggingScheme(letters=letters, start=expand(start), inside=expand(inside), end=expand(end))


SCHEMES = {
    # NOTE: in seqeval's IOB1, a B that follows no entity of its type starts none; the next I does.
    "iob1": _build_scheme("IOB", "OI II≠ BI IB= BB=", "BI= II=", "II≠ IO IB BO BI≠ BB="),
    "iob2": _build_scheme("IOB", ".B", "BI= II=", "IO II≠ IB BO BI≠ BB"),
    "iobes": _build_scheme("IOBES", ".B .S", "BI= BE= II= IE=", "S. E."),
}


def extract_entities(tags: Sequence[str], scheme: str | None = None) -> list[Entity]:
    """Extract the entities of a sentence, leniently, or strictly by a scheme: iob1, iob2 or iobes.

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
    gold: Iterable[Sequence[str]], predictions: Iterable[Sequence[str]], *, scheme: str | None = None
) -> dict[str, float]:
    """Entity F1 with precision and recall, lenient, as conlleval and seqeval by default.

    Each is 0 if its denominator is 0: F1 also for perfect predictions if no sentence has an entity.

    >>> entity_f1([["B-PER", "I-PER", "O"]], [["B-PER", "O", "O"]])
    {'f1': 0.0, 'precision': 0.0, 'recall': 0.0}
    """
    return _score_spans(gold, predictions, lambda tags: {*extract_entities(tags, scheme)})


def entity_f1_strict(
    gold: Iterable[Sequence[str]], predictions: Iterable[Sequence[str]], *, scheme: str = "iob2"
) -> dict[str, float]:
    """Entity F1 with precision and recall in one scheme (iob2), as seqeval's strict mode."""
    return entity_f1(gold, predictions, scheme=scheme)


def argument_f1(gold: Iterable[Sequence[str]], predictions: Iterable[Sequence[str]]) -> dict[str, float]:
    """F1 of the arguments of predicates, with precision and recall, equal to CoNLL-2005's script srl-eval.

    `C-A1` continues the last `A1` before it: an argument is correct with all its parts. The predicate (`V`) does not
    count. Each is 0 if its denominator is 0.

    >>> argument_f1([["B-A0", "O", "B-A1", "B-C-A1"]], [["B-A0", "B-V", "B-A1", "O"]])
    {'f1': 0.5, 'precision': 0.5, 'recall': 0.5}
    """
    return _score_spans(gold, predictions, extract_arguments)


def extract_arguments(tags: Sequence[str]) -> set[tuple[Entity, ...]]:
    """Return the arguments of a predicate, each as its parts; continuations are joined to their beginning.

    >>> extract_arguments(["B-A1", "B-V", "B-C-A1", "I-C-A1"])
    {(('A1', 0, 1), ('A1', 2, 4))}
    """
    arguments: list[tuple[Entity, ...]] = []
    last: dict[str, int] = {}  # index of the last argument of each role
    for kind, start, end in extract_entities(tags):
        role = kind.removeprefix("C-")
        if kind != role and role in last:
            arguments[last[role]] += ((role, start, end),)
            continue
        last[role] = len(arguments)
        arguments.append(((role, start, end),))
    return {argument for argument in arguments if argument[0][0] != "V"}


def tag_accuracy(gold: Iterable[Sequence[str]], predictions: Iterable[Sequence[str]]) -> float:
    """Share of words with the correct tag, over all sentences, as for parts of speech.

    >>> tag_accuracy([["DET", "NOUN"], ["VERB"]], [["DET", "VERB"], ["VERB"]])
    0.6666666666666666
    """
    left, right = _check_sentences(gold, predictions)
    pairs = list(zip(chain(*left), chain(*right), strict=True))
    if not pairs:
        raise DataError("no words to score; a metric needs at least one")
    return sum(bool(g == p) for g, p in pairs) / len(pairs)


def _score_spans(
    gold: Iterable[Sequence[str]],
    predictions: Iterable[Sequence[str]],
    extract: Callable[[Sequence[str]], Set[Hashable]],
) -> dict[str, float]:
    """Return F1, precision and recall of what `extract` finds in the tags of each sentence."""
    n_correct = n_predicted = n_gold = 0
    for g, p in zip(*_check_sentences(gold, predictions), strict=True):
        gold_spans, predicted_spans = extract(g), extract(p)
        n_correct += len(gold_spans & predicted_spans)
        n_predicted += len(predicted_spans)
        n_gold += len(gold_spans)
    precision, recall = ratio(n_correct, n_predicted), ratio(n_correct, n_gold)
    return {"f1": harmonic_mean(precision, recall), "precision": precision, "recall": recall}


def _check_sentences(
    gold: Iterable[Sequence[str]], predictions: Iterable[Sequence[str]]
) -> tuple[list[Any], list[Any]]:
    left, right = check_pairs(gold, predictions)
    for i, (g, p) in enumerate(zip(left, right, strict=True)):
        if len(g) != len(p):
            raise DataError(f"sentence {i} has {len(g)} gold tags, but {len(p)} predicted ones; pass one for each word")
    return left, right


def _split_tag(tag: str, letters: str) -> tuple[str, str]:
    letter, kind = tag[:1], tag[1:].removeprefix("-")
    if not letter or letter not in letters or (letter == "O" and kind) or (kind and tag[1] != "-"):
        raise DataError(
            f"invalid entity tag '{tag[:40]}'; allowed: O, and {', '.join(letters.replace('O', ''))} with -TYPE"
        )
    return letter, kind or "_"


def _extract_lenient(tags: list[tuple[str, str]]) -> list[Entity]:
    entities: list[Entity] = []
    previous_letter, previous_kind, start = "O", "", 0
    for i, (letter, kind) in enumerate([*tags, ("O", "_")]):
        is_new_kind = previous_kind != kind
        if previous_letter != "O" and (previous_letter in "ES" or letter in "OBS" or is_new_kind):
            entities.append((previous_kind, start, i))
        if letter != "O" and (letter in "BS" or previous_letter in "OES" or is_new_kind):
            start = i
        previous_letter, previous_kind = letter, kind
    return entities


def _extract_strict(tags: list[tuple[str, str]], scheme: TaggingScheme) -> list[Entity]:
    entities: list[Entity] = []
    padded_tags = [*tags, ("O", "_")]

    def get_transition(i: int) -> str:
        """Return the pair of tags before position i, with its relation."""
        previous_letter, previous_kind = padded_tags[i - 1] if i else ("O", "_")
        letter, kind = padded_tags[i]
        return previous_letter + letter + ("=" if previous_kind == kind else "≠")

    end = 0
    while end < len(padded_tags):
        start, end = end, end + 1
        if get_transition(start) in scheme.start:
            while end < len(padded_tags) and get_transition(end) in scheme.inside:
                end += 1
            if end < len(padded_tags) and get_transition(end) in scheme.end:
                entities.append((padded_tags[start][1], start, end))
    return entities


Arc = tuple[int, str]
"""Head of a word (from 1; 0 is the root) and its relation."""

_CONTENT = """
    nsubj obj iobj csubj ccomp xcomp obl vocative expl dislocated advcl advmod discourse nmod appos nummod acl amod
    conj fixed flat compound list parataxis orphan goeswith reparandum root dep
"""
CONTENT_RELATIONS = frozenset(_CONTENT.split())
"""Relations of content words, without function words and punctuation."""


def attachment(gold: Iterable[Sequence[Arc]], predictions: Iterable[Sequence[Arc]]) -> dict[str, float]:
    """LAS, UAS and CLAS: words with the correct head and relation, with the correct head, and F1 of content words.

    They equal the evaluation of the CoNLL 2018 shared task (Zeman et al., 2018): words are the gold ones, and relations
    are compared without their subtypes (`nsubj:pass` is `nsubj`). CLAS is 0 if no word is a content word in either.

    >>> attachment([[(2, "nsubj:pass"), (0, "root")]], [[(2, "nsubj"), (0, "dep")]])
    {'las': 0.5, 'uas': 1.0, 'clas': 0.5}
    """
    left, right = check_pairs(gold, predictions)
    words = heads = arcs = content = gold_content = predicted_content = 0
    for number, (g, p) in enumerate(zip(left, right, strict=True)):
        if len(g) != len(p):
            raise DataError(f"sentence {number} has {len(g)} words, but {len(p)} predicted heads; pass one for each")
        for (gold_head, gold_relation), (head, relation) in zip(g, p, strict=True):
            gold_type, predicted_type = (name.partition(":")[0] for name in (gold_relation, relation))
            is_correct = gold_head == head and gold_type == predicted_type
            words, heads, arcs = words + 1, heads + (gold_head == head), arcs + is_correct
            gold_content += gold_type in CONTENT_RELATIONS
            predicted_content += predicted_type in CONTENT_RELATIONS
            content += is_correct and gold_type in CONTENT_RELATIONS
    if not words:
        raise DataError("no words to score; a metric needs at least one")
    clas = harmonic_mean(ratio(content, predicted_content), ratio(content, gold_content))
    return {"las": arcs / words, "uas": heads / words, "clas": clas}
