"""Baselines of coreference: mentions are known from training by their words, and linked by them or by their order.

Anna sold her car . She misses her car .      same words   her … her, her car … her car
                                              nearest      Anna … her … She … her, her car … her car
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.evaluation.baselines.base import Baseline
from pretune.tasks.example import Example, Examples, Mention, Prediction
from pretune.tasks.types.coreference import build_prediction, join_links

MAX_WIDTH = 10
"""Maximum number of words of a mention."""


@spec
class SameWords(Baseline):
    """Spans that are mostly mentions in training, in one cluster if they have the same words."""

    def predict(self, train: Examples, test: Examples, *, seed: int = 0) -> list[Prediction]:
        """Collect the texts of the training mentions, and group those of each document."""
        forms = _collect_mentions(train)
        mention_texts = {form.lower() for form in forms}
        pronouns = {form for form in forms if form.islower() and " " not in form}
        predictions: list[Prediction] = []
        for example in test:
            spans = [
                (mention, text) for mention, form in _list_spans(example) if (text := form.lower()) in mention_texts
            ]
            predictions.append(build_prediction(example.words, join_links(self.link(spans, pronouns))))
        return predictions

    def link(self, spans: list[tuple[Mention, str]], pronouns: set[str]) -> Iterator[tuple[Mention, Mention]]:
        """Yield pairs of mentions of a document, given with their words in lower case."""
        by_text: defaultdict[str, list[Mention]] = defaultdict(list)
        for mention, text in spans:
            yield from ((mention, previous) for previous in by_text[text][-1:])
            by_text[text].append(mention)


@spec
class NearestMention(SameWords):
    """The same, but a pronoun (a mention of one word in lower case) is linked to the mention before it."""

    def link(self, spans: list[tuple[Mention, str]], pronouns: set[str]) -> Iterator[tuple[Mention, Mention]]:
        """Yield pairs of mentions of a document, given with their words in lower case."""
        yield from SameWords.link(self, [span for span in spans if span[1] not in pronouns], pronouns)
        for number, (mention, text) in enumerate(spans):
            if text in pronouns and number:
                yield mention, spans[number - 1][0]


def _collect_mentions(train: Examples) -> set[str]:
    """Return the texts that are mentions in at least half of their occurrences."""
    counts, mention_counts = Counter[str](), Counter[str]()
    for example in train:
        mentions = {mention for cluster in example.clusters or () for mention in cluster}
        for mention, form in _list_spans(example):
            counts[form] += 1
            mention_counts[form] += mention in mentions
    if not mention_counts.total():
        raise DataError("no mention in the training documents; pass some with clusters")
    return {form for form, count in mention_counts.items() if 2 * count >= counts[form]}


def _list_spans(example: Example) -> Iterator[tuple[Mention, str]]:
    """Yield the spans within sentences, in the order of their first words, with their texts."""
    start = 0
    for length in example.sentences or (len(example.words),):
        for first in range(start, start + length):
            for last in range(first, min(first + MAX_WIDTH, start + length)):
                yield (first, last), " ".join(example.words[first : last + 1])
        start += length
