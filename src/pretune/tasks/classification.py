"""One text, one label: IMDb (and its counterfactual part), AG News, SST-5, MR, MPQA, TREC and Emotion."""

from collections.abc import Iterator
from pathlib import Path

from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.tasks.example import Example
from pretune.tasks.table_rows import Csv, Fields, Jsonl, Labelled, Row, Rows, Tsv, index, text_of
from pretune.tasks.task import File, Split, Task
from pretune.tasks.template import Template

_POLARITY = ("negative", "positive")


@spec
class Folders:
    """A reader of one text per file, in a folder per label."""

    names: tuple[str, ...]

    def __call__(self, path: Path) -> Iterator[Example]:
        for label, name in enumerate(self.names):
            files = sorted((path / name).glob("*.txt"))
            if not files:
                raise DataError(
                    f"{path / name}: no .txt files; a folder for each of {', '.join(self.names)} is expected"
                )
            for file in files:
                yield Example(text="".join(text_of(file)), label=label, id=f"{name}/{file.stem}")


_reviews = Folders(names=("neg", "pos"))
IMDB = Task(
    name="imdb",
    kind="classification",
    metrics=("accuracy",),
    labels=_POLARITY,
    folders=("imdb", "aclImdb"),
    splits={
        "train": Split(published="train", files=(File(path="train", read=_reviews),)),
        "test": Split(published="test", files=(File(path="test", read=_reviews),)),
    },
    template=Template(source="imdb sentence: {text}", targets=_POLARITY),
)
"""IMDb: sentiment of whole film reviews, as published in folders (Maas et al., 2011)"""

_imdb_cf = Rows(table=Tsv(quoted=True), make=Fields(text="Text", label="Sentiment", labels=("Negative", "Positive")))
IMDB_CF = Task(
    name="imdb_cf",
    kind="classification",
    metrics=("accuracy",),
    labels=_POLARITY,
    splits={
        f"{split}{suffix}": Split(
            published=f"{part} {split}", files=(File(path=f"{part}_{split}.tsv", read=_imdb_cf, rows=rows),)
        )
        for part, suffix in (("orig", ""), ("revised", "_revised"))
        for split, rows in (("train", 1707), ("dev", 245), ("test", 488))
    },
    template=Template(source="imdb sentence: {text}", targets=_POLARITY),
)
"""IMDb reviews, and the same edited so that their sentiment flips (Kaushik et al., 2020)"""

_TOPICS = ("World", "Sports", "Business", "Sci/Tech")


def _article(row: Row) -> Example:
    return Example(
        text=f"{row.text('title')} {row.text('description')}", label=index(row, "class", ("1", "2", "3", "4"))
    )


_ag_csv = Rows(table=Csv(columns=("class", "title", "description")), make=_article)
_ag = Rows(table=Tsv(columns=("text", "label")), make=Fields(text="text", label="label", labels=_TOPICS))
AGNEWS = Task(
    name="agnews",
    kind="classification",
    metrics=("accuracy",),
    labels=_TOPICS,
    folders=("agnews", "ag_news_csv"),
    splits={
        "train": Split(
            published="train",
            files=(
                File(path="train.csv", read=_ag_csv),
                File(path="train_subset.tsv", read=_ag, rows=9994, partial=True),
            ),
        ),
        "test": Split(
            published="test", files=(File(path="test.csv", read=_ag_csv), File(path="test.tsv", read=_ag, rows=7600))
        ),
    },
    template=Template(source="agnews sentence: {text}", targets=_TOPICS),
)
"""AG News: the topic of a news item, one of four (Zhang et al., 2015)"""

_FINE = ("very negative", "negative", "neutral", "positive", "very positive")
_sst5 = Rows(table=Labelled(), make=Fields(text="text", label="label", labels=("0", "1", "2", "3", "4")))
SST5 = Task(
    name="sst5",
    kind="classification",
    metrics=("accuracy",),
    labels=_FINE,
    splits={
        split: Split(published=split, files=(File(path=f"stsa.fine.{split}", read=_sst5, rows=rows),))
        for split, rows in (("train", 8544), ("dev", 1101), ("test", 2210))
    },
    template=Template(source="sst5 sentence: {text}", targets=_FINE),
)
"""SST-5: sentiment of sentences in five degrees (Socher et al., 2013)"""

_polar = Rows(table=Labelled(), make=Fields(text="text", label="label", labels=("0", "1")))
MR = Task(
    name="mr",
    kind="classification",
    metrics=("accuracy",),
    labels=_POLARITY,
    splits={"all": Split(published="all", files=(File(path="rt-polarity.all", read=_polar, rows=10662),))},
    template=Template(source="mr sentence: {text}", targets=_POLARITY),
)
"""MR: sentiment of sentences of film reviews, in one file (Pang and Lee, 2005)"""


def _phrase(row: Row) -> Example | None:
    """A phrase; three published lines have a label and nothing else, and are left out."""
    return _polar.make(row) if row.get("text").strip() else None


_phrases = Rows(table=Labelled(), make=_phrase)
MPQA = Task(
    name="mpqa",
    kind="classification",
    metrics=("accuracy",),
    labels=_POLARITY,
    splits={"all": Split(published="all", files=(File(path="mpqa.all", read=_phrases, rows=10603),))},
    template=Template(source="mpqa sentence: {text}", targets=_POLARITY),
)
"""MPQA: polarity of phrases of opinion, in one file (Wiebe et al., 2005)"""

_QUESTIONS = ("ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM")


def _question(row: Row) -> Example:
    coarse, colon, fine = row.text("label").partition(":")
    if coarse not in _QUESTIONS or not colon:
        raise DataError(f"{row.where}: label {row.text('label')[:40]!r} is not COARSE:fine of {', '.join(_QUESTIONS)}")
    return Example(text=row.text("text"), label=_QUESTIONS.index(coarse), facts={"fine": fine})


_trec = Rows(table=Labelled(encoding="latin-1"), make=_question)  # NOTE: the published files are not UTF-8
TREC = Task(
    name="trec",
    kind="classification",
    metrics=("accuracy",),
    labels=_QUESTIONS,
    folders=("trec", "TREC"),
    splits={
        "train": Split(published="train_5500", files=(File(path="train_5500.label", read=_trec),)),
        "test": Split(published="TREC_10", files=(File(path="TREC_10.label", read=_trec),)),
    },
    template=Template(source="trec sentence: {text}", targets=_QUESTIONS),
)
"""TREC: what a question asks for, one of six coarse classes (Li and Roth, 2002)"""

_EMOTIONS = ("sadness", "joy", "love", "anger", "fear", "surprise")
_emotion = Rows(table=Jsonl(), make=Fields(text="text", label="label", labels=_EMOTIONS))
EMOTION = Task(
    name="emotion",
    kind="classification",
    metrics=("accuracy", "f1_macro"),
    labels=_EMOTIONS,
    splits={
        "train": Split(published="train", files=(File(path="train.jsonl", read=_emotion, rows=16000),)),
        "dev": Split(published="validation", files=(File(path="validation.jsonl", read=_emotion, rows=2000),)),
        "test": Split(published="test", files=(File(path="test.jsonl", read=_emotion, rows=2000),)),
    },
    template=Template(source="emotion sentence: {text}", targets=_EMOTIONS),
)
"""Emotion: which of six a message on Twitter expresses (Saravia et al., 2018)"""
