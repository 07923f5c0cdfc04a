"""An example of a task (its inputs and its label), and the prediction for it. The fields depend on the task's type:

    classification   text, pair (if there are two texts), label (an index into the task's `labels`)
    multi-label      text, pair (if there are two texts), tags (the names of its labels)
    regression       text, pair (if there are two texts), label (a number)
    tagging          words, tags (one per word), text (original text, or the words joined by spaces)
    srl              words, predicate (index of the word whose arguments are tagged), tags
    dependency       words, heads (one per word, from 1; 0 is the root), tags (relations)
    coreference      words, sentences (words of each), clusters (of mentions: first and last word, both inclusive)
    span             text (the question), pair (the passage), spans and answers (none: no answer)
    choice           text, choices, label (index of the correct one), pair (if the question is separate)
    generation       text, target
    instruction      text, messages (role and content, without the answer), target; reward: the same
    preference       text, messages (as above), choices (the chosen and the rejected answer), label (0)
    pairs            text (the better sentence), pair (the worse)
    cloze            text (the context), target (the next word)
    cloze-choice     text (with a gap "_"), choices, label (index of the correct one)
    retrieval        text (a query), answers (ids of documents); for documents: text and id

A prediction has the same fields as the label, probabilities or scores of the options, `value` for a regression, and
`text` for an answer. For text-to-text models `text` is the generated answer, and the others its meaning, if it has one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Mention = tuple[int, int]
"""First and last word of a mention in its document, both inclusive."""
Clusters = tuple[tuple[Mention, ...], ...]
"""Clusters of mentions of the same thing, in the order of their first mentions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One example; `spans` are (start, end) in characters of `pair`, or of `text` without a pair."""

    text: str
    pair: str | None = None
    choices: tuple[str, ...] = ()
    label: int | float | None = None
    words: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    predicate: int | None = None
    heads: tuple[int, ...] = ()  # number of each word's head, from 1; 0 is the root
    sentences: tuple[int, ...] = ()  # number of words of each sentence
    clusters: Clusters | None = None  # None: unknown
    spans: tuple[tuple[int, int], ...] = ()
    answers: tuple[str, ...] = ()
    target: str | None = None
    messages: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # role and content; `text` has them, too
    id: str = ""
    group: str | None = None  # unit that is scored or split together: a passage, a question, a subset of the task
    facts: Mapping[str, str] = field(default_factory=dict, hash=False)  # other published fields, for templates


@dataclass(frozen=True, slots=True)
class AnswerCandidate:
    """A candidate answer in a passage."""

    text: str
    score: float
    span: tuple[int, int]  # in characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The prediction for one example."""

    label: int | None = None
    probabilities: tuple[float, ...] = ()
    scores: tuple[float, ...] = ()
    value: float | None = None
    tags: tuple[str, ...] = ()
    heads: tuple[int, ...] = ()
    clusters: Clusters = ()
    mentions: tuple[tuple[str, ...], ...] = ()  # texts of the mentions of each cluster
    text: str | None = None
    span: tuple[int, int] | None = None
    null_score_diff: float | None = None  # score of no answer minus that of the best answer
    candidates: tuple[AnswerCandidate, ...] = ()  # answers, best first


Examples = Sequence[Example]
Predictions = Sequence[Prediction]


def format_example(example: Example) -> str:
    """Return an example's id or text for an error message."""
    return f"id {example.id[:40]!r}" if example.id else repr(example.text[:40])
