"""An example of a task as a value: what is read, and what is to be said of it.

Which fields are filled depends on the task's kind:

    classification   text, label (an index into the task's `labels`)
    pair             text, pair, label
    regression       text, pair (where there are two), label (a number)
    tagging          words, tags (one each), text (as it was written, or the words with spaces between them)
    span             text (the question), pair (where it is looked for), spans and answers (none: no answer)
    choice           text, choices, label (the index of the right one), pair (where the question stands apart)
    generation       text, target
    pairs            text (the better sentence), pair (the worse)
    cloze            text (what comes before), target (the word that follows)
    retrieval        text (a query), answers (ids of documents); of documents: text and id
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One example; `spans` are (start, end) in characters of `pair`, or of `text` where there is no pair."""

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
    group: str | None = None  # what is scored or kept together: a passage, a question, a set of the task
    facts: Mapping[str, str] = field(default_factory=dict, hash=False)  # other published fields, for templates
