"""From a model and passages to the log-probability of every judged token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.data.ragged import Bools, Ints, bounds
from pretune.data.sequences import Sequences
from pretune.inference.scoring.packed_forward import BATCH_TOKENS, Read, read
from pretune.inference.scoring.passages import Passages, passages
from pretune.inference.scoring.queries import Causal, Form, Frame, Given, Infilled, Masked, Ordered, Sentinel
from pretune.inference.text_model import body, reading, tokenizer_of
from pretune.models.model import LanguageModel
from pretune.objectives.base import Vocabulary
from pretune.text.templates import Special, Template
from pretune.text.tokenizer import Tokenizer

Number = TypeVar("Number", np.int64, np.float64)

Tell = Callable[[int, int], None]
"""Told how many judged tokens are done, and of how many."""


@spec
class Asking:
    """How a model is asked, where there is a choice.

    `given` is for encoder-decoders: they read what is around the judged stretch and write it, as after training on
    inputs and outputs; without it they fill a blank, as in pre-training. `rest` is for models that read both ways: the
    later tokens of a word are hidden with an earlier one.
    """

    given: bool = False
    rest: bool = True
    precision: Literal["float32", "bfloat16"] = "float32"
    tokens: int | None = None  # of a batch; by the device where it is None


LEAST = 1024
"""Batches of fewer tokens are not tried where memory runs out."""

PLAIN = Asking()
"""As it is asked by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a model says of S passages, J judged tokens in all."""

    logs: NDArray[np.float64]  # [J] natural logarithms; NaN where nothing is read before a token
    first: Bools  # [J] whether it was the likeliest of all
    offsets: Ints  # [S + 1] of the passages
    cut: int  # passages that were too long, and lost tokens

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, passage: int) -> NDArray[np.float64]:
        """The log-probabilities of one passage's tokens."""
        return self.logs[self.offsets[passage] : self.offsets[passage + 1]]

    @property
    def counts(self) -> Ints:
        """[S] how many tokens of each passage have a probability."""
        return self._summed((~np.isnan(self.logs)).astype(np.int64))

    @property
    def sums(self) -> NDArray[np.float64]:
        """[S] the log-probability of each passage."""
        return self._summed(np.nan_to_num(self.logs, nan=0.0))

    @property
    def right(self) -> Bools:
        """[S] whether every token of a passage was the likeliest."""
        return np.asarray(self._summed(self.first.astype(np.int64)) == np.diff(self.offsets))

    def _summed(self, values: NDArray[Number]) -> NDArray[Number]:
        """Sums over passages, each of which has a token or more."""
        return np.asarray(np.add.reduceat(values, self.offsets[:-1])) if len(self) else values[:0]


def judge(
    model: nn.Module, asked: Passages, asking: Asking = PLAIN, tell: Tell | None = None, *, alike: bool = False
) -> Judged:
    """The log-probability of every judged token; `alike` where it pays to look for passages that are read alike."""
    below = body(model)
    form = form_of(below, tokenizer_of(model), asking)
    longest = limit(below)
    fitted = asked.fit(None if longest is None else form.room(longest))
    offsets = bounds(fitted.judged)
    logs, first = np.full(int(offsets[-1]), np.nan), np.zeros(int(offsets[-1]), dtype=np.bool_)
    device = below.tokens.weight.device.type
    size = asking.tokens or BATCH_TOKENS.get(device, BATCH_TOKENS["cpu"])
    with reading(model):
        for part in form.ask(fitted):
            done = int(part.which[0]) if len(part.which) else 0
            found, size = _read(below, part.sequences, size, asking, alike, _after(done, len(logs), tell))
            logs[part.which], first[part.which] = found.logs, found.first
    return Judged(logs=logs, first=first, offsets=offsets, cut=fitted.cut)


def _read(
    model: LanguageModel, part: Sequences, size: int, asking: Asking, alike: bool, tell: Callable[[int], None] | None
) -> tuple[Read, int]:
    """A part, in batches of so many tokens, or of fewer where there is no memory for them; and of how many."""
    precision = torch.bfloat16 if asking.precision == "bfloat16" else None
    while True:
        try:
            return read(model, part, tokens=size, precision=precision, alike=alike, tell=tell), size
        except torch.OutOfMemoryError:
            if size <= LEAST:
                raise
            size //= 2
            torch.cuda.empty_cache()


def _after(before: int, total: int, tell: Tell | None) -> Callable[[int], None] | None:
    """Adds up what is done of a part, and tells it with what was done before."""
    if tell is None:
        return None
    done = before

    def told(count: int) -> None:
        nonlocal done
        done = min(done + count, total)
        tell(done, total)

    return told


def score(model: nn.Module, texts: Sequence[str], *, asking: Asking = PLAIN) -> list[float]:
    """The log-probability of each text; of an encoder the pseudo-log-likelihood.

    pt.score(model, ["The cat is asleep.", "The cat are asleep."])      # the first should be higher
    """
    if not texts:
        return []
    found: list[float] = judge(model, passages(tokenizer_of(model), texts), asking).sums.tolist()
    return found


def limit(model: LanguageModel) -> int | None:
    """How long a sequence may be: what positions allow, or what the model is made for; less a prefix, if it has one."""
    longest = model.spec.longest or model.spec.context
    taken = max(stack.ahead for stack in (model.encoder, model.decoder) if stack is not None)
    return None if longest is None else longest - taken


def both_ways(model: LanguageModel) -> bool:
    """Whether it judges a token by what is on both sides of it, in a copy of the text for every token."""
    return model.shape in ("encoder", "two-stream")


def form_of(model: LanguageModel, tokenizer: Tokenizer, asking: Asking = PLAIN) -> Form:
    """How a model of its shape is asked."""
    if model.head is None:
        one = "its generator" if model.detector is not None else "a model that was pre-trained with one"
        raise UsageError(f"this model has no vocabulary head, so no word has a probability; use {one}")
    if model.prompt is not None:
        raise UsageError("a model with a tuned prompt is made for its task; score the model that it was tuned on")
    vocabulary, frame = Vocabulary.of(tokenizer, start=model.spec.special.start), frame_of(tokenizer.template)
    if model.shape == "decoder":
        lead = tuple(token for token, _ in frame.before)
        return Causal(lead or (() if vocabulary.start is None else (vocabulary.start,)))
    if model.shape == "two-stream":
        return Ordered(frame, asking.rest)
    if model.shape == "encoder":
        return Masked(frame, vocabulary.need("mask", "scoring with an encoder"), asking.rest)
    start, mask = vocabulary.first("scoring with an encoder-decoder"), vocabulary.find("mask")
    if asking.given:
        return Given(frame, start)
    if tokenizer.sentinels:
        return Sentinel(frame, start, tokenizer.sentinels[0])
    if mask is None:
        raise UsageError("this encoder-decoder has neither sentinels nor a mask to put in a blank; ask with given=True")
    return Infilled(frame, start, mask)


def frame_of(template: Template) -> Frame:
    """What a tokenizer puts before and after one text."""
    at = next(at for at, part in enumerate(template.single) if not isinstance(part, Special))
    marks = [(part.token, part.segment) if isinstance(part, Special) else (0, 0) for part in template.single]
    return Frame(tuple(marks[:at]), tuple(marks[at + 1 :]), template.single[at].segment)
