"""Quality filter of documents: a sample to fit the classifier, the selection by its scores, and both in the card.

The samples of reference and corpus are the documents with the smallest content hashes, so they depend neither on the
order of the text nor on the number of processes, and they are bounded in size. The filters of `clean` apply to both.
"""

import contextlib
import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretune.core import log
from pretune.core.errors import DataError
from pretune.data.prepare.encoding import WorkUnit, iter_units, list_parts
from pretune.data.prepare.pool import map_ordered
from pretune.data.prepare.settings import PrepareConfig
from pretune.data.prepared_data import CardQuality, QualityFit
from pretune.data.sequences import Bools
from pretune.text.cleaning import Filter, apply_filters, hash_content, resolve_filters
from pretune.text.corpora import Corpus
from pretune.text.quality import MAX_CHARACTERS, Buckets, QualityClassifier, fit_classifier, hash_ngrams, select_texts
from pretune.text.tokenizer import Tokenizer

SAMPLE_NGRAMS = 2**22
"""Distinct n-grams of the documents of each of the two samples."""
MIN_ACCURACY = 0.6
"""Accuracy on held-out documents below which the filter is close to chance; logged as a warning."""

_MAX_KEY = 2**64
_BYTES_PER_NGRAM = 8  # more than any text has, to bound the documents that are hashed
_EXAMPLES = (0.9, 0.5, 0.1)  # quantiles of the scores of kept, and of dropped documents

EXCERPT_TOKENS = 64
_EXCERPT_LENGTH = 300

Sample = dict[int, Buckets]
"""N-grams of documents by the content hash of their beginning."""


def fit_quality_filter(
    reference: Corpus, corpus: Corpus, settings: PrepareConfig, workers: int
) -> tuple[QualityClassifier, QualityFit]:
    """Fit the classifier on samples of both; documents of the reference that are also in the corpus count once.

    Raises:
        DataError: The reference has no text, or the corpus none that is not in the reference.
    """
    name = reference.sources[0].name
    good = _sample_texts(reference, settings, workers)
    if not good:
        raise DataError(f"'{name}': the reference of the quality filter contains no text; pass files with good text")
    other = _sample_texts(corpus, settings, workers)
    other = {key: row for key, row in other.items() if key not in good}
    if not other:
        raise DataError(f"'{name}': the reference of the quality filter is the corpus itself; pass other, good text")
    classifier = fit_classifier([*good.values()], [*other.values()])
    if classifier.accuracy is not None and classifier.accuracy < MIN_ACCURACY:
        log.warn(
            f"the quality filter can hardly tell '{name}' from the corpus "
            f"(accuracy {classifier.accuracy:.0%} on held-out documents)"
        )
    return classifier, {
        "reference_documents": len(good),
        "corpus_documents": len(other),
        "accuracy": None if classifier.accuracy is None else round(classifier.accuracy, 4),
    }


@dataclass(frozen=True, slots=True)
class SamplerSetup:
    """Settings of a sampling process; picklable."""

    settings: PrepareConfig
    limit: int  # documents with a smaller hash are candidates

    def start(self) -> Callable[[WorkUnit], list[tuple[int, Buckets]]]:
        """Load the filters, and return the sampler."""
        filters = [pair for name in self.settings.clean for pair in resolve_filters(name)]
        return lambda unit: [*self._sample_unit(unit, filters)]

    def _sample_unit(self, unit: WorkUnit, filters: Sequence[tuple[str, Filter]]) -> Iterable[tuple[int, Buckets]]:
        if unit.is_continuation:
            return
        for sides in itertools.chain.from_iterable(run for _, run in unit.iter_documents(Counter())):
            start = "\0".join(side[:MAX_CHARACTERS] for side in sides)
            key = int.from_bytes(hash_content(start)[:8], "big")
            if key < self.limit:
                texts = [apply_filters(text, filters, Counter()) or "" for text in sides]
                if all(text.strip() for text in texts):
                    yield key, hash_ngrams("\0".join(texts))


