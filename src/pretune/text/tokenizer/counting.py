"""Counts of words and characters in a sample, from which all kinds but BPE are trained."""

from collections import Counter
from collections.abc import Iterable, Mapping, Set

from tokenizers import Tokenizer as Raw

MAX_WORDS = 2_000_000
"""Maximum number of distinct words while counting; beyond it, words seen only once are dropped."""
ALPHABET_COVERAGE = 0.9999
"""Share of all characters that the alphabet covers, unless its size is given."""


def count_words(blocks: Iterable[str], raw: Raw) -> Counter[str]:
    """Count words as produced by the tokenizer's normalizer and pre-tokenizer."""
    rough: Counter[str] = Counter()
    for block in blocks:
        rough.update(block.split())
        if len(rough) > MAX_WORDS:
            rough = Counter({word: count for word, count in rough.items() if count > 1})
    counts: Counter[str] = Counter()
    for word, count in rough.items():
        normal = raw.normalizer.normalize_str(word) if raw.normalizer is not None else word
        for part, _ in raw.pre_tokenizer.pre_tokenize_str(normal):
            counts[part] += count
    return counts


def count_characters(blocks: Iterable[str], raw: Raw) -> Counter[str]:
    """Count characters, including white space."""
    counts: Counter[str] = Counter()
    for block in blocks:
        counts.update(raw.normalizer.normalize_str(block) if raw.normalizer is not None else block)
    return counts


def rank_by_count(counts: Mapping[str, int], min_count: int = 1) -> list[str]:
    """Return keys by descending count; ties in lexicographic order."""
    return [key for key, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])) if count >= min_count]


def choose_alphabet(
    counts: Mapping[str, int], room: int, size: int | None, prices: Mapping[str, int] | None = None
) -> list[str]:
    """Choose the characters of the alphabet, most frequent first: `size` of them, or enough to cover nearly all text.

    Their prices (1 by default), the number of pieces that a character needs, sum to at most `room`.
    """
    letters: Counter[str] = Counter()
    for word, count in counts.items():
        for letter in word:
            letters[letter] += count
    total, covered_count = sum(letters.values()), 0
    alphabet: list[str] = []
    for letter in rank_by_count(letters):
        price = 1 if prices is None else prices.get(letter, 1)
        if price > room or (covered_count >= ALPHABET_COVERAGE * total if size is None else len(alphabet) >= size):
            break
        alphabet.append(letter)
        room -= price
        covered_count += letters[letter]
    return alphabet


def find_inner_characters(counts: Iterable[str]) -> Set[str]:
    """Return the characters that occur after the first position of a word."""
    return {letter for word in counts for letter in word[1:]}
