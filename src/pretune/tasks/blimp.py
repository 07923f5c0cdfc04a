"""BLiMP (Warstadt et al., 2020): minimal pairs of sentences to evaluate language models without training."""

from pretune.tasks.table_rows import Fields, Jsonl, RowReader
from pretune.tasks.task import SplitFile, Task, TaskSplit

_blimp = RowReader(
    table=Jsonl(),
    make=Fields(text="sentence_good", pair="sentence_bad", group="UID", id="pairID", facts=("linguistics_term",)),
)
BLIMP = Task(
    name="blimp",
    kind="pairs",
    metrics=("choice_accuracy",),
    splits={
        "test": TaskSplit(published_name="all 67 sets", files=(SplitFile(path="*.jsonl", reader=_blimp, rows=67000),))
    },
)
"""BLiMP: minimal pairs; the grammatical sentence should be more likely (Warstadt et al., 2020)"""
