"""Samples during training: the same few texts each time, continued or with masked words filled in.

Samples take about a hundredth of the training time at most, or come every `train.samples_every` steps. They draw no
random numbers and change no weight, so training stays bit-equal. A sample is one line: the input, an arrow, and the
words for its masks or a continuation.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pretune.core import log
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch
from pretune.data.layout import batch as lay_out
from pretune.data.plan import BatchShape
from pretune.data.stream import BatchStream
from pretune.reports.facts import ARROW
from pretune.text.tokenizer import Tokenizer
from pretune.training.clock import TrainingClock
from pretune.training.distributed import Ranks, reshard
from pretune.training.loop import Loop
from pretune.training.optim import use_averages
from pretune.training.step import StepMetrics, TrainState

NEW_TOKENS = 16
"""Number of tokens that a decoder generates."""
PROMPT_TOKENS = 16
"""Maximum length of a prompt."""
MAX_BLANKS = 6
"""Maximum number of masked words shown."""
LINE_WIDTH = 160
SEPARATOR = " · "
"""Separator of predictions; commas can be predictions."""
EMPTY_TEXT = "(white space)"
TEMPLATE_ROLES = ("cls", "sep", "bos", "pad")
GENERATIVE_SHAPES = ("decoder", "two-way")
"""Shapes of models that continue a text."""

SAMPLE_TEXTS = 3
CANDIDATE_ROWS = 16
"""Rows of the validation split, or else the training split, that the texts are selected from."""
MIN_BLANKS = 2
"""Preferred minimum number of targets of a text."""
FIRST_STEP_SHARE = 1e-12
SAMPLE_SHARES = (1.0, FIRST_STEP_SHARE, 0.4, 0.1, 0.2, 0.7)
"""Shares of a run at which samples are taken; short runs use the first ones."""
MAX_COST_SHARE = 0.01
"""Maximum time share of all samples; a single one, at the end, may take `MAX_SINGLE_COST_SHARE`."""
MAX_SINGLE_COST_SHARE = 0.05
PASS_COST = {"cuda": 0.1, "cpu": 0.02}
"""Cost of a forward pass in steps: those of a run are compiled and recorded, these are not."""

CLOCK_DELAY = 3
"""Steps that the clock's progress may lag: the first compiles, and two are in flight."""

SampleTrigger = Callable[[TrainState], bool]
"""Predicate called once after every step: True to take samples."""


class SampleHook:
    """Hook that takes samples; an error disables it and does not end the run."""

    def __init__(
        self,
        stream: BatchStream,
        objective: "SampleObjective",
        trigger: SampleTrigger,
        on_samples: Callable[[int, Sequence[str]], None],
    ) -> None:
        self.stream, self.objective, self.trigger, self.on_samples = stream, objective, trigger, on_samples
        self.last_step = 0
        self._rows: list[Batch] | None = None
        self._is_due = self._is_disabled = False

    def __call__(self, loop: Loop, metrics: Sequence[StepMetrics]) -> None:
        step = loop.state.step
        if self._is_disabled:
            return
        if step != self.last_step:
            self.last_step, self._is_due = step, self.trigger(loop.state)
        if self._is_due:
            loop.flush()  # NOTE: flush runs the hooks, this one too: the samples may be taken by then
        if not self._is_due:
            return
        self._is_due = False
        start = time.monotonic()
        try:
            texts = self._sample(loop)
        except Exception as fault:  # a failure must not end the run
            self._is_disabled = True
            reason = (str(fault).strip().splitlines() or [type(fault).__name__])[0]
            log.warn(f"step {step:,}: samples disabled after an error: {reason[:200]}")
            return
        loop.state.evaluating += time.monotonic() - start
        self.on_samples(step, texts)

    def _sample(self, loop: Loop) -> list[str]:
        if self._rows is None:
            rows = [] if self.objective.prompts else select_rows(self.stream)
            self._rows = [row.to(loop.ranks.device) for row in rows]
        loss_module, training_objective = loop.module, loop.module.objective
        loss_module.eval()
        half = torch.autocast(loop.ranks.device.type, loop.precision, enabled=loop.precision is not None)
        try:
            loss_module.objective = self.objective
            eager = torch.compiler.set_stance("force_eager")  # each length would be compiled again
            with use_averages(loop.optimizer), torch.no_grad(), half, eager:
                texts: list[str] = loss_module(self._rows)
        finally:
            loss_module.objective = training_objective
            loss_module.train()
            reshard(loss_module)
        return texts


def select_rows(stream: BatchStream) -> list[Batch]:
    """Return a few rows of a split's first batch, preferably with several targets in the first sequence."""
    rows = stream.shape.rows
    candidates: list[Batch] = []
    for part in range(min(rows, CANDIDATE_ROWS)):
        row = stream.batch(0, part=part, parts=rows)
        if not row.list_spans():  # small splits leave rows empty
            break
        candidates.append(row)
        if sum(_has_blanks(row) for row in candidates) == SAMPLE_TEXTS:
            break
    return sorted(candidates, key=lambda row: not _has_blanks(row))[:SAMPLE_TEXTS]


