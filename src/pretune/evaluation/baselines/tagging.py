"""The tagging baselines: each word's most frequent tag, and a linear model of the word and its neighbours."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from pretune.core.config import spec
from pretune.core.errors import DataError

Sentences = Sequence[Sequence[str]]
Tagger = Callable[[Sentences], list[list[str]]]


@spec
class FrequentTag:
    """A word's most frequent tag, as written or else in lower case; an unknown word has that of words met once."""

    def fit(
        self, sentences: Sequence[Sequence[str]], tags: Sequence[Sequence[str]]
    ) -> Callable[[Sequence[Sequence[str]]], list[list[str]]]:
        """Count the tags of every word. Of equally frequent tags the first in alphabetical order is taken."""
        seen: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for words, marks in zip(sentences, tags, strict=True):
            if len(words) != len(marks):
                raise DataError(f"a sentence of {len(words)} words has {len(marks)} tags; each word needs one")
            for word, tag in zip(words, marks, strict=True):
                for form in {word, word.lower()}:
                    seen[form][tag] += 1
        if not seen:
            raise DataError("no word has a tag; give at least one sentence")
        table = {word: _find_most_frequent(found) for word, found in seen.items()}
        rare = [table[word] for word, found in seen.items() if found.total() == 1]
        unknown = _find_most_frequent(Counter(rare or table.values()))

        def predict(sentences: Sequence[Sequence[str]]) -> list[list[str]]:
            return [[table.get(word) or table.get(word.lower()) or unknown for word in words] for words in sentences]

        return predict


@spec
class WindowTags:
    """A linear SVM on a word, how it ends and is written, and the two words on each side; each word by itself."""

    epochs: int = 5
    penalty: float = 1e-5
    size: int = 2**18  # places that features are hashed to

    def fit(self, sentences: Sentences, tags: Sentences, *, seed: int = 0) -> Tagger:
        """Learn from tagged sentences."""
        from sklearn.feature_extraction import FeatureHasher
        from sklearn.linear_model import SGDClassifier

        y = [tag for marks in tags for tag in marks]
        if len(set(y)) < 2:
            return FrequentTag().fit(sentences, tags)
        table = FeatureHasher(self.size, input_type="string", alternate_sign=False)
        model = SGDClassifier(alpha=self.penalty, max_iter=self.epochs, tol=None, average=True, random_state=seed).fit(
            table.transform(_extract_features(sentences)), y
        )

        def predict(sentences: Sentences) -> list[list[str]]:
            said = iter(model.predict(table.transform(_extract_features(sentences))).tolist() if any(sentences) else [])
            return [[next(said) for _ in words] for words in sentences]

        return predict


def _extract_features(sentences: Sentences) -> Iterator[list[str]]:
    """What is known of each word."""
    for words in sentences:
        low = ["", "", *(word.lower() for word in words), "", ""]
        for at, word in enumerate(words):
            form = "".join("A" if c.isupper() else "a" if c.islower() else "0" if c.isdigit() else c for c in word)
            near = [f"{side}={low[at + 2 + side]}" for side in (-2, -1, 1, 2)]
            mine = low[at + 2]
            yield [
                f"w={word}", f"l={mine}", f"f={form[:6]}", f"s3={mine[-3:]}", f"s2={mine[-2:]}", f"p3={mine[:3]}",
                *near, f"-1,0={low[at + 1]} {mine}", f"0,1={mine} {low[at + 3]}", "start" if at == 0 else "in",
            ]  # fmt: skip


def _find_most_frequent(counts: Counter[str]) -> str:
    return min(counts, key=lambda tag: (-counts[tag], tag))
