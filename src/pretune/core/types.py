"""What every stage agrees on: the ragged `Batch`, what a model gives back (`Output`) and what is summed (`Loss`).

Legend: N tokens (rows x row length), C cells (sequences, one filler per row, spare ones), M target slots, W width.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from pretune.core.errors import UsageError

IGNORE_INDEX = -100
"""The label of a spare target slot: it gives no loss and is not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Where the vocabulary head runs, and what it should say there. Spare slots hold label `IGNORE_INDEX`."""

    index: Tensor  # [M] positions in the flat batch
    labels: Tensor  # [M]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Targets":
        return Targets(
            index=self.index.to(device, non_blocking=non_blocking),
            labels=self.labels.to(device, non_blocking=non_blocking),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Whole sequences laid end to end in rows: flat tokens plus offsets, no padding between sequences.

    A *cell* is a stretch `offsets[c]:offsets[c + 1]`: a sequence, the filler at a row's end, or nothing (spare). Rows
    are consecutive stretches of `length` tokens; no sequence crosses a row's end. Positions count from 0 inside each
    sequence. For an encoder-decoder the batch is what the decoder reads and `source` is what the encoder reads;
    sequence s has the same cell and lies in the same row on both sides.
    """

    tokens: Tensor  # [N]
    offsets: Tensor  # [C + 1] int32, padded with N
    sequence: Tensor  # [N] the cell a token belongs to, -1 for filler
    positions: Tensor  # [N] inside the sequence; 0 for filler
    rows: int
    one_per_row: bool = False  # one sequence fills each row: no mask is needed between sequences
    task: int = 0  # which of its heads a model that has several learns with
    targets: Targets | None = None
    segments: Tensor | None = None  # [N]
    words: Tensor | None = None  # [N]
    sentences: Tensor | None = None  # [N]
    prefix: Tensor | None = None  # [C] how many tokens of each sequence all of it may see
    order: Tensor | None = None  # [N] factorisation rank
    view: Tensor | None = None  # [C] mask kind
    blanks: Tensor | None = None  # [N] the number of the masked span a token is in, -1 outside
    labels: Tensor | None = None  # [C]
    source: "Batch | None" = None

    @property
    def length(self) -> int:
        """The row length R."""
        return self.tokens.shape[0] // self.rows

    @property
    def cells(self) -> int:
        return self.offsets.shape[0] - 1

    def list_spans(self) -> list[tuple[int, int]]:
        """Start and end of every sequence, in order, filler and spare cells left out. Waits for the device."""
        offsets, owner = self.offsets.tolist(), self.sequence.tolist()
        pairs = zip(range(self.cells), offsets[:-1], offsets[1:], strict=True)
        return [(start, end) for cell, start, end in pairs if start < end and owner[start] == cell]

    def find_sequence_cells(self) -> Tensor:
        """The cells `[S]` that are sequences, in order; filler and spare cells are left out. Waits for the device."""
        starts, cells = self.offsets[:-1].long(), torch.arange(self.cells, device=self.offsets.device)
        owners = self.sequence[starts.clamp(max=self.sequence.shape[0] - 1)]
        return ((self.offsets[1:] > self.offsets[:-1]) & (owners == cells)).nonzero().flatten()

    def split(self, values: Tensor) -> list[Tensor]:
        """One tensor per sequence out of a flat `[N, …]` one; filler is dropped. Others are a UsageError."""
        tokens = self.tokens.shape[0]
        rows = values.shape[0] if getattr(values, "ndim", 0) else None
        if rows != tokens:
            found = f"{rows} rows" if rows is not None else f"a {type(values).__name__} without rows"
            raise UsageError(
                f"values of {tokens} rows can be split, one for each token of the batch; found {found} (logits at "
                "targets, or of a head that gives a row for each sequence, are not split)"
            )
        return [values[start:end] for start, end in self.list_spans()]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """The same batch on another device."""
        moved: dict[str, Any] = {}
        for part in fields(self):
            value = getattr(self, part.name)
            if isinstance(value, Tensor | Batch | Targets):
                moved[part.name] = value.to(device, non_blocking=non_blocking)
        return replace(self, **moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a model says of a batch. Only what was asked for is there; the rest is None."""

    states: Tensor  # [N, W] after the final norm
    logits: Tensor | None = (
        None  # [N, vocab], which `Batch.split` takes; or [M, vocab] at the target rows when the batch has targets
    )
    hidden: tuple[Tensor, ...] | None = None  # depth + 1 tensors [N, W], the last after the final norm
    attention: tuple[tuple[Tensor, ...], ...] | None = None  # per layer, per sequence: [heads, n, n]
    cross: tuple[tuple[Tensor, ...], ...] | None = None  # per layer, per sequence: [heads, n, source n]
    source: "Output | None" = None  # the encoder's, for an encoder-decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A sum and the number of targets it was summed over, so that parts of a batch add up exactly.

    Where an objective has several terms, `parts` holds them by name, each with its own count and `weight`; `sum` and
    `count` are then those of the main one (the first): what a perplexity is computed from. `correct` counts the targets
    that were likelier than all else; it is known only where no gradient is asked for.

    >>> half = Loss(sum=torch.tensor(6.0), count=torch.tensor(2))
    >>> (half + half).mean().item()
    3.0
    """

    sum: Tensor
    count: Tensor
    weight: float = 1.0
    parts: Mapping[str, "Loss"] = field(default_factory=dict)
    correct: Tensor | None = None

    @classmethod
    def from_parts(cls, parts: Mapping[str, "Loss"]) -> "Loss":
        """Several terms as one loss; the first is the main one."""
        main = next(iter(parts.values()))
        return cls(sum=main.sum, count=main.count, parts=parts, correct=main.correct)

    def get_terms(self) -> Mapping[str, "Loss"]:
        """Its terms by name; a loss of one term is called "loss"."""
        return self.parts or {"loss": self}

    def normalize(self, totals: Mapping[str, Tensor]) -> Tensor:
        """What is differentiated: each term's sum over the count of the whole step, by its name, times its weight."""
        found = [term.weight * term.sum / totals[name].clamp(min=1) for name, term in self.get_terms().items()]
        return torch.stack(found).sum()

    def mean(self) -> Tensor:
        """The average loss, terms weighted; 0 where there was nothing to predict."""
        return self.normalize({name: term.count for name, term in self.get_terms().items()})

    def detach(self) -> "Loss":
        """The same without its graph."""
        return replace(self, sum=self.sum.detach(), parts={name: part.detach() for name, part in self.parts.items()})

    def __add__(self, other: "Loss") -> "Loss":
        parts = dict(self.parts)
        for name, loss in other.parts.items():
            parts[name] = parts[name] + loss if name in parts else loss
        right = None if self.correct is None or other.correct is None else self.correct + other.correct
        count = self.count + other.count
        return Loss(sum=self.sum + other.sum, count=count, weight=self.weight, parts=parts, correct=right)
