"""A head that begins as a linear probe: fitted on the frozen model's features, then all is fine-tuned from there.

Paper: Kumar et al. (2022), "Fine-tuning can distort pretrained features", where it is called LP-FT. A head that was
drawn sends noise into the body in its first steps; one that was fitted does not. It is worth most with few labels.

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
"""Of C, the inverse of the penalty."""
BATCH_TOKENS = 16_384


class HeadFeatures(nn.Module):
    """What the head's last layer reads of a sequence."""

    def __init__(self, model: ModelWithHead, head: SequenceHead) -> None:
        super().__init__()
        self.model, self.head = model, head

    def forward(self, batch: Batch) -> Tensor:
        """`[C, W]`, a row for each cell."""
        return self.head.pool(self.model.states(batch), batch)


def fit_head(model: ModelWithHead, items: Items, *, seed: int, precision: torch.dtype | None = None) -> Floats | None:
    """Give the head, in place, the weights of a logistic regression on what it reads of the training examples.

    Its penalty is chosen by cross-validation among them. Classes that none of them has keep the weights they have. The
    mean of what it reads is given back, for `center_dropout`; None where there is nothing to tell apart.
    """
    head, y = model.head, items.sequences.labels
    plain = isinstance(head, SequenceHead) and not head.dense and head.out.bias is not None
    if not isinstance(head, SequenceHead) or not plain or not isinstance(model.spec, Classification) or y is None:
        raise UsageError(
            f"tune.head 'probe' is for classes that are read straight from states, with a bias; this is the head "
            f'\'{config.get_kind(model.spec)}\'; set tune.pooling={{"mode": "mean"}}, or tune.head=random'
        )
    if len(np.unique(y)) < 2:
        return None
    x = compute_logits(HeadFeatures(model, head), items, per_token=False, tokens=BATCH_TOKENS, precision=precision)
    mean: Floats = x.mean(0)
    std = x.std(0) + 1e-6
    found = fit_logistic_regression((x - mean) / std, y, PENALTIES, seed=seed, device=head.out.weight.device)
    weight = found.weight / std
    bias = found.bias - weight @ mean
    if len(weight) == 1:  # of two classes, the difference
        weight, bias = np.stack([-weight[0], weight[0]]) / 2, np.stack([-bias[0], bias[0]]) / 2
    with torch.no_grad():
        where = torch.from_numpy(found.classes).to(head.out.weight.device)
        head.out.weight[where] = torch.from_numpy(weight).to(head.out.weight)
        head.out.bias[where] = torch.from_numpy(bias).to(head.out.bias)
    return mean


def center_dropout(model: ModelWithHead, mean: Floats | None) -> None:
    """Have dropout put the mean in the place of what it drops, as the bias of a fitted head expects."""
    if mean is not None and model.head is not None:
        weight = model.head.get_parameter("out.weight")
        model.head.center = torch.from_numpy(mean).to(weight)
