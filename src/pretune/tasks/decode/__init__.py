"""PREDICTIONS -> SCORES: what a fine-tuned model says of examples, and the official scores of that.

    predictions = predict(model, encoder, parts.dev)
    score(task, parts.dev, predictions)                  # {'f1': 0.88, 'exact_match': 0.81}: the headline first

Read `prediction` first; `logits`, `read`, `spans` and `texts` make them, `score` judges them.
"""

from pretune.tasks.decode.likelihood import answer_perplexity
from pretune.tasks.decode.predict import predict
from pretune.tasks.decode.prediction import Found, Prediction
from pretune.tasks.decode.score import group_average, score
from pretune.tasks.decode.spans import no_answer_threshold, with_threshold

__all__ = [
    "Found",
    "Prediction",
    "answer_perplexity",
    "group_average",
    "no_answer_threshold",
    "predict",
    "score",
    "with_threshold",
]
