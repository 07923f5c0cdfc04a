"""Weight initialization and tying. Every parameter is set here; none keeps the value of its module's constructor."""

import math

import torch
from torch import Tensor, nn

from pretune.core.config import Positive, spec
from pretune.core.errors import UsageError
from pretune.nn.attention import MultiHeadAttention
from pretune.nn.characters import HighwayLayer
from pretune.nn.convolution import ConvolutionLayer
from pretune.nn.heads import SpanBoundary, VocabularyHead
from pretune.nn.layers import FeedForwardLayer, OffsetEmbedding
from pretune.nn.lstm import LSTMLayer
from pretune.nn.positions import RelativePositions
from pretune.nn.relative_attention import RelativeAttentionLayer
from pretune.nn.two_stream import TwoStreamStack


@spec
class Normal:
    """Normal weights of one standard deviation, zero biases (Devlin et al., 2019).

    With `residual`, layers that write to the residual stream start smaller by sqrt(2 depth) (Radford et al., 2019).
    """

    std: Positive[float] = 0.02
    residual: bool = False

    def compute_std(self, owner: nn.Module, name: str, weight: Tensor, depth: int) -> float:
        writes = isinstance(owner, MultiHeadAttention | FeedForwardLayer) and name in ("out", "down")
        return self.std / math.sqrt(2 * depth) if self.residual and writes else self.std


@spec
class FanIn:
    """Standard deviations by fan-in, with the attention scale folded into the queries (Raffel et al., 2020).

    The token table has standard deviation `factor`.
    """

    factor: Positive[float] = 1.0

    def compute_std(self, owner: nn.Module, name: str, weight: Tensor, depth: int) -> float:
        if name == "tokens":
            return self.factor
        fan_in = float(weight[0].numel())
        if isinstance(owner, RelativePositions):
            fan_in = owner.width
        if isinstance(owner, MultiHeadAttention) and name == "q":
            fan_in *= owner.head
        return self.factor / math.sqrt(fan_in)


@spec
class Uniform:
    """Uniform weights in [-bound, bound], zero biases (Merity et al., 2018)."""

    bound: Positive[float] = 0.1


Init = Normal | FanIn | Uniform


GATE_BIAS = -2.0
"""Initial bias of highway gates: the layer starts near the identity (Srivastava et al., 2015)."""

_MATRIX_OWNERS = RelativeAttentionLayer | TwoStreamStack | ConvolutionLayer | OffsetEmbedding
"""Modules that own matrices directly."""


def initialise(model: nn.Module, init: Init, depth: int, seed: int) -> None:
    """Initialize every parameter of a model in place, in the order of its names, from one seed.

    Weights and biases of LSTM layers are uniform in 1 / sqrt(units), as torch has them, whatever the rest is.
    """
    generator = torch.Generator().manual_seed(seed)
    parameter_ids: set[int] = set()
    owners = {
        f"{path}.{name}" if path else name: owner
        for path, owner in model.named_modules()
        for name in dict(owner.named_children())
    }
    for path, module in model.named_modules():
        owner, name = owners.get(path, model), path.rpartition(".")[2]
        for kind, parameter in module.named_parameters(recurse=False):
            if id(parameter) in parameter_ids:
                continue
            parameter_ids.add(id(parameter))
            with torch.no_grad():
                if isinstance(module, nn.LayerNorm | nn.RMSNorm):
                    parameter.fill_(1.0 if kind == "weight" else 0.0)
                elif isinstance(owner, LSTMLayer):
                    bound = 1 / math.sqrt(owner.hidden)
                    parameter.copy_(torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator))
                elif isinstance(module, OffsetEmbedding):
                    parameter.zero_()
                elif parameter.dim() < 2:
                    parameter.fill_(GATE_BIAS if isinstance(owner, HighwayLayer) and name == "gate" else 0.0)
                elif isinstance(init, Uniform):
                    parameter.copy_(torch.empty(parameter.shape).uniform_(-init.bound, init.bound, generator=generator))
                else:
                    std = init.compute_std(owner, name, parameter, depth)
                    parameter.copy_(torch.empty(parameter.shape).normal_(0.0, std, generator=generator))
        for buffer in module.buffers(recurse=False):
            buffer.zero_()
    assert all(
        isinstance(
            module,
            VocabularyHead
            | SpanBoundary
            | nn.LayerNorm
            | nn.RMSNorm
            | nn.Linear
            | nn.Embedding
            | nn.Conv1d
            | _MATRIX_OWNERS,
        )
        for module in model.modules()
        if list(module.parameters(recurse=False))
    )


def tie(owner: nn.Module, name: str, module: nn.Module) -> None:
    """Replace a child of `owner` by `module`; their values must be equal, unless one is on the meta device."""
    for (path, ours), theirs in zip(owner.get_submodule(name).named_parameters(), module.parameters(), strict=True):
        if not (ours.is_meta or theirs.is_meta) and not torch.equal(ours, theirs):
            raise UsageError(f"'{name}.{path}' is tied and must be equal in both models, but it differs")
    setattr(owner, name, module)
