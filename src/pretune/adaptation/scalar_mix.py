"""Layers of a frozen model as features: a learned mix of all of them, read by a small model of the task (ELMo).

reader = MixReader(classes=2).build(width=model.spec.width, layers=len(hidden))
hidden, batch = layers(model, batch)            # once: nothing of the model is trained, so they can be kept
reader(hidden, batch)                           # [C, classes]; with pool=None one row for each token
"""

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.models.bidirectional_lm import reverse_sequences
from pretune.models.model import LanguageModel, build
from pretune.models.spec import PARTS
from pretune.nn.norm import Norm
from pretune.nn.pooling import pool_states
from pretune.nn.recurrent import AdditiveAttention, BiLSTM


@spec
class LayerMix:
    """gamma x sum of softmax(s)_j h_j over all layers (Peters et al., 2018, eq. 1); at the start their plain mean."""

    norm: Norm | None = None  # of each layer before it is weighed; the paper tried one without weights

    def build(self, *, width: int, layers: int) -> "ScalarMix":
        return ScalarMix(self, width, layers)

    def params(self, *, width: int, layers: int) -> int:
        return layers + 1 + (layers * self.norm.params(width=width) if self.norm else 0)


class ScalarMix(nn.Module):
    def __init__(self, spec: LayerMix, width: int, layers: int) -> None:
        super().__init__()
        self.s = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))
        self.norms = nn.ModuleList([spec.norm.build(width=width) for _ in range(layers)]) if spec.norm else None

    def forward(self, hidden: tuple[Tensor, ...] | Tensor) -> Tensor:
        """Layers, each `[N, W]`, to one `[N, W]`."""
        if len(hidden) != len(self.s):
            raise UsageError(f"found {len(hidden)} layers for a mix of {len(self.s)}; build it for the model it reads")
        found = hidden if self.norms is None else [norm(h) for norm, h in zip(self.norms, hidden, strict=True)]
        out: Tensor = self.gamma * torch.einsum("j,jnw->nw", self.s.softmax(0), torch.stack([*found]))
        return out


@spec
class Average:
    """One vector a sequence: the mean of its states."""

    def build(self, *, width: int) -> "MeanPooling":
        return MeanPooling()

    def params(self, *, width: int) -> int:
        return 0


class MeanPooling(nn.Module):
    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """States `[N, W]` to one vector for each cell `[C, W]`."""
        return pool_states(states, batch, "mean")


@spec
class MixReader:
    """Mixed layers through a BiLSTM to classes: a row of logits a sequence, or without `pool` one a token (tagging)."""

    classes: int
    mix: LayerMix = LayerMix()
    lstm: BiLSTM = BiLSTM(hidden=256)
    pool: AdditiveAttention | Average | None = AdditiveAttention(hidden=128)
    dropout: float = 0.5  # of what the LSTM reads and says

    def build(self, *, width: int, layers: int) -> "ScalarMixHead":
        return ScalarMixHead(self, width, layers)

    def params(self, *, width: int, layers: int) -> int:
        pool = self.pool.params(width=self.lstm.width) if self.pool else 0
        own = self.mix.params(width=width, layers=layers) + self.lstm.params(width=width) + pool
        return own + self.lstm.width * self.classes + self.classes


class ScalarMixHead(nn.Module):
    reads_all_layers = True  # it reads all layers, not the last states
    is_single_part = True  # its LSTM is part of the head, not a block of the model

    def __init__(self, spec: MixReader, width: int, layers: int) -> None:
        super().__init__()
        self.mix = spec.mix.build(width=width, layers=layers)
        self.lstm = spec.lstm.build(width=width)
        self.pool = spec.pool.build(width=spec.lstm.width) if spec.pool else None
        self.out = nn.Linear(spec.lstm.width, spec.classes)
        self.dropout = nn.Dropout(spec.dropout)
        self.backwards: LanguageModel | None = None  # what reads from the right, frozen; its layers stand beside

    def forward(self, hidden: tuple[Tensor, ...] | Tensor, batch: Batch) -> Tensor:
        """Logits `[C, classes]`, or `[N, classes]` for a tagger."""
        if self.backwards is not None:
            turned, index = reverse_sequences(batch)
            right = torch.stack(extract_layers(self.backwards, turned)[0]).index_select(1, index)
            hidden = torch.cat((torch.stack([*hidden]), right), dim=-1)  # [L, N, 2 W]
        states = self.lstm(self.dropout(self.mix(hidden)), batch)
        out: Tensor = self.out(self.dropout(states if self.pool is None else self.pool(states, batch)))
        return out


@spec
class Mixing:
    """A task's head over all layers of a model that stays as it is (Peters et al., 2018).

    ELMo's layers are those of two models side by side, one of which reads from the right; with `ways` "both" that one
    is part of the head, saved with it and never trained. Its weights are given to `backwards` after it was built.
    """

    mix: LayerMix = LayerMix()
    lstm: BiLSTM = BiLSTM(hidden=256)
    attention: int | None = 128  # the width of what pools the words of a sequence; None: their mean
    dropout: float = 0.5
    ways: Literal["one", "both"] = "one"

    def build(self, model: LanguageModel, classes: int, *, tagging: bool, seed: int) -> ScalarMixHead:
        """The reader, with new weights: a function of the seed."""
        pool = Average() if self.attention is None else AdditiveAttention(hidden=self.attention)
        reader = MixReader(
            classes=classes, mix=self.mix, lstm=self.lstm, pool=None if tagging else pool, dropout=self.dropout
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            width = model.spec.width * (2 if self.ways == "both" else 1)
            made = reader.build(width=width, layers=model.spec.last_stack.depth + 1)
        if self.ways == "both":
            if model.shape != "decoder":
                raise UsageError(f"two ways are those of decoders, found a model of the shape '{model.shape}'")
            bare: dict[str, Any] = dict.fromkeys((*PARTS, "span"))
            made.backwards = build(replace(model.spec, **bare), seed=seed)
            made.backwards.requires_grad_(False)
        return made.to(model.tokens.weight.device)


@torch.no_grad()
def extract_layers(
    model: LanguageModel, batch: Batch, side: Literal["source", "last"] = "source"
) -> tuple[tuple[Tensor, ...], Batch]:
    """All layers of a model as it stands, without a graph and without dropout, and the batch they belong to.

    They are the token embeddings and what every block says; for an encoder-decoder those of the encoder, over what it
    reads, or with `side` "last" those of the decoder, where the labels of a task's head are.
    """
    was = model.training
    model.eval()
    try:
        out = model(batch, hidden=True)
    finally:
        model.train(was)
    here = side == "last" or out.source is None or batch.source is None
    read, found = (out, batch) if here else (out.source, batch.source)
    assert read is not None and read.hidden is not None and found is not None
    return read.hidden, found
