"""Settings of training that follow from the tokens that a run reads: batch, optimizer, rate, schedule and decay.

Recipes take them, and so do models of papers in runs that are far shorter than those of their papers. The numbers are
measured (bench/log.md, "Settings of encoders at equal computation").
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pretune.core.log import format_number
from pretune.nn.positions import LearnedEmbedding
from pretune.runs.config import PretrainConfig

BATCH_FACTOR = 3.8
"""Tokens of a step, in square roots of the tokens of the run: 32,768 at 100M tokens, 65,536 at 300M.

Of 32,768, 65,536 and 131,072 the smallest had the lowest loss after 109M tokens: 2.37, 2.43 and 2.55.
"""
MIN_STEPS = 300
MIN_BATCH, MAX_BATCH = 1024, 131_072
WIDEST = 1024
"""Wider models train at rates that fall with their width; up to here, one rate was level."""
PLATEAU_TOKENS = 3e6
"""Tokens after which encoders get beyond the frequencies of words; a small ModernBERT needed 2M to 3M."""
POST_NORM_TOKENS, PAPER_POST_NORM_TOKENS = 50e6, 250e6
"""Those of post-norm encoders with learned positions, by these settings and by those of papers.

With these settings bert-mini was beyond the frequencies after 150M tokens, and larger batches began to be at 49M; with
the paper's it was not after 234M.
"""
Extras = Mapping[str, tuple[Any, str]]
"""Value and reason of settings by path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regularization:
    """Dropout and weight decay where text is much, and where it is repeated often; dropout None: not by epochs."""

    epochs: float = 4.0  # more than these are often
    dropout: tuple[float, float] | None = (0.0, 0.1)
    decay: tuple[float, float] = (0.1, 0.3)

    def is_repeated(self, epochs: float) -> bool:
        return epochs > self.epochs

    def describe(self, epochs: float) -> str:
        """Return the comparison of a number of epochs with the border in words."""
        return f"{epochs:.2g} epochs are {'more' if self.is_repeated(epochs) else 'fewer'} than {self.epochs:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRules:
    """Settings of training by the tokens and the epochs of a run."""

    lr: float
    warmup: float
    decay: float = 0.5
    full_tokens: float = 0.0  # runs of fewer tokens have a lower rate
    reason: str  # of the rate

    def choose(self, tokens: float, epochs: float, width: int, regularization: Regularization) -> Extras:
        """Return the settings with their reasons."""
        weight_decay = regularization.decay[regularization.is_repeated(epochs)]
        optimizer = {"kind": "muon", "weight_decay": weight_decay}
        schedule = {"kind": "stable", "warmup": self.warmup, "decay": self.decay}
        lr = self.lr * min(1.0, WIDEST / width) * min(1.0, tokens / max(self.full_tokens, 1.0))
        return {
            "train.batch_tokens": (
                round_to_power(min(BATCH_FACTOR * tokens**0.5, tokens / MIN_STEPS), MIN_BATCH, MAX_BATCH),
                f"grows with the square root of the {format_number(tokens)} tokens, in at least {MIN_STEPS} steps",
            ),
            "train.optimizer": (optimizer, f"for the matrices of the blocks; {regularization.describe(epochs)}"),
            "train.lr": (float(f"{lr:.2g}"), self.reason),
            "train.schedule": (
                schedule,
                "in encoders, a long decay from a stable rate was 0.1 nats better than a linear one",
            ),
        }


NEW_WEIGHTS = TrainingRules(
    lr=3e-3, warmup=0.02, reason="in encoders of 6 PFLOP twice as much was level, and half of it 0.11 nats worse"
)
"""Settings of training from random weights."""
TRAINED_WEIGHTS = TrainingRules(
    lr=1e-3,
    warmup=0.05,
    full_tokens=PLATEAU_TOKENS,
    reason=f"at most a third of that of new weights, {NEW_WEIGHTS.lr:g}; less where few tokens could not repair it",
)
"""Settings of training a model further."""


def describe_plateau(config: PretrainConfig, tokens: float, *, is_paper: bool = False) -> str:
    """Return a line if an encoder is expected to learn no more than the frequencies of words, else nothing."""
    model, shapes = config.model, config.objective.shapes
    if model.shape != "encoder" or model.shape not in shapes:
        return ""
    limit, remedy = PLATEAU_TOKENS, "train longer, or start from a trained encoder (--from)"
    if model.is_post_norm and any(isinstance(getattr(s, "position", None), LearnedEmbedding) for s in model.stacks):
        limit = PAPER_POST_NORM_TOKENS if is_paper else POST_NORM_TOKENS
        remedy = f"`pretune pretrain encoder --data {config.data.path} --budget 10m` uses the context sooner"
    if tokens >= limit:
        return ""
    return (
        f"with about {format_number(tokens)} tokens {model.family} will probably learn little more than the "
        f"frequencies of words: context comes after about {format_number(limit)}; {remedy}"
    )


def round_to_power(value: float, low: int, high: int) -> int:
    """Return the nearest power of two within limits.

    >>> round_to_power(100_000, 1024, 65_536), round_to_power(90, 64, 1024)
    (65536, 64)
    """
    return int(min(max(2 ** round(math.log2(max(value, 1))), low), high))
