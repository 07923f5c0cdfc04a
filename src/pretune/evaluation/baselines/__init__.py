"""Simple baselines without pre-training, for tasks of all types.

    rows, skipped = run_baselines(task, parts.train, parts.test, DEFAULT_BASELINES)

Each is a spec whose `predict(train, test, seed=0)` fits it on examples and returns a prediction for each of others. A
task type names its baselines by the slot that they fill: `--baselines svm` runs ridge regression for scores.
"""

from typing import TYPE_CHECKING

from pretune.core.registry import Registry

if TYPE_CHECKING:
    from pretune.evaluation.baselines.base import Baseline

BASELINES: "Registry[type[Baseline]]" = Registry(
    "baseline",
    {
        "majority": "pretune.evaluation.baselines.classifiers:Majority",
        "svm": "pretune.evaluation.baselines.classifiers:SVM",
        "vectors": "pretune.evaluation.baselines.classifiers:AveragedVectors",
        "logistic": "pretune.evaluation.baselines.classifiers:LogisticBaseline",
        "bilstm": "pretune.evaluation.baselines.bilstm:BiLSTMBaseline",
        "frequent_labels": "pretune.evaluation.baselines.multi_label:FrequentLabels",
        "one_vs_rest": "pretune.evaluation.baselines.multi_label:OneVsRest",
        "mean": "pretune.evaluation.baselines.regression:Mean",
        "ridge": "pretune.evaluation.baselines.regression:Ridge",
        "ridge_vectors": "pretune.evaluation.baselines.regression:RidgeVectors",
        "frequent_tag": "pretune.evaluation.baselines.tagging:FrequentTag",
        "window_tags": "pretune.evaluation.baselines.tagging:WindowTags",
        "adjacent_head": "pretune.evaluation.baselines.dependency:AdjacentHead",
        "bilstm_parser": "pretune.evaluation.baselines.dependency:BiLSTMParser",
        "frequent_place": "pretune.evaluation.baselines.choice:FrequentPlace",
        "tfidf": "pretune.evaluation.baselines.choice:SimilarWords",
        "choice_vectors": "pretune.evaluation.baselines.choice:SimilarVectors",
        "first_words": "pretune.evaluation.baselines.answers:FirstWords",
        "near_words": "pretune.evaluation.baselines.answers:NearWords",
        "lead_words": "pretune.evaluation.baselines.answers:LeadWords",
    },
)

SLOTS = ("majority", "svm", "vectors", "logistic", "bilstm")
"""Names of `--baselines`, those of classifiers; other types fill some of these slots with other baselines."""
DEFAULT_BASELINES = ("majority", "svm", "vectors")
"""Baselines reported with every result by default."""
