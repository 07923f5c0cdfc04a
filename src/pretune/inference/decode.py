"""Writing on: from token ids to token ids.

    complete(model, [[5, 8, 2], [7]], Decoding(max_new_tokens=20))[0][0].tokens

A decoder goes on from what it has read; the decoder of an encoder-decoder writes what the encoder's source asks for.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import nn

from pretune.core.errors import UsageError
from pretune.inference.beam import Beams
from pretune.inference.decoding_state import Rows, Written
from pretune.inference.engine import Engine, Search, engine_for
from pretune.inference.finite_check import non_finite
from pretune.inference.generation_config import Beam, Decoding, Sample
from pretune.inference.generation_tokens import Marks
from pretune.inference.prefill import limits, prefill, repeated, slots_of
from pretune.inference.text_model import body, reading
from pretune.models.model import LanguageModel

Tokens = Sequence[int] | NDArray[np.integer]

ROWS = 64
"""So many are decoded together unless asked otherwise."""
LOOK = 16
"""Steps between two looks at whether all rows have ended, where a look makes a device wait."""
STEP = 64
"""Caches on a GPU hold a multiple of so many tokens, so that prompts of other lengths need no other capture."""


class Grown(Protocol):
    """Told what a row has written so far; true ends the row."""

    def __call__(self, request: int, number: int, tokens: list[int]) -> bool:
        """`request` counts the prompts, `number` the returns of one."""


@dataclass(frozen=True)
class Watch:
    """Who is told while texts are written: of every row that is not a beam's, and of the share that is done (0 to 1).

    That is after every step, or `every` so many; on a GPU, which would have to wait, after every 16 by default.
    """

    grown: Grown | None = None
    share: Callable[[float], None] | None = None
    every: int | None = None

    def told(self, done: float) -> None:
        """Tell the share, if anyone asks."""
        if self.share is not None:
            self.share(done)


def complete(
    model: nn.Module,
    prompts: Sequence[Tokens],
    decoding: Decoding = Decoding(),  # noqa: B008 (a frozen value)
    *,
    batch: int = ROWS,
    marks: Marks | None = None,
    begun: Sequence[Tokens] | None = None,
    prefix: bool = False,
    watch: Watch = Watch(),  # noqa: B008 (a frozen value)
    compiled: bool = False,
) -> list[list[Written]]:
    """What a model writes: for each prompt `returns` texts, best first where they are beams.

    `prompts` are what a decoder has read, or the sources of an encoder-decoder, special tokens included; its decoder
    starts as its config says, or by `marks`, and has already said what is `begun`, if anything. With `prefix` a
    decoder's prompt sees all of itself, for models that learned to read so. At most `batch` rows (texts, or beams) are
    decoded together, those of similar length; answers come in the order of the prompts, and do not depend on it.
    With `compiled` a step is compiled first, which takes a minute and pays on a GPU when much is written.
    """
    found = body(model)
    check(found)
    marks = marks or Marks.of(found)
    if prefix and found.spec.both:
        raise UsageError("the decoder of an encoder-decoder has no prompt that could see all of itself")
    read = _read(found, prompts, marks, begun)
    _fits(found, read, decoding)
    order = np.argsort([-len(one.source or one.prompt) for one in read], kind="stable").tolist()
    every = watch.every or (1 if found.tokens.weight.device.type == "cpu" else LOOK)
    written: list[list[Written]] = [[] for _ in prompts]
    groups = [*_groups(order, max(batch // decoding.width, 1))]
    with reading(found):
        for number, group in enumerate(groups):
            job = Job(found, group, [read[i] for i in group], decoding, marks, prefix)
            answers = _write(job, Watch(watch.grown, _part(watch, number, len(groups)), every), compiled)
            for request, answer in zip(group, answers, strict=True):
                written[request] = answer
            watch.told((number + 1) / len(groups))
    return written


def check(model: LanguageModel) -> None:
    """Refuse what cannot write."""
    if model.spec.decoder is None:
        raise UsageError(
            f"a model of the shape '{model.spec.shape}' does not write text; fill its blanks with `pretune fill`, or "
            "take a decoder or an encoder-decoder"
        )
    if model.head is None:
        raise UsageError("this model has no vocabulary head, so it cannot write; load one that has its head")


class Given(NamedTuple):
    """What the decoder has read, and what the encoder has, if there is one."""

    prompt: list[int]
    source: list[int] | None


class Job(NamedTuple):
    """Prompts that are worked on together, with their numbers."""

    model: LanguageModel
    group: Sequence[int]
    given: Sequence[Given]
    decoding: Decoding
    marks: Marks
    prefix: bool


def _read(model: LanguageModel, prompts: Sequence[Tokens], marks: Marks, begun: Sequence[Tokens] | None) -> list[Given]:
    if not model.spec.both:
        if begun is not None:
            raise UsageError("what a decoder has begun is a part of its prompt")
        return [Given(_plain(prompt, number, model), None) for number, prompt in enumerate(prompts)]
    assert marks.start is not None
    said = begun or [()] * len(prompts)
    return [
        Given([marks.start, *_plain(more, number, model)], _plain(prompt, number, model))
        for number, (prompt, more) in enumerate(zip(prompts, said, strict=True))
    ]


def _plain(tokens: Tokens, number: int, model: LanguageModel) -> list[int]:
    """Tokens as a list, all of which the model has."""
    found: list[int] = np.asarray(tokens, dtype=np.int64).tolist()
    for token in found:
        if not 0 <= token < model.spec.vocab:
            raise UsageError(
                f"prompt {number + 1} has the token {token}; this model has those from 0 to {model.spec.vocab - 1}"
            )
    return found


def _part(watch: Watch, number: int, groups: int) -> Callable[[float], None]:
    """Who is told the share of one group: what that is of all."""
    return lambda share: watch.told((number + share) / groups)


def _write(job: Job, watch: Watch, compiled: bool) -> list[list[Written]]:
    """One group of prompts, from reading them to their texts."""
    model, group, given, decoding, marks, prefix = job
    both, device = model.spec.both, model.tokens.weight.device
    prompts = [one.prompt for one in given]
    cache, logits = prefill(model, prompts, [one.source or () for one in given] if both else None, prefix=prefix)
    room = max(map(len, prompts)) + decoding.max_new_tokens - 1  # the last token is written, and never read
    source = cache.cross[0].keys.shape[2] if cache.cross else 0
    if device.type == "cuda":
        room, source = _rounded(room, limits(model)[1]), _rounded(source, model.spec.longest)

    def make() -> Search:
        kind = Beams if isinstance(decoding.search, Beam) else Rows
        return kind(len(given) * (1 if kind is Beams else decoding.returns), room + 1, decoding, marks, device)

    key = (len(given), _seedless(decoding), marks)
    slots = 0 if both else slots_of(model)
    engine = engine_for(model, make, key, room + slots, source=source, compiled=compiled)
    index = repeated(len(given), decoding.width, device)
    engine.load(cache, index)
    engine.search.load(prompts, group, getattr(decoding.search, "seed", 0))
    engine.search.choose(logits.index_select(0, index))
    return _run(engine, group, decoding, watch)


def _run(engine: Engine, group: Sequence[int], decoding: Decoding, watch: Watch) -> list[list[Written]]:
    """Steps, and now and then a look at what they gave."""
    search, count = engine.search, 1
    halted: dict[int, list[int]] = {}
    while True:
        if not bool(search.finite):
            raise non_finite("logits")
        if watch.grown is not None and isinstance(search, Rows):
            _show(search, group, watch.grown, halted)
        watch.told(count / decoding.max_new_tokens)
        if count >= decoding.max_new_tokens or search.finished():
            break
        for _ in range(min(watch.every or 1, decoding.max_new_tokens - count)):
            engine.advance()
            count += 1
    answers = search.results()
    for row, tokens in halted.items():
        answers[row // decoding.returns][row % decoding.returns] = Written(tokens, "stop")
    return answers


def _show(search: Rows, group: Sequence[int], grown: Grown, halted: dict[int, list[int]]) -> None:
    """Tell of every row that still writes, and end those that need no more."""
    ends, returns, over = search.marks.ends, search.decoding.returns, []
    for row, tokens in enumerate(search.new()):
        shown = tokens[:-1] if tokens and tokens[-1] in ends else tokens
        if row not in halted and grown(group[row // returns], row % returns, shown):
            halted[row] = shown
            over.append(row)
    if over:
        search.halt(over)


def _fits(model: LanguageModel, given: Sequence[Given], decoding: Decoding) -> None:
    """Refuse prompts without tokens, and those that are longer than the model's positions."""
    (source, own), new = limits(model), decoding.max_new_tokens
    for number, one in enumerate(given):
        if not len(one.prompt) or (one.source is not None and not len(one.source)):
            raise UsageError(f"prompt {number + 1} has no tokens; a model needs at least one to go on from")
        if one.source is not None and source is not None and len(one.source) > source:
            raise UsageError(f"prompt {number + 1} has {len(one.source)} tokens; this model has positions for {source}")
        if own is not None and len(one.prompt) + new - 1 > own:
            raise UsageError(
                f"{len(one.prompt)} tokens of prompt {number + 1} and {new} new ones; this model has positions for "
                f"{own} in all; shorten the prompt, or ask for fewer"
            )


def _groups(order: Sequence[int], most: int) -> Iterator[list[int]]:
    """Equal groups, so that a captured step serves all of them: the last is filled up with what it ends in.

    >>> [*_groups([4, 2, 0, 1, 3], 3)]
    [[4, 2, 0], [1, 3, 3]]
    """
    if order:
        size = -(-len(order) // -(-len(order) // most))
        for first in range(0, len(order), size):
            group = list(order[first : first + size])
            yield group + group[-1:] * (size - len(group))


def _seedless(decoding: Decoding) -> Decoding:
    """What a captured step is made for: the numbers that are drawn are not in it."""
    search = decoding.search
    return replace(decoding, search=replace(search, seed=0)) if isinstance(search, Sample) else decoding


def _rounded(size: int, longest: int | None) -> int:
    full = -(-size // STEP) * STEP
    return full if longest is None else max(min(full, longest), size)
