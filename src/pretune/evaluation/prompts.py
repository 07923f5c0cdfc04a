"""Prompts of tasks, after Brown et al. (2020) where they have them.

    >>> from pretune.tasks.example import Example
    >>> render_prompt(PROMPTS["sst2"], Example(text="a gorgeous film"), "positive")
    RenderedPrompt(text='Review: a gorgeous film\\nSentiment: positive', start=34, stop=43)

A prompt may use {text}, {pair}, {choice1} …, and the example's `facts` by name; {before} and {after} surround
"_" in the text or "@placeholder" in the pair. {answer} is the blank: one of `answers` by the label, or of the example's
own choices. The scored part is the answer, the text after it (partial scoring, for answers with different prior
probabilities: Trinh and Le, 2018), or both.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from string import Formatter
from typing import Literal, NamedTuple

import numpy as np

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.seed import mix
from pretune.tasks.example import Example, Examples
from pretune.tasks.task import Task, collect_texts
from pretune.tasks.types import get_type
from pretune.tasks.types.base import ChoicePrompt
from pretune.text.tokenizer import Tokenizer

BLANK = "{answer}"


@spec
class PromptTemplate:
    """Text with a blank, and its possible answers."""

    text: str
    answers: tuple[str, ...] = ()
    scored_part: Literal["answer", "after", "both"] = "answer"
    join: str = "\n\n"  # between examples

    def __post_init__(self) -> None:
        if self.text.count(BLANK) != 1:
            raise UsageError(f"a prompt needs one {BLANK}, got {self.text.count(BLANK)} in {self.text[:60]!r}")
        try:
            fields = [*Formatter().parse(self.text)]
        except ValueError as error:
            raise UsageError(f"invalid prompt {self.text[:60]!r}: {error}; write {{{{ for a brace") from None
        for _, name, form, conversion in fields:
            if name is not None and (not name.isidentifier() or form or conversion):
                raise UsageError(f"invalid field {{{name[:40]}}} in the prompt; use plain names such as {{text}}")
        if not any(f"{{{name}}}" == BLANK for _, name, _, _ in fields):  # {{answer}} is text in braces
            raise UsageError(f"a prompt needs one {BLANK}, got 0 in {self.text[:60]!r}")


class RenderedPrompt(NamedTuple):
    """A rendered example, and the span of its scored part in characters."""

    text: str
    start: int
    stop: int


def render_prompt(prompt: PromptTemplate, example: Example, answer: str, end: str = "") -> RenderedPrompt:
    """Render an example with an answer in the blank; `end` is appended if the answer is last and has no punctuation."""
    values = _collect_fields(example)
    head, _, tail = prompt.text.partition(BLANK)
    try:
        prefix, suffix = head.format_map(values), tail.format_map(values)
    except KeyError as missing:
        raise UsageError(
            f"the prompt uses {{{missing.args[0]}}}, which the examples do not have (allowed: {', '.join(values)})"
        ) from None
    if not suffix and answer.rstrip()[-1:] not in {*".!?"}:
        suffix = end
    start = len(prefix.rstrip(" "))  # the span starts with the space before it
    stop = len(prefix) + len(answer)
    rendered_text = prefix + answer + suffix
    spans = {"answer": (start, stop), "after": (stop, len(rendered_text)), "both": (start, len(rendered_text))}
    return RenderedPrompt(rendered_text, *spans[prompt.scored_part if suffix.strip() else "answer"])


def get_options(prompt: PromptTemplate, example: Example) -> tuple[str, ...]:
    """Return the answers of an example."""
    return prompt.answers or example.choices


def _collect_fields(example: Example) -> Mapping[str, str]:
    values = collect_texts(example)
    for field_text, mark in ((example.text, "_"), (example.pair or "", "@placeholder")):
        if mark in field_text:
            values["before"], _, values["after"] = field_text.partition(mark)
    return values | {name: fact for name, fact in example.facts.items() if name != "answer"}


def get_prompt(task: Task) -> PromptTemplate:
    """Return the prompt of a task; for other tasks and user tables a generic one with the label names."""
    evaluator = get_type(task).scoring.evaluator
    if not isinstance(evaluator, ChoicePrompt):
        raise UsageError(
            f"task '{task.name}' is of kind {task.kind}, which few-shot evaluation does not support; fine-tune for it "
            "(`pretune finetune`), or choose a task of classes, pairs, choices, spans or texts (`pretune list tasks`)"
        )
    labels = tuple(label.replace("_", " ") for label in task.labels)
    return PROMPTS.get(task.name) or PromptTemplate(text=evaluator.text, answers=labels)


def build_text_to_text_prompt(task: Task) -> PromptTemplate:
    """Return the T5 prompt of a task: its template with its targets as answers."""
    if task.template is None:
        raise UsageError(f"task '{task.name}' has no text-to-text template; omit --text-to-text")
    return PromptTemplate(text=f"{task.template.source} {BLANK}", answers=task.template.targets)


def _build(text: str, *answers: str) -> PromptTemplate:
    return PromptTemplate(text=text, answers=answers)


_TRUE_FALSE = "{text}\nQuestion: {pair} True or False?\nAnswer: {answer}"
_TRUE_FALSE_NEITHER = "{text}\nQuestion: {pair} True, False or Neither?\nAnswer: {answer}"

PROMPTS: Mapping[str, PromptTemplate] = {
    "cola": _build("Sentence: {text}\nQuestion: Is this sentence good English?\nAnswer: {answer}", "no", "yes"),
    **dict.fromkeys(
        ("sst2", "imdb", "imdb_cf", "mr"), _build("Review: {text}\nSentiment: {answer}", "negative", "positive")
    ),
    "mpqa": _build("Phrase: {text}\nSentiment: {answer}", "negative", "positive"),
    "sst5": _build("Review: {text}\nSentiment: {answer}", "terrible", "bad", "okay", "good", "great"),
    "agnews": _build("Article: {text}\nTopic: {answer}", "world", "sports", "business", "technology"),
    "trec": _build(
        "Question: {text}\nIt asks for: {answer}",
        *("abbreviation", "entity", "description", "person", "location", "number"),
    ),
    "emotion": _build("Message: {text}\nEmotion: {answer}", "sadness", "joy", "love", "anger", "fear", "surprise"),
    "mrpc": _build("{text}\n{pair}\nQuestion: Do both sentences say the same?\nAnswer: {answer}", "no", "yes"),
    "qqp": _build(
        "Question 1: {text}\nQuestion 2: {pair}\nQuestion: Do both questions ask the same?\nAnswer: {answer}",
        "no",
        "yes",
    ),
    "qnli": _build("{text}\n{pair}\nQuestion: Does the sentence answer the question?\nAnswer: {answer}", "yes", "no"),
    **dict.fromkeys(
        ("mnli", "snli", "anli", "sick_entailment"), _build(_TRUE_FALSE_NEITHER, "True", "Neither", "False")
    ),
    "cb": _build(_TRUE_FALSE_NEITHER, "True", "False", "Neither"),
    **dict.fromkeys(
        ("rte", "superglue_rte", "superglue_ax", "superglue_axb", "superglue_axg", "scitail"),
        _build(_TRUE_FALSE, "True", "False"),
    ),
    "wnli": _build(_TRUE_FALSE, "False", "True"),
    "boolq": _build("{pair}\nQuestion: {text}?\nAnswer: {answer}", "no", "yes"),
    "multirc": _build(
        "{text}\nQuestion and proposed answer: {pair}\nIs the answer right?\nAnswer: {answer}", "no", "yes"
    ),
    "wic": _build(
        "{sentence1}\n{sentence2}\nQuestion: Is the word '{word}' used in the same sense in the two sentences "
        "above?\nAnswer: {answer}",
        "no",
        "yes",
    ),
    "wsc": _build("{plain}\nQuestion: Does the pronoun '{pronoun}' stand for '{pair}'?\nAnswer: {answer}", "no", "yes"),
    "copa": _build("{text}\n{pair}\n{answer}"),
    **dict.fromkeys(("swag", "hellaswag"), _build("{text} {answer}")),
    "winogrande": PromptTemplate(text="{before}{answer}{after}", scored_part="after"),
    "record": PromptTemplate(text="{text}\n{before}{answer}{after}", scored_part="both"),
    **dict.fromkeys(
        ("arc", "arc_easy", "arc_challenge", "commonsenseqa"), _build("Question: {text}\nAnswer: {answer}")
    ),
    "convai2_choice": _build("{text}\n{answer}"),
}
"""Prompts by task, with the answers in the order of the task's labels."""


