"""Text of at most ten million words: whole documents of some sources, with a share of the words for each."""

import random
from collections.abc import Iterator, Mapping
from pathlib import Path

from pretune.text.corpora import open_corpus

MAX_WORDS = 10_000_000
"""Limit of BabyLM's strict-small track: words between white space, all text of a run together."""
HELD_OUT = ("valid", "test", "dev")
"""Files of a folder whose names begin so are left out."""


def parse_source(text: str) -> tuple[str, float]:
    """Parse "SOURCE=SHARE"; the share is 1 by default.

    >>> parse_source("books=0.5")
    ('books', 0.5)
    """
    name, _, share = text.partition("=")
    return name, float(share or 1.0)


def read_texts(source: str, folder: Path = Path()) -> Iterator[str]:
    """Yield the documents of a file, of the .txt files of a folder, of `TABLE:FIELD,FIELD`, or of `builtin:reviews`.

    Files may be compressed, and are looked for below `folder`.
    """
    if source.startswith("builtin:"):
        inputs, fields = [source], [None]
    else:
        name, _, columns = source.partition(":")
        fields, path = [*columns.split(",")] if columns else [None], folder / name
        files = [path]
        if path.is_dir():
            files = [file for file in sorted(path.rglob("*.txt*")) if not file.name.startswith(HELD_OUT)]
        inputs = [str(file) for file in files]
        if not inputs or not all(file.exists() for file in files):
            raise SystemExit(f"{path}: no text")
    for field in fields:
        for document in open_corpus(inputs, field=field).read_documents():
            yield document.text.strip()


def count_words(text: str) -> int:
    """Count the words between white space."""
    return len(text.split())


def write_corpus(
    sources: Mapping[str, float], out: Path, *, folder: Path = Path(), words: int = MAX_WORDS, seed: int = 0
) -> dict[str, int]:
    """Write a random selection of whole documents, shuffled, to `out`; returns the words of each source.

    Every source has its share of `words`, or all of its text if that is less. The sum never exceeds `words`. A document
    that repeats one of its source is left out, and blank lines inside of documents are removed.
    """
    if words > MAX_WORDS:
        raise SystemExit(f"{words:,} words are above the limit of {MAX_WORDS:,}")
    total_share, draw = sum(sources.values()), random.Random(seed)
    counts: dict[str, int] = {}
    selection: list[str] = []
    for source, share in sources.items():
        documents, room = [*dict.fromkeys(read_texts(source, folder))], int(words * share / total_share)
        draw.shuffle(documents)
        counts[source] = 0
        for document in documents:
            size = count_words(document)
            if counts[source] + size <= room:
                selection.append("\n".join(line for line in document.splitlines() if line.strip()))
                counts[source] += size
    draw.shuffle(selection)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n\n".join(selection) + "\n", encoding="utf-8")
    written_words = count_words(out.read_text(encoding="utf-8"))
    assert written_words == sum(counts.values()) <= words
    return counts
