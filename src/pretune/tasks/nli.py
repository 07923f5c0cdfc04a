"""More language inference: SNLI, ANLI and SciTail, each a premise, a hypothesis and a label; and SICK, which has scores
of relatedness, too."""

from dataclasses import dataclass

from pretune.tasks.example import Example
from pretune.tasks.table_rows import Fields, Jsonl, Row, Rows, Tsv, index, score
from pretune.tasks.task import File, Split, Task
from pretune.tasks.template import Template

_THREE = ("entailment", "neutral", "contradiction")
_SCITAIL = ("entailment", "not_entailment")


def _published(row: Row) -> Example | None:
    """A row of SNLI's own files; "-" means that the annotators did not agree, and such rows are left out."""
    if row.get("gold_label") == "-":
        return None
    return Fields(text="sentence1", pair="sentence2", label="gold_label", labels=_THREE, id="pairID")(row)


_snli = Rows(table=Jsonl(), make=_published)
_plain = Rows(table=Jsonl(), make=Fields(text="premise", pair="hypothesis", label="label", labels=_THREE))
_sample = Rows(table=Tsv(), make=Fields(text="sentence1", pair="sentence2", label="gold_label", labels=_THREE))
_tokenized = Rows(
    table=Tsv(columns=("label", "premise", "hypothesis")),
    make=Fields(text="premise", pair="hypothesis", label="label", labels=_THREE),
)
SNLI = Task(
    name="snli",
    kind="pair",
    metrics=("accuracy",),
    labels=_THREE,
    folders=("snli", "snli_1.0"),
    splits={
        "train": Split(
            published="train",
            files=(
                File(path="snli_1.0_train.jsonl", read=_snli),
                File(path="train_subset.jsonl", read=_plain, rows=19999, partial=True),
            ),
        ),
        "dev": Split(
            published="dev",
            files=(File(path="snli_1.0_dev.jsonl", read=_snli), File(path="dev.jsonl", read=_plain, rows=9842)),
        ),
        "test": Split(
            published="test",
            files=(
                File(path="snli_1.0_test.jsonl", read=_snli),
                File(path="test_sample_400.tsv", read=_sample, rows=400, partial=True),
            ),
        ),
        "test_tokenized": Split(
            published="1000 pairs of test",
            files=(File(path="test_sample_1000_tokenized.tsv", read=_tokenized, rows=1000, partial=True),),
        ),
    },
    template=Template(source="snli hypothesis: {pair} premise: {text}", targets=_THREE),
)
"""SNLI: does a caption follow from, or contradict, another? (Bowman et al., 2015)"""

_anli = Rows(table=Jsonl(), make=Fields(text="premise", pair="hypothesis", label="label", labels=_THREE, group="tag"))
ANLI = Task(
    name="anli",
    kind="pair",
    metrics=("accuracy",),
    labels=_THREE,
    splits={"test": Split(published="test (R1, R2, R3)", files=(File(path="test.jsonl", read=_anli, rows=3200),))},
    template=Template(source="anli hypothesis: {pair} premise: {text}", targets=_THREE),
)
"""ANLI: inference that people wrote to deceive models, in three rounds (Nie et al., 2020)"""

_scitail = Rows(table=Jsonl(), make=Fields(text="premise", pair="hypothesis", label="label", labels=_SCITAIL))
SCITAIL = Task(
    name="scitail",
    kind="pair",
    metrics=("accuracy",),
    labels=_SCITAIL,
    splits={"test": Split(published="test", files=(File(path="test.jsonl", read=_scitail, rows=2126),))},
    template=Template(source="scitail hypothesis: {pair} premise: {text}", targets=_SCITAIL),
)
"""SciTail: does a science question's answer follow from a sentence? (Khot et al., 2018)"""


@dataclass(frozen=True)
class _Sick:
    """A row of SICK with the label of either task; `split` where one file has all three."""

    scored: bool
    entailment: str  # what the column is called
    split: str | None = None

    def __call__(self, row: Row) -> Example | None:
        if self.split is not None and row.text("SemEval_set").strip() != self.split:
            return None
        label = (
            score(row, "relatedness_score", (1.0, 5.0))
            if self.scored
            else index(row, self.entailment, tuple(label.upper() for label in _THREE))
        )
        return Example(text=row.text("sentence_A"), pair=row.text("sentence_B"), label=label, id=row.get("pair_ID"))


def _sick(scored: bool) -> dict[str, Split]:
    """The three splits: in one file (9,840 pairs), or in those that SemEval gave its competitors (9,927)."""
    names = {"train": ("TRAIN", "train"), "dev": ("TRIAL", "trial"), "test": ("TEST", "test_annotated")}
    whole = {split: _Sick(scored, "entailment_label", name) for split, (name, _) in names.items()}
    apart = Rows(table=Tsv(), make=_Sick(scored, "entailment_judgment"))
    return {
        split: Split(
            published=name,
            files=(
                File(path="SICK.txt", read=Rows(table=Tsv(), make=whole[split])),
                File(path=f"SICK_{file}.txt", read=apart),
            ),
        )
        for split, (name, file) in names.items()
    }


SICK = Task(
    name="sick",
    kind="regression",
    metrics=("pearson", "spearman", "mean_squared_error"),
    scale=(1.0, 5.0),
    folders=("sick", "SICK"),
    splits=_sick(scored=True),
    template=Template(source="sick sentence1: {text} sentence2: {pair}", target="{score}"),
)
"""SICK-R: how related are two sentences, from 1 to 5? (Marelli et al., 2014)"""

SICK_ENTAILMENT = Task(
    name="sick_entailment",
    kind="pair",
    metrics=("accuracy",),
    labels=_THREE,
    folders=("sick", "SICK"),
    splits=_sick(scored=False),
    template=Template(source="sick hypothesis: {pair} premise: {text}", targets=_THREE),
)
"""SICK-E: does the second sentence follow from the first? (Marelli et al., 2014)"""
