"""Simple baselines without pre-training.

    table = compare(train, labels, test, gold, names=DEFAULT_BASELINES)        # texts, or pairs of texts
    print(table)

Each is a spec whose `fit(texts, labels, seed=0)` returns a function from texts to predicted labels. A text is a string
or a pair of strings; the features of a pair are described in `features.py`.
"""

from typing import TYPE_CHECKING

from pretune.core.registry import Registry

if TYPE_CHECKING:
    from pretune.evaluation.baselines.base import Baseline

BASELINES: "Registry[type[Baseline]]" = Registry(
    "baseline",
    {
        "majority": "pretune.evaluation.baselines.majority:Majority",
        "svm": "pretune.evaluation.baselines.linear:SVM",
        "vectors": "pretune.evaluation.baselines.static_vectors:AveragedVectors",
        "logistic": "pretune.evaluation.baselines.linear:LogisticBaseline",
        "bilstm": "pretune.evaluation.baselines.bilstm:BiLSTMBaseline",
    },
)

DEFAULT_BASELINES = ("majority", "svm", "vectors")
"""Baselines reported with every result by default."""
