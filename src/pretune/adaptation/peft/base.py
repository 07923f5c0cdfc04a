"""Protocol of PEFT methods, and how they change a model: modules are replaced by modules, weights keep their names.

A replacement has the replaced layer's `weight` and `bias`, the same parameters under the same names, so that
`encoder.3.attention.q.weight` stays valid: code that reads weights by name works with and without a method.
"""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from pretune.core.errors import UsageError
from pretune.models.model import LanguageModel
from pretune.nn.attention import MultiHeadAttention
from pretune.nn.layers import FeedForwardLayer
from pretune.nn.lstm import LSTMLayer
from pretune.nn.relative_attention import RelativeAttentionLayer

Target = Literal["q", "k", "v", "out", "up", "gate", "down", "input", "recurrent"]
"""Linear layers of a block: of its attentions (self and cross) and its feed-forward layer; or of an LSTM layer."""

TARGETS: tuple[Target, ...] = ("q", "k", "v", "out", "up", "gate", "down")
RECURRENT_TARGETS: tuple[Target, ...] = ("input", "recurrent")
"""Those of an LSTM layer; targets that name neither mean both."""
MAX_SIZE = 2**14
"""Maximum of ranks, bottlenecks and virtual tokens, so that a hostile file cannot allocate much memory."""
FINGERPRINT_SAMPLES = 64
"""Values of each matrix that enter a fingerprint."""
ADAPTABLE_LAYERS = (MultiHeadAttention, RelativeAttentionLayer, FeedForwardLayer, LSTMLayer)


class PeftMethod:
    """Base class of parameter-efficient methods, which are values.

    Contract: right after `apply` the model's outputs are unchanged (methods with virtual tokens: if there are none);
    parameters not returned by `apply` get no gradient; `merge` restores the base model's modules with the same outputs;
    `get_adapter_state` returns all trained parameters, and they are small.
    """

    is_mergeable: ClassVar[bool] = False  # the adapter can be merged into the base model's weights
    rate: ClassVar[float]  # default peak learning rate

    def apply(self, model: LanguageModel, *, seed: int = 0) -> tuple[str, ...]:
        """Apply the method in place, freeze all other parameters, and return the names of the trained ones."""
        check_unadapted(model)
        self.insert_modules(model, seed)
        model.peft_method = self
        names = set(self.list_trainable_names(model))
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in names)
        return tuple(name for name, _ in model.named_parameters() if name in names)

    def insert_modules(self, model: LanguageModel, seed: int) -> None:
        """Add the method's parameters to a model."""
        raise NotImplementedError

    def list_trainable_names(self, model: LanguageModel) -> tuple[str, ...]:
        """Return the names of the trained parameters of a model that the method was applied to.

        By default all of the method's modules, except for the weight and bias of the layers that they replace.
        """
        names = {
            f"{path}.{name}"
            for path, module in model.named_modules()
            if is_adapter_module(module)
            for name, _ in module.named_parameters()
            if name not in ("weight", "bias")
        }
        return tuple(name for name, _ in model.named_parameters() if name in names)

    @torch.no_grad()
    def merge(self, model: LanguageModel) -> None:
        """Merge the adapter into the weights and remove the method's modules; UsageError if that is impossible."""
        if not self.is_mergeable:
            raise UsageError(f"{type(self).__name__} cannot be merged into the weights: keep it separate")
        for _, owner, name, layer in find_adapted_layers(model):
            if isinstance(layer, AdaptedLinear):
                layer.merge_weights()
                setattr(owner, name, to_linear(layer))


def get_adapter_state(method: PeftMethod, model: LanguageModel) -> dict[str, Tensor]:
    """Return the trained parameters of a method by name: the adapter."""
    parameters = dict(model.named_parameters())
    return {name: parameters[name].detach() for name in method.list_trainable_names(model)}


def check_unadapted(model: LanguageModel) -> None:
    """Raise `UsageError` for a model that has a method already, or that consists of several models."""
    if not isinstance(model, LanguageModel):
        raise UsageError(
            f"a method applies to a single model, got {type(model).__name__}; apply it to one of the models in it"
        )
    for path, module in model.named_modules():
        if is_adapter_module(module):
            raise UsageError(f"a method was already applied to this model, at '{path}'; merge it or reload the model")