def _has_blanks(row: Batch) -> bool:
    return len(find_targets(row)[0]) >= MIN_BLANKS


def build_trigger(every: int | None, pace: TrainingClock, state: TrainState, cost: float) -> SampleTrigger:
    """Return the trigger: every `every` steps, never (0), or at a few shares of the run (None)."""
    if every is None:
        return ProgressTrigger(
            pace.compute_progress, cost, steps=pace.steps, last_progress=pace.compute_progress(state)
        )
    return lambda state: every > 0 and state.step % every == 0


@dataclass(slots=True, kw_only=True)
class ProgressTrigger:
    """Trigger at some shares of a run, as many as its length allows at this cost in steps.

    It depends only on the run's progress, on which all ranks agree; in a run of known length, on the step.
    """

    progress: Callable[[TrainState], float] = field(kw_only=False)
    cost: float = field(kw_only=False)
    steps: int | None = None  # of the run; None: the clock decides
    last_progress: float = 0.0  # at the previous step

    def __call__(self, state: TrainState) -> bool:
        previous, current = self.last_progress, max(self.last_progress, self.progress(state))
        self.last_progress = current
        reached_shares = [place for place, share in enumerate(SAMPLE_SHARES) if previous < share <= current]
        if not reached_shares:
            return False
        return reached_shares[0] < count_samples(self.steps or max(state.step - CLOCK_DELAY, 1) / current, self.cost)


def count_samples(steps: float, cost: float) -> int:
    """Return how many samples a run of this length can afford.

    >>> count_samples(1000, 0.25), count_samples(50, 0.25), count_samples(6, 0.25), count_samples(2, 0.25)
    (6, 2, 1, 0)
    """
    return min(int(MAX_COST_SHARE * steps / cost), len(SAMPLE_SHARES)) or int(MAX_SINGLE_COST_SHARE * steps >= cost)


