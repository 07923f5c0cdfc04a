"""Examples of several texts as batches: every example once an epoch, in an order that the seed and the epoch decide."""

from dataclasses import dataclass

import numpy as np
import torch

from pretune.core.errors import ResourceError
from pretune.core.format import format_count
from pretune.core.types import Batch, Targets
from pretune.data.batch_shape import BatchShape
from pretune.data.layout import lay_out
from pretune.data.ragged import Ints
from pretune.data.sequences import Sequences
from pretune.inference.batching import EncodedTexts, encode_texts
from pretune.runs.embedding.pair_dataset import PairDataset
from pretune.text.tokenizer import Tokenizer

MIN_ROW_LENGTH = 128
"""Tokens of a row, or as many as the longest text has."""


@dataclass(frozen=True, slots=True)
class PairStream:
    """Batches of whole examples as a function of the step; equal texts have one number."""

    sequences: Sequences  # every different text
    text_ids: Ints  # [E, K] the text of each column of each example
    gold: np.ndarray[tuple[int], np.dtype[np.float32]]  # [E]
    batch_size: int  # examples of a batch
    seed: int
    ranks: int = 1

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch; the last may have fewer examples."""
        return -(-len(self.text_ids) // self.batch_size)

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        """The batch of a step, or a rank's share of it, which cannot be divided: its texts are compared."""
        if parts > self.ranks:
            raise ResourceError(
                f"out of memory with a batch of {format_count(self.batch_size, 'examples')}; lower the batch size"
            )
        epoch, at = divmod(step, self.steps_per_epoch)
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.text_ids))
        whole = order[at * self.batch_size : (at + 1) * self.batch_size]
        chosen = whole[len(whole) * part // parts : len(whole) * (part + 1) // parts]
        return build_text_batch(
            self.sequences, self.text_ids[chosen].T.ravel(), np.tile(self.gold[chosen], self.text_ids.shape[1])
        )


def build_text_batch(sequences: Sequences, text_ids: Ints, gold: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Batch:
    """Some texts in a batch: `targets` hold where each begins, in the order asked for, and what is said of it."""
    given = sequences.take(text_ids)
    lengths = given.lengths
    room = max(MIN_ROW_LENGTH, int(lengths.max(initial=0)))
    rows, used = np.empty(len(text_ids), dtype=np.int64), 0
    order = np.argsort(-lengths, kind="stable")
    row = 0
    for place in order.tolist():  # in falling length, a row after the other
        if used + lengths[place] > room:
            row, used = row + 1, 0
        rows[place] = row
        used += int(lengths[place])
    laid = np.argsort(rows, kind="stable")
    batch = lay_out(given.take(laid), rows[laid], BatchShape(rows=row + 1, length=room))
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
    """The stream of examples, and what was cut of their texts."""
    different = list(dict.fromkeys(text for texts in dataset.texts for text in texts))
    number = {text: i for i, text in enumerate(different)}
    made = encode_texts(tokenizer, [prompt + text for text in different], length)
    numbers = np.array([[number[text] for text in texts] for texts in dataset.texts], dtype=np.int64)
    gold = np.array(dataset.gold, dtype=np.float32)
    return PairStream(made.sequences, numbers, gold, batch_size, seed, ranks), made
