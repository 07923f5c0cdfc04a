"""Minimal pairs: does a model find the better of two sentences likelier? (Warstadt et al., 2020)

Of a decoder the sum of the log-probabilities is compared, of an encoder the pseudo-log-likelihood, of an
encoder-decoder the log-probability of filling a blank with the sentence. A tie is wrong, and counted: sentences that
are the same tokens to a model are one.
"""

import difflib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import nn

from pretune.core.errors import DataError
from pretune.data.ragged import Bools, Ints
from pretune.evaluation.result import EvaluationResult
from pretune.inference.scoring import (
    DEFAULT_SCORING,
    Passages,
    ScoringConfig,
    TokenLogProbs,
    compute_token_logprobs,
    encode_passages,
)
from pretune.inference.scoring.logprobs import ProgressCallback
from pretune.inference.text_model import get_tokenizer
from pretune.tasks.example import Example


def evaluate_minimal_pairs(
    model: nn.Module,
    examples: Sequence[Example],
    scoring: ScoringConfig = DEFAULT_SCORING,
    *,
    name: str = "minimal_pairs",
    on_progress: ProgressCallback | None = None,
) -> EvaluationResult:
    """The share of pairs whose better sentence (`text`) is likelier than the other (`pair`).

    Where pairs belong to sets (`group`), the headline is the mean over the sets, as published for BLiMP; the parts are
    phenomena where examples tell them, or else sets.
    """
    read, one = _tokenize_unique(model, examples)
    found = compute_token_logprobs(model, read, scoring, on_progress)
    sums = found.sums[one]  # [pairs, 2]
    right, tied = sums[:, 0] > sums[:, 1], sums[:, 0] == sums[:, 1]
    sets = average_by_group(right, [example.group for example in examples])
    kinds = average_by_group(right, [example.facts.get("linguistics_term") for example in examples])
    scores = {"accuracy": float(right.mean())}
    if sets:
        scores = {"accuracy": float(np.mean(list(sets.values()))), "pair_accuracy": scores["accuracy"]}
    counts = {"pairs": len(examples), "ties": int(tied.sum()), "sets": len(sets), "cut": found.truncated_passages}
    return EvaluationResult(task=name, scores=scores, groups=kinds or sets, counts=_drop_zero_counts(counts))


def evaluate_bias_pairs(
    model: nn.Module,
    examples: Sequence[Example],
    scoring: ScoringConfig = DEFAULT_SCORING,
    *,
    name: str = "bias_pairs",
    on_progress: ProgressCallback | None = None,
) -> EvaluationResult:
    """How often the more stereotyped sentence is the likelier (Nangia et al., 2020); a fair coin would give 0.5.

    Only tokens that both sentences have are summed, given all others: the words that differ may be more or less
    frequent, and that is not what is asked. A decoder sees what differs only before a token.
    """
    read, one = _tokenize_unique(model, examples)
    found = compute_token_logprobs(
        model, read, replace(scoring, rest=False), on_progress
    )  # as published: one token is hidden at a time
    sums = np.array([_sum_shared_tokens(read, found, (left, right)) for left, right in one.tolist()])
    more, tied = sums[:, 0] > sums[:, 1], sums[:, 0] == sums[:, 1]
    counts = {"pairs": len(examples), "ties": int(tied.sum()), "cut": found.truncated_passages}
    groups = average_by_group(more, [example.group for example in examples])
    return EvaluationResult(
        task=name, scores={"stereotyped": float(more.mean())}, groups=groups, counts=_drop_zero_counts(counts)
    )


def average_by_group(correct: Bools, names: Sequence[str | None]) -> dict[str, float]:
    """The share that is right, by name; nothing where names are missing."""
    if any(name is None for name in names):
        return {}
    known = sorted({str(name) for name in names})
    owner = np.searchsorted(np.array(known), np.array(names, dtype=str))
    means = np.bincount(owner, weights=correct) / np.bincount(owner)
    return dict(zip(known, means.tolist(), strict=True))


def _tokenize_unique(model: nn.Module, examples: Sequence[Example]) -> tuple[Passages, Ints]:
    """Every sentence once, and which two a pair is [pairs, 2]."""
    if not examples:
        raise DataError("there are no pairs to compare; is the file empty?")
    texts = [text or "" for example in examples for text in (example.text, example.pair)]
    read = encode_passages(get_tokenizer(model), texts)
    known: dict[bytes, int] = {}
    first: list[int] = []
    number = np.empty(len(texts), dtype=np.int64)
    for at in range(len(texts)):
        key = read.tokens[read.offsets[at] : read.offsets[at + 1]].tobytes()
        if key not in known:
            known[key] = len(first)
            first.append(at)
        number[at] = known[key]
    return read.take(np.array(first)), number.reshape(-1, 2)


def _sum_shared_tokens(sentences: Passages, logprobs: TokenLogProbs, pair: tuple[int, int]) -> tuple[float, float]:
    """The sums of two sentences over the tokens that they share."""
    logs = [logprobs[at] for at in pair]
    one, other = (sentences.tokens[sentences.offsets[at] :][: len(logprobs[at])].tolist() for at in pair)
    sums = [0.0, 0.0]
    for block in difflib.SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks():
        for side, start in enumerate((block.a, block.b)):
            sums[side] += float(np.nansum(logs[side][start : start + block.size]))
    return sums[0], sums[1]


def _drop_zero_counts(counts: dict[str, int]) -> dict[str, int]:
    """Counts, without what did not happen; ties are always told."""
    return {name: count for name, count in counts.items() if count or name in ("pairs", "ties")}
