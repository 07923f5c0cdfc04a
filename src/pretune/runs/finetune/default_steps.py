"""How long a fine-tuning run is, and how often it is judged, where nobody says it."""

import math

from pretune.runs.finetune.config import Fit

EPOCHS, STEPS, MOST = 3.0, 300, 30.0
"""Three epochs (Devlin et al., 2019), or more where examples are few (Mosbach et al., 2021): 300 steps or 30 epochs."""
EVALUATIONS, LONG = 10, 500
"""Epochs of more than LONG steps are not waited for: a run is then judged so many times."""


def lasting(fit: Fit, epoch: int, *, few: bool) -> int:
    """Steps of a run whose epoch has so many; where `few` parameters are trained it is twice as long."""
    if fit.steps is not None:
        return fit.steps
    if fit.epochs is not None:
        return max(math.ceil(fit.epochs * epoch), 1)
    usual = max(EPOCHS * epoch, min(STEPS, MOST * epoch))
    return math.ceil(usual * (2 if few else 1))


def evaluations(epoch: int, steps: int) -> int:
    """Steps between two looks at dev: an epoch, or a tenth of the run where that is less or epochs are very short.

    >>> evaluations(100, 300), evaluations(2000, 6000), evaluations(2, 300)
    (100, 600, 30)
    """
    tenth = max(steps // EVALUATIONS, 1)
    return tenth if epoch > LONG or epoch < tenth else epoch
