"""Tiny models of three shapes with tokenizers of their own, and a few examples of every kind of task."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pretune.adaptation.adapted import ModelWithHead, adapt
from pretune.models.catalog import resolve
from pretune.models.model import LanguageModel, build
from pretune.tasks.encoder import TaskEncoder, build_head
from pretune.tasks.example import Example
from pretune.tasks.task import Task, Template
from pretune.tasks.types import TYPE_OPTIONS
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.training import train

SHAPES = ("bert", "gpt2", "t5", "bart")
KINDS = tuple(kind for kind in TYPE_OPTIONS if kind not in ("embedding", "instruction", "preference", "reward"))
TEXT = [
    "The old man walked down to the river and looked for his boat, but it was gone.",
    "A good film is one that you want to see again; a bad one you have forgotten before it ends.",
    "Nina Simone sang it in Paris in 1968, and John Smith of London heard her there.",
    "cola sentence: acceptable unacceptable positive negative choice1 choice2 question: context: answer",
    "Who sang it? Where was it sung? What did the old man look for? Is this a good film or a bad film?",
]
TEXTS = [*TEXT, "A bad film.", "Good!", "The boat was gone again, and the river was not the old river."]
_KIND = {"bert": "wordpiece", "gpt2": "bpe", "t5": "unigram", "bart": "bpe"}


@cache
def tokenizer(shape: str) -> Tokenizer:
    style = {"style": "s-mask"} if shape == "bart" else {}
    return train(_KIND[shape], TEXT * 3, vocab=400, **style)


@cache
def body(shape: str, positions: int = 128) -> LanguageModel:
    """A model without dropout; it must not be changed."""
    found = tokenizer(shape)
    settings: dict[str, Any] = {"width": 32, "depth": 2, "heads": 4, "vocab": -(-found.vocab // 8) * 8, "dropout": 0.0}
    settings |= {"head_width": 8, "hidden": 64} if shape == "t5" else {"positions": positions}
    spec = resolve(shape, settings)
    model = build(spec, seed=1)
    model.assets.tokenizer = found
    return model


def model_for(shape: str, task: Task, seed: int = 0, **options: Any) -> ModelWithHead:
    """A tiny model with the task's head, without dropout."""
    model = body(shape)
    head = build_head(task, model.spec, model.tokenizer, **options)
    if hasattr(head, "dropout"):
        head = replace(head, dropout=0.0)
    return adapt(model, head, seed=seed)


def encoder_for(shape: str, task: Task, **options: Any) -> TaskEncoder:
    return TaskEncoder.from_task(task, model_for(shape, task), **options)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A type's task without files, and eight or so examples of it, as different as their lengths."""

    examples: Callable[[], list[Example]]
    metrics: tuple[str, ...]
    labels: tuple[str, ...] = ()
    scale: tuple[float, float] | None = None
    template: Template | None = None


def task_of(kind: str) -> Task:
    """A task of a type."""
    case = CASES[kind]
    parts = {"metrics": case.metrics, "labels": case.labels, "scale": case.scale, "template": case.template}
    return Task(name=f"small-{kind}", kind=kind, splits={}, **parts)


def examples_of(kind: str) -> list[Example]:
    return CASES[kind].examples()


def classes(count: int, *, has_pair: bool = False) -> list[Example]:
    """Texts, or pairs of them, in as many classes."""
    pairs = [TEXTS[-index] if has_pair else None for index in range(len(TEXTS))]
    return [Example(text=text, pair=pairs[index], label=index % count) for index, text in enumerate(TEXTS)]


def _multi_label() -> list[Example]:
    words = {"film": "film", "music": "sang", "place": "river", "question": "?"}
    return [Example(text=text, tags=tuple(name for name in words if words[name] in text)) for text in TEXTS]


def _scores() -> list[Example]:
    return [Example(text=text, pair=TEXTS[-index], label=index * 0.6) for index, text in enumerate(TEXTS)]


def _tagged() -> list[Example]:
    tags = {"Nina": "B-PER", "John": "B-PER", "Simone": "I-PER", "Smith": "I-PER", "Paris": "B-LOC"}
    return [Example(text=" ".join(row), words=row, tags=tuple(tags.get(word, "O") for word in row)) for row in _words()]


def _choices() -> list[Example]:
    options = ("was gone.", "Good!", "it was sung again in London by the old man")
    return [Example(text=text, choices=options[: 2 + index % 2], label=index % 2) for index, text in enumerate(TEXTS)]


