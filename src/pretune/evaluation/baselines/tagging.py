"""Tagging baselines: most frequent tag of each word, and a linear model of the word and its neighbours."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.evaluation.baselines.base import Examples, TaskBaseline
from pretune.tasks.example import Prediction

Sentences = Sequence[Sequence[str]]
Tagger = Callable[[Sentences], list[list[str]]]


class TaggingBaseline(TaskBaseline):
    """Base class of baselines that tag words."""

    def fit(self, sentences: Sentences, tags: Sentences, *, seed: int = 0) -> Tagger:
        """Train on tagged sentences."""
        raise NotImplementedError

    def predict(self, train: Examples, test: Examples, *, seed: int = 0) -> list[Prediction]:
        """Fit on tagged examples and tag others."""
        tagger = self.fit([example.words for example in train], [example.tags for example in train], seed=seed)
        return [Prediction(tags=tuple(tags)) for tags in tagger([example.words for example in test])]


@spec
class FrequentTag(TaggingBaseline):
    """Most frequent tag of a word.

    The word is looked up as written, or else in lower case; unknown words get the most frequent tag of words seen once.
    """

    def fit(self, sentences: Sentences, tags: Sentences, *, seed: int = 0) -> Tagger:
        """Count the tags of every word. Ties are broken alphabetically."""
        tag_counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for words, word_tags in zip(sentences, tags, strict=True):
            if len(words) != len(word_tags):
                raise DataError(f"a sentence of {len(words)} words has {len(word_tags)} tags; expected one per word")
            for word, tag in zip(words, word_tags, strict=True):
                for form in {word, word.lower()}:
                    tag_counts[form][tag] += 1
        if not tag_counts:
            raise DataError("no tagged words; pass at least one sentence")
        table = {word: _find_most_frequent(counts) for word, counts in tag_counts.items()}
        rare = [table[word] for word, counts in tag_counts.items() if counts.total() == 1]
        unknown = _find_most_frequent(Counter(rare or table.values()))

        def predict(sentences: Sequence[Sequence[str]]) -> list[list[str]]:
            return [[table.get(word) or table.get(word.lower()) or unknown for word in words] for words in sentences]

        return predict


@spec
class WindowTags(TaggingBaseline):
    """Linear SVM on the word and its neighbours.

    Features are the word, its suffixes and shape, and the two words on each side; tags do not depend on each other.
    """

    display_name: ClassVar[str] = "svm"

    epochs: int = 5
    penalty: float = 1e-5
    size: int = 2**18  # of the feature hash

    def fit(self, sentences: Sentences, tags: Sentences, *, seed: int = 0) -> Tagger:
        """Train on tagged sentences."""
        from sklearn.feature_extraction import FeatureHasher
        from sklearn.linear_model import SGDClassifier

        y = [tag for sentence_tags in tags for tag in sentence_tags]
        if len(set(y)) < 2:
            return FrequentTag().fit(sentences, tags)
        table = FeatureHasher(self.size, input_type="string", alternate_sign=False)
        model = SGDClassifier(alpha=self.penalty, max_iter=self.epochs, tol=None, average=True, random_state=seed).fit(
            table.transform(_extract_features(sentences)), y
        )

        def predict(sentences: Sentences) -> list[list[str]]:
            predictions = iter(
                model.predict(table.transform(_extract_features(sentences))).tolist() if any(sentences) else []
            )
            return [[next(predictions) for _ in words] for words in sentences]

        return predict


def _extract_features(sentences: Sentences) -> Iterator[list[str]]:
    """Yield the features of each word."""
    for words in sentences:
        low = ["", "", *(word.lower() for word in words), "", ""]
        for i, word in enumerate(words):
            form = "".join("A" if c.isupper() else "a" if c.islower() else "0" if c.isdigit() else c for c in word)
            neighbours = [f"{side}={low[i + 2 + side]}" for side in (-2, -1, 1, 2)]
            lower = low[i + 2]
            yield [
                f"w={word}", f"l={lower}", f"f={form[:6]}", f"s3={lower[-3:]}", f"s2={lower[-2:]}", f"p3={lower[:3]}",
                *neighbours, f"-1,0={low[i + 1]} {lower}", f"0,1={lower} {low[i + 3]}", "start" if i == 0 else "in",
            ]  # fmt: skip


def _find_most_frequent(counts: Counter[str]) -> str:
    return min(counts, key=lambda tag: (-counts[tag], tag))
