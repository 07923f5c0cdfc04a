"""Tiny studies for tests: a corpus and a table of a few kilobytes, and models of a few thousand parameters."""

import random
from pathlib import Path
from typing import Any

import yaml

from pretune.studies.read import read_study
from pretune.studies.spec import Study

WORDS = tuple("river stone light garden winter paper music silver window forest morning letter".split())  # noqa: SIM905


def write_corpus(folder: Path) -> Path:
    """Write documents of repeated phrases."""
    draw = random.Random(0)
    path = folder / "corpus.txt"
    path.write_text("\n\n".join(" ".join(draw.choices(WORDS, k=30)) + "." for _ in range(200)))
    return path


def write_table(folder: Path) -> Path:
    """Write a table of texts whose label follows from a word."""
    draw = random.Random(1)
    lines = ["text,label"]
    for number in range(120):
        label = ("good", "bad")[number % 2]
        lines.append(f"{' '.join(draw.choices(WORDS, k=6))} {label},{label}")
    path = folder / "table.csv"
    path.write_text("\n".join(lines))
    return path


def make_tree(folder: Path, **changes: Any) -> dict[str, Any]:
    """Return a small study with two rows, a validation loss and a fine-tuned score."""
    tree: dict[str, Any] = {
        "title": "Rates",
        "about": "Two masking rates.",
        "question": "Which rate?",
        "paper": {
            "citation": "Nobody (2000): Rates",
            "table": {"caption": "Table 1", "columns": ["score"], "rows": {"low": [1.0], "high": [2.0]}},
        },
        "settings": {
            "corpus": [str(write_corpus(folder))],
            "model": "bert-tiny",
            "tokenizer": {"kind": "wordpiece", "vocab": 120},
            "prepare.holdout": "10%",
            "pretrain": {
                "objective": "masked",
                "model": {"width": 16, "heads": 2, "depth": 1},
                "data.max_length": 32,
                "train": {"batch_tokens": 128, "samples_every": 0},
            },
            "finetune": {"train": str(write_table(folder)), "steps": 6, "train.batch": 8},
        },
        "rows": {"low": {"pretrain.objective.rate": 0.15}, "high": {"pretrain.objective.rate": 0.4}},
        "budget": {"tokens": 1024},
        "seeds": 2,
        "measures": {"loss": {"kind": "validation"}, "table": {"kind": "finetuned"}},
        "claims": [{"text": "A low rate is better", "measure": "loss", "better": "low", "worse": "high"}],
    }
    return {**tree, **changes}


def write_study(folder: Path, tree: dict[str, Any] | None = None, **changes: Any) -> str:
    """Write a tree, by default `make_tree`, as a YAML file; return its path."""
    path = folder / "rates.yaml"
    text = yaml.safe_dump(make_tree(folder, **changes) if tree is None else tree, sort_keys=False, allow_unicode=True)
    path.write_text(text)
    return str(path)


def make_study(folder: Path, **changes: Any) -> Study:
    """Return `make_tree` as a study."""
    return read_study(make_tree(folder, **changes), "rates")
