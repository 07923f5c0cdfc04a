"""Shared data types: the ragged `Batch`, the model's `Output` and the summed `Loss`.

Legend: N tokens (rows x row length), C cells (sequences, one filler per row, spare ones), M target slots, W width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from pretune.core.errors import UsageError
from pretune.core.log import format_count

IGNORE_INDEX = -100
"""Label of an unused target slot: it gives no loss and is not counted."""

SHARED_ROW_TOKENS = 64
"""Tokens of a row that short sequences share: the cost of attention grows with it, the filler shrinks."""
REPR_TOKENS = 16
"""Tokens in the repr of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Positions at which the vocabulary head runs, and their labels. Unused slots have the label `IGNORE_INDEX`."""

    index: Tensor  # [M] positions in the flat batch
    labels: Tensor  # [M]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Targets":
        return Targets(
            index=self.index.to(device, non_blocking=non_blocking),
            labels=self.labels.to(device, non_blocking=non_blocking),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Sequences packed into rows: flat tokens plus offsets, without padding between sequences.

    A *cell* is a span `offsets[c]:offsets[c + 1]`: a sequence, the filler at the end of a row, or empty (spare). Rows
    are consecutive spans of `length` tokens; no sequence crosses the end of a row. Positions count from 0 inside each
    sequence. For an encoder-decoder the batch is the decoder's input and `source` the encoder's; sequence s has the
    same cell and lies in the same row on both sides.
    """

    tokens: Tensor  # [N]
    offsets: Tensor  # [C + 1] int32, padded with N
    sequence: Tensor  # [N] the cell a token belongs to, -1 for filler
    positions: Tensor  # [N] inside the sequence; 0 for filler
    rows: int
    one_per_row: bool = False  # one sequence fills each row: no mask is needed between sequences
    continues: bool | None = None  # each row continues that of the batch before; False: it starts a stream; None: alone
    task: int = 0  # index of the head, for a model with several
    targets: Targets | None = None
    segments: Tensor | None = None  # [N]
    words: Tensor | None = None  # [N]
    sentences: Tensor | None = None  # [N]
    chunks: Tensor | None = None  # [C] index of a sequence among those of its document, which follow each other
    prefix: Tensor | None = None  # [C] length of the prefix with bidirectional attention
    order: Tensor | None = None  # [N] factorisation rank
    view: Tensor | None = None  # [C] mask kind
    parents: Tensor | None = None  # [C] cell of the sequence that one continues and may attend to; its own: of none
    blanks: Tensor | None = None  # [N] index of the masked span of a token, -1 outside
    labels: Tensor | None = None  # [C], or [C, K] for K labels that exclude no other
    teacher_logits: Tensor | None = None  # [C, K] or [N, K] of a teacher's head
    features: Tensor | None = None  # [C, W] pooled or [N, W]: the body's output for the head, computed before
    source: "Batch | None" = None

    @classmethod
    def from_sequences(
        cls,
        sequences: Sequence[Sequence[int]],
        *,
        segments: Sequence[Sequence[int]] | None = None,
        labels: Sequence[float | Sequence[float]] | None = None,
        length: int | None = None,
        shares_rows: bool = False,
    ) -> "Batch":
        """Return a batch of sequences of token ids, in their order.

        Each fills a row of `length` tokens, by default the longest. With `shares_rows` rows of `SHARED_ROW_TOKENS`, or
        of the longest sequence, hold several whole sequences; without filler if all fit into one row, or have the same
        length. `segments` has an id for every token, `labels` a class, a score or K scores for every sequence.
        """
        lengths = [len(sequence) for sequence in sequences]
        if not lengths or not min(lengths):
            raise UsageError("a batch needs at least one sequence, and a sequence at least one token")
        if length is not None and max(lengths) > length:
            raise UsageError(f"a sequence of {max(lengths)} tokens does not fit into rows of {length}")
        longest = max(lengths)
        shares_rows = shares_rows and min(lengths) < longest
        layout = _fill_rows(lengths, max(longest, SHARED_ROW_TOKENS)) if shares_rows else [[size] for size in lengths]
        length = length or max(map(sum, layout))
        sizes = torch.tensor([size for row in layout for size in (*row, length - sum(row))])  # [C] a filler ends a row
        is_sequence = torch.tensor([is_cell for row in layout for is_cell in (*[True] * len(row), False)])  # [C]
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
        cell = torch.arange(len(sizes)).repeat_interleave(sizes)  # [N]
        is_token = is_sequence[cell]

        def place(values: Sequence[Sequence[int]]) -> Tensor:
            flat = torch.zeros(len(cell), dtype=torch.long)
            flat[is_token] = torch.tensor([value for row in values for value in row])
            return flat

        cell_labels = None
        if labels is not None:
            if len(labels) != len(lengths):
                raise UsageError(f"{len(labels)} labels for {len(lengths)} sequences; pass one for each")
            values = torch.tensor(labels)
            values = values.float() if values.ndim > 1 else values
            cell_labels = torch.full((len(sizes), *values.shape[1:]), IGNORE_INDEX, dtype=values.dtype)
            cell_labels[is_sequence] = values
        return cls(
            tokens=place(sequences),
            offsets=offsets.to(torch.int32),
            sequence=torch.where(is_token, cell, -1),
            positions=torch.where(is_token, torch.arange(len(cell)) - offsets[cell], 0),
            rows=len(layout),
            one_per_row=min(lengths) == length,
            segments=None if segments is None else place(segments),
            labels=cell_labels,
        )

    def __repr__(self) -> str:
        if self.tokens.is_meta:
            return f"Batch({self.tokens.shape[0]} tokens on the meta device)"
        total, filler = self.tokens.shape[0], int((self.sequence < 0).sum())
        counts = [format_count(len(self.list_spans()), "sequences"), format_count(total - filler, "tokens")]
        counts += [f"{filler:,} filler"] if filler else []
        shapes = [
            f"{part.name} {list(value.shape)}"
            for part in fields(self)
            if isinstance(value := getattr(self, part.name), Tensor) and part.name != "tokens"
        ]
        shapes += [] if self.targets is None else [f"targets {list(self.targets.index.shape)}"]
        ids = " ".join(map(str, self.tokens[:REPR_TOKENS].tolist())) + (" …" if total > REPR_TOKENS else "")
        lines = [
            f"Batch({', '.join(counts)}; {format_count(self.rows, 'rows')} of {self.length}, {self.tokens.device})",
            f"  tokens [{total}]: {ids}",
            f"  {', '.join(shapes)}",
        ]
        return "\n".join(lines if self.source is None else [*lines, f"  source: {self.source!r}".replace("\n", "\n  ")])

    @property
    def length(self) -> int:
        """Row length R."""
        return self.tokens.shape[0] // self.rows

    @property
    def cells(self) -> int:
        return self.offsets.shape[0] - 1

    def list_spans(self) -> list[tuple[int, int]]:
        """Return start and end of every sequence, in order without filler. Synchronises with the device."""
        offsets, owner = self.offsets.tolist(), self.sequence.tolist()
        pairs = zip(range(self.cells), offsets[:-1], offsets[1:], strict=True)
        return [(start, end) for cell, start, end in pairs if start < end and owner[start] == cell]

    def mark_sequences(self) -> Tensor:
        """Return True for the cells `[C]` that are sequences, False for filler and spare ones."""
        starts, cells = self.offsets[:-1].long(), torch.arange(self.cells, device=self.offsets.device)
        owners = self.sequence[starts.clamp(max=self.sequence.shape[0] - 1)]
        return (self.offsets[1:] > self.offsets[:-1]) & (owners == cells)

    def find_sequence_cells(self) -> Tensor:
        """Return the cells `[S]` that are sequences, in order. Synchronises with the device."""
        return self.mark_sequences().nonzero().flatten()

    def split(self, values: Tensor) -> list[Tensor]:
        """Split a flat `[N, …]` tensor into one per sequence, without filler; other shapes raise a UsageError."""
        tokens = self.tokens.shape[0]
        rows = values.shape[0] if getattr(values, "ndim", 0) else None
        if rows != tokens:
            shape = f"{rows} rows" if rows is not None else f"a {type(values).__name__} without rows"
            raise UsageError(
                f"split needs values of {tokens} rows, one for each token of the batch, got {shape} (logits at "
                "targets, or of a head with one row per sequence, cannot be split)"
            )
        return [values[start:end] for start, end in self.list_spans()]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """Return the batch on another device."""
        tensors: dict[str, Any] = {}
        for part in fields(self):
            value = getattr(self, part.name)
            if isinstance(value, Tensor | Batch | Targets):
                tensors[part.name] = value.to(device, non_blocking=non_blocking)
        return replace(self, **tensors)


