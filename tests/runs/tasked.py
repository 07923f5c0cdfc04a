"""A small base model and small tables of every kind, for tests of fine-tuning."""

import csv
import json
import random
from pathlib import Path
from typing import Any

import pretune as pt
from pretune.models import catalog
from pretune.models.model import build
from pretune.runs.defaults import set_special_tokens
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.training import train
from tests.runs.small import VOCAB, shrunk

WORDS = [
    "the",
    "a",
    "old",
    "sea",
    "house",
    "wind",
    "quiet",
    "river",
    "stone",
    "light",
    "night",
    "grey",
    "long",
    "road",
    "winter",
    "salt",
]
GOOD, BAD = "lovely", "dreadful"


def sentence(rng: random.Random, more: str = "") -> str:
    words = rng.choices(WORDS, k=rng.randint(4, 9))
    words.insert(rng.randrange(len(words)), more)
    return " ".join(words).strip() + "."


def corpus(count: int = 80) -> list[str]:
    rng = random.Random(7)
    return [" ".join(sentence(rng, rng.choice((GOOD, BAD, ""))) for _ in range(5)) for _ in range(count)]


def make_base(
    folder: Path, family: str = "bert-tiny", kind: str = "wordpiece", style: str = "cls-sep", **knobs: Any
) -> Path:
    """A model of a few thousand weights with a tokenizer, as `pt.load` reads it."""
    made = train(kind, corpus(), vocab=VOCAB[kind], style=style)
    made.save(folder / "tokenizer")
    tokenizer = Tokenizer.load(folder / "tokenizer")
    known = shrunk(family)
    small = {name.removeprefix("model."): value for name, value in known.items()} | {"depth": 2} | knobs
    spec = set_special_tokens(catalog.resolve(family, {"vocab": tokenizer.vocab, **small}), tokenizer)
    model = build(spec, seed=1)
    model.assets.files, model.assets.tokenizer = tokenizer.build_files(), tokenizer
    pt.save(model, folder / "base")
    return folder / "base"


def classes(file: Path, count: int = 120, seed: int = 0) -> Path:
    """Texts whose label is one word of theirs."""
    rng = random.Random(seed)
    rows = [(sentence(rng, GOOD if i % 2 else BAD), "good" if i % 2 else "bad") for i in range(count)]
    return table(file, ("text", "label"), rows)


def scores(file: Path, count: int = 120, seed: int = 0) -> Path:
    """Pairs whose score is how many words they share."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        first, second = sentence(rng), sentence(rng)
        rows.append((first, second, f"{len({*first.split()} & {*second.split()}) / 3:.2f}"))
    return table(file, ("one", "two", "score"), rows)


def tags(file: Path, count: int = 60, seed: int = 0) -> Path:
    """Sentences of which one word is a name."""
    rng = random.Random(seed)
    blocks = []
    for _ in range(count):
        words = sentence(rng, "Anna").rstrip(".").split()
        blocks.append("\n".join(f"{word} {'B-PER' if word == 'Anna' else 'O'}" for word in words))
    file.write_text("\n\n".join(blocks) + "\n")
    return file


def table(file: Path, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> Path:
    if file.suffix == ".jsonl":
        lines = [json.dumps(dict(zip(header, row, strict=True))) for row in rows]
        file.write_text("\n".join(lines) + "\n")
        return file
    with file.open("w", newline="") as out:
        writer = csv.writer(out, delimiter="\t" if file.suffix == ".tsv" else ",")
        writer.writerows([header, *rows])
    return file
