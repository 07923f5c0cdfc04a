"""Tiny models of every kind, trained in seconds, for the page: runs, an index and word vectors on disk."""

import csv
import json
from pathlib import Path
from typing import Any

import pretune as pt
from tests.data.texts import stories
from tests.inference.speakers import bert, gpt

HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>\u202e&amp;'
"""Text that would run if it were parsed as HTML."""
REVIEWS = {
    "good": ["a lovely warm film", "the best day of the year", "she was happy and so was the dog", "a kind old story"],
    "bad": ["a sad cold film", "the worst day of the year", "he was angry and so was the cat", "a mean old story"],
}
TAGGED = [
    ("Tom met Sue in the big park", "B-PER O B-PER O O O B-LOC"),
    ("Sue and Tom saw the park", "B-PER O B-PER O O B-LOC"),
    ("the dog saw Tom", "O O O B-PER"),
    ("Tom ran to the park with Sue", "B-PER O O O B-LOC O B-PER"),
]
ANSWERS = [
    ("Who met Sue?", "Tom met Sue in the big park.", "Tom"),
    ("Who ran?", "The old dog ran home.", "The old dog"),
]
QUICK: dict[str, Any] = {"baselines": "none", "epochs": None, "device": "cpu"}


def base(folder: Path) -> Path:
    """A tiny encoder on disk."""
    if not folder.exists():
        pt.save(bert(), folder)
    return folder


def classifier(folder: Path, *, steps: int = 30) -> Path:
    """A run that tells good reviews from bad ones; one of its labels is hostile text."""
    table = folder.with_suffix(".csv")
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        for _ in range(6):
            writer.writerows(
                (text, label if label == "good" else HOSTILE) for label in REVIEWS for text in REVIEWS[label]
            )
    run = pt.finetune(base(folder.with_name("base")), out=folder, train=table, steps=steps, lr=1e-2, **QUICK)
    return run.path


def tagger(folder: Path, *, steps: int = 40) -> Path:
    """A run that tags people and places."""
    table = folder.with_suffix(".jsonl")
    rows = [json.dumps({"words": text.split(), "tags": tags.split()}) for text, tags in TAGGED * 6]
    table.write_text("\n".join(rows) + "\n")
    run = pt.finetune(
        base(folder.with_name("base")), out=folder, train=table, type="tagging", steps=steps, lr=1e-2, **QUICK
    )
    return run.path


def reader(folder: Path, *, steps: int = 20) -> Path:
    """A run that finds the answer in a passage."""
    table = folder.with_suffix(".jsonl")
    rows = [json.dumps(dict(zip(("question", "context", "answer"), row, strict=True))) for row in ANSWERS * 12]
    table.write_text("\n".join(rows) + "\n")
    run = pt.finetune(
        base(folder.with_name("base")), out=folder, train=table, type="span", steps=steps, lr=1e-2, **QUICK
    )
    return run.path


def library(folder: Path) -> Path:
    """An index of sentences, one of them hostile."""
    texts = [*(text for texts in REVIEWS.values() for text in texts), *(text for text, _ in TAGGED), HOSTILE]
    pt.index(base(folder.with_name("base")), texts, out=folder)
    return folder


def word_vectors(file: Path) -> Path:
    """Word vectors in the text format of word2vec."""
    words = ["cat", "dog", "park", "film", "day"]
    lines = [f"{word} {' '.join(f'{(i * 7 + j * 3) % 5 - 2:.1f}' for j in range(4))}" for i, word in enumerate(words)]
    file.write_text(f"{len(words)} 4\n" + "\n".join(lines) + "\n")
    return file


def pretrained(folder: Path, *, steps: int = 6) -> Path:
    """A short pre-training run with its data card, cost and curves."""
    corpus = folder.with_name("corpus.txt")
    corpus.write_text("\n\n".join(stories(60)))
    words = folder.with_name("words")
    pt.save(gpt(), words)
    data = folder.with_name("data")
    pt.prepare([corpus], tokenizer=words, out=data)
    run = pt.pretrain(
        "gpt2-small", data=data, out=folder, steps=steps, device="cpu",
        overrides={
            "model.width": 32, "model.depth": 2, "model.heads": 4, "data.max_length": 32, "train.batch_tokens": 256,
            "train.eval_every": 2, "train.workers": 0,
        },
    )  # fmt: skip
    return run.path


def build_all(folder: Path) -> dict[str, Any]:
    """All of them by name, with a decoder and an encoder in memory."""
    return {
        "gpt": gpt(),
        "bert": bert(),
        "reviews": classifier(folder / "reviews"),
        "names": tagger(folder / "names"),
        "answers": reader(folder / "answers"),
        "library": library(folder / "library"),
        "vectors": word_vectors(folder / "vectors.txt"),
        "books": pretrained(folder / "books"),
    }
