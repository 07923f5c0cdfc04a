"""Tiny models of three shapes with tokenizers of their own, and a few examples of every kind of task."""

from dataclasses import replace
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
KINDS = tuple(kind for kind in TYPE_OPTIONS if kind != "embedding")
TEXT = [
    "The old man walked down to the river and looked for his boat, but it was gone.",
    "A good film is one that you want to see again; a bad one you have forgotten before it ends.",
    "Nina Simone sang it in Paris in 1968, and John Smith of London heard her there.",
    "cola sentence: acceptable unacceptable positive negative choice1 choice2 question: context: answer",
    "Who sang it? Where was it sung? What did the old man look for? Is this a good film or a bad film?",
]
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


def task_of(kind: str) -> Task:
    """A task of a kind, without files."""
    labels: dict[str, tuple[str, ...]] = {
        "classification": ("negative", "positive"),
        "pair": ("no", "maybe", "yes"),
        "multi-label": ("film", "music", "place", "question"),
        "tagging": ("O", "B-PER", "I-PER", "B-LOC"),
        "srl": ("O", "B-A0", "I-A0", "B-A1", "I-A1"),
        "dependency": ("root", "det", "dep"),
    }
    metrics: dict[str, tuple[str, ...]] = {
        "classification": ("accuracy", "matthews"), "pair": ("accuracy_f1_macro",), "regression": ("pearson_spearman",),
        "tagging": ("entity_f1", "tag_accuracy"), "span": ("squad2",), "choice": ("choice_accuracy",),
        "generation": ("rouge",), "multi-label": ("multilabel_f1",), "dependency": ("attachment",),
        "srl": ("argument_f1",),
    }  # fmt: skip
    template = {
        "classification": Template(source="classify: {text}", targets=labels["classification"]),
        "regression": Template(source="score: {text} {pair}", target="{score}"),
        "span": Template(source="question: {text} context: {pair}", target="{answer}"),
    }.get(kind)
    return Task(
        name=f"small-{kind}", kind=kind, metrics=metrics[kind], splits={}, labels=labels.get(kind, ()),
        scale=(0.0, 5.0) if kind == "regression" else None, template=template,
    )  # fmt: skip


def examples_of(kind: str) -> list[Example]:
    """Eight or so examples of a kind, as different as their lengths."""
    texts = [*TEXT, "A bad film.", "Good!", "The boat was gone again, and the river was not the old river."]
    if kind == "classification":
        return [Example(text=text, label=index % 2) for index, text in enumerate(texts)]
    if kind == "pair":
        return [Example(text=text, pair=texts[-index], label=index % 3) for index, text in enumerate(texts)]
    if kind == "multi-label":
        words = {"film": "film", "music": "sang", "place": "river", "question": "?"}
        return [Example(text=text, tags=tuple(name for name in words if words[name] in text)) for text in texts]
    if kind == "regression":
        return [Example(text=text, pair=texts[-index], label=index * 0.6) for index, text in enumerate(texts)]
    if kind == "tagging":
        tags = {"Nina": "B-PER", "John": "B-PER", "Simone": "I-PER", "Smith": "I-PER", "Paris": "B-LOC"}
        rows = [tuple(text.replace(",", " ,").split()) for text in texts]
        return [Example(text=" ".join(row), words=row, tags=tuple(tags.get(word, "O") for word in row)) for row in rows]
    if kind == "srl":
        return [_make_predicate(tuple(text.replace(",", " ,").split()), index) for index, text in enumerate(texts)]
    if kind == "dependency":
        rows = [tuple(text.replace(",", " ,").split()) for text in texts]
        return [_make_tree(row, index) for index, row in enumerate(rows)]
    if kind == "span":
        return [_make_question(text, index) for index, text in enumerate(texts)]
    if kind == "choice":
        options = ("was gone.", "Good!", "it was sung again in London by the old man")
        return [
            Example(text=text, choices=options[: 2 + index % 2], label=index % 2) for index, text in enumerate(texts)
        ]
    return [Example(text=text, target=" ".join(text.split()[:3])) for text in texts]


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


def _make_question(text: str, index: int) -> Example:
    if index == 3:
        return Example(text="What is not there?", pair=text)
    words = text.split()
    answer = " ".join(words[len(words) // 2 : len(words) // 2 + 2])
    start = text.index(answer)
    return Example(text="Who sang it?", pair=text, spans=((start, start + len(answer)),), answers=(answer,))
