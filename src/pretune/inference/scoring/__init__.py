"""Scoring: how likely a model of any shape finds texts, or stretches of them, token by token.

score(model, ["The cat is asleep.", "The cat are asleep."])         # log-probabilities, one a text
judge(model, passages(tokenizer, texts, stretches)).logs            # of every token of the stretches
"""

from pretune.inference.scoring.logprobs import (
    DEFAULT_SCORING,
    ScoringConfig,
    TokenLogProbs,
    compute_token_logprobs,
    score,
)
from pretune.inference.scoring.passages import Passages, encode_passages

__all__ = [
    "DEFAULT_SCORING",
    "ScoringConfig",
    "TokenLogProbs",
    "Passages",
    "compute_token_logprobs",
    "encode_passages",
    "score",
]
