"""ELMo-style features: a scalar mix of all layers of a frozen model, read by a small BiLSTM.

hidden, batch = extract_layers(model, batch)    # the model is frozen, so these can be cached
head = ScalarMixHead(Mixing(), classes=2, width=model.spec.width, layers=len(hidden))
head(hidden, batch)                             # [C, classes]; with tagging=True one row per token
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pretune.core.config import Fraction, Positive, spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.inference.text_model import eval_mode
from pretune.models.bidirectional_lm import reverse_sequences
from pretune.models.model import LanguageModel, build
from pretune.models.spec import PARTS
from pretune.nn.heads import pool_states
from pretune.nn.layers import Norm
from pretune.nn.lstm import AdditiveAttention, BiLSTM
from pretune.nn.recurrent_stack import Recurrent


@spec
class LayerMix:
    """gamma x sum of softmax(s)_j h_j over all layers (Peters et al., 2018, eq. 1); initialized to their mean."""

    norm: Norm | None = None  # of each layer before it is weighted; the paper tried one without parameters
    layers: Positive[int] | None = (
        None  # number of the lowest ones that are mixed; 1: vectors of tokens without context
    )

    def build(self, *, width: int, layers: int) -> "ScalarMix":
        return ScalarMix(self, width, layers)


class ScalarMix(nn.Module):
    def __init__(self, spec: LayerMix, width: int, layers: int) -> None:
        super().__init__()
        count = layers if spec.layers is None else spec.layers
        if count > layers:
            raise UsageError(f"a scalar mix of {count} layers: the model has {layers}, with the vectors of tokens")
        self.layers = layers
        self.s = nn.Parameter(torch.zeros(count))
        self.gamma = nn.Parameter(torch.ones(()))
        self.norms = nn.ModuleList([spec.norm.build(width=width) for _ in range(count)]) if spec.norm else None

    def forward(self, hidden: tuple[Tensor, ...] | Tensor) -> Tensor:
        """Mix layers, each `[N, W]`, to `[N, W]`."""
        if len(hidden) != self.layers:
            raise UsageError(f"got {len(hidden)} layers for a scalar mix of {self.layers}; build it for this model")
        hidden = hidden[: len(self.s)]
        check_widths([h.shape[-1] for h in hidden])
        layers = hidden if self.norms is None else [norm(h) for norm, h in zip(self.norms, hidden, strict=True)]
        out: Tensor = self.gamma * torch.einsum("j,jnw->nw", self.s.softmax(0), torch.stack([*layers]))
        return out


def check_widths(widths: Sequence[int]) -> None:
    """Raise `UsageError` if layers have different widths."""
    if len({*widths}) > 1:
        sizes = ", ".join(map(str, widths))
        raise UsageError(f"a scalar mix needs layers of equal width, got {sizes}; use a head over the last layer")


class ScalarMixHead(nn.Module):
    """Scalar mix, BiLSTM, pooling, classifier: logits per sequence, or with `tagging` per token."""

    reads_all_layers = True  # the input is all layers, not the last states
    is_single_part = True  # the LSTM is part of the head, not a block of the model

    def __init__(self, spec: "Mixing", *, classes: int, width: int, layers: int, tagging: bool = False) -> None:
        super().__init__()
        self.tagging = tagging
        self.mix = spec.mix.build(width=width, layers=layers)
        self.lstm = spec.lstm.build(width=width)
        self.pool = None
        if spec.attention is not None and not tagging:
            self.pool = AdditiveAttention(hidden=spec.attention).build(width=spec.lstm.width)
        self.out = nn.Linear(spec.lstm.width, classes)
        self.dropout = nn.Dropout(spec.dropout)
        self.backwards: LanguageModel | None = None  # frozen right-to-left model; its layers are concatenated

    def forward(self, hidden: tuple[Tensor, ...] | Tensor, batch: Batch) -> Tensor:
        """Return logits `[C, classes]`, or `[N, classes]` for tagging."""
        if self.backwards is not None:
            reversed_batch, index = reverse_sequences(batch)
            backward_layers = torch.stack(extract_layers(self.backwards, reversed_batch)[0]).index_select(1, index)
            hidden = torch.cat((torch.stack([*hidden]), backward_layers), dim=-1)  # [L, N, 2 W]
        states = self.lstm(self.dropout(self.mix(hidden)), batch)
        if self.pool is not None:
            states = self.pool(states, batch)
        elif not self.tagging:
            states = pool_states(states, batch, "mean")
        out: Tensor = self.out(self.dropout(states))
        return out


@spec
class Mixing:
    """A task head over all layers of a frozen model (Peters et al., 2018).

    ELMo concatenates the layers of a left-to-right and a right-to-left model. With `ways="both"` the right-to-left
    model is part of the head: saved with it, never trained. Set its weights in `backwards` after building.
    """

    mix: LayerMix = LayerMix()
    lstm: BiLSTM = BiLSTM(hidden=256)
    attention: Positive[int] | None = 128  # hidden width of attention pooling; None: mean pooling
    dropout: Fraction = 0.5  # on the inputs and outputs of the LSTM
    ways: Literal["one", "both"] = "one"

    def build(self, model: LanguageModel, classes: int, *, tagging: bool, seed: int) -> ScalarMixHead:
        """Build the head; its initial weights depend on the seed only."""
        stack = model.spec.last_stack
        if isinstance(stack, Recurrent):
            check_widths(stack.list_widths(width=model.spec.width))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            width = model.spec.width * (2 if self.ways == "both" else 1)
            head = ScalarMixHead(self, classes=classes, width=width, layers=stack.depth + 1, tagging=tagging)
        if self.ways == "both":
            if model.shape != "decoder":
                raise UsageError(f"ways='both' needs a decoder, got a model of the shape '{model.shape}'")
            no_heads: dict[str, Any] = dict.fromkeys((*PARTS, "span"))
            head.backwards = build(replace(model.spec, **no_heads), seed=seed)
            head.backwards.requires_grad_(False)
        return head.to(model.tokens.weight.device)


def extract_layers(
    model: LanguageModel, batch: Batch, side: Literal["source", "last"] = "source"
) -> tuple[tuple[Tensor, ...], Batch]:
    """Return all layers of a model, without gradients and dropout, and the batch they belong to.

    The layers are the token embeddings and the output of every block. For an encoder-decoder they are the encoder's,
    or with `side="last"` the decoder's, to which the labels of a task head refer.
    """
    with eval_mode(model):
        out = model(batch, hidden=True)
    is_target_side = side == "last" or out.source is None or batch.source is None
    side_output, side_batch = (out, batch) if is_target_side else (out.source, batch.source)
    assert side_output is not None and side_output.hidden is not None and side_batch is not None
    return side_output.hidden, side_batch