def draw_shots(examples: Examples, count: int, seed: int = 0) -> list[Example]:
    """Draw `count` labelled examples, classes in turn while they last, in random order; fewer if there are fewer.

    >>> shots = draw_shots([Example(text=str(i), label=i % 10 == 0) for i in range(100)], 4)
    >>> sorted(int(example.label) for example in shots)
    [0, 0, 1, 1]
    """
    positions_by_label: dict[int | float, list[int]] = {}
    for i in sorted(range(len(examples)), key=lambda i: mix(seed, 0, i)):
        example = examples[i]
        if example.label is not None:
            positions_by_label.setdefault(0 if example.choices else example.label, []).append(i)
    classes = sorted(positions_by_label, key=lambda label: mix(seed, 1, int(label)))
    positions: list[int] = []
    while len(positions) < count and any(positions_by_label.values()):
        for label in classes:
            if positions_by_label[label] and len(positions) < count:
                positions.append(positions_by_label[label].pop(0))
    return [examples[i] for i in sorted(positions, key=lambda i: mix(seed, 2, i))]


class RenderedShots:
    """Solved examples before every question; the first are dropped where not all fit."""

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
        self.tokenizer, self.texts = tokenizer, texts
        # One more than its tokens, because joined texts may be tokenized differently.
        self.lengths = [length + 1 for length in self.count_tokens(texts)]

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text."""
        lengths: list[int] = np.diff(self.tokenizer.encode_batch(texts, literal=True).offsets).tolist() if texts else []
        return lengths

    def count_fitting(self, questions: Sequence[str], room: int | None) -> list[int]:
        """Return how many shots fit before each question into `room` tokens."""
        if room is None or not self.texts:
            return [len(self.texts)] * len(questions)
        return [count_fitting(self.lengths, room - size) for size in self.count_tokens(questions)]

    def join(self, count: int) -> str:
        """Return the text of the last `count` shots."""
        return "".join(self.texts[len(self.texts) - count :])


def count_fitting(lengths: Sequence[int], max_tokens: int) -> int:
    """Return how many of the last shots fit into `max_tokens` tokens; the first shots are dropped first.

    >>> count_fitting([5, 9, 3, 4], 8), count_fitting([5, 9, 3, 4], 100), count_fitting([5], 3)
    (2, 4, 0)
    """
    return sum(total <= max_tokens for total in accumulate(reversed(lengths)))