def _fill_rows(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Return the lengths of the sequences of each row, in order: a sequence that does not fit starts the next row."""
    rows: list[list[int]] = [[]]
    used_tokens = 0
    for size in lengths:
        if used_tokens + size > room:
            rows.append([])
            used_tokens = 0
        rows[-1].append(size)
        used_tokens += size
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Outputs of a model for a batch. Only requested fields are set; the others are None."""

    states: Tensor  # [N, W] after the final norm
    # [N, vocab], the input of `Batch.split`; or [M, vocab] at the target rows when the batch has targets
    logits: Tensor | None = None
    hidden: tuple[Tensor, ...] | None = None  # depth + 1 tensors [N, W], the last after the final norm
    attention: tuple[tuple[Tensor, ...], ...] | None = None  # per layer, per sequence: [heads, n, n]
    cross: tuple[tuple[Tensor, ...], ...] | None = None  # per layer, per sequence: [heads, n, source n]
    source: "Output | None" = None  # the encoder's, for an encoder-decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Sum of the loss and number of targets, so that parts of a batch add up exactly.

    If an objective has several terms, `parts` holds them by name, each with its own count and `weight`; `sum` and
    `count` are then those of the main term (the first), from which perplexity is computed. `correct` counts the targets
    whose prediction was the argmax; it is set only without gradients.

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
        """Combine several terms into one loss; the first is the main term."""
        main = next(iter(parts.values()))
        return cls(sum=main.sum, count=main.count, parts=parts, correct=main.correct)

    def get_terms(self) -> Mapping[str, "Loss"]:
        """Return the terms by name; a single term is called "loss"."""
        return self.parts or {"loss": self}

    def normalize(self, totals: Mapping[str, Tensor]) -> Tensor:
        """Return the scalar to differentiate: each term divided by its count in the whole step, times its weight."""
        terms = [term.weight * term.sum / totals[name].clamp(min=1) for name, term in self.get_terms().items()]
        return torch.stack(terms).sum()

    def mean(self) -> Tensor:
        """Return the weighted mean loss; 0 without targets."""
        return self.normalize({name: term.count for name, term in self.get_terms().items()})

    def detach(self) -> "Loss":
        """Return the loss without its graph."""
        return replace(self, sum=self.sum.detach(), parts={name: part.detach() for name, part in self.parts.items()})

    def __add__(self, addend: "Loss") -> "Loss":
        parts = dict(self.parts)
        for name, loss in addend.parts.items():
            parts[name] = parts[name] + loss if name in parts else loss
        correct = None if self.correct is None or addend.correct is None else self.correct + addend.correct
        count = self.count + addend.count
        return Loss(sum=self.sum + addend.sum, count=count, weight=self.weight, parts=parts, correct=correct)
