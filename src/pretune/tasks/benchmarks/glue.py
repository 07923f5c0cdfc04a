"""The nine tasks of GLUE (Wang et al., 2019): tab-separated files, labels in the published order.

The folders may also have the names of the published archive (`CoLA`, `SST-2`, …). The labels of GLUE's test files are
not public; a labeled test set from the task's original source is used if there is one.
"""

from pretune.tasks.benchmarks.readers import Fields, RowReader, Tsv
from pretune.tasks.table import Jsonl
from pretune.tasks.task import SplitFile, Task, Template

_ENTAILMENT = ("entailment", "not_entailment")
_NLI_LABELS = ("entailment", "neutral", "contradiction")

_cola = RowReader(
    table=Tsv(columns=("source", "label", "mark", "sentence")),
    make=Fields(text="sentence", label="label", labels=("0", "1"), group="source"),
)
COLA = Task(
    name="cola",
    kind="classification",
    metrics=("matthews",),
    labels=("unacceptable", "acceptable"),
    folders=("cola", "CoLA"),
    splits={"train": (SplitFile("train.tsv", _cola, rows=8551),), "dev": (SplitFile("dev.tsv", _cola, rows=1043),)},
    template=Template(source="cola sentence: {text}", targets=("unacceptable", "acceptable")),
)
"""CoLA: is a sentence acceptable English? (Warstadt et al., 2019)"""

_sst2 = RowReader(table=Tsv(), make=Fields(text="sentence", label="label", labels=("0", "1")))
SST2 = Task(
    name="sst2",
    kind="classification",
    metrics=("accuracy",),
    labels=("negative", "positive"),
    folders=("sst2", "SST-2"),
    splits={
        "train": (SplitFile("train.tsv", _sst2, rows=67349),),
        "dev": (SplitFile("dev.tsv", _sst2, rows=872),),
        "test": (SplitFile("test-labeled.tsv", _sst2, rows=1821),),
    },
    template=Template(source="sst2 sentence: {text}", targets=("negative", "positive")),
)
"""SST-2: sentiment of phrases and sentences of film reviews (Socher et al., 2013)"""

_mrpc = RowReader(table=Tsv(), make=Fields(text="#1 String", pair="#2 String", label="Quality", labels=("0", "1")))
MRPC = Task(
    name="mrpc",
    kind="pair",
    metrics=("accuracy_f1",),
    labels=("not_equivalent", "equivalent"),
    folders=("mrpc", "MRPC"),
    splits={
        "train": (SplitFile("train.tsv", _mrpc, rows=3668),),
        "dev": (SplitFile("dev.tsv", _mrpc, rows=408),),
        "test": (SplitFile("msr_paraphrase_test.txt", _mrpc, rows=1725),),
    },
    template=Template(source="mrpc sentence1: {text} sentence2: {pair}", targets=("not_equivalent", "equivalent")),
)
"""MRPC: do two sentences of the news have the same meaning? (Dolan and Brockett, 2005)"""

_stsb_fields = Fields(text="sentence1", pair="sentence2", label="score", scale=(0.0, 5.0), group="genre")
_stsb = RowReader(table=Tsv(), make=_stsb_fields)
_stsb_test = RowReader(
    table=Tsv(
        columns=("genre", "filename", "year", "old_index", "score", "sentence1", "sentence2"), allow_extra_columns=True
    ),
    make=_stsb_fields,
)
STSB = Task(
    name="stsb",
    kind="regression",
    metrics=("pearson_spearman",),
    scale=(0.0, 5.0),
    folders=("stsb", "STS-B"),
    splits={
        "train": (SplitFile("train.tsv", _stsb, rows=5749),),
        "dev": (SplitFile("dev.tsv", _stsb, rows=1500),),
        "test": (SplitFile("sts-test.tsv", _stsb_test, rows=1379),),
    },
    template=Template(source="stsb sentence1: {text} sentence2: {pair}", target="{score}"),
)
"""STS-B: how similar are two sentences, from 0 to 5? (Cer et al., 2017)"""

