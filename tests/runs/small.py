"""Small runs for the tests of this folder: stories as tokens of each kind, and models of a few thousand weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pretune.models.catalog import list_settings, parse_name
from pretune.models.families import FAMILIES
from pretune.runs.prepare import prepare
from pretune.text.tokenizer.training import train
from tests.data.texts import blocks, stories

Prepared = Callable[..., Path]

VOCAB = {"bpe": 300, "unigram": 420, "wordpiece": 300, "words": 300}
"""Room for the bytes and, in T5's style, for the sentinels."""

SMALL = {
    "width": 32,
    "depth": 1,
    "heads": 2,
    "hidden": 48,
    "head_width": 16,
    "kv_heads": 1,
    "table": 16,
    "positions": 64,
    "filters": 64,
}
FAST = {
    "data.max_length": 32,
    "train.batch_tokens": 256,
    "train.eval_tokens": 256,
    "train.log_every": 1,
}
"""Eight rows of 32 tokens a step."""


def make(folder: Path, kind: str, style: str, *, count: int = 60, holdout: float = 0.1, what: str = "stories") -> Path:
    """Prepared stories, or `pairs` of them, or `both`."""
    texts = stories(count)
    train(kind, texts, vocab=VOCAB[kind], style=style).save(folder / "tokenizer")
    given = {"stories": blocks(folder / "stories.txt", texts), "pairs": f"pair:{folder}/x,{folder}/y"}
    for name, first in (("x", 100), ("y", 200)):
        (folder / name).write_text("\n".join(stories(count, first)))
    inputs = [*given.values()] if what == "both" else [given[what]]
    prepare(inputs, tokenizer=folder / "tokenizer", out=folder / "data", holdout=holdout, workers=0)
    return folder / "data"


def shrunk(name: str) -> dict[str, Any]:
    """Settings that make a size of a family tiny, with what is particular about it kept."""
    family, size = parse_name(name)
    entry = FAMILIES.get(family)
    spec, knobs = entry.resolve_spec(size), list_settings(entry)
    attention = getattr(spec.last_stack.blocks[0], "attention", None)
    absent = {
        "kv_heads": getattr(attention, "kv_heads", None) is None,
        "table": spec.table == spec.width,
        "head_width": getattr(attention, "head_width", None) is None,
        "positions": spec.max_length is None,
    }
    small = {**SMALL, "depth": 2} if spec.last_stack.share is not None else SMALL  # one layer alone shares nothing
    return {f"model.{knob}": value for knob, value in small.items() if knob in knobs and not absent.get(knob)}
