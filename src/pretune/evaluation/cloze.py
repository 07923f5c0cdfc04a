"""Cloze tests: the last word of a passage (LAMBADA, Paperno et al., 2016), and blanks in user files.

    {"text": "The capital of France is ____.", "answer": "Paris", "category": "capitals"}

A decoder sees only the text before the blank. A bidirectional or infilling model also sees the text after it, or a
full stop if there is none, and one mask per token of the word.
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
from pretune.metrics.numeric import perplexity
from pretune.tasks.example import Example
from pretune.tasks.table import Jsonl

FULL_STOP = "."
CATEGORIES = ("category", "relation")
"""Names of the field that holds the category of a probe."""


def evaluate_cloze(
    model: nn.Module,
    examples: Sequence[Example],
    scoring: ScoringConfig = DEFAULT_SCORING,
    *,
    name: str = "lambada",
    on_progress: ProgressCallback | None = None,
) -> EvaluationResult:
    """Evaluate the share of examples whose word (`target`) is predicted greedily, and the perplexity of words.

    If all examples have a category (`group`), the groups are the accuracies of categories, and `macro_accuracy` is
    their mean.
    """
    if not examples:
        raise DataError("no passages to evaluate; is the file empty?")
    is_decoder = get_language_model(model).shape == "decoder"
    texts: list[str] = []
    spans: list[tuple[int, int]] = []
    for example in examples:
        context, word = example.text.rstrip(), example.target or ""
        start = f"{context} {word}" if context else word
        texts.append(start if is_decoder else start + (example.pair or FULL_STOP))
        spans.append((len(context), len(start)))
    result = compute_token_logprobs(
        model, encode_passages(get_tokenizer(model), texts, spans, single_unit=True), scoring, on_progress
    )
    counts = {"examples": len(examples), "cut": result.truncated_passages, "tokens": len(result.logprobs)}
    notes = () if is_decoder else ("one mask per token of the word, followed by a full stop if no text follows",)
    nats = -float(np.sum(result.sums))
    categories = average_by_group(result.is_greedy, [example.group for example in examples])
    macro = {"macro_accuracy": float(np.mean([*categories.values()]))} if categories else {}
    return EvaluationResult(
        task=name,
        scores={"accuracy": float(result.is_greedy.mean()), **macro, "perplexity": perplexity(nats, len(texts))},
        groups=categories,
        counts={name: count for name, count in {**counts, "categories": len(categories)}.items() if count},
        notes=notes,
    )


def read_blanks(path: Path) -> list[Example]:
    """Read JSON lines with a `text` that has one blank (____ or [MASK]) and its `answer`.

    A `category` or `relation` becomes the example's group; either all lines have one or none has.
    """
    if not path.is_file():
        raise DataError(f"{path}: {explain_missing(path)}; pass JSON lines with text and answer with --data")
    examples: list[Example] = []
    for row in Jsonl().read_rows(path):
        parts = re.split(r"_{2,}|\[MASK\]", row.get_text("text"))
        if len(parts) != 2:
            raise DataError(f"{row.location}: 'text' has {len(parts) - 1} blanks, expected one (____ or [MASK])")
        group = next((row.get_text(name).strip() for name in CATEGORIES if row.values.get(name) is not None), None)
        if examples and (group is None) != (examples[0].group is None):
            state = "missing" if group is None else "present"
            raise DataError(
                f"{row.location}: the category is {state}, unlike in the first line; use a category (or relation) "
                "in all lines or in none"
            )
        examples.append(
            Example(text=parts[0], target=row.get_text("answer").strip(), pair=parts[1] or None, group=group)
        )
    return examples
