"""What a model says while it learns, on request (`train.samples_every`): held-out text gone on with, or filled in."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pretune.core.types import IGNORE, Batch
from pretune.data.layout import batch as lay_out
from pretune.data.stream import Stream
from pretune.text.tokenizer import Tokenizer
from pretune.train.late import Report
from pretune.train.loop import Loop
from pretune.train.ranks import reshard

NEW = 24
"""Tokens that a decoder goes on with."""
SHOWN = 6
"""Blanks that are shown of a text."""
WIDTH = 160


class Samples:
    """A hook that shows, every so many steps, what the model makes of another piece of held-out text."""

    def __init__(self, held: Stream, tokenizer: Tokenizer, every: int, tell: Callable[[int, str], None]) -> None:
        self.held, self.tokenizer, self.every, self.tell = held, tokenizer, every, tell
        self.last = 0
        self._filled: int | None = None  # rows of the first held-out batch that have text: there may be little of it

    def __call__(self, loop: Loop, reports: Sequence[Report]) -> None:
        step = loop.state.step
        if not self.every or step % self.every or step == self.last:
            return
        self.last = step
        row = self._row(step // self.every).to(loop.ranks.device)
        trainee, taught = loop.trainee, loop.trainee.work
        trainee.eval()
        half = torch.autocast(loop.ranks.device.type, loop.precision, enabled=loop.precision is not None)
        try:
            trainee.work = Saying(self.tokenizer)
            with torch.no_grad(), half, torch.compiler.set_stance("force_eager"):  # each length would be compiled anew
                text = trainee(row)
        finally:
            trainee.work = taught
            trainee.train()
            reshard(trainee)
        self.tell(step, text)

    def _row(self, number: int) -> Batch:
        """One row of held-out text after the other."""
        rows = self.held.shape.rows
        if self._filled is None:
            every = (self.held.batch(0, part=part, parts=rows) for part in range(rows))
            self._filled = sum(1 for _ in itertools.takewhile(lambda row: row.spans(), every))
        return self.held.batch(0, part=number % max(self._filled, 1), parts=rows)


class Saying:
    """What a model is asked to do instead of learning; it goes through the trainee, whose weights may be sharded."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Nothing is counted."""
        return {}

    def loss(self, model: Any, batch: Batch) -> Any:
        """What it says."""
        return said(model, batch, self.tokenizer)


def said(model: Any, row: Batch, tokenizer: Tokenizer) -> str:
    """What a model makes of the first sequence of a batch, on one line."""
    if model.shape in ("decoder", "two-way") and row.prefix is None:
        return _gone_on(getattr(model, "forwards", model), row, tokenizer)
    reader = getattr(model, "generator", model)
    start, end = row.spans()[0]
    assert row.targets is not None
    real = (row.targets.labels != IGNORE) & (row.targets.index >= start) & (row.targets.index < end)
    index, labels = row.targets.index[real], row.targets.labels[real].tolist()
    found = reader.logits(reader.states(row).index_select(0, index)).argmax(-1).tolist()
    if row.source is not None:
        first, last = row.source.spans()[0]
        return f"{_text(tokenizer, row.source.tokens[first:last])} → {_text(tokenizer, found)}"
    blanks = [
        f"{_text(tokenizer, [one])}{'' if one == true else f' (not {_text(tokenizer, [true])})'}"
        for one, true in [*zip(found, labels, strict=True)][:SHOWN]
    ]
    return f"{_text(tokenizer, row.tokens[start:end])} → {', '.join(blanks)}"


def _gone_on(model: Any, row: Batch, tokenizer: Tokenizer) -> str:
    """The first half of a text, and what is likeliest to follow, token by token."""
    start, end = row.spans()[0]
    read = row.tokens[start : start + max((end - start) // 2, 1)].tolist()
    longest = model.spec.longest or len(read) + NEW
    new: list[int] = []
    while len(new) < min(NEW, longest - len(read)):
        states = model.states(lay_out([read + new]).to(row.tokens.device))
        new.append(int(model.logits(states[len(read) + len(new) - 1 :][:1]).argmax()))
    return f"{_text(tokenizer, read)} → {_text(tokenizer, new)}"


def _text(tokenizer: Tokenizer, ids: Any) -> str:
    """Tokens as text that fits on a line."""
    text = " ".join(tokenizer.decode([int(one) for one in ids]).split())
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
