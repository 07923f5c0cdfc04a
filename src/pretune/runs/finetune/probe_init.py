"""Head initialized by a linear probe on the frozen model's features, then full fine-tuning (LP-FT).

Paper: Kumar et al. (2022), "Fine-tuning can distort pretrained features". A random head sends noise into the body in
its first steps; a fitted one does not. The benefit is largest with few labels.

    pretune finetune runs/small --train train.csv --set tune.head=probe --set 'tune.pooling={"mode": "mean"}'
"""

import numpy as np
import torch
from torch import Tensor, nn

from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.heads.base import SequenceHead
from pretune.adaptation.heads.classification import Classification
from pretune.core import config
from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.evaluation.baselines.logistic_regression import fit_logistic_regression
from pretune.tasks.decode.logits import Floats, compute_logits
from pretune.tasks.encode import Items

PENALTIES = (0.001, 0.01, 0.1, 1.0)
"""Values of C, the inverse of the penalty."""
BATCH_TOKENS = 16_384


class HeadFeatures(nn.Module):
    """Features that the head's last layer gets."""

    def __init__(self, model: ModelWithHead, head: SequenceHead) -> None:
        super().__init__()
        self.model, self.head = model, head

    def forward(self, batch: Batch) -> Tensor:
        """Return features `[C, W]`, a row per cell."""
        return self.head.pool(self.model.states(batch), batch)


def fit_head(model: ModelWithHead, items: Items, *, seed: int, precision: torch.dtype | None = None) -> Floats | None:
    """Fit the head in place by logistic regression on its features of the training examples.

    The penalty is selected by cross-validation. Classes without examples keep their weights. Returns the mean of the
    features, for `center_dropout`; None if there is only one class.
    """
    head, y = model.head, items.sequences.labels
    is_linear = isinstance(head, SequenceHead) and not head.dense and head.out.bias is not None
    if not isinstance(head, SequenceHead) or not is_linear or not isinstance(model.spec, Classification) or y is None:
        raise UsageError(
            f"tune.head 'probe' needs a linear classification head with a bias, got the head "
            f'\'{config.get_kind(model.spec)}\'; set tune.pooling={{"mode": "mean"}}, or tune.head=random'
        )
    if len(np.unique(y)) < 2:
        return None
    x = compute_logits(HeadFeatures(model, head), items, per_token=False, tokens=BATCH_TOKENS, precision=precision)
    mean: Floats = x.mean(0)
    std = x.std(0) + 1e-6
    regression = fit_logistic_regression((x - mean) / std, y, PENALTIES, seed=seed, device=head.out.weight.device)
    weight = regression.weight / std
    bias = regression.bias - weight @ mean
    if len(weight) == 1:  # binary: the difference of two classes
        weight, bias = np.stack([-weight[0], weight[0]]) / 2, np.stack([-bias[0], bias[0]]) / 2
    with torch.no_grad():
        rows = torch.from_numpy(regression.classes).to(head.out.weight.device)
        head.out.weight[rows] = torch.from_numpy(weight).to(head.out.weight)
        head.out.bias[rows] = torch.from_numpy(bias).to(head.out.bias)
    return mean


def center_dropout(model: ModelWithHead, mean: Floats | None) -> None:
    """Make dropout insert the mean for dropped values, as the bias of a fitted head expects."""
    if mean is not None and model.head is not None:
        weight = model.head.get_parameter("out.weight")
        model.head.center = torch.from_numpy(mean).to(weight)
