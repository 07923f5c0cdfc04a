"""Speed of `Tokenizer.encode_batch` on one core, compared with the library `tokenizers`.

    python -m bench.data.tokenizing [--megabytes 20] [--repeats 3] [--tokenizer DIR] [--out result.json]

Both sides must return the same ids. Ours also returns word starts and character starts; the peer,
`tokenizers.encode_batch_fast`, returns only ids, as lists. "Cold" is a first pass with an empty word cache, "warm" a
second one. Prints MB per second of CPU time, medians of alternated repeats, and the ratios. The text comes from
$PRETUNE_DATA (default: ../shared/data next to the checkout).
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

from bench import common

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tokenizers import Tokenizer as Raw

from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.training import train


def read_documents(name: str, size: int) -> list[str]:
    """Return the documents of a file, which are separated by empty lines."""
    return [document for document in common.read_corpus(name, size).split("\n\n") if document]


def compare(name: str, tokenizer: Tokenizer, documents: list[str], repeats: int) -> dict[str, Any]:
    """Measure both sides on the same documents, print a line and return the result."""
    size = sum(len(document.encode()) for document in documents) / 1e6
    batches = [documents[i : i + 64] for i in range(0, len(documents), 64)]
    variants: dict[str, Callable[[Tokenizer, list[str]], Any]] = {
        "cold": lambda copy, batch: copy.encode_batch(batch),
        "warm": lambda copy, batch: copy.encode_batch(batch),
        "library": lambda copy, batch: [
            encoding.ids for encoding in copy.raw.encode_batch_fast(batch, add_special_tokens=False)
        ],
    }
    times: dict[str, list[float]] = {variant: [] for variant in variants}
    encodings: dict[str, list[Any]] = {}
    for _ in range(repeats):
        copy = Tokenizer(Raw.from_str(tokenizer.raw.to_str()))
        for variant, encode in variants.items():
            seconds, encodings[variant] = common.time_call(
                lambda encode=encode, copy=copy: [encode(copy, batch) for batch in batches]
            )
            times[variant].append(seconds)
        for ours, ids in zip(encodings["cold"], encodings["library"], strict=True):
            assert ours.ids.tolist() == [i for document in ids for i in document]
    rates = {variant: size / seconds for variant, seconds in common.compute_medians(times).items()}
    tokens = sum(len(ours.ids) for ours in encodings["cold"])
    cold, warm = (rates[variant] / rates["library"] for variant in ("cold", "warm"))
    print(
        f"{name:<32} {size:5.1f} MB {tokens:>11,} tokens   cold {rates['cold']:5.1f} MB/s  warm {rates['warm']:5.1f} "
        f"MB/s  library {rates['library']:5.1f} MB/s   ratio {cold:.1f} cold, {warm:.1f} warm",
        flush=True,
    )
    return {"megabytes": size, "tokens": tokens, "megabytes_per_second": rates, "ratio": {"cold": cold, "warm": warm}}


def main() -> None:
    parser = common.build_parser(__doc__)
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokenizer", help="tokenizer directory; default: MiniLM's, and one trained here of each kind")
    options = parser.parse_args()
    if not common.find_data("corpora").is_dir():
        print(f"skipped: needs text at {common.find_data('corpora')} (set PRETUNE_DATA)")
        return
    size = int(options.megabytes * 1e6)
    english = read_documents("wikipedia-en/train-00", size)
    result = {
        name: compare(name, *work, options.repeats) for name, *work in iterate_cases(options.tokenizer, english, size)
    }
    common.write_result(result, options.out)


def iterate_cases(path: str | None, english: list[str], size: int) -> Iterator[tuple[str, Tokenizer, list[str]]]:
    """Yield tokenizers with their documents."""
    if path:
        yield path, Tokenizer.load(path), english
        return
    if (minilm := common.find_minilm()) is not None:
        model = Tokenizer.load(minilm)
        yield "wordpiece, 30,522, lower case", model, english
        yield "wordpiece, 30,522, Chinese text", model, read_documents("multilingual/zho.wikipedia", size // 4)
    sample = read_documents("wikinews-en/valid", 10**6)
    for kind in ("bpe", "unigram", "characters", "words"):
        yield f"{kind}, at most 8,000", train(kind, sample, vocab=8000), english


if __name__ == "__main__":
    main()
