"""Coreference: documents with clusters of mentions, as columns (Pradhan et al., 2012) or JSONL; OntoNotes.

A mention is a span of words within a sentence: its first and its last word, counted from 0 in the document, both
inclusive. Columns have the word at index 3 and the brackets of mentions in the last column; every part of a document is
an example of its own, as in the published evaluation.

    #begin document (bc/cctv/00/cctv_0000); part 000
    bc/cctv/00/cctv_0000   0   0   Anna    …   (7)
    bc/cctv/00/cctv_0000   0   1   sold    …   -
    bc/cctv/00/cctv_0000   0   2   her     …   (7)|(2
    bc/cctv/00/cctv_0000   0   3   car     …   2)

    #end document

A line of JSONL is a document, with `sentences` (lists of words) or a flat list of `words`, and `clusters`. It may have
an `id` (or `doc_key`).

    {"sentences": [["Anna", "sold", "her", "car"]], "clusters": [[[0, 0], [2, 2]], [[2, 3]]]}
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.tasks.benchmarks.conll import read_sentences
from pretune.tasks.benchmarks.readers import list_files
from pretune.tasks.example import Clusters, Example, Mention
from pretune.tasks.table import BlankCellError, TableRow, data_error
from pretune.tasks.table_reader import TableReader
from pretune.tasks.task import Reader, Task

WORD = 3
"""Column of the word."""
SENTENCE_ENDS = frozenset((".", "?", "!"))
"""Words that end a sentence of a flat list of words."""
_HEADER = re.compile(r"#begin document \((.+)\); part (\d+)")
_BRACKET = re.compile(r"(\()?([^()|]+)(\))?")
Line = tuple[str, list[str]]
"""Location and cells of a line."""


def check_clusters(clusters: Sequence[Sequence[Mention]], words: Sequence[str], location: str) -> Clusters:
    """Return the clusters in the order of their first mentions, and these in that of their words.

    Raises DataError for an empty cluster, and for a mention that is outside of the document, or that occurs twice.
    """
    owners: dict[Mention, int] = {}
    for number, cluster in enumerate(clusters):
        if not cluster:
            raise data_error(f"{location}: cluster {number} has no mention; remove it")
        for mention in cluster:
            first, last = mention
            if not 0 <= first <= last < len(words):
                raise data_error(
                    f"{location}: the mention [{first}, {last}] must be a first and a last word of the document, from "
                    f"0 to {len(words) - 1}, both inclusive"
                )
            if mention in owners:
                place = "twice in a cluster" if owners[mention] == number else "in two clusters"
                raise data_error(
                    f"{location}: the mention {' '.join(words[first : last + 1])[:40]!r} [{first}, {last}] is {place}; "
                    "a mention may occur only once"
                )
            owners[mention] = number
    return tuple(sorted(tuple(sorted(cluster)) for cluster in clusters))


@spec
class CoreferenceReader:
    """A reader of CoNLL-2012 columns."""

    def __call__(self, path: Path) -> Iterator[Example]:
        last_parts: dict[str, int] = {}
        header: Line | None = None
        sentences: list[list[Line]] = []
        for _, block in read_sentences(path):
            sentence: list[Line] = []
            for line, cells in [*block, (0, [])]:  # the last ends the sentence
                location = f"{path}:{line}"
                if sentence and (not cells or cells[0] in ("#begin", "#end")):
                    sentences.append(sentence)
                    sentence = []
                match cells[:1]:
                    case ["#begin"] if header is not None:
                        raise DataError(f"{location}: a document begins before '#end document' of {header[0]}")
                    case ["#begin"]:
                        header, sentences = (location, cells), []
                    case [first] if header is None:
                        raise DataError(f"{location}: expected '#begin document (NAME); part 000', got {first[:40]!r}")
                    case ["#end"] if header is not None:
                        example = _build_example(header, sentences, last_parts)
                        if example.words:
                            yield example
                        header = None
                    case [_]:
                        sentence.append((location, cells))
        if header is not None:
            raise DataError(f"{header[0]}: the document has no '#end document'")


def _build_example(header: Line, sentences: Sequence[Sequence[Line]], last_parts: dict[str, int]) -> Example:
    """Return a part of a document as an example; `last_parts` has the last one of each document."""
    location, text = header[0], " ".join(header[1])
    match = _HEADER.fullmatch(text)
    if match is None:
        raise DataError(f"{location}: expected '#begin document (NAME); part 000', got {text[:60]!r}")
    name, number = match[1], int(match[2])
    if number <= last_parts.get(name, -1):
        raise DataError(
            f"{location}: part {number} of '{name[:60]}' comes after part {last_parts[name]}; every part must occur "
            "once, in ascending order"
        )
    last_parts[name] = number
    words: list[str] = []
    clusters: dict[str, list[Mention]] = {}
    for sentence in sentences:
        _read_brackets(sentence, len(words), clusters)
        words += [cells[WORD] for _, cells in sentence]
    return Example(
        text=" ".join(words),
        words=tuple(words),
        sentences=tuple(map(len, sentences)),
        clusters=check_clusters([*clusters.values()], words, location),
        id=f"{name} {number}",
        group=name,
    )


def _read_brackets(sentence: Sequence[Line], start: int, clusters: dict[str, list[Mention]]) -> None:
    """Add the mentions of a sentence, which begins at the word `start`, to those of their clusters."""
    open_brackets: dict[str, list[tuple[str, int]]] = {}
    for place, (location, cells) in enumerate(sentence, start=start):
        if len(cells) < WORD + 2:
            needs = f"the word at index {WORD} and the clusters last"
            raise DataError(f"{location}: expected at least {WORD + 2} columns, {needs}, got {len(cells)}")
        for part in [] if cells[-1] in ("-", "_") else cells[-1].split("|"):
            match = _BRACKET.fullmatch(part)
            if match is None or not (match[1] or match[3]):
                raise DataError(f"{location}: '{part[:40]}' is no bracket of a cluster, such as '(7', '7)' or '(7)'")
            stack = open_brackets.setdefault(match[2], [])
            if match[1]:
                stack.append((location, place))
            if match[3] and not stack:
                raise DataError(f"{location}: '{part[:40]}' closes a bracket that is not open in its sentence")
            if match[3]:
                clusters.setdefault(match[2], []).append((stack.pop()[1], place))
    for cluster, stack in open_brackets.items():
        if stack:
            raise DataError(f"{stack[-1][0]}: the bracket of cluster {cluster[:40]} is not closed in its sentence")


@spec
class DocumentReader(TableReader):
    """A reader of JSONL: the columns of the sentences (or words) and of the clusters."""

    text: str = "sentences"
    label: str = "clusters"

    def parse_row(self, row: TableRow) -> Example:
        words, sentences = read_sentence_lists(row.require(self.text), row.location, self.text)
        value = row.get(self.label)
        if value is None:
            raise BlankCellError(row.location, self.label)
        return Example(
            text=" ".join(words),
            words=words,
            sentences=sentences,
            clusters=check_clusters(_read_clusters(value, row.location, self.label), words, row.location),
            id=str(row.values.get("doc_key") or row.values.get("id") or row.number),
        )

    @property
    def input_columns(self) -> tuple[str | None, str | None]:
        return None, None


def read_sentence_lists(value: object, location: str, column: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the words of a document and the number of them in each sentence, from lists of words or a flat list.

    >>> read_sentence_lists(["It", "rained", ".", "We", "left"], "a.jsonl:1", "words")
    (('It', 'rained', '.', 'We', 'left'), (3, 2))
    """
    rows: list[Any] = [*value] if isinstance(value, list | tuple) else []
    if rows and all(isinstance(word, str) for word in rows):
        ends = [place for place, word in enumerate(rows, start=1) if word in SENTENCE_ENDS or place == len(rows)]
        return tuple(rows), tuple(end - start for start, end in zip([0, *ends], ends, strict=False))
    is_list = all(isinstance(row, list | tuple) and all(isinstance(word, str) for word in row) for row in rows)
    sentences: list[Sequence[str]] = [row for row in rows if row] if is_list else []
    if not sentences:
        raise data_error(f"{location}: '{column}' must be a list of sentences, each a list of words; got {value!r:.60}")
    return tuple(word for sentence in sentences for word in sentence), tuple(map(len, sentences))


