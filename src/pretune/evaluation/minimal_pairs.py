"""Minimal pairs: the share of acceptable sentences with the higher probability (Warstadt et al., 2020).

The score of a sentence is the sum of log-probabilities for a decoder, the pseudo-log-likelihood for an encoder, and
the log-probability of filling a blank with the sentence for an encoder-decoder. A tie counts as wrong and is reported:
sentences with the same tokens are tied.
"""

import difflib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import nn

from pretune.core.errors import DataError
from pretune.data.sequences import Bools, Ints
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
    """Evaluate the share of pairs whose acceptable sentence (`text`) is likelier than the other (`pair`).

    If pairs have sets (`group`), the headline is the mean over the sets, as published for BLiMP; the groups are
    phenomena if the examples have them, else sets.
    """
    sentences, pair_indices = _tokenize_unique(model, examples)
    logprobs = compute_token_logprobs(model, sentences, scoring, on_progress)
    sums = logprobs.sums[pair_indices]  # [pairs, 2]
    correct, is_tie = sums[:, 0] > sums[:, 1], sums[:, 0] == sums[:, 1]
    sets = average_by_group(correct, [example.group for example in examples])
    phenomena = average_by_group(correct, [example.facts.get("linguistics_term") for example in examples])
    scores = {"accuracy": float(correct.mean())}
    if sets:
        scores = {"accuracy": float(np.mean(list(sets.values()))), "pair_accuracy": scores["accuracy"]}
    counts = {"pairs": len(examples), "ties": int(is_tie.sum()), "sets": len(sets), "cut": logprobs.truncated_passages}
    return EvaluationResult(task=name, scores=scores, groups=phenomena or sets, counts=_drop_zero_counts(counts))


def evaluate_bias_pairs(
    model: nn.Module,
    examples: Sequence[Example],
    scoring: ScoringConfig = DEFAULT_SCORING,
    *,
    name: str = "bias_pairs",
    on_progress: ProgressCallback | None = None,
) -> EvaluationResult:
    """Evaluate how often the more stereotyped sentence is the likelier (Nangia et al., 2020); 0.5 is unbiased.

    Only the tokens that both sentences share are summed, given all others, so the frequency of the words that differ
    does not count. A decoder sees the differing words only in the context before a token.
    """
    sentences, pair_indices = _tokenize_unique(model, examples)
    # As published: one token is masked at a time.
    logprobs = compute_token_logprobs(model, sentences, replace(scoring, rest=False), on_progress)
    sums = np.array([_sum_shared_tokens(sentences, logprobs, (left, right)) for left, right in pair_indices.tolist()])
    is_stereotyped, is_tie = sums[:, 0] > sums[:, 1], sums[:, 0] == sums[:, 1]
    counts = {"pairs": len(examples), "ties": int(is_tie.sum()), "cut": logprobs.truncated_passages}
    groups = average_by_group(is_stereotyped, [example.group for example in examples])
    return EvaluationResult(
        task=name, scores={"stereotyped": float(is_stereotyped.mean())}, groups=groups, counts=_drop_zero_counts(counts)
    )


def average_by_group(correct: Bools, names: Sequence[str | None]) -> dict[str, float]:
    """Return the accuracy by group; empty if a name is missing."""
    if any(name is None for name in names):
        return {}
    groups = sorted({str(name) for name in names})
    owner = np.searchsorted(np.array(groups), np.array(names, dtype=str))
    means = np.bincount(owner, weights=correct) / np.bincount(owner)
    return dict(zip(groups, means.tolist(), strict=True))


def _tokenize_unique(model: nn.Module, examples: Sequence[Example]) -> tuple[Passages, Ints]:
    """Tokenize every distinct sentence once; return them and the indices [pairs, 2] of each pair."""
    if not examples:
        raise DataError("no pairs to compare; is the file empty?")
    texts = [text or "" for example in examples for text in (example.text, example.pair)]
    passages = encode_passages(get_tokenizer(model), texts)
    index_by_tokens: dict[bytes, int] = {}
    first_positions: list[int] = []
    indices = np.empty(len(texts), dtype=np.int64)
    for i in range(len(texts)):
        key = passages.tokens[passages.offsets[i] : passages.offsets[i + 1]].tobytes()
        if key not in index_by_tokens:
            index_by_tokens[key] = len(first_positions)
            first_positions.append(i)
        indices[i] = index_by_tokens[key]
    return passages.take(np.array(first_positions)), indices.reshape(-1, 2)


def _sum_shared_tokens(sentences: Passages, logprobs: TokenLogProbs, pair: tuple[int, int]) -> tuple[float, float]:
    """Return the sums of log-probabilities of two sentences over the tokens that they share."""
    logs = [logprobs[i] for i in pair]
    left, right = (sentences.tokens[sentences.offsets[i] :][: len(logprobs[i])].tolist() for i in pair)
    sums = [0.0, 0.0]
    for block in difflib.SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks():
        for side, start in enumerate((block.a, block.b)):
            sums[side] += float(np.nansum(logs[side][start : start + block.size]))
    return sums[0], sums[1]


def _drop_zero_counts(counts: dict[str, int]) -> dict[str, int]:
    """Return the counts without zeros; pairs and ties are always reported."""
    return {name: count for name, count in counts.items() if count or name in ("pairs", "ties")}
