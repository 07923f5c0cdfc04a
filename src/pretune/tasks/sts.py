"""Semantic textual similarity of SemEval 2012 to 2016 (Agirre et al.): pairs of sentences, scored from 0 to 5.

A year has several sets, one per file; `group` is the set. STS-B is a selection from these sets.
"""

from collections.abc import Iterator
from pathlib import Path

from pretune.tasks.example import Example
from pretune.tasks.table_rows import Tsv, read_score
from pretune.tasks.task import SplitFile, Task, TaskSplit
from pretune.tasks.template import Template

SCALE = (0.0, 5.0)
"""From unrelated to equivalent."""


def read(path: Path) -> Iterator[Example]:
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
    splits = {
        "test": TaskSplit(published_name="test", files=(SplitFile(path=f"{files}.test.tsv", reader=read, rows=rows),))
    }
    if files in ("2012.*", "*"):
        train = SplitFile(path="2012.*.train.tsv", reader=read, rows=2234)
        splits = {"train": TaskSplit(published_name="train of 2012", files=(train,)), **splits}
    return Task(
        name=name,
        kind="regression",
        metrics=("spearman", "pearson"),
        scale=SCALE,
        folders=("sts12-16",),
        splits=splits,
        template=Template(source="stsb sentence1: {text} sentence2: {pair}", target="{score}"),
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
