"""PREDICTIONS -> SCORES: predictions of a fine-tuned model, and their official scores.

    predictions = predict(model, encoder, parts.dev)
    score(task, parts.dev, predictions)                  # {'f1': 0.88, 'exact_match': 0.81}: the headline first

Read `prediction` first; `logits`, `labels`, `spans` and `generated` compute predictions, `score` evaluates them.
"""

from pretune.metrics.averages import compute_suite_averages
from pretune.tasks.decode.likelihood import answer_perplexity
from pretune.tasks.decode.predict import predict
from pretune.tasks.decode.prediction import AnswerCandidate, Prediction
from pretune.tasks.decode.score import score
from pretune.tasks.decode.spans import apply_threshold, find_no_answer_threshold

__all__ = [
    "AnswerCandidate",
    "Prediction",
    "answer_perplexity",
    "compute_suite_averages",
    "find_no_answer_threshold",
    "predict",
    "score",
    "apply_threshold",
]
