"""Quality and speed of static word vectors, compared with gensim's word2vec on the same text.

    PYTHONPATH=src OMP_NUM_THREADS=1 python bench/static_vectors.py [--data DIR] [--words 600000] [--out result.json]

The text is the beginning of wikinews-en, one text per line, split into the same words for both. Both use width 100,
window 5, 5 negative samples, subsampling at 1e-3, 5 epochs, a minimum count of 5 and one thread. GloVe, which gensim
lacks, runs with window 10 and 15 epochs. Prints CPU seconds of counting and training, words per second, and two scores:

similarity      Spearman correlation of the cosine of mean word vectors with human ratings on STS-B dev
pseudo-words    each occurrence of 200 words (count 100 to 2,000) is randomly renamed to one of two pseudo-words; the
                mean reciprocal rank of one among the 20 nearest neighbors of the other (0 beyond)
"""

import gzip
import lzma
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch

from pretune.adaptation.static.cooccurrence import Glove
from pretune.adaptation.static.word2vec import Word2Vec, WordCorpus
from pretune.inference.word_vectors import WordVectors, split_words

GOAL = 100_000  # words per second


def read_lines(path: Path, limit: int) -> list[list[str]]:
    """Read lines as lists of words, until there are `limit` words."""
    lines: list[list[str]] = []
    count = 0
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            words = split_words(line)
            count += len(words)
            lines += [words] if words else []
            if count >= limit:
                break
    return lines


def make_pseudo_words(lines: list[list[str]]) -> tuple[list[list[str]], list[str]]:
    """Rename 200 words to two pseudo-words each at random; return the lines and those words."""
    rng = np.random.default_rng(0)
    counts = Counter(word for line in lines for word in line)
    candidates = sorted(word for word, count in counts.items() if 100 <= count <= 2000)
    words = set(rng.choice(candidates, min(200, len(candidates)), replace=False).tolist())
    renamed_lines = [[f"{word}_{rng.integers(2)}" if word in words else word for word in line] for line in lines]
    return renamed_lines, sorted(words)


def measure_similarity(vectors: WordVectors, path: Path) -> float:
    """Return the Spearman correlation with human ratings on STS-B."""
    from scipy.stats import spearmanr

    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t")[-3:] for line in file][1:]
    a, b = (vectors.average([row[side] for row in rows]) for side in (0, 1))
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(spearmanr((a * b).sum(1) / np.maximum(lengths, 1e-9), [float(row[2]) for row in rows])[0])


def measure_pseudo_words(vectors: WordVectors, words: list[str]) -> float:
    """Return the mean reciprocal rank of each pseudo-word among the neighbors of its partner."""
    ranks = []
    for word in words:
        near = [other for other, _ in vectors.find_nearest(f"{word}_0", 20)]
        ranks.append(1 / (near.index(f"{word}_1") + 1) if f"{word}_1" in near else 0.0)
    return float(np.mean(ranks))


def train_gensim(lines: list[list[str]], mode: str, rate: float) -> WordVectors:
    """Train word2vec with gensim."""
    from gensim.models import Word2Vec as Peer

    options: dict[str, Any] = {
        "vector_size": 100,
        "window": 5,
        "negative": 5,
        "sample": 1e-3,
        "min_count": 5,
        "epochs": 5,
    }
    model = Peer(lines, sg=int(mode == "skip_gram"), alpha=rate, workers=1, seed=1, **options)
    return WordVectors(model.wv.index_to_key, model.wv.vectors)


def main() -> None:
    parser = common.build_parser(__doc__)
    parser.add_argument("--data", type=Path, default=common.find_data(), help="folder of the shared data")
    parser.add_argument("--words", type=int, default=600_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines, pseudo_words = make_pseudo_words(
        read_lines(options.data / "corpora/wikinews-en/train.txt.xz", options.words)
    )
    total = sum(map(len, lines))
    runs: dict[str, tuple[int, Callable[[], WordVectors]]] = {}
    for mode in ("skip_gram", "cbow"):
        for rate in (0.025, 0.05):
            runs[f"gensim {mode}, rate {rate}"] = 5, lambda mode=mode, rate=rate: train_gensim(lines, mode, rate)
        runs[f"ours {mode}"] = 5, lambda mode=mode: Word2Vec(mode=mode).train(lines)
    runs["ours cbow, rate 0.05"] = 5, lambda: Word2Vec(mode="cbow", rate=0.05).train(lines)
    runs["ours glove"] = 15, lambda: Glove().train(lines)
    result: dict[str, Any] = {"words": total, "known": len(WordCorpus.from_texts(lines)), "runs": {}}
    print(f"{total:,} words, {result['known']:,} distinct with a count of at least 5")
    for name, (epochs, train) in runs.items():
        try:
            seconds, vectors = common.time_call(train)
        except ImportError:
            print(f"{name:<30} skipped: gensim is not installed")
            continue
        similarity, mrr = (
            measure_similarity(vectors, options.data / "tasks/stsb/dev.tsv.gz"),
            measure_pseudo_words(vectors, pseudo_words),
        )
        rate = total * epochs / seconds
        result["runs"][name] = {
            "seconds": seconds,
            "words_per_second": rate,
            "similarity": similarity,
            "pseudo_words": mrr,
        }
        print(
            f"{name:<30} {seconds:7.1f} s {rate:>9,.0f} words/s   similarity {similarity:.3f}   pseudo-words {mrr:.3f}",
            flush=True,
        )
    slowest = min(
        run["words_per_second"]
        for name, run in result["runs"].items()
        if name.startswith("ours") and "glove" not in name
    )
    print(f"our slowest word2vec: {slowest:,.0f} words/s (goal {GOAL:,})")
    common.write_result(result, options.out)


if __name__ == "__main__":
    main()
