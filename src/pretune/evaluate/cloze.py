"""The last word of a passage: LAMBADA (Paperno et al., 2016), and anything else with a context and a word.

A model that reads both ways, or fills blanks, sees as many blanks as the word has tokens, and a full stop behind them.
"""

from collections.abc import Sequence

import numpy as np
from torch import nn

from pretune.core.errors import DataError
from pretune.evaluate.result import Result
from pretune.metrics.perplexity import perplexity
from pretune.tasks.example import Example
from pretune.use.score import PLAIN, Asking, judge, passages
from pretune.use.score.judge import Tell
from pretune.use.text import body, tokenizer_of

STOP = "."


def last_words(
    model: nn.Module,
    examples: Sequence[Example],
    asking: Asking = PLAIN,
    *,
    name: str = "lambada",
    tell: Tell | None = None,
) -> Result:
    """How often all tokens of the word (`target`) are the likeliest, and the perplexity of words."""
    if not examples:
        raise DataError("there are no passages to read; is the file empty?")
    left = body(model).shape == "decoder"
    texts = [f"{example.text} {example.target}{'' if left else STOP}" for example in examples]
    stretches = [(len(example.text), len(example.text) + 1 + len(example.target or "")) for example in examples]
    found = judge(model, passages(tokenizer_of(model), texts, stretches, whole=True), asking, tell)
    counts = {"examples": len(examples), "cut": found.cut, "tokens": len(found.logs)}
    notes = () if left else ("as many blanks as the word has tokens, and a full stop after them",)
    return Result(
        task=name,
        scores={
            "accuracy": float(found.right.mean()),
            "perplexity": perplexity(-float(np.sum(found.sums)), len(texts)),
        },
        counts={name: count for name, count in counts.items() if count},
        notes=notes,
    )
