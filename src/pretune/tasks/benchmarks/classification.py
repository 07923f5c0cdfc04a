"""Classification of texts and of pairs of texts, and SICK's scores.

Texts: IMDb (and its counterfactual part), AG News, SST-5, MR, MPQA, TREC and Emotion. Pairs are natural language
inference: SNLI, ANLI, SciTail (premise, hypothesis, label), and SICK, with relatedness scores.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from pretune.core.errors import DataError
from pretune.tasks.benchmarks.readers import (
    Csv,
    Fields,
    LabelledLines,
    RowReader,
    Splits,
    build_task,
    list_files,
    read_label_index,
)
from pretune.tasks.example import Example
from pretune.tasks.table import TableRow, Tsv, read_text
from pretune.tasks.task import SplitFile

_POLARITY = ("negative", "positive")


def read_reviews(path: Path) -> Iterator[Example]:
    """Yield one text per file, from a folder per label."""
    for label, name in enumerate(("neg", "pos")):
        files = sorted((path / name).glob("*.txt"))
        if not files:
            raise DataError(f"{path / name}: no .txt files; expected one folder per label: neg, pos")
        for file in files:
            yield Example(text="".join(read_text(file)), label=label, id=f"{name}/{file.stem}")


IMDB = build_task(
    "imdb",
    "imdb sentence: {text}",
    list_files(read_reviews, train="train", test="test"),
    labels=_POLARITY,
    folders=("imdb", "aclImdb"),
)
"""IMDb: sentiment of film reviews, as published in folders (Maas et al., 2011)"""

_imdb_cf = RowReader(
    table=Tsv(has_quotes=True), make=Fields(text="Text", label="Sentiment", labels=("Negative", "Positive"))
)
IMDB_CF = build_task(
    "imdb_cf",
    "imdb sentence: {text}",
    {
        f"{split}{suffix}": (SplitFile(f"{part}_{split}.tsv", _imdb_cf, rows=rows),)
        for part, suffix in (("orig", ""), ("revised", "_revised"))
        for split, rows in (("train", 1707), ("dev", 245), ("test", 488))
    },
    labels=_POLARITY,
)
"""IMDb reviews, and the same edited to the opposite sentiment (Kaushik et al., 2020)"""

_TOPICS = ("World", "Sports", "Business", "Sci/Tech")


def _parse_article(row: TableRow) -> Example:
    return Example(
        text=f"{row.get_text('title')} {row.get_text('description')}",
        label=read_label_index(row, "class", ("1", "2", "3", "4")),
    )


_ag = {
    "*.csv": RowReader(table=Csv(columns=("class", "title", "description")), make=_parse_article),
    "*.tsv": RowReader(table=Tsv(columns=("text", "label")), make=Fields(text="text", label="label", labels=_TOPICS)),
}
AGNEWS = build_task(
    "agnews",
    "agnews sentence: {text}",
    list_files(_ag, train="train.csv | train_subset.tsv 9994 part", test="test.csv | test.tsv 7600"),
    labels=_TOPICS,
    folders=("agnews", "ag_news_csv"),
)
"""AG News: the topic of a news item, one of four (Zhang et al., 2015)"""

_SENTIMENTS = ("very negative", "negative", "neutral", "positive", "very positive")
_sst5 = RowReader(table=LabelledLines(), make=Fields(text="text", label="label", labels=("0", "1", "2", "3", "4")))
SST5 = build_task(
    "sst5",
    "sst5 sentence: {text}",
    list_files(_sst5, train="stsa.fine.train 8544", dev="stsa.fine.dev 1101", test="stsa.fine.test 2210"),
    labels=_SENTIMENTS,
)
"""SST-5: sentiment of sentences in five degrees (Socher et al., 2013)"""

_polarity = RowReader(table=LabelledLines(), make=Fields(text="text", label="label", labels=("0", "1")))
MR = build_task(
    "mr",
    "mr sentence: {text}",
    list_files(_polarity, all="rt-polarity.all 10662"),
    labels=_POLARITY,
)
"""MR: sentiment of sentences of film reviews, in one file (Pang and Lee, 2005)"""


def _parse_phrase(row: TableRow) -> Example | None:
    """Parse a phrase; three published lines have a label only, and are skipped."""
    return _polarity.make(row) if row.get("text").strip() else None


MPQA = build_task(
    "mpqa",
    "mpqa sentence: {text}",
    list_files(RowReader(table=LabelledLines(), make=_parse_phrase), all="mpqa.all 10603"),
    labels=_POLARITY,
)
"""MPQA: polarity of phrases of opinion, in one file (Wiebe et al., 2005)"""

_QUESTION_TYPES = ("ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM")


def _parse_question(row: TableRow) -> Example:
    coarse, colon, fine = row.get_text("label").partition(":")
    if coarse not in _QUESTION_TYPES or not colon:
        raise DataError(
            f"{row.location}: label must be COARSE:fine with COARSE one of {', '.join(_QUESTION_TYPES)}, "
            f"got {row.get_text('label')[:40]!r}"
        )
    return Example(text=row.get_text("text"), label=_QUESTION_TYPES.index(coarse), facts={"fine": fine})


# NOTE: the published files are not UTF-8.
_trec = RowReader(table=LabelledLines(encoding="latin-1"), make=_parse_question)
TREC = build_task(
    "trec",
    "trec sentence: {text}",
    list_files(_trec, train="train_5500.label", test="TREC_10.label"),
    labels=_QUESTION_TYPES,
    folders=("trec", "TREC"),
)
"""TREC: the type of a question, one of six coarse classes (Li and Roth, 2002)"""

_EMOTIONS = ("sadness", "joy", "love", "anger", "fear", "surprise")
_emotion = RowReader(make=Fields(text="text", label="label", labels=_EMOTIONS))
EMOTION = build_task(
    "emotion",
    "emotion sentence: {text}",
    list_files(_emotion, train="train.jsonl 16000", dev="validation.jsonl 2000", test="test.jsonl 2000"),
    labels=_EMOTIONS,
    metrics=("accuracy", "f1_macro"),
)
"""Emotion: the emotion of a tweet, one of six (Saravia et al., 2018)"""

_NLI_LABELS = ("entailment", "neutral", "contradiction")
_SCITAIL_LABELS = ("entailment", "not_entailment")


_nli_fields = Fields(text="premise", pair="hypothesis", label="label", labels=_NLI_LABELS)
_snli_fields = replace(_nli_fields, text="sentence1", pair="sentence2", label="gold_label")


def _parse_snli(row: TableRow) -> Example | None:
    """Parse a row of SNLI's own files; None for the label "-", where the annotators did not agree."""
    return None if row.get("gold_label") == "-" else replace(_snli_fields, id="pairID")(row)


