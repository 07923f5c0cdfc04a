"""Examples of several texts as batches: every example once an epoch, in an order that the seed and the epoch decide."""

from dataclasses import dataclass

import numpy as np
import torch

from pretune.core.errors import ResourceError
from pretune.core.types import Batch, Targets
from pretune.data.batch_shape import Shape
from pretune.data.layout import lay_out
from pretune.data.ragged import Ints
from pretune.data.sequences import Sequences
from pretune.inference.batching import Framed, framed
from pretune.runs.embedding.pair_dataset import Lessons
from pretune.text.tokenizer import Tokenizer

ROW = 128
"""Tokens of a row, or as many as the longest text has."""


@dataclass(frozen=True, slots=True)
class TextStream:
    """Batches of whole examples as a function of the step; equal texts have one number."""

    sequences: Sequences  # every different text
    numbers: Ints  # [E, K] the text of each column of each example
    gold: np.ndarray[tuple[int], np.dtype[np.float32]]  # [E]
    size: int  # examples of a batch
    seed: int
    ranks: int = 1

    @property
    def epoch(self) -> int:
        """Steps of an epoch; the last may have fewer examples."""
        return -(-len(self.numbers) // self.size)

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        """The batch of a step, or a rank's share of it, which cannot be divided: its texts are compared."""
        if parts > self.ranks:
            raise ResourceError(f"out of memory with {self.size} examples that are compared; lower the batch")
        epoch, at = divmod(step, self.epoch)
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.numbers))
        whole = order[at * self.size : (at + 1) * self.size]
        chosen = whole[len(whole) * part // parts : len(whole) * (part + 1) // parts]
        return lay_texts(
            self.sequences, self.numbers[chosen].T.ravel(), np.tile(self.gold[chosen], self.numbers.shape[1])
        )


def lay_texts(sequences: Sequences, numbers: Ints, said: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Batch:
    """Some texts in a batch: `targets` hold where each begins, in the order asked for, and what is said of it."""
    given = sequences.take(numbers)
    lengths = given.lengths
    room = max(ROW, int(lengths.max(initial=0)))
    rows, used = np.empty(len(numbers), dtype=np.int64), 0
    order = np.argsort(-lengths, kind="stable")
    row = 0
    for place in order.tolist():  # in falling length, a row after the other
        if used + lengths[place] > room:
            row, used = row + 1, 0
        rows[place] = row
        used += int(lengths[place])
    laid = np.argsort(rows, kind="stable")
    batch = lay_out(given.take(laid), rows[laid], Shape(rows=row + 1, length=room))
    cells = np.empty(len(numbers), dtype=np.int64)
    cells[laid] = np.arange(len(numbers)) + rows[laid]
    labels = torch.full((batch.cells,), -1, dtype=torch.long)
    labels[torch.from_numpy(cells)] = torch.from_numpy(numbers)
    index = batch.offsets[:-1].long()[torch.from_numpy(cells)]
    targets = Targets(index=index, labels=torch.from_numpy(np.ascontiguousarray(said, dtype=np.float32)))
    return Batch(
        tokens=batch.tokens, offsets=batch.offsets, sequence=batch.sequence, positions=batch.positions, rows=batch.rows,
        whole=batch.whole, segments=batch.segments, labels=labels, targets=targets,
    )  # fmt: skip


def stream_of(
    lessons: Lessons, tokenizer: Tokenizer, *, length: int | None, prompt: str, size: int, seed: int, ranks: int = 1
) -> tuple[TextStream, Framed]:
    """The stream of examples, and what was cut of their texts."""
    different = list(dict.fromkeys(text for texts in lessons.texts for text in texts))
    number = {text: i for i, text in enumerate(different)}
    made = framed(tokenizer, [prompt + text for text in different], length)
    numbers = np.array([[number[text] for text in texts] for texts in lessons.texts], dtype=np.int64)
    gold = np.array(lessons.gold, dtype=np.float32)
    return TextStream(made.sequences, numbers, gold, size, seed, ranks), made
