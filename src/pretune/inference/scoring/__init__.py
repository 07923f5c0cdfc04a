"""Scoring: log-probabilities of texts, or spans of them, by token, for models of any shape.

score(model, ["The cat is asleep.", "The cat are asleep."])                        # one log-probability per text
compute_token_logprobs(model, encode_passages(tokenizer, texts, spans)).logprobs   # of every token of the spans
"""

from pretune.inference.scoring.logprobs import (
    DEFAULT_SCORING,
    ScoringConfig,
    TokenLogProbs,
    compute_token_logprobs,
    score,
)
from pretune.inference.scoring.queries import Passages, encode_passages

__all__ = [
    "DEFAULT_SCORING",
    "ScoringConfig",
    "TokenLogProbs",
    "Passages",
    "compute_token_logprobs",
    "encode_passages",
    "score",
]
