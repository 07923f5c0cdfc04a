"""Batches of pairs or triplets: every example once per epoch, in an order given by seed and epoch."""

from dataclasses import dataclass

import numpy as np
import torch

from pretune.core.errors import ResourceError
from pretune.core.format import format_count
from pretune.core.types import Batch, Targets
from pretune.data.layout import lay_out, next_fit
from pretune.data.plan import BatchShape
from pretune.data.sequences import Ints, Sequences
from pretune.inference.embed import EncodedTexts, encode_texts
from pretune.tasks.types.embedding import PairDataset
from pretune.text.tokenizer import Tokenizer

MIN_ROW_LENGTH = 128
"""Minimum row length in tokens; longer texts lengthen the rows."""


@dataclass(frozen=True, slots=True)
class PairStream:
    """Batches of whole examples as a function of the step; equal texts share an id."""

    sequences: Sequences  # unique texts
    text_ids: Ints  # [E, K] the text of each column of each example
    gold: np.ndarray[tuple[int], np.dtype[np.float32]]  # [E]
    batch_size: int  # examples per batch
    seed: int
    ranks: int = 1

    @property
    def steps_per_epoch(self) -> int:
        """Steps per epoch; the last may have fewer examples."""
        return -(-len(self.text_ids) // self.batch_size)

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        """Return the batch of a step, or a rank's share, which cannot be split further: its texts are compared."""
        if parts > self.ranks:
            raise ResourceError(
                f"out of memory with a batch of {format_count(self.batch_size, 'examples')}; lower the batch size"
            )
        epoch, position = divmod(step, self.steps_per_epoch)
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.text_ids))
        batch_ids = order[position * self.batch_size : (position + 1) * self.batch_size]
        part_ids = batch_ids[len(batch_ids) * part // parts : len(batch_ids) * (part + 1) // parts]
        return build_text_batch(
            self.sequences, self.text_ids[part_ids].T.ravel(), np.tile(self.gold[part_ids], self.text_ids.shape[1])
        )


def build_text_batch(sequences: Sequences, text_ids: Ints, gold: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Batch:
    """Lay out texts in a batch; `targets` hold the start of each, in the given order, and its gold value."""
    selection = sequences.take(text_ids)
    lengths = selection.lengths
    room = max(MIN_ROW_LENGTH, int(lengths.max(initial=0)))
    order = np.argsort(-lengths, kind="stable")  # by decreasing length, row by row
    rows = np.empty(len(text_ids), dtype=np.int64)
    rows[order] = next_fit(lengths[order], room)
    laid = np.argsort(rows, kind="stable")
    batch = lay_out(selection.take(laid), rows[laid], BatchShape(rows=int(rows.max(initial=0)) + 1, length=room))
    cells = np.empty(len(text_ids), dtype=np.int64)
    cells[laid] = np.arange(len(text_ids)) + rows[laid]
    labels = torch.full((batch.cells,), -1, dtype=torch.long)
    labels[torch.from_numpy(cells)] = torch.from_numpy(text_ids)
    index = batch.offsets[:-1].long()[torch.from_numpy(cells)]
    targets = Targets(index=index, labels=torch.from_numpy(np.ascontiguousarray(gold, dtype=np.float32)))
    return Batch(
        tokens=batch.tokens, offsets=batch.offsets, sequence=batch.sequence, positions=batch.positions, rows=batch.rows,
        one_per_row=batch.one_per_row, segments=batch.segments, labels=labels, targets=targets,
    )  # fmt: skip


def build_text_stream(
    dataset: PairDataset,
    tokenizer: Tokenizer,
    *,
    length: int | None,
    prompt: str,
    batch_size: int,
    seed: int,
    ranks: int = 1,
) -> tuple[PairStream, EncodedTexts]:
    """Return the stream of examples, and the encoded texts."""
    different = list(dict.fromkeys(text for texts in dataset.texts for text in texts))
    number = {text: i for i, text in enumerate(different)}
    encoded_texts = encode_texts(tokenizer, [prompt + text for text in different], length)
    numbers = np.array([[number[text] for text in texts] for texts in dataset.texts], dtype=np.int64)
    gold = np.array(dataset.gold, dtype=np.float32)
    return PairStream(encoded_texts.sequences, numbers, gold, batch_size, seed, ranks), encoded_texts
