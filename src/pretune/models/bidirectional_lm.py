"""Two causal stacks over one token table and one head, one reading from the left and one from the right.

    model = build_two_way(two_way(resolve("gpt2-small")))
    forward, backward = model.ways(batch)        # [N, W] each: all before a token and it, it and all after it

Peters et al. (2018) have two recurrent stacks here; the blocks of a decoder take their place.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.seed import mix
from pretune.core.types import Batch, Loss, Output
from pretune.models.init import initialise
from pretune.models.memory import check_memory
from pretune.models.model import LanguageModel, build_empty
from pretune.models.spec import Model, ModelShape, Params
from pretune.models.tying import tie
from pretune.nn.attention_mask import Backend
from pretune.nn.stack import Stack

BACKWARD_FOLDER = "backward"
"""Where the model that reads from the right lies in a directory that is the other's."""


@spec
class TwoWay:
    """A decoder, and a second stack that reads every sequence from its end; the token table and the head are shared."""

    forwards: Model
    backwards: Stack

    def __post_init__(self) -> None:
        if self.forwards.shape != "decoder" or self.forwards.head is None:
            raise UsageError(f"two ways need a decoder with a head, found the shape '{self.forwards.shape}'")
        if not (self.forwards.last_stack.causal and self.backwards.causal):
            raise UsageError("each of two ways must be causal: it may not see what it is to predict")
        _ = self.backward_spec  # which checks that the stack fits the model

    @property
    def backward_spec(self) -> Model:
        """The model that reads from the right."""
        return replace(self.forwards, decoder=self.backwards)

    @property
    def shape(self) -> ModelShape:
        """The word that objectives have for it."""
        return "two-way"

    def params(self) -> Params:
        """Exact parameter counts, what they share counted once; the body is both stacks and the token table."""
        more, one = self.backwards.params(width=self.forwards.width), self.forwards.params()
        return Params(body=one.body + more, body_with_pooler=one.body_with_pooler + more, total=one.total + more)


def make_two_way(model: Model) -> TwoWay:
    """A decoder with a second stack like its own."""
    if model.decoder is None:
        raise UsageError(f"two ways are made of a decoder, found a model of the shape '{model.shape}'")
    return TwoWay(forwards=model, backwards=model.decoder)


class BidirectionalLM(nn.Module):
    """Its children `forwards` and `backwards` are models like any other, with one token table and one head."""

    def __init__(self, forwards: LanguageModel, backwards: LanguageModel) -> None:
        super().__init__()
        stack = backwards.spec.decoder
        if stack is None or backwards.spec != replace(forwards.spec, decoder=stack):
            raise UsageError("the models of two ways may differ in their stacks only")
        self.spec = TwoWay(forwards=forwards.spec, backwards=stack)
        self.forwards, self.backwards = forwards, backwards
        backwards.assets = forwards.assets
        for owner, name, module in self.list_tied_modules():
            tie(owner, name, module)

    def list_tied_modules(self) -> list[tuple[nn.Module, str, nn.Module]]:
        """What is shared: an owner on the way back, the name there, and the module of the way forth."""
        assert self.forwards.head is not None
        return [(self.backwards, "tokens", self.forwards.tokens), (self.backwards, "head", self.forwards.head)]

    @property
    def shape(self) -> ModelShape:
        """The word that objectives have for it."""
        return self.spec.shape

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that came with the weights, or None."""
        return self.forwards.tokenizer

    @property
    def attention_backend(self) -> Backend | None:
        """The backend that is forced in both, if any."""
        return self.forwards.attention_backend

    @attention_backend.setter
    def attention_backend(self, backend: Backend | None) -> None:
        self.forwards.attention_backend = self.backwards.attention_backend = backend

    def get_models_by_folder(self) -> dict[str, LanguageModel]:
        """What is saved, by the folder it lies in: the way forth is the directory itself."""
        return {"": self.forwards, BACKWARD_FOLDER: self.backwards}

    def compute_directional_states(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The states `[N, W]` of both, each at its token: those from the right are turned back."""
        turned, index = reverse_sequences(batch)
        return self.forwards.states(batch), self.backwards.states(turned).index_select(0, index)

    def loss(self, states: Tensor, batch: Batch) -> Loss:
        """The one head's summed loss at the batch's targets, from the states of either way."""
        return self.forwards.loss(states, batch)

    def forward(self, batch: Batch, *, hidden: bool = False) -> Output:
        """Both ways side by side: states `[N, 2 W]`, and so of every layer with `hidden`."""
        turned, index = reverse_sequences(batch)
        one, other = self.forwards(batch, hidden=hidden), self.backwards(turned, hidden=hidden)

        def beside(left: Tensor, right: Tensor) -> Tensor:
            return torch.cat((left, right.index_select(0, index)), dim=-1)

        layers = None if one.hidden is None else tuple(map(beside, one.hidden, other.hidden))
        return Output(states=beside(one.states, other.states), hidden=layers)

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile both, block by block."""
        self.forwards.compile(*args, **options)
        self.backwards.compile(*args, **options)


def reverse_sequences(batch: Batch) -> tuple[Batch, Tensor]:
    """Every sequence read from its end, and where each token `[N]` now lies; filler stays. Its own inverse.

    a b c | d e | -      ->      c b a | e d | -
    """
    if batch.prefix is not None:
        raise UsageError("a batch with prefixes cannot be read from the right")
    cell = batch.sequence.clamp(min=0)
    ends = batch.offsets[1:].long().index_select(0, cell)
    here = torch.arange(batch.tokens.shape[0], device=batch.tokens.device)
    index = torch.where(batch.sequence >= 0, ends - 1 - batch.positions, here)
    segments = None if batch.segments is None else batch.segments.index_select(0, index)
    return replace(batch, tokens=batch.tokens.index_select(0, index), segments=segments, targets=None), index


def build_bidirectional_lm(spec: TwoWay, *, seed: int = 0, device: torch.device | str = "cpu") -> BidirectionalLM:
    """A new model; the way forth has the weights it would have alone."""
    check_memory(spec, device=device)
    model = BidirectionalLM(build_empty(spec.forwards), build_empty(spec.backward_spec)).to_empty(device=device)
    initialise(model.backwards, spec.forwards.init, spec.backward_spec.depth, mix(seed, 1))
    initialise(model.forwards, spec.forwards.init, spec.forwards.depth, seed)  # NOTE: the shared ones as well
    return model