def _sample_texts(corpus: Corpus, settings: PrepareConfig, workers: int) -> Sample:
    """Return the documents with the smallest hashes, `SAMPLE_NGRAMS` in all, in the order of the hashes."""
    parts = list_parts(corpus, None)
    total = sum(part.text_bytes for part in parts) if corpus.bytes else 0
    enough = _BYTES_PER_NGRAM * SAMPLE_NGRAMS
    limit = _MAX_KEY if total <= enough else _MAX_KEY * enough // total
    sample: Sample = {}
    largest, size = list[int](), 0  # heap of negative keys, so the largest key is first
    units = iter_units(parts, Counter())
    with contextlib.closing(
        map_ordered(units, SamplerSetup(settings, limit), workers, label=lambda unit: unit.location)
    ) as results:
        for key, row in itertools.chain.from_iterable(results):
            if key not in sample:
                sample[key] = row
                heapq.heappush(largest, -key)
                size += len(row)
            while size > SAMPLE_NGRAMS and len(sample) > 1:
                size -= len(sample.pop(-heapq.heappop(largest)))
    return dict(sorted(sample.items()))


@dataclass(frozen=True, slots=True)
class QualitySelection:
    """Outcome of the filter over all documents."""

    is_candidate: Bools  # documents that the filter judged: not duplicates, and not of given validation text
    is_kept: Bools
    scores: NDArray[np.float32]
    shift: float  # added to all scores

    @classmethod
    def select(
        cls, scores: NDArray[np.float32], keys: NDArray[np.uint64], is_candidate: Bools, share: float | None
    ) -> "QualitySelection":
        """Select candidates by score and noise."""
        is_kept = np.zeros_like(is_candidate)
        is_kept[is_candidate], shift = select_texts(scores[is_candidate], keys[is_candidate], share)
        return cls(is_candidate, is_kept, scores, shift)

    @property
    def is_dropped(self) -> Bools:
        return self.is_candidate & ~self.is_kept

    def list_examples(self) -> list[int]:
        """Return the numbers of kept and of dropped documents with high, middle and low scores."""
        numbers: list[int] = []
        for mask in (self.is_kept, self.is_dropped):
            members = np.flatnonzero(mask)
            order = members[np.argsort(self.scores[members], kind="stable")]
            numbers += dict.fromkeys(int(order[int(place * (len(order) - 1))]) for place in _EXAMPLES if len(order))
        return numbers

    def describe(
        self,
        fit: QualityFit,
        share: float | None,
        names: Sequence[str],
        sources: NDArray[Any],
        texts: Mapping[int, str],
    ) -> CardQuality:
        """Describe the filter for the card; `texts` are those of the examples."""
        totals = [np.bincount(sources[mask], minlength=len(names)) for mask in (self.is_candidate, self.is_kept)]
        sums = np.bincount(sources[self.is_candidate], self.scores[self.is_candidate], minlength=len(names))
        return {
            **fit,
            "keep": share,
            "shift": round(self.shift, 4),
            "kept_documents": int(self.is_kept.sum()),
            "dropped_documents": int(self.is_dropped.sum()),
            "sources": [
                {
                    "source": name,
                    "documents": int(count),
                    "kept_documents": int(kept_count),
                    "score": round(float(total / count), 4),
                }
                for name, count, kept_count, total in zip(names, *totals, sums, strict=True)
                if count
            ],
            "examples": [
                {
                    "is_kept": bool(self.is_kept[number]),
                    "score": round(float(self.scores[number]), 4),
                    "source": names[sources[number]],
                    "text": text,
                }
                for number, text in texts.items()
            ],
        }


def decode_excerpt(tokenizer: Tokenizer, ids: Sequence[int], tokens: int) -> str:
    """Return the text of the first `EXCERPT_TOKENS` tokens of a document of so many tokens, on one line."""
    text = tokenizer.decode([*ids])
    is_cut = tokens > EXCERPT_TOKENS or len(text) > _EXCERPT_LENGTH
    return " ".join(text[:_EXCERPT_LENGTH].split()) + (" …" if is_cut else "")
