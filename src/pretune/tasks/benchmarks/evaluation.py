"""Evaluation without training: similarity, retrieval, minimal pairs (BLiMP), last words (LAMBADA), and our own gaps.

Similarity is STS of SemEval 2012 to 2016 (Agirre et al.): a year has several sets, one per file; `group` is the set.
STS-B is a selection from these sets. Retrieval is Cranfield (Cleverdon, 1967) and the captions of Multi30k.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from pretune.core.errors import DataError
from pretune.tasks.benchmarks.readers import Fields, RowReader, build_task, list_files, read_score
from pretune.tasks.example import Example
from pretune.tasks.table import TableRow, Tsv, read_lines
from pretune.tasks.task import SplitFile, Task

SCALE = (0.0, 5.0)
"""From unrelated to equivalent."""


def read_sts(path: Path) -> Iterator[Example]:
    """Yield every pair of a file, with year and set as the group."""
    group = ".".join(path.name.split(".")[:2])
    for row in Tsv(columns=("score", "sentence1", "sentence2")).read_rows(path):
        yield Example(
            text=row.get_text("sentence1"),
            pair=row.get_text("sentence2"),
            label=read_score(row, "score", SCALE),
            group=group,
        )


def build_sts_task(name: str, files: str, rows: int) -> Task:
    """Return the task of a year's test sets, or of all years."""
    parts = {"test": f"{files}.test.tsv {rows}"}
    if files in ("2012.*", "*"):
        parts = {"train": "2012.*.train.tsv 2234", **parts}
    return build_task(
        name,
        "stsb sentence1: {text} sentence2: {pair}",
        list_files(read_sts, **parts),
        metrics=("spearman", "pearson"),
        scale=SCALE,
        folders=("sts12-16",),
    )


STS12 = build_sts_task("sts12", "2012.*", 3108)
"""STS 2012: paraphrases, video captions and translations, scored from 0 to 5"""
STS13 = build_sts_task("sts13", "2013.*", 1500)
"""STS 2013: definitions and headlines (without the set SMT, which is not freely available)"""
STS14 = build_sts_task("sts14", "2014.*", 3750)
"""STS 2014: forums, news, headlines, captions, definitions and tweets"""
STS15 = build_sts_task("sts15", "2015.*", 3000)
"""STS 2015: answers of forums and students, beliefs, headlines and captions"""
STS16 = build_sts_task("sts16", "2016.*", 1186)
"""STS 2016: answers, headlines, plagiarism, post-edited translations and questions"""
STS = build_sts_task("sts12-16", "*", 12544)
"""STS 2012 to 2016, all sets"""


def read_documents(path: Path) -> Iterator[Example]:
    """Yield every document: its text, which begins with its title; two have neither."""
    for number, fields in _read_entries(path):
        text = " ".join(fields.get(".W", [])) or " ".join(fields.get(".T", []))
        yield Example(text=text or "(no text)", id=number)


def read_queries(path: Path) -> Iterator[Example]:
    """Yield every query, with the ids of its relevant documents as answers."""
    relevant: dict[str, list[str]] = {}
    relevance_file = path.with_name(path.name.replace("cran.qry", "cranqrel"))
    for number, line in read_lines(relevance_file):
        cells = line.split()
        if cells and len(cells) != 3:
            raise DataError(f"{relevance_file}:{number}: expected query, document and code, got {line[:40]!r}")
        if cells:
            relevant.setdefault(cells[0], []).append(cells[1])
    for place, (_, fields) in enumerate(_read_entries(path), start=1):
        yield Example(text=" ".join(fields[".W"]), answers=tuple(relevant.get(str(place), ())), id=str(place))


