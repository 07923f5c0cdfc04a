"""How tasks are put in words to a model that was not trained on them, after Brown et al. (2020) where they have them.

    >>> from pretune.tasks.example import Example
    >>> put(PROMPTS["sst2"], Example(text="a gorgeous film"), "positive")
    Put(text='Review: a gorgeous film\\nSentiment: positive', start=34, stop=43)

A prompt may use {text}, {pair}, {choice1} …, and the example's `facts` by name; {before} and {after} are what is around
"_" in the text or "@placeholder" in the pair. {answer} is the blank: one of `answers` by the label, or of the example's
own choices. What is judged is the answer, what is after it (where answers differ in how likely they are by themselves:
Trinh and Le, 2018), or both.
"""

from collections.abc import Mapping
from string import Formatter
from typing import Literal, NamedTuple

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.tasks.example import Example
from pretune.tasks.task import Task
from pretune.tasks.template import Template

BLANK = "{answer}"


@spec
class Prompt:
    """A text with a blank, and what may stand in it."""

    text: str
    answers: tuple[str, ...] = ()
    judged: Literal["answer", "after", "both"] = "answer"
    join: str = "\n\n"  # between examples

    def __post_init__(self) -> None:
        if self.text.count(BLANK) != 1:
            raise UsageError(f"a prompt has one {BLANK}, found {self.text.count(BLANK)} in {self.text[:60]!r}")
        try:
            fields = [
                (name, form, turned) for _, name, form, turned in Formatter().parse(self.text) if name is not None
            ]
        except ValueError as wrong:
            raise UsageError(f"the prompt {self.text[:60]!r} cannot be read: {wrong}; write {{{{ for a brace") from None
        for name, form, turned in fields:
            if not name.isidentifier() or form or turned:
                raise UsageError(f"the prompt has {{{name[:40]}}}; only plain names may stand there, such as {{text}}")


class Put(NamedTuple):
    """An example in words, and where the judged stretch is, in characters."""

    text: str
    start: int
    stop: int


def put(prompt: Prompt, example: Example, answer: str, end: str = "") -> Put:
    """An example with an answer in the blank; `end` follows where the answer is last and does not end by itself."""
    values = _values(example)
    head, _, tail = prompt.text.partition(BLANK)
    try:
        before, after = head.format_map(values), tail.format_map(values)
    except KeyError as missing:
        raise UsageError(
            f"the prompt uses {{{missing.args[0]}}}, which examples do not have ({', '.join(values)})"
        ) from None
    if not after and answer.rstrip()[-1:] not in {*".!?"}:
        after = end
    start = len(before.rstrip(" "))  # a stretch begins with the space before it
    stop = len(before) + len(answer)
    whole = before + answer + after
    spans = {"answer": (start, stop), "after": (stop, len(whole)), "both": (start, len(whole))}
    return Put(whole, *spans[prompt.judged if after.strip() else "answer"])


def options(prompt: Prompt, example: Example) -> tuple[str, ...]:
    """What may stand in the blank of an example."""
    return prompt.answers or example.choices


def _values(example: Example) -> Mapping[str, str]:
    values = {"text": example.text, "pair": example.pair or ""}
    values |= {f"choice{at}": choice for at, choice in enumerate(example.choices, start=1)}
    for where, mark in ((example.text, "_"), (example.pair or "", "@placeholder")):
        if mark in where:
            values["before"], _, values["after"] = where.partition(mark)
    return values | {name: fact for name, fact in example.facts.items() if name != "answer"}


def prompt_of(task: Task) -> Prompt:
    """The wording of a task; for others, and one's own tables, a plain one with the labels as they are called."""
    if task.name in PROMPTS:
        return PROMPTS[task.name]
    labels = tuple(label.replace("_", " ") for label in task.labels)
    plain = {
        "classification": Prompt(text="Text: {text}\nLabel: {answer}", answers=labels),
        "pair": Prompt(text="Text 1: {text}\nText 2: {pair}\nLabel: {answer}", answers=labels),
        "choice": Prompt(text="{text} {answer}"),
    }
    if task.kind not in plain:
        raise UsageError(
            f"task '{task.name}' asks for {task.kind}, which cannot be chosen among answers; fine-tune for it "
            "(`pretune finetune`), or take one of classes, pairs, choices, spans or texts (`pretune list tasks`)"
        )
    return plain[task.kind]


