"""Tags of words of which no token is left: outside, or the usual tag where a task has no outside."""

from dataclasses import replace

import numpy as np

from pretune.tasks.example import Example
from pretune.tasks.types import get_type
from tests.tasks.small import encoder_for, task_of

SENTENCES = [
    Example(text="", words=("Nina", "sang", "\x00", "in", "Paris"), tags=("N",) * 5),
    Example(text="", words=("the", *["river"] * 40), tags=("N",) * 41),  # most of it is cut off
]


def test_what_was_not_read_has_the_usual_tag() -> None:
    for labels, default_tag in ((("N", "V", "D"), "V"), (("N", "V", "O"), "O")):
        task = replace(task_of("tagging"), labels=labels, metrics=("tag_accuracy",))
        encoder = encoder_for("bert", task, max_length=16)
        items = encoder.encode(SENTENCES, training=False)
        assert items.alignment is not None and items.counts.words_lost > 20
        logits = np.zeros((len(items.alignment), 3), dtype=np.float32)
        logits[:, 1] = 1.0  # a verb, almost everywhere
        first = int(np.flatnonzero(items.alignment == 0)[0])
        logits[first, 0] = 2.0
        first_prediction, second_prediction = get_type(encoder.task).outputs.decode(
            encoder.rules, SENTENCES, items, logits
        )
        assert first_prediction.tags == ("N", "V", default_tag, "V", "V")
        assert (
            len(second_prediction.tags) == 41
            and second_prediction.tags[0] == "V"
            and second_prediction.tags[-1] == default_tag
        )