_qqp = RowReader(
    table=Tsv(), make=Fields(text="question1", pair="question2", label="is_duplicate", labels=("0", "1"), id="id")
)
QQP = Task(
    name="qqp",
    kind="pair",
    metrics=("accuracy_f1",),
    labels=("not_duplicate", "duplicate"),
    folders=("qqp", "QQP"),
    splits={
        "train": (SplitFile("train.tsv", _qqp), SplitFile("train_subset.tsv", _qqp, rows=23496, is_partial=True)),
        "dev": (SplitFile("dev.tsv", _qqp), SplitFile("dev_subset.tsv", _qqp, rows=18990, is_partial=True)),
    },
    template=Template(source="qqp question1: {text} question2: {pair}", targets=("not_duplicate", "duplicate")),
)
"""QQP: are two questions of Quora duplicates?"""

_mnli_tsv = RowReader(
    table=Tsv(), make=Fields(text="sentence1", pair="sentence2", label="gold_label", labels=_NLI_LABELS, group="genre")
)
_mnli = RowReader(table=Jsonl(), make=Fields(text="premise", pair="hypothesis", label="label", labels=_NLI_LABELS))
_mnli_sample = RowReader(
    table=Tsv(columns=("label", "premise", "hypothesis")),
    make=Fields(text="premise", pair="hypothesis", label="label", labels=_NLI_LABELS),
)
MNLI = Task(
    name="mnli",
    kind="pair",
    metrics=("accuracy",),
    labels=_NLI_LABELS,
    folders=("mnli", "MNLI"),
    splits={
        "train": (
            SplitFile("train.tsv", _mnli_tsv),
            SplitFile("train_subset.jsonl", _mnli, rows=9888, is_partial=True),
        ),
        "dev": (SplitFile("dev_matched.tsv", _mnli_tsv), SplitFile("dev_matched.jsonl", _mnli, rows=9815)),
        "dev_mismatched": (
            SplitFile("dev_mismatched.tsv", _mnli_tsv),
            SplitFile("dev_mismatched_sample.tsv", _mnli_sample, rows=1000, is_partial=True),
        ),
    },
    template=Template(source="mnli hypothesis: {pair} premise: {text}", targets=_NLI_LABELS),
)
"""MNLI: does a sentence follow from a premise, or contradict it? (Williams et al., 2018)"""

_qnli = RowReader(
    table=Tsv(), make=Fields(text="question", pair="sentence", label="label", labels=_ENTAILMENT, id="index")
)
QNLI = Task(
    name="qnli",
    kind="pair",
    metrics=("accuracy",),
    labels=_ENTAILMENT,
    folders=("qnli", "QNLI"),
    splits={"train": (SplitFile("train.tsv", _qnli),), "dev": (SplitFile("dev.tsv", _qnli, rows=5463),)},
    template=Template(source="qnli question: {text} sentence: {pair}", targets=_ENTAILMENT),
)
"""QNLI: does a sentence contain the answer to a question? (from SQuAD)"""

_rte = RowReader(
    table=Tsv(), make=Fields(text="sentence1", pair="sentence2", label="label", labels=_ENTAILMENT, id="index")
)
RTE = Task(
    name="rte",
    kind="pair",
    metrics=("accuracy",),
    labels=_ENTAILMENT,
    folders=("rte", "RTE"),
    splits={"train": (SplitFile("train.tsv", _rte, rows=2490),), "dev": (SplitFile("dev.tsv", _rte, rows=277),)},
    template=Template(source="rte sentence1: {text} sentence2: {pair}", targets=_ENTAILMENT),
)
"""RTE: does a sentence follow from a text? (the challenges of 2006 to 2011)"""

_wnli = RowReader(
    table=Tsv(), make=Fields(text="sentence1", pair="sentence2", label="label", labels=("0", "1"), id="index")
)
WNLI = Task(
    name="wnli",
    kind="pair",
    metrics=("accuracy",),
    labels=("not_entailment", "entailment"),
    folders=("wnli", "WNLI"),
    splits={"train": (SplitFile("train.tsv", _wnli, rows=635),), "dev": (SplitFile("dev.tsv", _wnli, rows=71),)},
    template=Template(source="wnli sentence1: {text} sentence2: {pair}", targets=("not_entailment", "entailment")),
)
"""WNLI: does a sentence with its pronoun replaced follow? (from the Winograd schemas)"""
