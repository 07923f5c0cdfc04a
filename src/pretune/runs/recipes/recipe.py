"""A recipe: what is particular to one shape of model, and the plan that follows from it and the facts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pretune.core.log import format_count, format_number
from pretune.models import catalog
from pretune.models.spec import Model
from pretune.runs.recipes.facts import Facts
from pretune.runs.recipes.initial_model import VOCAB_PATH, InitialModel
from pretune.runs.recipes.plan import (
    RecipePlan,
    SizeEstimate,
    choose_size,
    evaluate_sizes,
    list_shapes,
    read_fits,
    round_to_power,
)

MIN_VOCAB, MAX_VOCAB = 1024, 32_768
BYTES_PER_PIECE = 500
"""Bytes of text for each piece of the vocabulary; rarer pieces are hardly trained."""
VOCAB_AT, VOCAB_PARAMETERS = 8192, 20e6
"""Vocabulary of models up to this many parameters in their blocks; beyond, it grows with their square root.

By the loss for each byte, 8,192 pieces beat 16,384 at 18M parameters, and 2,048 at 0.7M.
"""
BATCH_FACTOR = 3.8
"""Tokens of a step, in square roots of the tokens of the run: 32,768 at 100M tokens, 65,536 at 300M.

Of 32,768, 65,536 and 131,072 the smallest had the lowest loss after 109M tokens: 2.37, 2.43 and 2.55 (bench/log.md).
"""
MIN_STEPS = 300
MIN_BATCH, MAX_BATCH = 1024, 131_072
MAX_PARAMETERS = 2.5
"""Parameters of the blocks for each token of the text: at 13M tokens, 31.5M parameters were as good as 50M."""


CONTINUED_LR, CONTINUED_WARMUP = 1e-3, 0.05
"""Learning rate and warm-up of a model that is trained further."""
Extras = Mapping[str, tuple[Any, str]]
"""Value and reason of settings by path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regularization:
    """Dropout and weight decay where text is much, and where it is repeated often; None: the model has no dropout."""

    epochs: float = 4.0  # more than these are often
    dropout: tuple[float, float] | None = (0.0, 0.1)
    decay: tuple[float, float] = (0.1, 0.3)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRecipe:
    """The particulars of one shape; the loss decides among the widths and depths of the ladder."""

    family: str
    reason: str  # of the family
    objective: str
    targets: float  # share of the tokens that are predicted
    tokenizer: tuple[str, str]  # kind, and style of special tokens
    ladder: Sequence[tuple[int, int]]
    hidden: float  # of the width
    head_width: int = 64
    length: int
    lr: float
    warmup: float = 0.02
    decay: float = 0.5
    fit: str = "encoder"
    has_fit: bool = False  # of its own, from runs of this shape; else the loss only compares sizes
    regularization: Regularization = Regularization()
    complete: Callable[[Mapping[str, int]], Extras] = lambda shape: {}  # further settings of the model
    objective_settings: Extras = field(default_factory=dict)

    def choose_vocab(self, parameters: float, text_bytes: int) -> int:
        """Return the size of the vocabulary for a number of parameters in the blocks, and a size of the text."""
        pieces = VOCAB_AT * max(parameters / VOCAB_PARAMETERS, 1.0) ** 0.5
        return round_to_power(min(pieces, text_bytes / BYTES_PER_PIECE), MIN_VOCAB, MAX_VOCAB)

    def plan(
        self,
        facts: Facts,
        overrides: Mapping[str, object],
        vocab: int | None = None,
        initial: InitialModel | None = None,
    ) -> tuple[RecipePlan, SizeEstimate]:
        """Return the choices, and the size that the model gets.

        `vocab` is that of an existing tokenizer; an `initial` model keeps its architecture.
        """
        plan = RecipePlan(overrides)
        vocab = plan.get_override(VOCAB_PATH, int) if vocab is None else vocab
        if initial is None:
            plan.note("model", self.family, self.reason)
            max_length, specs = self.length, self._list_specs(plan, facts.text.bytes, vocab)
        else:
            plan.note("model", initial.name, initial.describe())
            max_length = min(self.length, initial.spec.max_length or self.length)
            specs = iter([({}, replace(initial.spec, vocab=vocab or initial.spec.vocab))])
        length = plan.choose("data.max_length", max_length, "short sequences, of which a step has many")
        fit = read_fits()[self.fit]
        sizes = [*evaluate_sizes(facts, fit, specs, length=length, targets=self.targets)]
        size = choose_size(sizes, MAX_PARAMETERS * facts.text.tokens, facts.device.name)
        self._choose_shape(plan, size, len(sizes))
        reason = f"{format_number(facts.text.bytes)} bytes of text, {format_number(size.parameters)} parameters"
        if initial is not None:
            reason = initial.explain_vocab(size.vocab, facts.text.bytes / max(facts.text.tokens, 1))
        plan.note(VOCAB_PATH, size.vocab, reason)
        self._choose_training(plan, size, is_new=initial is None)
        extras = {**(self.complete(size.settings) if initial is None else {}), **self.objective_settings}
        for path, (value, reason) in extras.items():
            plan.choose(path, value, reason)
        return plan, size

    def _list_specs(
        self, plan: RecipePlan, text_bytes: int, vocab: int | None
    ) -> Iterator[tuple[Mapping[str, int], Model]]:
        """Yield the shapes to choose from with their specs; without `vocab`, its size follows from shape and text."""
        for shape in list_shapes(plan, self.ladder, self.hidden, self.head_width):
            width = shape["width"]
            parameters = shape["depth"] * (4 * width + 3 * shape["hidden"]) * width
            pieces = vocab or self.choose_vocab(parameters, text_bytes)
            extras = {path: plan.overrides.get(path, value) for path, (value, _) in self.complete(shape).items()}
            yield shape, catalog.resolve(self.family, {"vocab": pieces, **shape, **extras})

    def _choose_shape(self, plan: RecipePlan, size: SizeEstimate, count: int) -> None:
        loss = f" ({size.loss:.2f})" if self.has_fit else ""
        lowest = f"lowest expected loss{loss} of {format_count(count, 'sizes')}: {size.describe()}"
        reasons = {
            "width": lowest,
            "depth": f"{format_number(size.parameters)} parameters in the blocks",
            "heads": f"{self.head_width} wide each",
            "hidden": f"{self.hidden:g} times the width, gated",
        }
        for name, value in size.settings.items():
            plan.choose(f"model.{name}", value, reasons[name])

    def _choose_training(self, plan: RecipePlan, size: SizeEstimate, *, is_new: bool) -> None:
        tokens = size.tokens
        plan.choose(
            "train.batch_tokens",
            round_to_power(min(BATCH_FACTOR * tokens**0.5, tokens / MIN_STEPS), MIN_BATCH, MAX_BATCH),
            f"grows with the square root of the {format_number(tokens)} tokens, in at least {MIN_STEPS} steps",
        )
        border = self.regularization.epochs
        is_repeated = size.epochs > border
        epochs = f"{size.epochs:.2g} epochs are {'more' if is_repeated else 'fewer'} than {border:g}"
        decay = self.regularization.decay[is_repeated]
        plan.choose(
            "train.optimizer", {"kind": "muon", "weight_decay": decay}, f"for the matrices of the blocks; {epochs}"
        )
        reason = "in encoders of 6 PFLOP twice as much was level, and half of it 0.11 nats worse"
        if not is_new:
            reason = f"a third of that of new weights, {self.lr:g}"
        plan.choose("train.lr", self.lr if is_new else CONTINUED_LR, reason)
        plan.choose(
            "train.schedule",
            {"kind": "stable", "warmup": self.warmup if is_new else CONTINUED_WARMUP, "decay": self.decay},
            "in encoders, a long decay from a stable rate was 0.1 nats better than a linear one",
        )
        if is_new and self.regularization.dropout is not None:
            plan.choose("model.dropout", self.regularization.dropout[is_repeated], epochs)
