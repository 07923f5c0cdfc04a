"""Natural language inference: SNLI, ANLI, SciTail (premise, hypothesis, label), and SICK, with relatedness scores."""

from dataclasses import dataclass

from pretune.tasks.benchmarks.readers import (
    Fields,
    RowReader,
    Tsv,
    build_task,
    list_files,
    read_label_index,
    read_score,
)
from pretune.tasks.example import Example
from pretune.tasks.table import Jsonl, TableRow
from pretune.tasks.task import SplitFile, Task, Template

_NLI_LABELS = ("entailment", "neutral", "contradiction")
_SCITAIL_LABELS = ("entailment", "not_entailment")


def _parse_snli(row: TableRow) -> Example | None:
    """Parse a row of SNLI's own files; None for the label "-", where the annotators did not agree."""
    if row.get("gold_label") == "-":
        return None
    return Fields(text="sentence1", pair="sentence2", label="gold_label", labels=_NLI_LABELS, id="pairID")(row)


_snli = RowReader(table=Jsonl(), make=_parse_snli)
_snli_plain = RowReader(
    table=Jsonl(), make=Fields(text="premise", pair="hypothesis", label="label", labels=_NLI_LABELS)
)
_snli_sample = RowReader(
    table=Tsv(), make=Fields(text="sentence1", pair="sentence2", label="gold_label", labels=_NLI_LABELS)
)
_snli_tokenized = RowReader(
    table=Tsv(columns=("label", "premise", "hypothesis")),
    make=Fields(text="premise", pair="hypothesis", label="label", labels=_NLI_LABELS),
)
SNLI = build_task(
    "snli",
    "snli hypothesis: {pair} premise: {text}",
    {
        "train": (
            SplitFile("snli_1.0_train.jsonl", _snli),
            SplitFile("train_subset.jsonl", _snli_plain, rows=19999, is_partial=True),
        ),
        "dev": (SplitFile("snli_1.0_dev.jsonl", _snli), SplitFile("dev.jsonl", _snli_plain, rows=9842)),
        "test": (
            SplitFile("snli_1.0_test.jsonl", _snli),
            SplitFile("test_sample_400.tsv", _snli_sample, rows=400, is_partial=True),
        ),
        "test_tokenized": (SplitFile("test_sample_1000_tokenized.tsv", _snli_tokenized, rows=1000, is_partial=True),),
    },
    labels=_NLI_LABELS,
    folders=("snli", "snli_1.0"),
)
"""SNLI: does a caption follow from, or contradict, another? (Bowman et al., 2015)"""

_anli = RowReader(
    table=Jsonl(), make=Fields(text="premise", pair="hypothesis", label="label", labels=_NLI_LABELS, group="tag")
)
ANLI = build_task(
    "anli",
    "anli hypothesis: {pair} premise: {text}",
    list_files(_anli, test="test.jsonl 3200"),
    labels=_NLI_LABELS,
)
"""ANLI: adversarial inference, written by people in three rounds (Nie et al., 2020)"""

_scitail = RowReader(
    table=Jsonl(), make=Fields(text="premise", pair="hypothesis", label="label", labels=_SCITAIL_LABELS)
)
SCITAIL = build_task(
    "scitail",
    "scitail hypothesis: {pair} premise: {text}",
    list_files(_scitail, test="test.jsonl 2126"),
    labels=_SCITAIL_LABELS,
)
"""SciTail: does a science question's answer follow from a sentence? (Khot et al., 2018)"""


@dataclass(frozen=True)
class _SickParser:
    """Parser of a row of SICK with the label of either task; `split` if one file has all three."""

    is_regression: bool
    label_column: str
    split: str | None = None

    def __call__(self, row: TableRow) -> Example | None:
        if self.split is not None and row.get_text("SemEval_set").strip() != self.split:
            return None
        label = (
            read_score(row, "relatedness_score", (1.0, 5.0))
            if self.is_regression
            else read_label_index(row, self.label_column, tuple(label.upper() for label in _NLI_LABELS))
        )
        return Example(
            text=row.get_text("sentence_A"), pair=row.get_text("sentence_B"), label=label, id=row.get("pair_ID")
        )


def _build_sick_splits(is_regression: bool) -> dict[str, tuple[SplitFile, ...]]:
    """Return the three splits: in one file (9,840 pairs), or in the files of SemEval (9,927)."""
    names = {"train": ("TRAIN", "train"), "dev": ("TRIAL", "trial"), "test": ("TEST", "test_annotated")}
    single_file = {split: _SickParser(is_regression, "entailment_label", name) for split, (name, _) in names.items()}
    separate_files = RowReader(table=Tsv(), make=_SickParser(is_regression, "entailment_judgment"))
    return {
        split: (
            SplitFile("SICK.txt", RowReader(table=Tsv(), make=single_file[split])),
            SplitFile(f"SICK_{file}.txt", separate_files),
        )
        for split, (name, file) in names.items()
    }


SICK = Task(
    name="sick",
    kind="regression",
    metrics=("pearson", "spearman", "mean_squared_error"),
    scale=(1.0, 5.0),
    folders=("sick", "SICK"),
    splits=_build_sick_splits(is_regression=True),
    template=Template(source="sick sentence1: {text} sentence2: {pair}", target="{score}"),
)
"""SICK-R: how related are two sentences, from 1 to 5? (Marelli et al., 2014)"""

SICK_ENTAILMENT = build_task(
    "sick_entailment",
    "sick hypothesis: {pair} premise: {text}",
    _build_sick_splits(is_regression=False),
    labels=_NLI_LABELS,
    folders=("sick", "SICK"),
)
"""SICK-E: does the second sentence follow from the first? (Marelli et al., 2014)"""
