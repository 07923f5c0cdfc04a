"""Words in their place: the last word of a passage (LAMBADA, Paperno et al., 2016), and blanks of one's own.

    {"text": "The capital of France is ____.", "answer": "Paris", "category": "capitals"}

A decoder knows only what is before the blank. A model that reads both ways, or fills blanks, sees what is after it too,
or a full stop where there is nothing, and as many blanks as the word has tokens.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import nn

from pretune.core.errors import DataError, explain_missing
from pretune.evaluation.minimal_pairs import shares
from pretune.evaluation.result import Result
from pretune.inference.scoring import PLAIN, Asking, judge, passages
from pretune.inference.scoring.logprobs import Tell
from pretune.inference.text_model import body, tokenizer_of
from pretune.metrics.perplexity import perplexity
from pretune.tasks.example import Example
from pretune.tasks.table_rows import Jsonl

STOP = "."
CATEGORIES = ("category", "relation")
"""Fields that name the category of a probe."""


def last_words(
    model: nn.Module,
    examples: Sequence[Example],
    asking: Asking = PLAIN,
    *,
    name: str = "lambada",
    tell: Tell | None = None,
) -> Result:
    """How often all tokens of the word (`target`) are the likeliest, and the perplexity of words.

    Where all examples have a category (`group`), the parts are the accuracies of categories, and `macro_accuracy` is
    their mean.
    """
    if not examples:
        raise DataError("there are no passages to read; is the file empty?")
    left = body(model).shape == "decoder"
    texts: list[str] = []
    stretches: list[tuple[int, int]] = []
    for example in examples:
        before, word = example.text.rstrip(), example.target or ""
        start = f"{before} {word}" if before else word
        texts.append(start if left else start + (example.pair or STOP))
        stretches.append((len(before), len(start)))
    found = judge(model, passages(tokenizer_of(model), texts, stretches, whole=True), asking, tell)
    counts = {"examples": len(examples), "cut": found.cut, "tokens": len(found.logs)}
    notes = () if left else ("as many blanks as the word has tokens, and a full stop where nothing is after them",)
    nats = -float(np.sum(found.sums))
    categories = shares(found.right, [example.group for example in examples])
    macro = {"macro_accuracy": float(np.mean([*categories.values()]))} if categories else {}
    return Result(
        task=name,
        scores={"accuracy": float(found.right.mean()), **macro, "perplexity": perplexity(nats, len(texts))},
        groups=categories,
        counts={name: count for name, count in {**counts, "categories": len(categories)}.items() if count},
        notes=notes,
    )


def read_blanks(path: Path) -> list[Example]:
    """JSON lines with a `text` that has one blank (____ or [MASK]) and the `answer` that belongs there.

    A `category` or `relation` is the example's group; either all lines have one or none has.
    """
    if not path.is_file():
        raise DataError(f"{path}: {explain_missing(path)}; give JSON lines with text and answer with --data")
    found: list[Example] = []
    for row in Jsonl().rows(path):
        parts = re.split(r"_{2,}|\[MASK\]", row.text("text"))
        if len(parts) != 2:
            raise DataError(f"{row.where}: {len(parts) - 1} blanks in 'text'; one is expected, written ____ or [MASK]")
        group = next((row.text(name).strip() for name in CATEGORIES if row.values.get(name) is not None), None)
        if found and (group is None) != (found[0].group is None):
            raise DataError(f"{row.where}: a category is {'missing' if group is None else 'given'} here and not in "
                            "the first line; give all lines one (category or relation), or none")  # fmt: skip
        found.append(Example(text=parts[0], target=row.text("answer").strip(), pair=parts[1] or None, group=group))
    return found