def text_to_text(template: Template) -> Prompt:
    """A task as T5 was trained on it: its template, with the answers as it writes them."""
    if not template.targets:
        raise UsageError("this task's template has no answers to choose among; leave --text-to-text away")
    return Prompt(text=template.source + " " + BLANK, answers=template.targets)


_REVIEW = Prompt(text="Review: {text}\nSentiment: {answer}", answers=("negative", "positive"))
_CHOICE = Prompt(text="Question: {text}\nAnswer: {answer}")
_TRUE_FALSE = "{text}\nQuestion: {pair} True or False?\nAnswer: {answer}"
_NEITHER = "{text}\nQuestion: {pair} True, False or Neither?\nAnswer: {answer}"
_FOLLOWS = Prompt(text=_TRUE_FALSE, answers=("True", "False"))
_THREE = Prompt(text=_NEITHER, answers=("True", "Neither", "False"))

PROMPTS: Mapping[str, Prompt] = {
    "cola": Prompt(
        text="Sentence: {text}\nQuestion: Is this sentence good English?\nAnswer: {answer}", answers=("no", "yes")
    ),
    "sst2": _REVIEW,
    "imdb": _REVIEW,
    "imdb_cf": _REVIEW,
    "mr": _REVIEW,
    "mpqa": Prompt(text="Phrase: {text}\nSentiment: {answer}", answers=("negative", "positive")),
    "sst5": Prompt(text="Review: {text}\nSentiment: {answer}", answers=("terrible", "bad", "okay", "good", "great")),
    "agnews": Prompt(text="Article: {text}\nTopic: {answer}", answers=("world", "sports", "business", "technology")),
    "trec": Prompt(
        text="Question: {text}\nIt asks for: {answer}",
        answers=("abbreviation", "entity", "description", "person", "location", "number"),
    ),
    "emotion": Prompt(
        text="Message: {text}\nEmotion: {answer}", answers=("sadness", "joy", "love", "anger", "fear", "surprise")
    ),
    "mrpc": Prompt(
        text="{text}\n{pair}\nQuestion: Do both sentences say the same?\nAnswer: {answer}", answers=("no", "yes")
    ),
    "qqp": Prompt(
        text="Question 1: {text}\nQuestion 2: {pair}\nQuestion: Do both questions ask the same?\nAnswer: {answer}",
        answers=("no", "yes"),
    ),
    "qnli": Prompt(
        text="{text}\n{pair}\nQuestion: Does the sentence answer the question?\nAnswer: {answer}",
        answers=("yes", "no"),
    ),
    "mnli": _THREE,
    "snli": _THREE,
    "anli": _THREE,
    "sick_entailment": _THREE,
    "cb": Prompt(text=_NEITHER, answers=("True", "False", "Neither")),
    "rte": _FOLLOWS,
    "superglue_rte": _FOLLOWS,
    "superglue_ax": _FOLLOWS,
    "superglue_axb": _FOLLOWS,
    "superglue_axg": _FOLLOWS,
    "scitail": _FOLLOWS,
    "wnli": Prompt(text=_TRUE_FALSE, answers=("False", "True")),
    "boolq": Prompt(text="{pair}\nQuestion: {text}?\nAnswer: {answer}", answers=("no", "yes")),
    "multirc": Prompt(
        text="{text}\nQuestion and proposed answer: {pair}\nIs the answer right?\nAnswer: {answer}",
        answers=("no", "yes"),
    ),
    "wic": Prompt(
        text=(
            "{sentence1}\n{sentence2}\nQuestion: Is the word '{word}' used in the same sense in the two sentences "
            "above?\nAnswer: {answer}"
        ),
        answers=("no", "yes"),
    ),
    "wsc": Prompt(
        text="{plain}\nQuestion: Does the pronoun '{pronoun}' stand for '{pair}'?\nAnswer: {answer}",
        answers=("no", "yes"),
    ),
    "copa": Prompt(text="{text}\n{pair}\n{answer}"),
    "swag": Prompt(text="{text} {answer}"),
    "hellaswag": Prompt(text="{text} {answer}"),
    "winogrande": Prompt(text="{before}{answer}{after}", judged="after"),
    "record": Prompt(text="{text}\n{before}{answer}{after}", judged="both"),
    "arc": _CHOICE,
    "arc_easy": _CHOICE,
    "arc_challenge": _CHOICE,
    "commonsenseqa": _CHOICE,
}
"""By task, with the answers in the order of the task's labels."""