def estimate_sample_cost(shape: BatchShape, kind: str, tokens: int, ranks: Ranks) -> float:
    """Estimate the cost of samples in training steps of `tokens` tokens, which take three passes each.

    All ranks compute all samples, since weights may be sharded.
    """
    if kind in GENERATIVE_SHAPES:
        passes, read = NEW_TOKENS, NEW_TOKENS * SAMPLE_TEXTS * (PROMPT_TOKENS + NEW_TOKENS // 2)
    else:
        passes, read = SAMPLE_TEXTS, SAMPLE_TEXTS * (shape.length + (shape.source or 0))
    return passes * PASS_COST["cuda" if ranks.device.type == "cuda" else "cpu"] + read * ranks.world / (3 * tokens)


class SampleObjective:
    """Objective that generates samples instead of a loss, through the loss module, whose weights may be sharded."""

    def __init__(self, tokenizer: Tokenizer, prompts: Sequence[str] = ()) -> None:
        self.tokenizer, self.prompts = tokenizer, prompts

    def counts(self, batch: Any) -> dict[str, Tensor]:
        """Return no counts."""
        return {}

    def loss(self, model: Any, batch: Sequence[Batch]) -> Any:
        """Return samples for the prompts or, without prompts, for the first sequence of each of these rows."""
        can_continue = model.shape in GENERATIVE_SHAPES
        if self.prompts and can_continue:
            prompts = [self.tokenizer.encode(text, add_special_tokens=False) for text in self.prompts]
            return continue_texts(model, prompts, self.tokenizer)
        if self.prompts:
            return fill_prompts(model, self.prompts, self.tokenizer)
        if can_continue and batch[0].prefix is None:
            return continue_texts(model, [_take_prompt(row) for row in batch], self.tokenizer)
        return [_fill_blanks(model, row, self.tokenizer) for row in batch]


def _take_prompt(row: Batch) -> list[int]:
    """Return the first half of a text, at most `PROMPT_TOKENS`."""
    start, end = row.list_spans()[0]
    prompt: list[int] = row.tokens[start : start + min(max((end - start) // 2, 1), PROMPT_TOKENS)].tolist()
    return prompt


def continue_texts(model: Any, texts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> list[str]:
    """Continue texts by greedy decoding, as one batch and without a cache."""
    writer = getattr(model, "forwards", model)
    longest, device = writer.spec.max_length, writer.tokens.weight.device
    sequences = [[*text] for text in texts]
    for _ in range(NEW_TOKENS):
        if longest is not None and max(map(len, sequences)) >= longest:
            break
        row = lay_out(sequences).to(device)
        last = [end - 1 for _, end in row.list_spans()]
        for text, new in zip(sequences, writer.logits(writer.states(row)[last]).argmax(-1).tolist(), strict=True):
            text.append(new)
    return [
        f"{_format_input(tokenizer, text)}{ARROW}{_decode_line(tokenizer, sequence[len(text) :])}"
        for text, sequence in zip(texts, sequences, strict=True)
    ]


def _fill_blanks(model: Any, row: Batch, tokenizer: Tokenizer) -> str:
    """Fill the targets of a row with the most probable tokens."""
    reader = getattr(model, "generator", model)
    start, end = row.list_spans()[0]
    places, labels = find_targets(row)
    targets, ids = [*zip(places, labels, strict=True)], row.tokens[start:end].tolist()
    is_generative = row.source is not None or model.shape in GENERATIVE_SHAPES
    targets = targets[:NEW_TOKENS] if is_generative else _select_blanks(ids, targets, start, tokenizer)
    index = row.tokens.new_tensor([place for place, _ in targets])
    predictions = reader.logits(reader.states(row).index_select(0, index)).argmax(-1).tolist()
    if row.source is not None:
        first, last = row.source.list_spans()[0]
        ids = row.source.tokens[first:last].tolist()
    elif is_generative:  # the input precedes the first target
        ids = ids[: places[0] - start + 1]
    if is_generative:
        return f"{_format_input(tokenizer, ids)}{ARROW}{_decode_line(tokenizer, predictions)}"
    blanks = [
        _decode_line(tokenizer, [prediction])
        + ("" if prediction == label else f" (not {_decode_line(tokenizer, [label])})")
        for prediction, (_, label) in zip(predictions, targets, strict=True)
    ]
    return f"{_format_input(tokenizer, ids)}{ARROW}{SEPARATOR.join(blanks)}"


def find_targets(row: Batch) -> tuple[list[int], list[int]]:
    """Return positions and labels of the first sequence's targets."""
    start, end = row.list_spans()[0]
    assert row.targets is not None
    real = (row.targets.labels != IGNORE_INDEX) & (row.targets.index >= start) & (row.targets.index < end)
    return row.targets.index[real].tolist(), row.targets.labels[real].tolist()


def _select_blanks(
    ids: list[int], targets: list[tuple[int, int]], start: int, tokenizer: Tokenizer
) -> list[tuple[int, int]]:
    """Return the masked targets in the shown part of the text; if there are none, the first targets."""
    size = len(" ".join(tokenizer.decode(ids).split()))
    shown_count = len(ids) if size <= LINE_WIDTH else len(ids) * LINE_WIDTH // size  # estimated
    mask, end = tokenizer.special.get("mask"), start + shown_count
    masked_targets = [(place, label) for place, label in targets if ids[place - start] == mask and place < end]
    return (masked_targets or targets)[:MAX_BLANKS]


def fill_prompts(model: Any, prompts: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    """Return samples for the user's prompts, filled as by `pretune fill`."""
    from pretune.inference.fill import infill  # NOTE: not before it is needed: a run starts sooner
    from pretune.inference.unmask import unmask

    reader, lines = getattr(model, "generator", model), []
    for text in prompts:
        blanks = _find_blanks(text, model.shape, tokenizer)
        if reader.spec.is_encoder_decoder:
            options = infill(reader, tokenizer, blanks, k=1, max_tokens=8)
        else:
            (options,) = unmask(reader, tokenizer, [blanks], k=1, max_pieces=1)
        words = [candidates[0].word if candidates else EMPTY_TEXT for candidates in options]
        lines.append(f"{_clean_line(text)}{ARROW}{SEPARATOR.join(words)}")
    return lines


def check_prompts(prompts: Sequence[str], shape: str, max_length: int | None, tokenizer: Tokenizer) -> None:
    """Raise for prompts that a model of this shape cannot handle."""
    for text in prompts:
        if shape not in GENERATIVE_SHAPES:
            _find_blanks(text, shape, tokenizer)
        count = len(tokenizer.encode(text, add_special_tokens=False))
        room = None if max_length is None else max_length - NEW_TOKENS
        if not count or (room is not None and count > room):
            limit = "" if room is None else f" to {room}"
            raise UsageError(f"train.prompts: '{text[:40]}' has {count} tokens, allowed are 1{limit}")


def _find_blanks(text: str, shape: str, tokenizer: Tokenizer) -> Any:
    from pretune.inference.unmask import Blanks

    mask = tokenizer.special.get("mask")
    mask_tokens = [tokenizer.get_token(token) for token in tokenizer.sentinels] if shape == "encoder-decoder" else []
    try:
        return Blanks.find(text, mask_tokens=mask_tokens or (None if mask is None else tokenizer.get_token(mask)))
    except UsageError as error:
        raise UsageError(f"train.prompts: {error}") from None


def _format_input(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Decode the input without the surrounding special tokens."""
    template_ids = {tokenizer.special.get(role) for role in TEMPLATE_ROLES}
    inner_places = [place for place, token in enumerate(ids) if token not in template_ids] or [0]
    return _decode_line(tokenizer, ids[inner_places[0] : inner_places[-1] + 1])


def _decode_line(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Decode tokens to one line."""
    return _clean_line(tokenizer.decode([*ids])) or EMPTY_TEXT


def _clean_line(text: str) -> str:
    text = " ".join(text.split())
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= LINE_WIDTH else f"{text[: LINE_WIDTH - 1]}…"