def _read_entries(path: Path) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Yield (number, lines by field) of every entry."""
    number, field = "", ""
    fields: dict[str, list[str]] = {}
    for line, text in read_lines(path):
        if text.startswith(".I"):
            if number:
                yield number, fields
            number, fields = text[2:].strip(), {}
        elif text.strip() in (".T", ".A", ".B", ".W"):
            field = text.strip()
        elif text.strip():
            if not number or not field:
                raise DataError(f"{os.fspath(path)}:{line}: expected .I and a field before text, got {text[:40]!r}")
            fields.setdefault(field, []).append(text.strip())
    if number:
        yield number, fields


CRANFIELD = Task(
    name="cranfield",
    kind="retrieval",
    metrics=("ndcg", "recall", "mrr"),
    splits=list_files(
        {"cran.qry": read_queries, "cran.all.*": read_documents},
        test="cran.qry 225",
        documents="cran.all.1400 1400",
    ),
)
"""Cranfield: which of 1,400 abstracts answer a query? (Cleverdon, 1967)"""


def read_numbered_lines(path: Path) -> Iterator[Example]:
    """Yield every line, whose relevant document is the line with the same number."""
    for number, text in read_lines(path):
        yield Example(text=text, answers=(str(number),), id=str(number))


MULTI30K_LINES = Task(
    name="multi30k_lines",
    kind="retrieval",
    metrics=("mrr", "recall", "ndcg"),
    folders=("multi30k",),
    splits=list_files(read_numbered_lines, test="test_2016_flickr.de 1000", documents="test_2016_flickr.en 1000"),
)
"""Multi30k: which of 1,000 English captions is the translation of a German one?"""


_blimp = RowReader(
    make=Fields(text="sentence_good", pair="sentence_bad", group="UID", id="pairID", facts=("linguistics_term",))
)
BLIMP = Task(
    name="blimp",
    kind="pairs",
    metrics=("choice_accuracy",),
    splits=list_files(_blimp, test="*.jsonl 67000"),
)
"""BLiMP: minimal pairs; the grammatical sentence should be more likely (Warstadt et al., 2020)"""


def _split_last_word(text: str, location: str) -> Example:
    context, space, last_word = text.rpartition(" ")
    if not space:
        raise DataError(f"{location}: expected a passage and its last word, got one word")
    return Example(text=context, target=last_word)


def _parse_lambada(row: TableRow) -> Example:
    return _split_last_word(row.get_text("text"), row.location)


def _read_plain_text(path: Path) -> Iterator[Example]:
    return (_split_last_word(text.strip(), f"{path}:{number}") for number, text in read_lines(path) if text.strip())


LAMBADA = Task(
    name="lambada",
    kind="cloze",
    metrics=("accuracy",),
    splits=list_files(
        {"*.jsonl": RowReader(make=_parse_lambada), "*.txt": _read_plain_text},
        dev="lambada_development_plain_text.txt 4869",
        test="lambada_test.jsonl 5153",
        test_tokenized="lambada_test_plain_text.txt 5153",
    ),
)
"""LAMBADA: the last word of a passage, which needs more context than the last sentence (Paperno et al., 2016)"""


def _parse_gap(row: TableRow) -> Example:
    """Return a sentence with its choices in alphabetical order, and the one that is most frequent in running text."""
    answer = row.get_text("answer")
    words = [answer, *row.get_text("distractors").split()]
    counts = [int(count) for count in row.get_text("counts").split()]
    choices = tuple(sorted(words))
    return Example(
        text=row.get_text("sentence"),
        choices=choices,
        label=choices.index(answer),
        group=row.get_text("kind"),
        facts={"most_frequent": words[counts.index(max(counts))]},
    )


CLOZE = Task(
    name="cloze",
    kind="cloze-choice",
    metrics=("choice_accuracy",),
    splits={"test": (SplitFile(str(Path(__file__).with_name("cloze.tsv")), RowReader(make=_parse_gap), rows=200),)},
)
"""Gaps with four choices: 10 kinds of 20 sentences, written for pretune and under its licence (Apache-2.0)

`counts` in the file are those of the answer and of the distractors among 44.9 million words of Wikipedia, Wikinews,
novels and children's stories.
"""
