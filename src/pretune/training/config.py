"""Training settings that all kinds of runs have, and learning-rate schedules.

A schedule is a pure function from the position in a run to a factor on the peak learning rate.
`compute_factor(step, total)` is for a run of fixed length: `step` of `total` steps are done.
`compute_factor_at(progress, step)` is for a run with a time budget: `progress` is its elapsed fraction. Both start at 0
and reach the floor at the end of the run.

A warmup below 1 is a fraction of the run, from 1 on a number of steps. The end of a warmup in steps is unknown in a run
with a time budget: `compute_factor_at` then multiplies a warmup by steps with a decay by time.
"""

import math
import os
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch

from pretune.core.config import Constraint, Fraction, Ge, Gt, Lt, NonNegative, Positive, Seed, spec
from pretune.core.errors import UsageError
from pretune.nn.attention_mask import Backend
from pretune.nn.recurrent_stack import RecurrentStack
from pretune.training.cost import CostRates
from pretune.training.optim import AdamW
from pretune.training.optim.adafactor import Adafactor
from pretune.training.optim.lamb import Lamb
from pretune.training.optim.muon import Muon
from pretune.training.optim.sgd import ASGD, SGD, Adagrad


class FractionOrSteps(Constraint):
    """Fraction of a run, or an integer number of steps."""

    def allows(self, value: Any) -> bool:
        return bool(0 <= value < 1 or (1 <= value < math.inf and value == int(value)))

    def __str__(self) -> str:
        return "a fraction < 1 or an integer number of steps"


Warmup = Annotated[int | float, FractionOrSteps()]


class WarmupThenDecay:
    """Schedule that rises linearly during its warmup and then follows the decay of a subclass."""

    warmup: Warmup

    def compute_factor(self, step: float, total: float) -> float:
        warmup_steps = _resolve_warmup(self.warmup, total)
        if step < warmup_steps:
            return step / warmup_steps
        return self._decay(min((step - warmup_steps) / (total - warmup_steps), 1.0))

    def compute_factor_at(self, progress: float, step: int) -> float:
        if self.warmup < 1:
            return self.compute_factor(progress, 1.0)
        return _compute_warmup_factor(self.warmup, step) * self._decay(min(progress, 1.0))

    def _decay(self, x: float) -> float:
        """Return the factor after the fraction x of the time that follows the warmup."""
        raise NotImplementedError


@spec
class Constant(WarmupThenDecay):
    """Constant learning rate after the warmup."""

    warmup: Warmup = 0

    def _decay(self, x: float) -> float:
        return 1.0


@spec(kind="linear")
class LinearSchedule(WarmupThenDecay):
    """Linear warmup and linear decay (BERT: warmup 10,000 of 1,000,000 steps; RoBERTa: 24,000 of 500,000)."""

    warmup: Warmup = 0.01
    floor: Fraction = 0.0

    def _decay(self, x: float) -> float:
        return self.floor + (1 - self.floor) * (1 - x)


@spec
class Cosine(WarmupThenDecay):
    """Cosine decay (Loshchilov and Hutter, 2017; GPT-3 with floor 0.1)."""

    warmup: Warmup = 0.01
    floor: Fraction = 0.0

    def _decay(self, x: float) -> float:
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * x)) / 2


@spec
class InverseSquareRoot:
    """Linear warmup, `hold` steps at the peak, then 1 / √steps (Vaswani et al., 2017; T5: no warmup, hold 10,000).

    It has no end; with `cooldown` the last fraction of the run decays linearly to zero (Zhai et al., 2022), as needed
    for a run with a time budget.
    """

    warmup: NonNegative[int] = 0
    hold: NonNegative[int] = 0
    cooldown: Fraction = 0.0

    def compute_factor(self, step: int, total: int) -> float:
        _check_total(total)
        return self.compute_factor_at(step / total, step)

    def compute_factor_at(self, progress: float, step: int) -> float:
        warmup_factor = _compute_warmup_factor(self.warmup, step)
        peak = max(self.warmup + self.hold, 1)
        return warmup_factor * math.sqrt(peak / max(step, peak)) * _compute_cooldown_factor(progress, self.cooldown)


@spec
class Stable:
    """Warmup-stable-decay (Hu et al., 2024): the peak rate until the last fraction `decay` of the run.

    The decay is linear, or 1 - √x (`root`), which Hägele et al. (2024) found best.
    """

    warmup: Warmup = 0.01
    decay: Fraction = 0.1
    shape: Literal["linear", "root"] = "linear"
    floor: Fraction = 0.0

    def __post_init__(self) -> None:
        if 0 < self.warmup < 1 and self.warmup + self.decay > 1:
            raise UsageError(f"warmup + decay must be <= 1, got {self.warmup} + {self.decay}")

    def compute_factor(self, step: int, total: int) -> float:
        warmup_factor = _compute_warmup_factor(_resolve_warmup(self.warmup, total), step)
        return warmup_factor * self._decay(min(step / total, 1.0))

    def compute_factor_at(self, progress: float, step: int) -> float:
        warmup_factor = _compute_warmup_factor(self.warmup, progress if self.warmup < 1 else step)
        return warmup_factor * self._decay(min(progress, 1.0))

    def _decay(self, progress: float) -> float:
        factor = _compute_cooldown_factor(progress, self.decay)
        return self.floor + (1 - self.floor) * (factor if self.shape == "linear" else 1 - math.sqrt(1 - factor))


