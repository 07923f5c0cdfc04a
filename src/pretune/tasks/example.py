"""An example of a task: its inputs and its label.

The fields depend on the task's kind:

    classification   text, label (an index into the task's `labels`)
    pair             text, pair, label
    regression       text, pair (if there are two texts), label (a number)
    tagging          words, tags (one per word), text (original text, or the words joined by spaces)
    span             text (the question), pair (the passage), spans and answers (none: no answer)
    choice           text, choices, label (index of the correct one), pair (if the question is separate)
    generation       text, target
    pairs            text (the better sentence), pair (the worse)
    cloze            text (the context), target (the next word)
    retrieval        text (a query), answers (ids of documents); for documents: text and id
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One example; `spans` are (start, end) in characters of `pair`, or of `text` without a pair."""

    text: str
    pair: str | None = None
    choices: tuple[str, ...] = ()
    label: int | float | None = None
    words: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()
    answers: tuple[str, ...] = ()
    target: str | None = None
    id: str = ""
    group: str | None = None  # unit that is scored or split together: a passage, a question, a subset of the task
    facts: Mapping[str, str] = field(default_factory=dict, hash=False)  # other published fields, for templates
