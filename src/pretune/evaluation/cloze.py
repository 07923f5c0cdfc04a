"""Gaps with choices: the share of sentences in which the right word is the likeliest.

    Water freezes to _ when it gets very cold.      glass, ice, sand, smoke

A decoder is asked for the log-probability of the whole sentence with each word, an encoder for that of the word's
tokens in place of as many masks, and an encoder-decoder for that of the word as the filler of a blank. The
log-probabilities of a word's tokens are summed. A tie counts as wrong.
"""

import numpy as np
from torch import nn

from pretune.core.errors import DataError
from pretune.evaluation import EvaluationResult
from pretune.evaluation.minimal_pairs import average_by_group
from pretune.inference.scoring import DEFAULT_SCORING, ProgressCallback, ScoringConfig, compute_token_logprobs
from pretune.inference.scoring_queries import encode_passages
from pretune.inference.text_model import get_predictive_model, get_tokenizer
from pretune.metrics.significance import compute_share_interval
from pretune.tasks.example import Examples

GAP = "_"


def evaluate_cloze_choices(
    model: nn.Module,
    examples: Examples,
    scoring: ScoringConfig = DEFAULT_SCORING,
    *,
    name: str = "cloze",
    on_progress: ProgressCallback | None = None,
) -> EvaluationResult:
    """Evaluate the share of gaps whose right choice is the likeliest, with its 95 % interval, and by kind (`group`).

    `chance` and `most_frequent_word` are the shares that guessing and the choice that is most frequent in running text
    get right.
    """
    if not examples:
        raise DataError("no sentences to evaluate; is the file empty?")
    is_left_to_right = get_predictive_model(model).shape == "decoder" and not scoring.bidirectional
    texts: list[str] = []
    spans: list[tuple[int, int]] = []
    for example in examples:
        prefix, _, suffix = example.text.partition(GAP)
        for choice in example.choices:
            texts.append(prefix + choice + suffix)
            spans.append((len(prefix.rstrip()), len(texts[-1]) if is_left_to_right else len(prefix + choice)))
    passages = encode_passages(get_tokenizer(model), texts, spans, single_unit=True)
    result = compute_token_logprobs(model, passages, scoring, on_progress, deduplicate=True)
    sums = np.split(result.sums, np.cumsum([len(example.choices) for example in examples])[:-1])
    gold = [int(example.label or 0) for example in examples]
    best = [row == row.max() for row in sums]
    is_tie = np.array([row.sum() > 1 for row in best])
    correct = np.array([row[label] for row, label in zip(best, gold, strict=True)]) & ~is_tie
    low, high = compute_share_interval(int(correct.sum()), len(correct))
    scores = {"accuracy": float(correct.mean()), "accuracy_low": low, "accuracy_high": high}
    frequent = [example.facts.get("most_frequent") for example in examples]
    if None not in frequent:
        answers = [example.choices[label] for example, label in zip(examples, gold, strict=True)]
        scores["most_frequent_word"] = float(np.mean([a == b for a, b in zip(answers, frequent, strict=True)]))
    scores["chance"] = float(np.mean([1 / len(example.choices) for example in examples]))
    counts = {"examples": len(examples), "ties": int(is_tie.sum()), "cut": result.truncated_passages}
    return EvaluationResult(
        task=name,
        scores=scores,
        groups=average_by_group(correct, [example.group for example in examples]),
        counts={name: count for name, count in counts.items() if count or name != "cut"},
        notes=(
            "the whole sentence is scored with each word" if is_left_to_right else "only the word in the gap is scored",
        ),
    )
