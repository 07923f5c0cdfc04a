"""A recipe: what is particular to one shape of model, and the plan that follows from it and the facts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pretune.core.config import get_kind
from pretune.core.log import format_count, format_number
from pretune.models import catalog
from pretune.models.spec import Model
from pretune.objectives.base import Objective
from pretune.runs.data_phases import EVAL_TOKENS
from pretune.runs.recipes.facts import Facts, TextFacts
from pretune.runs.recipes.initial_model import VOCAB_PATH, InitialModel
from pretune.runs.recipes.plan import (
    RecipePlan,
    SizeEstimate,
    choose_size,
    count_effective_tokens,
    evaluate_sizes,
    list_shapes,
    predict_loss,
    read_fits,
)
from pretune.runs.recipes.rules import NEW_WEIGHTS, TRAINED_WEIGHTS, Extras, Regularization, round_to_power

MIN_VOCAB, MAX_VOCAB = 1024, 32_768
BYTES_PER_PIECE = 500
"""Bytes of text for each piece of the vocabulary; rarer pieces are hardly trained."""
VOCAB_AT, VOCAB_PARAMETERS = 8192, 20e6
"""Vocabulary of models up to this many parameters in their blocks; beyond, it grows with their square root.

By the loss for each byte, 8,192 pieces beat 16,384 at 18M parameters, and 2,048 at 0.7M.
"""
WORD_TOKENIZERS = ("wordpiece", "words", "whitespace")
"""Kinds of tokenizers that divide text at white space first."""
MAX_PARAMETERS = 2.5
"""Parameters of the blocks for each token of the text: at 13M tokens, 31.5M parameters were as good as 50M."""


VECTORS_PATH = "train.token_vectors"
COUNTED_WORTH = 1.8
"""Tokens with random vectors for the loss of one with counted ones: 1.4 on Wikipedia, 1.8 on novels, 2.4 on reviews."""
EVAL_SHARE, MIN_EVAL_TOKENS = 0.03, 2048
"""Validation tokens relative to those of the run, a third of whose time they take, and their least number."""


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
    fit: str = "encoder"
    counts_tokens: bool = False  # on a processor, which reads little text, tokens have counted vectors
    has_fit: bool = False  # of its own, from runs of this shape; else the loss only compares sizes
    regularization: Regularization = field(default_factory=Regularization)
    complete: Callable[[Mapping[str, int]], Extras] = lambda shape: {}  # further settings of the model
    objective_settings: Extras = field(default_factory=dict)

    def with_objective(self, objective: Objective) -> "ShapeRecipe":
        """Return the recipe for an objective; another one than its own has its own settings, and no fit of the loss."""
        kind = get_kind(objective)
        if kind == self.objective:
            return self
        counts_tokens = self.counts_tokens and "encoder" in objective.shapes  # two models have no one token table
        return replace(self, objective=kind, objective_settings={}, has_fit=False, counts_tokens=counts_tokens)

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
        counts_tokens = initial is None and self.counts_tokens and facts.device.device_type == "cpu"
        if counts_tokens and plan.overrides.get(VECTORS_PATH, "counted") == "counted":
            tokens = COUNTED_WORTH * count_effective_tokens(size.tokens, facts.text.tokens)
            size = replace(size, loss=predict_loss(fit, size.parameters, tokens, facts))
        self._choose_shape(plan, size, len(sizes))
        if size.seconds < 0.99 * facts.seconds:
            plan.note(
                "epochs",
                size.epochs,
                "more repetitions of so little text do not lower the validation loss; the run ends before the budget",
            )
        reason = f"{format_number(facts.text.bytes)} bytes of text, {format_number(size.parameters)} parameters"
        if initial is not None:
            reason = initial.explain_vocab(size.vocab, facts.text.bytes / max(facts.text.tokens, 1))
        plan.note(VOCAB_PATH, size.vocab, reason)
        width = size.settings["width"] if initial is None else initial.spec.width
        self._choose_training(plan, size, width, is_new=initial is None)
        if counts_tokens:
            reason = "what shares a text with a token is counted in seconds, and masked training learns it late"
            plan.choose(VECTORS_PATH, "counted", reason)
        eval_tokens = min(EVAL_TOKENS[facts.device.device_type], max(round(EVAL_SHARE * size.tokens), MIN_EVAL_TOKENS))
        plan.choose("train.eval_tokens", eval_tokens, "an evaluation takes no more than a hundredth of the time")
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
            "hidden": f"{self.hidden:.2g} times the width, gated",
        }
        for name, value in size.settings.items():
            plan.choose(f"model.{name}", value, reasons[name])

    def _choose_training(self, plan: RecipePlan, size: SizeEstimate, width: int, *, is_new: bool) -> None:
        rules, regularization = NEW_WEIGHTS if is_new else TRAINED_WEIGHTS, self.regularization
        for path, (value, reason) in rules.choose(size.tokens, size.epochs, width, regularization).items():
            plan.choose(path, value, reason)
        if is_new and regularization.dropout is not None:
            dropout = regularization.dropout[regularization.is_repeated(size.epochs)]
            plan.choose("model.dropout", dropout, regularization.describe(size.epochs))


def choose_tokenizer(kind: str, text: TextFacts) -> tuple[str, str]:
    """Return the kind of tokenizer to train on a text, and the reason; `kind` is that of English."""
    if text.has_spaces:
        return kind, "the usual kind for this shape"
    if kind in WORD_TOKENIZERS:
        return "unigram", f"no spaces between words, which {kind} needs"
    return kind, "needs no spaces between words"
