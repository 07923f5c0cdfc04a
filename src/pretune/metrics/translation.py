"""BLEU and chrF by sacrebleu (Post, 2018), for scores that are comparable between papers.

It is the extra `bleu`. Scores are fractions here, 0.271 for sacrebleu's 27.1. Each example has one or several
references. Do not tokenize text beforehand: sacrebleu does that (13a for BLEU).
"""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from types import ModuleType
from typing import Any

from pretune.core.errors import DataError, UsageError
from pretune.metrics.checks import check_pairs, to_texts


def bleu(gold: Iterable[str | Sequence[str]], predictions: Iterable[str], **settings: Any) -> float:
    """Corpus BLEU (Papineni et al., 2002) by sacrebleu, with its settings.

    0 if some n-gram order has no n-grams at all, as for texts of under four tokens.
    """
    outputs, references = _transpose_references(gold, predictions)
    return float(_import_sacrebleu().corpus_bleu(outputs, references, **settings).score) / 100


def chrf(gold: Iterable[str | Sequence[str]], predictions: Iterable[str], **settings: Any) -> float:
    """Corpus chrF (Popović, 2015) by sacrebleu: F of character n-grams; `word_order=2` is chrF++."""
    outputs, references = _transpose_references(gold, predictions)
    return float(_import_sacrebleu().corpus_chrf(outputs, references, **settings).score) / 100


def _transpose_references(gold: Iterable[Any], predictions: Iterable[str]) -> tuple[list[str], list[list[str | None]]]:
    """Return the outputs, and their first, second, … references; None for missing ones."""
    left, outputs = check_pairs(gold, predictions)
    references = [to_texts(entry) for entry in left]
    if [] in references:
        raise DataError(f"example {references.index([])} has no reference; at least one is needed")
    return outputs, [list(stream) for stream in zip_longest(*references)]


def _import_sacrebleu() -> ModuleType:
    try:
        import sacrebleu
    except ImportError:
        raise UsageError("BLEU and chrF need the extra 'bleu': pip install 'pretune[bleu]'") from None
    module: ModuleType = sacrebleu
    return module
