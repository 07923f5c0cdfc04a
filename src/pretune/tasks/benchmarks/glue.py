"""The nine tasks of GLUE (Wang et al., 2019): tab-separated files, labels in the published order.

The folders may also have the names of the published archive (`CoLA`, `SST-2`, …). The labels of GLUE's test files are
not public; a labeled test set from the task's original source is used if there is one.
"""

from dataclasses import replace

from pretune.tasks.benchmarks.readers import Fields, RowReader, build_task, list_files
from pretune.tasks.table import Tsv

_ENTAILMENT = ("entailment", "not_entailment")
_NLI_LABELS = ("entailment", "neutral", "contradiction")

_cola = RowReader(
    table=Tsv(columns=("source", "label", "mark", "sentence")),
    make=Fields(text="sentence", label="label", labels=("0", "1"), group="source"),
)
COLA = build_task(
    "cola",
    "cola sentence: {text}",
    list_files(_cola, train="train.tsv 8551", dev="dev.tsv 1043"),
    labels=("unacceptable", "acceptable"),
    metrics=("matthews",),
    folders=("cola", "CoLA"),
)
"""CoLA: is a sentence acceptable English? (Warstadt et al., 2019)"""

_sst2 = RowReader(make=Fields(text="sentence", label="label", labels=("0", "1")))
SST2 = build_task(
    "sst2",
    "sst2 sentence: {text}",
    list_files(_sst2, train="train.tsv 67349", dev="dev.tsv 872", test="test-labeled.tsv 1821"),
    labels=("negative", "positive"),
    folders=("sst2", "SST-2"),
)
"""SST-2: sentiment of phrases and sentences of film reviews (Socher et al., 2013)"""

_mrpc = RowReader(table=Tsv(), make=Fields(text="#1 String", pair="#2 String", label="Quality", labels=("0", "1")))
MRPC = build_task(
    "mrpc",
    "mrpc sentence1: {text} sentence2: {pair}",
    list_files(_mrpc, train="train.tsv 3668", dev="dev.tsv 408", test="msr_paraphrase_test.txt 1725"),
    labels=("not_equivalent", "equivalent"),
    metrics=("accuracy_f1",),
    folders=("mrpc", "MRPC"),
)
"""MRPC: do two sentences of the news have the same meaning? (Dolan and Brockett, 2005)"""

_stsb_columns = ("genre", "filename", "year", "old_index", "score", "sentence1", "sentence2")
_stsb_fields = Fields(text="sentence1", pair="sentence2", label="score", scale=(0.0, 5.0), group="genre")
_stsb_test = RowReader(table=Tsv(columns=_stsb_columns, allow_extra_columns=True), make=_stsb_fields)
STSB = build_task(
    "stsb",
    "stsb sentence1: {text} sentence2: {pair}",
    list_files(
        {"sts-test.tsv": _stsb_test, "*": RowReader(make=_stsb_fields)},
        train="train.tsv 5749",
        dev="dev.tsv 1500",
        test="sts-test.tsv 1379",
    ),
    metrics=("pearson_spearman",),
    scale=(0.0, 5.0),
    folders=("stsb", "STS-B"),
)
"""STS-B: how similar are two sentences, from 0 to 5? (Cer et al., 2017)"""

_qqp = RowReader(make=Fields(text="question1", pair="question2", label="is_duplicate", labels=("0", "1"), id="id"))
QQP = build_task(
    "qqp",
    "qqp question1: {text} question2: {pair}",
    list_files(_qqp, train="train.tsv | train_subset.tsv 23496 part", dev="dev.tsv | dev_subset.tsv 18990 part"),
    labels=("not_duplicate", "duplicate"),
    metrics=("accuracy_f1",),
    folders=("qqp", "QQP"),
)
"""QQP: are two questions of Quora duplicates?"""

_mnli_fields = Fields(text="premise", pair="hypothesis", label="label", labels=_NLI_LABELS)
_mnli = {
    "*.jsonl": RowReader(make=_mnli_fields),
    "*_sample.tsv": RowReader(table=Tsv(columns=("label", "premise", "hypothesis")), make=_mnli_fields),
    "*.tsv": RowReader(
        make=replace(_mnli_fields, text="sentence1", pair="sentence2", label="gold_label", group="genre")
    ),
}
MNLI = build_task(
    "mnli",
    "mnli hypothesis: {pair} premise: {text}",
    list_files(
        _mnli,
        train="train.tsv | train_subset.jsonl 9888 part",
        dev="dev_matched.tsv | dev_matched.jsonl 9815",
        dev_mismatched="dev_mismatched.tsv | dev_mismatched_sample.tsv 1000 part",
    ),
    labels=_NLI_LABELS,
    folders=("mnli", "MNLI"),
)
"""MNLI: does a sentence follow from a premise, or contradict it? (Williams et al., 2018)"""

_qnli = RowReader(make=Fields(text="question", pair="sentence", label="label", labels=_ENTAILMENT, id="index"))
QNLI = build_task(
    "qnli",
    "qnli question: {text} sentence: {pair}",
    list_files(_qnli, train="train.tsv", dev="dev.tsv 5463"),
    labels=_ENTAILMENT,
    folders=("qnli", "QNLI"),
)
"""QNLI: does a sentence contain the answer to a question? (from SQuAD)"""

_rte_fields = Fields(text="sentence1", pair="sentence2", label="label", labels=_ENTAILMENT, id="index")
RTE = build_task(
    "rte",
    "rte sentence1: {text} sentence2: {pair}",
    list_files(RowReader(make=_rte_fields), train="train.tsv 2490", dev="dev.tsv 277"),
    labels=_ENTAILMENT,
    folders=("rte", "RTE"),
)
"""RTE: does a sentence follow from a text? (the challenges of 2006 to 2011)"""

WNLI = build_task(
    "wnli",
    "wnli sentence1: {text} sentence2: {pair}",
    list_files(RowReader(make=replace(_rte_fields, labels=("0", "1"))), train="train.tsv 635", dev="dev.tsv 71"),
    labels=("not_entailment", "entailment"),
    folders=("wnli", "WNLI"),
)
"""WNLI: does a sentence with its pronoun replaced follow? (from the Winograd schemas)"""
