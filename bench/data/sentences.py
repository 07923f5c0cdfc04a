"""Accuracy and speed of sentence splitting, compared with a naive split, on UD English EWT.

    python -m bench.data.sentences [--part dev] [--out result.json]

Each document is its sentences joined by single spaces, so line breaks give no hints; a second row keeps the original
paragraphs as lines. A boundary is the start of a sentence other than the first. The rules were developed on `train` and
`dev` only. Prints precision, recall and F1 of boundaries, and MB per second of CPU time, also on wikipedia-en/valid.
The data comes from $PRETUNE_DATA (default: ../shared/data next to the checkout).
"""

import gzip
from collections.abc import Callable
from pathlib import Path

from bench import common
from pretune.text.sentences import SPLITTERS


def read_documents(path: Path, paragraphs: bool) -> list[tuple[str, set[int]]]:
    """Return documents with the start offsets of their sentences, without 0."""
    documents: list[tuple[str, set[int]]] = []
    text, starts, joint = "", set[int](), " "
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            if line.startswith("# newdoc"):
                documents.append((text, starts))
                text, starts = "", set()
            elif line.startswith("# newpar") and paragraphs:
                joint = "\n"
            elif line.startswith("# text = "):
                if text:
                    text += joint
                    starts.add(len(text))
                text, joint = text + line.removeprefix("# text = ").strip(), " "
    return [*documents[1:], (text, starts)]


def score_boundaries(
    split: Callable[[str, str], list[int]], documents: list[tuple[str, set[int]]]
) -> tuple[float, float, float]:
    """Return precision, recall and F1 of boundaries."""
    boundaries = [({*split(text, "en")} - {0}, gold) for text, gold in documents]
    correct = sum(len(ours & gold) for ours, gold in boundaries)
    precision = correct / sum(len(ours) for ours, _ in boundaries)
    recall = correct / sum(len(gold) for _, gold in boundaries)
    return precision, recall, 2 * precision * recall / (precision + recall)


def measure_rate(split: Callable[[str, str], list[int]], documents: list[tuple[str, set[int]]]) -> float:
    """Return megabytes of text per second of CPU time, the best of five rounds."""
    size = sum(len(text.encode()) for text, _ in documents) / 1e6
    return size / min(common.measure_seconds(lambda: [split(text, "en") for text, _ in documents]) for _ in range(5))


def read_pages() -> list[tuple[str, set[int]]]:
    """Return pages of Wikipedia, which have no annotated sentences."""
    if not common.find_data("corpora/wikipedia-en/valid.txt.xz").exists():
        return []
    return [(text, set[int]()) for text in common.read_corpus("wikipedia-en/valid").split("\n\n")]


def main() -> None:
    """Print scores and speed of both splitters."""
    parser = common.build_parser(__doc__)
    parser.add_argument("--part", choices=["train", "dev", "test"], default="test")
    options = parser.parse_args()
    path = common.find_data(f"tasks/ud_ewt/en_ewt-ud-{options.part}.conllu.gz")
    if not path.exists():
        print(f"skipped: needs {path} (set PRETUNE_DATA)")
        return
    result: dict[str, dict[str, float]] = {}
    for layout, documents in (
        ("spaces", read_documents(path, False)),
        ("paragraphs", read_documents(path, True)),
        ("wikipedia", read_pages()),
    ):
        boundaries = sum(len(gold) for _, gold in documents)
        print(f"{layout}: {len(documents)} documents, {boundaries} boundaries")
        for name in ("naive", "rules") if documents else ():
            split = SPLITTERS.get(name)
            values = {"megabytes_per_second": measure_rate(split, documents)}
            if boundaries:
                values |= zip(("precision", "recall", "F1"), score_boundaries(split, documents), strict=True)
            result[f"{layout}, {name}"] = values
            print(f"  {name:6}", *(f"{key} {value:.4f}" for key, value in values.items()), sep="  ")
    common.write_result(result, options.out)


if __name__ == "__main__":
    main()
