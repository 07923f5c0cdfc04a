"""Adam with decoupled weight decay (Kingma and Ba, 2015; Loshchilov and Hutter, 2019)."""

import math
from collections.abc import Sequence

import torch

from pretune.core.config import NonNegative, spec
from pretune.training.optim.base import Beta, ParameterGroup, create_counter


@spec
class AdamW:
    """AdamW by torch's fused kernel, on CPU and CUDA.

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g²;  w -= lr (m̂ / (√v̂ + eps) + weight_decay w)

    Papers: BERT 1e-4, betas (0.9, 0.999), eps 1e-6, decay 0.01, without bias correction in its code; RoBERTa 6e-4,
    (0.9, 0.98), 1e-6, 0.01; ELECTRA 5e-4 (small), (0.9, 0.999), 1e-6, 0.01; GPT-3 6e-4 (small), (0.9, 0.95), 1e-8, 0.1.
    """

    lr: NonNegative[float] = 1e-4
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: NonNegative[float] = 1e-8
    weight_decay: NonNegative[float] = 0.01
    bias_correction: bool = True

    def build(self, groups: Sequence[ParameterGroup]) -> torch.optim.AdamW:
        """Build the optimizer; the weights must already be on their device."""
        param_groups = [group.to_param_group(lr=self.lr, weight_decay=self.weight_decay) for group in groups]
        optimizer = torch.optim.AdamW(param_groups, betas=self.betas, eps=self.eps, fused=True)
        # NOTE: the correction is 1 - beta^steps: at an infinite number of steps it is exactly 1, which disables it.
        initial_step = 0.0 if self.bias_correction else math.inf
        for group in groups:
            for weight in group.parameters:
                optimizer.state[weight] = {
                    "step": create_counter(weight, initial_step),
                    "exp_avg": torch.zeros_like(weight),
                    "exp_avg_sq": torch.zeros_like(weight),
                }
        return optimizer
