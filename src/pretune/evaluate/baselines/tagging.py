"""The tagging baseline: each word's most frequent tag."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from pretune.core.config import spec
from pretune.core.errors import DataError


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
        table = {word: _most(found) for word, found in seen.items()}
        rare = [table[word] for word, found in seen.items() if found.total() == 1]
        unknown = _most(Counter(rare or table.values()))

        def predict(sentences: Sequence[Sequence[str]]) -> list[list[str]]:
            return [[table.get(word) or table.get(word.lower()) or unknown for word in words] for words in sentences]

        return predict


def _most(counts: Counter[str]) -> str:
    return min(counts, key=lambda tag: (-counts[tag], tag))
