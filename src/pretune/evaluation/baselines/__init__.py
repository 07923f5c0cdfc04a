"""Simple baselines: what a task gives without any pre-trained model.

    table = compare(train, labels, test, gold, names=DEFAULT)        # texts, or pairs of texts
    print(table)

Each is a spec whose `fit(texts, labels, seed=0)` gives a function from texts to predicted labels. A text is a string or
a pair of strings; what is read of a pair stands in `features.py`.
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
"""Those that stand beside every result unless others are asked for."""