_snli = {
    "snli_1.0_*.jsonl": RowReader(make=_parse_snli),
    "*.jsonl": RowReader(make=_nli_fields),
    "*_tokenized.tsv": RowReader(table=Tsv(columns=("label", "premise", "hypothesis")), make=_nli_fields),
    "*.tsv": RowReader(make=_snli_fields),
}
SNLI = build_task(
    "snli",
    "snli hypothesis: {pair} premise: {text}",
    list_files(
        _snli,
        train="snli_1.0_train.jsonl | train_subset.jsonl 19999 part",
        dev="snli_1.0_dev.jsonl | dev.jsonl 9842",
        test="snli_1.0_test.jsonl | test_sample_400.tsv 400 part",
        test_tokenized="test_sample_1000_tokenized.tsv 1000 part",
    ),
    labels=_NLI_LABELS,
    folders=("snli", "snli_1.0"),
)
"""SNLI: does a caption follow from, or contradict, another? (Bowman et al., 2015)"""

ANLI = build_task(
    "anli",
    "anli hypothesis: {pair} premise: {text}",
    list_files(RowReader(make=replace(_nli_fields, group="tag")), test="test.jsonl 3200"),
    labels=_NLI_LABELS,
)
"""ANLI: adversarial inference, written by people in three rounds (Nie et al., 2020)"""

SCITAIL = build_task(
    "scitail",
    "scitail hypothesis: {pair} premise: {text}",
    list_files(RowReader(make=replace(_nli_fields, labels=_SCITAIL_LABELS)), test="test.jsonl 2126"),
    labels=_SCITAIL_LABELS,
)
"""SciTail: does a science question's answer follow from a sentence? (Khot et al., 2018)"""


def _parse_part(make: Fields, part: str, row: TableRow) -> Example | None:
    """Parse a row of SICK's single file; None for the rows of the other splits."""
    return make(row) if row.get_text("SemEval_set").strip() == part else None


def _list_sick_files(make: Fields, make_of_single_file: Fields) -> Splits:
    """Return the three splits: in one file (9,840 pairs), or in the files of SemEval (9,927)."""
    separate_files = RowReader(table=Tsv(), make=make)
    return {
        split: (
            SplitFile("SICK.txt", RowReader(table=Tsv(), make=partial(_parse_part, make_of_single_file, part))),
            SplitFile(f"SICK_{file}.txt", separate_files),
        )
        for split, part, file in (
            ("train", "TRAIN", "train"),
            ("dev", "TRIAL", "trial"),
            ("test", "TEST", "test_annotated"),
        )
    }


_sick = Fields(text="sentence_A", pair="sentence_B", label="relatedness_score", scale=(1.0, 5.0), id="pair_ID")
SICK = build_task(
    "sick",
    "sick sentence1: {text} sentence2: {pair}",
    _list_sick_files(_sick, _sick),
    metrics=("pearson", "spearman", "mean_squared_error"),
    scale=(1.0, 5.0),
    folders=("sick", "SICK"),
)
"""SICK-R: how related are two sentences, from 1 to 5? (Marelli et al., 2014)"""

_sick_entailment = replace(
    _sick, label="entailment_judgment", labels=tuple(label.upper() for label in _NLI_LABELS), scale=None
)
SICK_ENTAILMENT = build_task(
    "sick_entailment",
    "sick hypothesis: {pair} premise: {text}",
    _list_sick_files(_sick_entailment, replace(_sick_entailment, label="entailment_label")),
    labels=_NLI_LABELS,
    folders=("sick", "SICK"),
)
"""SICK-E: does the second sentence follow from the first? (Marelli et al., 2014)"""
