"""Training settings that all kinds of runs have."""

from typing import Annotated, Literal

from pretune.core.config import Ge, NonNegative, Positive, Seed, spec
from pretune.nn.attention_mask import Backend
from pretune.training.cost import CostRates
from pretune.training.optim import AdamW, Optim
from pretune.training.schedules import LinearSchedule, Schedule

Precision = Literal["auto", "fp32", "bf16"]


@spec(has_kind=False)
class TrainConfig:
    """Training settings of a run; each kind of run adds its own."""

    steps: Positive[int] | None = None
    epochs: Positive[float] | None = None
    lr: Positive[float]
    optimizer: Optim = AdamW()  # its `lr` equals `lr` above
    schedule: Schedule = LinearSchedule()
    clip: float | None = 1.0
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

    @property
    def residual_precision(self) -> Precision:
        """Precision of the residual stream; auto: as `precision`."""
        return "fp32"
