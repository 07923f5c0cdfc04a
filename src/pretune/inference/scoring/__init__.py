"""Scoring: how likely a model of any shape finds texts, or stretches of them, token by token.

score(model, ["The cat is asleep.", "The cat are asleep."])         # log-probabilities, one a text
judge(model, passages(tokenizer, texts, stretches)).logs            # of every token of the stretches
"""

from pretune.inference.scoring.logprobs import PLAIN, Asking, Judged, judge, score
from pretune.inference.scoring.passages import Passages, passages

__all__ = ["PLAIN", "Asking", "Judged", "Passages", "judge", "passages", "score"]