@spec(kind="slanted")
class SlantedTriangular:
    """Slanted triangular schedule (Howard and Ruder, 2018): a short rise from 1 / `ratio`, a long decay back to it.

    Their code has a triangle for every stage of gradual unfreezing: `restarts` are the fractions of the run at which a
    new one begins.
    """

    cut: Annotated[float, Gt(0), Lt(1)] = 0.1  # fraction of a triangle that rises
    ratio: Annotated[float, Ge(1)] = 32.0
    restarts: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not all(low < high for low, high in pairwise((0.0, *self.restarts, 1.0))):
            raise UsageError(f"restarts must be increasing fractions between 0 and 1, got {self.restarts}")

    @property
    def floor(self) -> float:
        """Factor at the start and the end."""
        return 1 / self.ratio

    def compute_factor(self, step: int, total: int) -> float:
        _check_total(total)
        return self.compute_factor_at(step / total, step)

    def compute_factor_at(self, progress: float, step: int) -> float:
        start = max((0.0, *(low for low in self.restarts if low <= progress)))
        end = min((high for high in self.restarts if high > progress), default=1.0)
        x = min((progress - start) / (end - start), 1.0)
        height = x / self.cut if x < self.cut else (1 - x) / (1 - self.cut)
        return (1 + height * (self.ratio - 1)) / self.ratio


Schedule = Constant | LinearSchedule | Cosine | InverseSquareRoot | Stable | SlantedTriangular


def _compute_warmup_factor(warmup: float, step: float) -> float:
    return step / warmup if step < warmup else 1.0


def _compute_cooldown_factor(progress: float, fraction: float) -> float:
    """Return 1, decaying linearly to 0 over the last fraction of the run."""
    remaining = max(1 - progress, 0.0)
    return 1.0 if remaining >= fraction else remaining / fraction


def _resolve_warmup(warmup: float, total: float) -> float:
    """Return the length of the warmup in the unit of the total."""
    _check_total(total)
    if warmup < 1:
        return warmup * total
    if warmup >= total:
        raise UsageError(f"warmup must be < {total}, the steps of the run, got {warmup}; try a fraction such as 0.1")
    return warmup


def _check_total(total: float) -> None:
    if not total > 0:
        raise UsageError(f"a schedule needs at least 1 step, got {total}")


Optim = AdamW | Adafactor | Adagrad | Lamb | Muon | SGD | ASGD
Precision = Literal["auto", "fp32", "bf16", "fp8"]
ResidualPrecision = Literal["auto", "fp32", "bf16"]


@spec(has_kind=False)
class TrainConfig:
    """Training settings of a run; each kind of run adds its own."""

    steps: Positive[int] | None = None
    epochs: Positive[float] | None = None
    lr: Positive[float]
    optimizer: Optim = AdamW()  # its `lr` equals `lr` above
    schedule: Schedule = LinearSchedule()
    clip: Positive[float] | None = 1.0
    seed: Seed = 0
    precision: Precision = "auto"
    compile: bool | None = None  # None: on CUDA
    cuda_graphs: bool | None = None  # None: on CUDA, where a graph takes at most half of the memory
    attention_backend: Backend | None = None
    activation_checkpointing: bool = False
    deterministic: bool = False  # on CUDA; runs on a CPU always are
    micro_tokens: Positive[int] | None = None  # per rank and micro-batch; None: what fits into memory
    workers: NonNegative[int] | None = None  # data loader processes; None: 0 on a CPU, else by its cores
    eval_every: NonNegative[int] = 0  # steps; 0: ten times in a run
    checkpoint_every: NonNegative[int] = 0  # steps; 0: every five minutes
    max_checkpoints: Annotated[int, Ge(2)] = 2
    log_every: NonNegative[int] = 10
    trackers: tuple[str, ...] = ()  # tensorboard, wandb
    cost_rates: CostRates = CostRates()

    def resolve_precision(self, device: torch.device) -> torch.dtype | None:
        """Return the autocast dtype on a device; None: fp32. In fp8 it is that of all other products."""
        is_half = self.precision in ("bf16", "fp8") or (
            self.precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported()
        )
        return torch.bfloat16 if is_half else None

    def name_precision(self, device: torch.device) -> str:
        """Return the name of the precision on a device: fp32, bf16 or fp8."""
        return self.precision if self.precision == "fp8" else "bf16" if self.resolve_precision(device) else "fp32"

    def check_device(self, device: torch.device) -> None:
        """Raise `ResourceError` if a device lacks the precision."""
        if self.precision == "fp8":
            from pretune.nn.fp8 import check_device

            check_device(device)

    @property
    def residual_precision(self) -> ResidualPrecision:
        """Precision of the residual stream; auto: as `precision`."""
        return "fp32"


def configure_model(model: Any, config: TrainConfig, device: torch.device) -> None:
    """Apply the settings to a model: attention backend, activation checkpointing, determinism, residual dtype, fp8."""
    model.attention_backend = config.attention_backend
    if device.type == "cuda" and config.deterministic:  # some kernels are slower, and some attention kernels have none
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        if not any(isinstance(part, RecurrentStack) for part in model.modules()):
            model.attention_backend = model.attention_backend or "rows"
    residual_dtype = config.resolve_precision(device) if config.residual_precision != "fp32" else None
    for part in model.modules():
        if hasattr(part, "activation_checkpointing"):
            part.activation_checkpointing = config.activation_checkpointing
        if hasattr(part, "residual_dtype"):
            part.residual_dtype = residual_dtype
    if config.precision == "fp8":
        from pretune.nn.fp8 import convert_linears

        convert_linears(model)
