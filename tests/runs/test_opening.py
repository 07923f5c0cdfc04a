"""Opening a task: a built-in corpus where a file of one's own may stand, and what is said of too little."""

import re
from pathlib import Path

import pytest

from pretune.core.errors import UsageError
from pretune.runs.finetune.config import TaskConfig
from pretune.runs.finetune.task_data import open_task
from pretune.text.corpora.builtin import Reviews


@pytest.mark.slow
def test_built_in_reviews_are_a_table() -> None:
    try:
        Reviews().check()
    except UsageError as missing:
        pytest.skip(str(missing))
    opened = open_task(TaskConfig(train="builtin:reviews", max_eval_examples=10))
    assert opened.task.labels == ("0", "1") and len(opened.parts.test) == 10
    assert len(opened.parts.train) == 26_824 and opened.headline_split == "test"


def test_too_little_is_told(tmp_path: Path) -> None:
    rows = [f"text {number},good" for number in range(399)]
    table = tmp_path / "a.csv"
    table.write_text("\n".join(["text,label", *rows, "other,bad"]))
    told = "; ".join(open_task(TaskConfig(train=str(table))).parts.notes)
    assert "'bad'" in told and "'test'" not in told
    table.write_text("\n".join(["text,label", *rows[:40], *(f"other {number},bad" for number in range(40))]))
    told = "; ".join(open_task(TaskConfig(train=str(table))).parts.notes)
    assert "'bad'" not in told and re.search(r"'test'.*\b8\b", told)
    told = "; ".join(open_task(TaskConfig(train=str(table), dev=str(table))).parts.notes)
    assert "'test'" not in told