def find_linears(model: LanguageModel, targets: Iterable[str]) -> list[tuple[str, nn.Module, str, nn.Module]]:
    """Return every target layer of every block: its path, its parent module, its name there, and the layer."""
    linears: list[tuple[str, nn.Module, str, nn.Module]] = []
    for path, owner in model.named_modules():
        if isinstance(owner, ADAPTABLE_LAYERS):
            for name in select_targets(owner, targets):
                layer = getattr(owner, name, None)
                if isinstance(layer, nn.Module):
                    linears.append((f"{path}.{name}", owner, name, layer))
    return linears


def select_targets(owner: nn.Module, targets: Iterable[str]) -> list[str]:
    """Return the targets in a module of a block."""
    names = list(targets)
    if not isinstance(owner, LSTMLayer):
        return names
    return [name for name in names if name in RECURRENT_TARGETS] or list(RECURRENT_TARGETS)


def refuse_recurrent(model: LanguageModel, reason: str) -> None:
    """Raise `UsageError` with a reason if a model is recurrent."""
    if model.spec.is_recurrent:
        raise UsageError(f"{reason}; use LoRA, adapters or BitFit")


def find_adapted_layers(model: LanguageModel) -> list[tuple[str, nn.Module, str, nn.Module]]:
    """Return the modules that replace linear layers: path, parent module, name there, and the module."""
    return [linear for linear in find_linears(model, TARGETS) if is_adapter_module(linear[3])]


def is_adapter_module(module: nn.Module) -> bool:
    """Return True if a module was inserted by a method."""
    return getattr(module, "is_adapter", False) is True


class AdaptedLinear(nn.Module):
    """A linear layer with what a method adds; the layer's weights, plain or in 4 bits, keep their names."""

    is_adapter: ClassVar[bool] = True
    in_features: int
    out_features: int
    weight: Parameter
    bias: Parameter | None

    def __init__(self, linear: Any) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        for name, part in (*linear._parameters.items(), *linear._modules.items()):
            setattr(self, name, part)
        self.train(linear.training)

    def merge_weights(self) -> None:
        """Merge what the method adds into the weight and bias, in place, if the method is mergeable."""
        raise NotImplementedError


def to_linear(module: Any) -> nn.Linear:
    """Return a linear layer with the current weights of the module that replaced it."""
    linear = nn.Linear(module.in_features, module.out_features, bias=False, device="meta")
    linear.weight, linear.bias = module.weight, module.bias
    return linear.train(module.training)


def sample_weight(weight: Tensor) -> bytes:
    """Return a sample of a matrix, rounded so that it is the same for a model loaded in half precision."""
    flat = weight.detach().reshape(-1)
    sample = flat[:: max(1, flat.shape[0] // FINGERPRINT_SAMPLES)][:FINGERPRINT_SAMPLES]
    return sample.float().bfloat16().cpu().view(torch.int16).numpy().tobytes()


def init_uniform(shape: tuple[int, ...], bound: float, device: torch.device, seed: int) -> Parameter:
    """Return uniform values in [-bound, bound], determined by the seed alone; in fp32 even for a half model."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.empty(shape).uniform_(-bound, bound, generator=generator)
    return Parameter(values.to(device))


NUM_COMMON_TOKENS = 5000
"""Tokens are sampled from this many first ids of the vocabulary, which are the frequent ones."""


def choose_tokens(model: LanguageModel, count: int, tokens: tuple[int, ...] | None, seed: int) -> Tensor:
    """Return the ids of `count` tokens: those given, repeated as needed, or sampled ones that are not special."""
    if tokens is None:
        special = model.spec.special
        special_ids = {special.pad, special.bos, special.start, *special.eos}
        candidates = [token for token in range(min(model.spec.vocab, NUM_COMMON_TOKENS)) if token not in special_ids]
        indices = torch.randint(len(candidates), (count,), generator=torch.Generator().manual_seed(seed))
        ids = [candidates[number] for number in indices.tolist()]
    else:
        ids = [tokens[i % len(tokens)] for i in range(count)]
        if any(not 0 <= token < model.spec.vocab for token in ids):
            raise UsageError(f"tokens must be ids from 0 to {model.spec.vocab - 1}, got {ids}")
    return torch.tensor(ids, dtype=torch.long, device=model.tokens.weight.device)
