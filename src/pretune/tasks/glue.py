"""The nine tasks of GLUE (Wang et al., 2019): tab-separated files, labels in the published order.

The folders may also have the names they have in the published archive (`CoLA`, `SST-2`, …). The labels of GLUE's own
test files are not public; where a labelled test set is known from the task's source it is read.
"""

from pretune.tasks.table_rows import Fields, Jsonl, Rows, Tsv
from pretune.tasks.task import File, Split, Task
from pretune.tasks.template import Template

_ENTAILMENT = ("entailment", "not_entailment")
_THREE = ("entailment", "neutral", "contradiction")

_cola = Rows(
    table=Tsv(columns=("source", "label", "mark", "sentence")),
    make=Fields(text="sentence", label="label", labels=("0", "1"), group="source"),
)
COLA = Task(
    name="cola",
    kind="classification",
    metrics=("matthews",),
    labels=("unacceptable", "acceptable"),
    folders=("cola", "CoLA"),
    splits={
        "train": Split(published="train", files=(File(path="train.tsv", read=_cola, rows=8551),)),
        "dev": Split(published="validation", files=(File(path="dev.tsv", read=_cola, rows=1043),)),
    },
    template=Template(source="cola sentence: {text}", targets=("unacceptable", "acceptable")),
)
"""CoLA: is a sentence acceptable English? (Warstadt et al., 2019)"""

_sst2 = Rows(table=Tsv(), make=Fields(text="sentence", label="label", labels=("0", "1")))
SST2 = Task(
    name="sst2",
    kind="classification",
    metrics=("accuracy",),
    labels=("negative", "positive"),
    folders=("sst2", "SST-2"),
    splits={
        "train": Split(published="train", files=(File(path="train.tsv", read=_sst2, rows=67349),)),
        "dev": Split(published="validation", files=(File(path="dev.tsv", read=_sst2, rows=872),)),
        "test": Split(published="test", files=(File(path="test-labeled.tsv", read=_sst2, rows=1821),)),
    },
    template=Template(source="sst2 sentence: {text}", targets=("negative", "positive")),
)
"""SST-2: sentiment of phrases and sentences of film reviews (Socher et al., 2013)"""

_mrpc = Rows(table=Tsv(), make=Fields(text="#1 String", pair="#2 String", label="Quality", labels=("0", "1")))
MRPC = Task(
    name="mrpc",
    kind="pair",
    metrics=("accuracy_f1",),
    labels=("not_equivalent", "equivalent"),
    folders=("mrpc", "MRPC"),
    splits={
        "train": Split(published="train", files=(File(path="train.tsv", read=_mrpc, rows=3668),)),
        "dev": Split(published="validation", files=(File(path="dev.tsv", read=_mrpc, rows=408),)),
        "test": Split(published="test", files=(File(path="msr_paraphrase_test.txt", read=_mrpc, rows=1725),)),
    },
    template=Template(source="mrpc sentence1: {text} sentence2: {pair}", targets=("not_equivalent", "equivalent")),
)
"""MRPC: do two sentences of the news say the same? (Dolan and Brockett, 2005)"""

_scored = Fields(text="sentence1", pair="sentence2", label="score", scale=(0.0, 5.0), group="genre")
_stsb = Rows(table=Tsv(), make=_scored)
_stsb_test = Rows(
    table=Tsv(columns=("genre", "filename", "year", "old_index", "score", "sentence1", "sentence2"), more=True),
    make=_scored,
)
STSB = Task(
    name="stsb",
    kind="regression",
    metrics=("pearson_spearman",),
    scale=(0.0, 5.0),
    folders=("stsb", "STS-B"),
    splits={
        "train": Split(published="train", files=(File(path="train.tsv", read=_stsb, rows=5749),)),
        "dev": Split(published="validation", files=(File(path="dev.tsv", read=_stsb, rows=1500),)),
        "test": Split(published="test", files=(File(path="sts-test.tsv", read=_stsb_test, rows=1379),)),
    },
    template=Template(source="stsb sentence1: {text} sentence2: {pair}", target="{score}"),
)
"""STS-B: how alike are two sentences, from 0 to 5? (Cer et al., 2017)"""