def _read_clusters(value: Any, location: str, column: str) -> list[list[Mention]]:
    """Return the clusters of a row as written."""
    clusters: list[Any] = value if isinstance(value, list) else [None]
    mentions = [mention for cluster in clusters for mention in (cluster if isinstance(cluster, list) else [None])]
    for mention in mentions:
        if not isinstance(mention, list) or len(mention) != 2 or any(type(place) is not int for place in mention):
            raise data_error(
                f"{location}: '{column}' must be a list of clusters, each a list of mentions [first, last word]; got "
                f"{value!r:.60}"
            )
    return [[(first, last) for first, last in cluster] for cluster in clusters]


_READERS: dict[str, Reader] = {"*.jsonlines": DocumentReader(), "*": CoreferenceReader()}
CONLL2012_COREF = Task(
    name="conll2012_coref",
    kind="coreference",
    metrics=("coreference",),
    folders=("conll2012_coref", "conll-2012", "conll2012"),
    splits=list_files(
        _READERS,
        train="train.english.v4_gold_conll | train.english.jsonlines | **/train/data/english/**/*gold_conll",
        dev="dev.english.v4_gold_conll | dev.english.jsonlines | **/development/data/english/**/*gold_conll",
        test="test.english.v4_gold_conll | test.english.jsonlines | **/test/data/english/**/*gold_conll",
    ),
    group_field="group",
)
"""CoNLL-2012: mentions of the same thing in OntoNotes 5 (Pradhan et al., 2012)"""
