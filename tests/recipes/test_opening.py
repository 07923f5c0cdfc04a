"""Opening a task: the labelled corpus that is built in stands where a file of one's own may stand."""

import pytest

from pretune.core.errors import UsageError
from pretune.recipes.finetune.opening import open_task
from pretune.recipes.finetune.settings import Wanted
from pretune.text.corpora.builtin import Reviews


def test_built_in_reviews_are_a_table() -> None:
    try:
        Reviews().check()
    except UsageError as missing:
        pytest.skip(str(missing))
    opened = open_task(Wanted(train="builtin:reviews", most=10))
    assert opened.task.labels == ("0", "1") and len(opened.parts.test) == 10
    assert len(opened.parts.train) == 26_824 and opened.headline == "test"
