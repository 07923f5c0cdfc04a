"""PREDICTIONS -> SCORES: what a fine-tuned model says of examples, and the official scores of that.

    predictions = predict(model, encoder, parts.dev)
    score(task, parts.dev, predictions)                  # {'f1': 0.88, 'exact_match': 0.81}: the headline first

Read `prediction` first; `logits`, `read`, `predict_spans` and `generate_texts` make them, `score` judges them.
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