_qqp = Rows(
    table=Tsv(), make=Fields(text="question1", pair="question2", label="is_duplicate", labels=("0", "1"), id="id")
)
QQP = Task(
    name="qqp",
    kind="pair",
    metrics=("accuracy_f1",),
    labels=("not_duplicate", "duplicate"),
    folders=("qqp", "QQP"),
    splits={
        "train": Split(
            published="train",
            files=(
                File(path="train.tsv", read=_qqp),
                File(path="train_subset.tsv", read=_qqp, rows=23496, partial=True),
            ),
        ),
        "dev": Split(
            published="validation",
            files=(File(path="dev.tsv", read=_qqp), File(path="dev_subset.tsv", read=_qqp, rows=18990, partial=True)),
        ),
    },
    template=Template(source="qqp question1: {text} question2: {pair}", targets=("not_duplicate", "duplicate")),
)
"""QQP: do two questions of Quora ask the same?"""

_mnli_tsv = Rows(
    table=Tsv(), make=Fields(text="sentence1", pair="sentence2", label="gold_label", labels=_THREE, group="genre")
)
_mnli = Rows(table=Jsonl(), make=Fields(text="premise", pair="hypothesis", label="label", labels=_THREE))
_mnli_sample = Rows(
    table=Tsv(columns=("label", "premise", "hypothesis")),
    make=Fields(text="premise", pair="hypothesis", label="label", labels=_THREE),
)
MNLI = Task(
    name="mnli",
    kind="pair",
    metrics=("accuracy",),
    labels=_THREE,
    folders=("mnli", "MNLI"),
    splits={
        "train": Split(
            published="train",
            files=(
                File(path="train.tsv", read=_mnli_tsv),
                File(path="train_subset.jsonl", read=_mnli, rows=9888, partial=True),
            ),
        ),
        "dev": Split(
            published="validation_matched",
            files=(
                File(path="dev_matched.tsv", read=_mnli_tsv),
                File(path="dev_matched.jsonl", read=_mnli, rows=9815),
            ),
        ),
        "dev_mismatched": Split(
            published="validation_mismatched",
            files=(
                File(path="dev_mismatched.tsv", read=_mnli_tsv),
                File(path="dev_mismatched_sample.tsv", read=_mnli_sample, rows=1000, partial=True),
            ),
        ),
    },
    template=Template(source="mnli hypothesis: {pair} premise: {text}", targets=_THREE),
)
"""MNLI: does a sentence follow from, or contradict, a premise of any genre? (Williams et al., 2018)"""

_qnli = Rows(table=Tsv(), make=Fields(text="question", pair="sentence", label="label", labels=_ENTAILMENT, id="index"))
QNLI = Task(
    name="qnli",
    kind="pair",
    metrics=("accuracy",),
    labels=_ENTAILMENT,
    folders=("qnli", "QNLI"),
    splits={
        "train": Split(published="train", files=(File(path="train.tsv", read=_qnli),)),
        "dev": Split(published="validation", files=(File(path="dev.tsv", read=_qnli, rows=5463),)),
    },
    template=Template(source="qnli question: {text} sentence: {pair}", targets=_ENTAILMENT),
)
"""QNLI: does a sentence hold the answer to a question? (from SQuAD)"""

_rte = Rows(table=Tsv(), make=Fields(text="sentence1", pair="sentence2", label="label", labels=_ENTAILMENT, id="index"))
RTE = Task(
    name="rte",
    kind="pair",
    metrics=("accuracy",),
    labels=_ENTAILMENT,
    folders=("rte", "RTE"),
    splits={
        "train": Split(published="train", files=(File(path="train.tsv", read=_rte, rows=2490),)),
        "dev": Split(published="validation", files=(File(path="dev.tsv", read=_rte, rows=277),)),
    },
    template=Template(source="rte sentence1: {text} sentence2: {pair}", targets=_ENTAILMENT),
)
"""RTE: does a sentence follow from a text? (the challenges of 2006 to 2011)"""

_wnli = Rows(table=Tsv(), make=Fields(text="sentence1", pair="sentence2", label="label", labels=("0", "1"), id="index"))
WNLI = Task(
    name="wnli",
    kind="pair",
    metrics=("accuracy",),
    labels=("not_entailment", "entailment"),
    folders=("wnli", "WNLI"),
    splits={
        "train": Split(published="train", files=(File(path="train.tsv", read=_wnli, rows=635),)),
        "dev": Split(published="validation", files=(File(path="dev.tsv", read=_wnli, rows=71),)),
    },
    template=Template(source="wnli sentence1: {text} sentence2: {pair}", targets=("not_entailment", "entailment")),
)
"""WNLI: does a sentence with its pronoun replaced follow? (from the Winograd schemas)"""
