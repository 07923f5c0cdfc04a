"""A bidirectional language model: two causal stacks, one per direction, over one token table and one head.

    model = build_bidirectional_lm(make_two_way(resolve("gpt2-small")))
    forward, backward = model.compute_directional_states(batch)  # [N, W] each

Peters et al. (2018) use two recurrent stacks; here both are stacks of decoder blocks.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.seed import mix
from pretune.core.types import Batch, Loss, Output
from pretune.models.generator_discriminator import ModelPair
from pretune.models.model import LanguageModel, build_empty
from pretune.models.spec import Model, ModelShape, Params, check_memory, initialise, tie
from pretune.nn.lstm import reverse_index
from pretune.nn.recurrent_stack import Recurrent
from pretune.nn.stack import Stack

BACKWARD_FOLDER = "backward"
"""Folder of the backward model inside the directory of the forward model."""


@spec
class TwoWay:
    """A decoder and a second stack that reads sequences backward; they share the token table and the head."""

    forwards: Model
    backwards: Stack | Recurrent

    def __post_init__(self) -> None:
        if self.forwards.shape != "decoder" or self.forwards.head is None:
            raise UsageError(
                f"a bidirectional LM needs a decoder with a vocabulary head, got shape '{self.forwards.shape}'"
            )
        if not (self.forwards.last_stack.causal and self.backwards.causal):
            raise UsageError("both stacks of a bidirectional LM must be causal")
        _ = self.backward_spec  # which checks that the stack fits the model

    @property
    def backward_spec(self) -> Model:
        """Spec of the backward model."""
        return replace(self.forwards, decoder=self.backwards)

    @property
    def shape(self) -> ModelShape:
        """Shape name, as objectives list it."""
        return "two-way"

    def params(self) -> Params:
        """Return exact parameter counts, shared ones counted once; the body is both stacks and the token table."""
        extra, params = self.backwards.params(width=self.forwards.width), self.forwards.params()
        return Params(
            body=params.body + extra, body_with_pooler=params.body_with_pooler + extra, total=params.total + extra
        )


def make_two_way(model: Model) -> TwoWay:
    """Return the spec of a bidirectional LM whose backward stack equals the decoder."""
    if model.decoder is None:
        raise UsageError(f"a bidirectional LM needs a decoder, got a model of shape '{model.shape}'")
    return TwoWay(forwards=model, backwards=model.decoder)


class BidirectionalLM(ModelPair):
    """Two language models, `forwards` and `backwards`, with a shared token table and head."""

    def __init__(self, forwards: LanguageModel, backwards: LanguageModel) -> None:
        super().__init__()
        stack = backwards.spec.decoder
        if stack is None or backwards.spec != replace(forwards.spec, decoder=stack):
            raise UsageError("the two models of a bidirectional LM may differ only in their stacks")
        self.spec = TwoWay(forwards=forwards.spec, backwards=stack)
        self.forwards, self.backwards = forwards, backwards
        backwards.assets = forwards.assets
        for owner, name, module in self.list_tied_modules():
            tie(owner, name, module)

    def list_tied_modules(self) -> list[tuple[nn.Module, str, nn.Module]]:
        """Return the tied modules: owner and attribute in the backward model, and the module of the forward model."""
        assert self.forwards.head is not None
        return [(self.backwards, "tokens", self.forwards.tokens), (self.backwards, "head", self.forwards.head)]

    def get_models_by_folder(self) -> dict[str, LanguageModel]:
        """Return the models by folder; the forward model is saved in the directory itself."""
        return {"": self.forwards, BACKWARD_FOLDER: self.backwards}

    def compute_directional_states(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return forward and backward states `[N, W]`, both in the order of the batch's tokens."""
        reversed_batch, index = reverse_sequences(batch)
        return self.forwards.states(batch), self.backwards.states(reversed_batch).index_select(0, index)

    def loss(self, states: Tensor, batch: Batch) -> Loss:
        """Return the summed vocabulary loss at the targets, from the states of either direction."""
        return self.forwards.loss(states, batch)

    def forward(self, batch: Batch, *, hidden: bool = False) -> Output:
        """Return the states of both directions, concatenated: `[N, 2 W]`, with `hidden` for every layer."""
        reversed_batch, index = reverse_sequences(batch)
        left, right = self.forwards(batch, hidden=hidden), self.backwards(reversed_batch, hidden=hidden)

        def concatenate(states: Tensor, reversed_states: Tensor) -> Tensor:
            return torch.cat((states, reversed_states.index_select(0, index)), dim=-1)

        layers = None if left.hidden is None else tuple(map(concatenate, left.hidden, right.hidden))
        return Output(states=concatenate(left.states, right.states), hidden=layers)


def reverse_sequences(batch: Batch) -> tuple[Batch, Tensor]:
    """Reverse every sequence; return the batch and the index `[N]` that reverses it (and back). Padding stays.

    a b c | d e | -      ->      c b a | e d | -
    """
    if batch.prefix is not None:
        raise UsageError("a batch with prefixes cannot be reversed")
    index = reverse_index(batch)
    segments = None if batch.segments is None else batch.segments.index_select(0, index)
    return replace(batch, tokens=batch.tokens.index_select(0, index), segments=segments, targets=None), index


def build_bidirectional_lm(spec: TwoWay, *, seed: int = 0, device: torch.device | str = "cpu") -> BidirectionalLM:
    """Build a randomly initialized model; the forward weights equal those of `build` with the same seed."""
    check_memory(spec, device=device)
    model = BidirectionalLM(build_empty(spec.forwards), build_empty(spec.backward_spec)).to_empty(device=device)
    initialise(model.backwards, spec.forwards.init, spec.backward_spec.depth, mix(seed, 1))
    initialise(
        model.forwards, spec.forwards.init, spec.forwards.depth, seed
    )  # NOTE: last, so that the tied weights are its own
    return model
