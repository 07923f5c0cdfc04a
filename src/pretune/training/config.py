"""Training settings that all kinds of runs have."""

import os
from typing import Annotated, Any, Literal

import torch

from pretune.core.config import Ge, NonNegative, Positive, Seed, spec
from pretune.nn.attention_mask import Backend
from pretune.nn.recurrent_stack import RecurrentStack
from pretune.training.cost import CostRates
from pretune.training.optim import AdamW, Optim
from pretune.training.schedules import LinearSchedule, Schedule

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
