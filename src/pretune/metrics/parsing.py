"""Attachment scores of dependency trees, equal to the evaluation of the CoNLL 2018 shared task (Zeman et al., 2018).

Words are the gold ones. Relations are compared without their subtypes (`nsubj:pass` is `nsubj`), as there.
"""

from collections.abc import Iterable, Sequence

from pretune.core.errors import DataError
from pretune.metrics import check_pairs, harmonic_mean, ratio

Arc = tuple[int, str]
"""Head of a word (from 1; 0 is the root) and its relation."""

CONTENT_RELATIONS = frozenset({
    "nsubj", "obj", "iobj", "csubj", "ccomp", "xcomp", "obl", "vocative", "expl", "dislocated", "advcl", "advmod",
    "discourse", "nmod", "appos", "nummod", "acl", "amod", "conj", "fixed", "flat", "compound", "list", "parataxis",
    "orphan", "goeswith", "reparandum", "root", "dep",
})  # fmt: skip
"""Relations of content words, without function words and punctuation."""


def attachment(gold: Iterable[Sequence[Arc]], predictions: Iterable[Sequence[Arc]]) -> dict[str, float]:
    """LAS, UAS and CLAS: words with the correct head and relation, with the correct head, and F1 of content words.

    CLAS is 0 if no word is a content word in either.

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
