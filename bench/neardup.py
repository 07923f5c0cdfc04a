"""Near-duplicate detection: recall by Jaccard similarity, speed and memory.

    PYTHONPATH=src python bench/neardup.py [--copies 300] [--threshold 0.8]

Copies of 400 words of wikipedia-en/valid with random words replaced; similarity is the Jaccard similarity of 5-grams of
words. Speed is in CPU time and includes signatures. Also counts the duplicates among `builtin:reviews` as
`pretune prepare --near` does. Prints JSON.
"""

import random
from collections import defaultdict

import common

from pretune.text.corpora.builtin import Reviews
from pretune.text.neardup import NearDuplicates

WORDS = 400
PAGE_CHARACTERS = 16_000


def compute_jaccard(words: list[str], other: list[str]) -> float:
    """Return the Jaccard similarity of the 5-grams of two word lists."""
    first, second = ({tuple(side[i : i + 5]) for i in range(len(side) - 4)} for side in (words, other))
    return len(first & second) / len(first | second)


def measure_recall(text: str, copies: int, threshold: float) -> dict[str, dict[str, float]]:
    """Return the share of copies found, by similarity in steps of 0.05."""
    words, rng = text.split(), random.Random(0)
    hits: dict[float, list[bool]] = defaultdict(list)
    for _ in range(copies):
        start = rng.randrange(len(words) - WORDS)
        page, rate = words[start : start + WORDS], rng.uniform(0, 0.08)
        copy = [f"changed{rng.randrange(10**9)}" if rng.random() < rate else word for word in page]
        near = NearDuplicates(threshold)
        near.add(near.compute_signature(" ".join(page)))
        hits[round(compute_jaccard(page, copy) * 20) / 20].append(near.add(near.compute_signature(" ".join(copy))))
    return {
        f"{similarity:.2f}": {"found": sum(hits[similarity]) / len(hits[similarity]), "copies": len(hits[similarity])}
        for similarity in sorted(hits)
    }


def measure_deduplication(texts: list[str], threshold: float) -> dict[str, float]:
    """Return duplicates, speed and memory of deduplicating the texts."""
    near = NearDuplicates(threshold)
    seconds, duplicates = common.time_call(lambda: sum(near.add(near.compute_signature(text)) for text in texts))
    size = sum(len(text.encode()) for text in texts)
    return {
        "texts": len(texts),
        "bytes_each": round(size / len(texts)),
        "duplicates": duplicates,
        "mb_per_second": round(size / 1e6 / seconds, 2),
        "memory_each": round(near.bytes / (len(texts) - duplicates)),
    }


def main() -> None:
    parser = common.build_parser(__doc__)
    parser.add_argument("--copies", type=int, default=300)
    parser.add_argument("--threshold", type=float, default=0.8)
    options = parser.parse_args()
    text = common.read_corpus("wikipedia-en/valid")
    reviews = [review for review, _ in Reviews().read_examples()]
    distinct = [*dict.fromkeys(" ".join(review.split()) for review in reviews)]
    pages = [text[i : i + PAGE_CHARACTERS] for i in range(0, len(text), PAGE_CHARACTERS)]
    result = {
        "threshold": options.threshold,
        "recall": measure_recall(text, options.copies, options.threshold),
        "wikipedia": measure_deduplication(pages, options.threshold),
        "reviews": {"exact": len(reviews) - len(distinct), **measure_deduplication(distinct, options.threshold)},
    }
    common.print_result(result, options.out)


if __name__ == "__main__":
    main()
