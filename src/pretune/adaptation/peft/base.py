"""What a method promises, and the ways all of them change a model: modules are replaced by modules, weights stay put.

A replacement has the replaced layer's `weight` and `bias`, the same parameters under the same names, so that
`encoder.3.attention.q.weight` is where it was: whoever reads weights by name need not know that a method was applied.
"""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from pretune.core.errors import UsageError
from pretune.models.model import LanguageModel
from pretune.nn.attention import MultiHeadAttention
from pretune.nn.feedforward import FeedForwardLayer
from pretune.nn.relative_attention import RelativeAttentionLayer

Target = Literal["q", "k", "v", "out", "up", "gate", "down"]
"""The linear layers of a block: of its attentions (to itself, and to the source), and of its feed-forward layer."""

TARGETS: tuple[Target, ...] = ("q", "k", "v", "out", "up", "gate", "down")
MAX_SIZE = 2**14
"""Ranks, bottlenecks and virtual tokens: beyond all use, and small enough that a hostile file takes no memory."""
FINGERPRINT_SAMPLES = 64
"""So many numbers of each matrix enter a fingerprint."""
ADAPTABLE_LAYERS = (MultiHeadAttention, RelativeAttentionLayer, FeedForwardLayer)


class PeftMethod(Protocol):
    """A parameter-efficient method as a value.

    Promises: right after `apply` the model says what it said before (methods of virtual tokens: when there are none of
    them); what is not named by `apply` gets no gradient; `merge` leaves the plain model, saying the same; what `get_adapter_state`
    gives is small, and is all that was learned.
    """

    is_mergeable: ClassVar[bool]  # whether what is learned can be written into the plain model's weights
    rate: ClassVar[float]  # a usual peak learning rate

    def apply(self, model: LanguageModel, *, seed: int = 0) -> tuple[str, ...]:
        """Change a model in place: the names of the parameters that are trained. All others are frozen."""

    def list_trainable_names(self, model: LanguageModel) -> tuple[str, ...]:
        """The names of what is trained in a model that the method was applied to."""

    def merge(self, model: LanguageModel) -> None:
        """Write what was learned into the weights and take the method's modules out again."""


def get_adapter_state(method: PeftMethod, model: LanguageModel) -> dict[str, Tensor]:
    """What a method has learned, by name: all that must be kept beside the base model."""
    parameters = dict(model.named_parameters())
    return {name: parameters[name].detach() for name in method.list_trainable_names(model)}


def freeze_base(model: LanguageModel) -> None:
    """Refuse a model that a method was applied to already, or that is several in one, and freeze all of it."""
    if not isinstance(model, LanguageModel):
        raise UsageError(
            f"a method is for one model, and this is a {type(model).__name__}; apply it to one of the models in it"
        )
    for path, module in model.named_modules():
        if is_adapter_module(module):
            raise UsageError(
                f"a method was applied to this model already, at '{path}'; merge it or load the model anew"
            )
    for parameter in model.parameters():
        parameter.requires_grad_(False)


def train_only(model: LanguageModel, names: Iterable[str]) -> tuple[str, ...]:
    """Train the named parameters and nothing else; their names in the model's order."""
    wanted = set(names)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in wanted)
    return tuple(name for name, _ in model.named_parameters() if name in wanted)


def find_linears(model: LanguageModel, targets: Iterable[str]) -> list[tuple[str, nn.Module, str, nn.Module]]:
    """Every target of every block once: its path, the module it belongs to, its name there, and itself."""
    found: list[tuple[str, nn.Module, str, nn.Module]] = []
    for path, owner in model.named_modules():
        if isinstance(owner, ADAPTABLE_LAYERS):
            for name in targets:
                layer = getattr(owner, name, None)
                if isinstance(layer, nn.Module):
                    found.append((f"{path}.{name}", owner, name, layer))
    return found


def find_adapted_layers(model: LanguageModel) -> list[tuple[str, nn.Module, str, nn.Module]]:
    """What stands in the place of linear layers: its path, the module it belongs to, its name there, and itself."""
    return [found for found in find_linears(model, TARGETS) if is_adapter_module(found[3])]


def is_adapter_module(module: nn.Module) -> bool:
    """Whether a module was put there by a method: such modules say so."""
    return getattr(module, "is_adapter", False) is True


def wrap_linear(module: Any, linear: nn.Linear) -> None:
    """Give a module a linear layer's weights, under their names."""
    module.in_features, module.out_features = linear.in_features, linear.out_features
    module.weight, module.bias = linear.weight, linear.bias
    module.train(linear.training)


def to_linear(module: Any) -> nn.Linear:
    """The linear layer that a module was made of, with the weights as they are now."""
    made = nn.Linear(module.in_features, module.out_features, bias=False, device="meta")
    made.weight, made.bias = module.weight, module.bias
    return made.train(module.training)


def sample_weight(weight: Tensor) -> bytes:
    """Some numbers of a matrix, to know it by; rounded, so that a model read in half precision is the same model."""
    flat = weight.detach().reshape(-1)
    found = flat[:: max(1, flat.shape[0] // FINGERPRINT_SAMPLES)][:FINGERPRINT_SAMPLES]
    return found.float().bfloat16().cpu().view(torch.int16).numpy().tobytes()


def init_uniform(shape: tuple[int, ...], bound: float, reference: Tensor, seed: int) -> Parameter:
    """Uniform numbers within +- bound: a function of the seed and nothing else. In fp32 where the model is halved."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.empty(shape).uniform_(-bound, bound, generator=generator)
    return Parameter(values.to(reference.device))