def _preferences() -> list[Example]:
    """Questions whose good answer is chosen; the first is the second turn of a chat."""
    rows = [("Good?", "A good film.", "Was it?"), ("Who?", "Nina", "you have forgotten it"), ("Why?", "in Paris", "no")]
    turns = (("user", "Hi"), ("assistant", "he"))
    return [
        Example(text=text, messages=(*turns[: 2 * (i == 0)], ("user", text)), choices=(first, second), label=0)
        for i, (text, first, second) in enumerate(rows * 2)
    ]


def _targets() -> list[Example]:
    return [Example(text=text, target=" ".join(text.split()[:3])) for text in TEXTS]


def _words() -> list[tuple[str, ...]]:
    return [tuple(text.replace(",", " ,").split()) for text in TEXTS]


def _make_predicate(words: tuple[str, ...], index: int) -> Example:
    """A predicate with the word before it as its first argument, and the two after it as its second."""
    place = index % len(words)
    tags = ["O"] * len(words)
    if place:
        tags[place - 1] = "B-A0"
    for tag, word in zip(("B-A1", "I-A1"), range(place + 1, len(words)), strict=False):
        tags[word] = tag
    return Example(text=" ".join(words), words=words, predicate=place, tags=tuple(tags))


def _make_tree(words: tuple[str, ...], index: int) -> Example:
    """A tree whose root is one of the first words; articles depend on the next word, others on the root."""
    root = 1 + index % min(3, len(words))
    heads = [
        0 if number == root else number + 1 if word.lower() in ("a", "the") and number < len(words) else root
        for number, word in enumerate(words, start=1)
    ]
    tags = ["root" if head == 0 else "dep" if head == root else "det" for head in heads]
    return Example(text=" ".join(words), words=words, heads=tuple(heads), tags=tuple(tags))


def _make_document(words: tuple[str, ...], index: int) -> Example:
    """A document of two sentences, with the same cluster in both, one inside a span of another, and one alone."""
    sentence = words[: 3 + index % 4]
    count = len(sentence)
    clusters = (((0, 0), (count, count)), ((0, 1), (count, count + 1)))
    return Example(text=" ".join(sentence * 2), words=sentence * 2, sentences=(count, count), clusters=clusters)


def _make_question(text: str, index: int) -> Example:
    if index == 3:
        return Example(text="What is not there?", pair=text)
    words = text.split()
    answer = " ".join(words[len(words) // 2 : len(words) // 2 + 2])
    start = text.index(answer)
    return Example(text="Who sang it?", pair=text, spans=((start, start + len(answer)),), answers=(answer,))


CASES: dict[str, Case] = {
    "classification": Case(
        labels=("negative", "positive"),
        metrics=("accuracy", "matthews"),
        examples=lambda: classes(2),
        template=Template(source="classify: {text}", targets=("negative", "positive")),
    ),
    "pair": Case(
        labels=("no", "maybe", "yes"), metrics=("accuracy_f1_macro",), examples=lambda: classes(3, has_pair=True)
    ),
    "multi-label": Case(
        labels=("film", "music", "place", "question"), metrics=("multilabel_f1",), examples=_multi_label
    ),
    "regression": Case(
        metrics=("pearson_spearman",),
        examples=_scores,
        scale=(0.0, 5.0),
        template=Template(source="score: {text} {pair}", target="{score}"),
    ),
    "tagging": Case(labels=("O", "B-PER", "I-PER", "B-LOC"), metrics=("entity_f1", "tag_accuracy"), examples=_tagged),
    "srl": Case(
        labels=("O", "B-A0", "I-A0", "B-A1", "I-A1"),
        metrics=("argument_f1",),
        examples=lambda: [_make_predicate(words, index) for index, words in enumerate(_words())],
    ),
    "dependency": Case(
        labels=("root", "det", "dep"),
        metrics=("attachment",),
        examples=lambda: [_make_tree(words, index) for index, words in enumerate(_words())],
    ),
    "coreference": Case(
        metrics=("coreference",),
        examples=lambda: [_make_document(words, index) for index, words in enumerate(_words()) if len(words) > 2],
    ),
    "span": Case(
        metrics=("squad2",),
        examples=lambda: [_make_question(text, index) for index, text in enumerate(TEXTS)],
        template=Template(source="question: {text} context: {pair}", target="{answer}"),
    ),
    "choice": Case(metrics=("choice_accuracy",), examples=_choices),
    "generation": Case(metrics=("rouge",), examples=_targets),
    "preference": Case(labels=("chosen", "rejected"), metrics=("choice_accuracy",), examples=_preferences),
}
"""What the tests of all types need of each."""
