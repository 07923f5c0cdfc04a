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
from pretune.evaluation.minimal_pairs import average_by_group
from pretune.evaluation.result import EvaluationResult
from pretune.inference.scoring import DEFAULT_SCORING, ScoringConfig, compute_token_logprobs, encode_passages
from pretune.inference.scoring.logprobs import ProgressCallback
from pretune.inference.text_model import get_language_model, get_tokenizer
from pretune.metrics.perplexity import perplexity
from pretune.tasks.example import Example
from pretune.tasks.table_rows import Jsonl

FULL_STOP = "."
CATEGORIES = ("category", "relation")
"""Fields that name the category of a probe."""


def evaluate_cloze(
    model: nn.Module,
    examples: Sequence[Example],
    scoring: ScoringConfig = DEFAULT_SCORING,
    *,
    name: str = "lambada",
    on_progress: ProgressCallback | None = None,
) -> EvaluationResult:
    """How often all tokens of the word (`target`) are the likeliest, and the perplexity of words.

    Where all examples have a category (`group`), the parts are the accuracies of categories, and `macro_accuracy` is
    their mean.
    """
    if not examples:
        raise DataError("there are no passages to read; is the file empty?")
    left = get_language_model(model).shape == "decoder"
    texts: list[str] = []
    stretches: list[tuple[int, int]] = []
    for example in examples:
        before, word = example.text.rstrip(), example.target or ""
        start = f"{before} {word}" if before else word
        texts.append(start if left else start + (example.pair or FULL_STOP))
        stretches.append((len(before), len(start)))
    found = compute_token_logprobs(
        model, encode_passages(get_tokenizer(model), texts, stretches, single_unit=True), scoring, on_progress
    )
    counts = {"examples": len(examples), "cut": found.truncated_passages, "tokens": len(found.logprobs)}
    notes = () if left else ("as many blanks as the word has tokens, and a full stop where nothing is after them",)
    nats = -float(np.sum(found.sums))
    categories = average_by_group(found.is_greedy, [example.group for example in examples])
    macro = {"macro_accuracy": float(np.mean([*categories.values()]))} if categories else {}
    return EvaluationResult(
        task=name,
        scores={"accuracy": float(found.is_greedy.mean()), **macro, "perplexity": perplexity(nats, len(texts))},
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
    for row in Jsonl().read_rows(path):
        parts = re.split(r"_{2,}|\[MASK\]", row.get_text("text"))
        if len(parts) != 2:
            raise DataError(
                f"{row.location}: {len(parts) - 1} blanks in 'text'; one is expected, written ____ or [MASK]"
            )
        group = next((row.get_text(name).strip() for name in CATEGORIES if row.values.get(name) is not None), None)
        if found and (group is None) != (found[0].group is None):
            raise DataError(f"{row.location}: a category is {'missing' if group is None else 'given'} here and not in "
                            "the first line; give all lines one (category or relation), or none")  # fmt: skip
        found.append(Example(text=parts[0], target=row.get_text("answer").strip(), pair=parts[1] or None, group=group))
    return found
