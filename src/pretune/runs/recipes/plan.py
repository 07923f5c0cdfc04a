"""Plans of recipes: choices with their reasons, and the size with the lowest expected loss.

A recipe makes its choices in an order in which later ones follow from earlier ones. What a user sets takes the place of
a choice, and the rest follows it:

    plan = RecipePlan({"model.depth": "4"})
    depth = plan.choose("model.depth", 12, "…")      # 4
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from pretune.core.config import Number
from pretune.core.config.edit import parse_value
from pretune.core.errors import ResourceError, UsageError
from pretune.core.log import format_number
from pretune.models.cost import estimate_memory, flops_per_token
from pretune.models.spec import Model
from pretune.runs.config import PretrainConfig
from pretune.runs.recipes.facts import Facts

FITS = Path(__file__).with_name("fits.json")
FIT_UNIGRAM = 7.12
"""Loss of a unigram model of the text of the fit. That of other text is expected to be higher or lower by its ratio."""
EPOCHS_WORTH = 15.0
"""Repetitions of the text that are worth as much as new text, in the limit (Muennighoff et al., 2023)."""
MAX_EPOCHS = 200.0
"""Repetitions of the text after which a run ends, whatever time is left.

Of 17,000 tokens the validation loss rose after 170 repetitions, of 73,000 it still fell at 100 (bench/log.md).
"""
MAX_MEMORY = 0.7
"""Share of the memory that weights, gradients and optimizer may take, with a batch of one sequence."""
HIDDEN_UNIT = 32
"""Hidden widths are multiples of this: tensor cores want multiples of 8 in bf16, and blocks of GGUF have 32 values."""
T = TypeVar("T")
USER = "set by you"
"""Reason of a choice that a user made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeChoice:
    """A choice of a recipe; `path` is that of the setting, or a word for what is no setting."""

    path: str
    value: Any
    reason: str

    def __str__(self) -> str:
        return f"{self.path} {format_setting(self.value)}: {self.reason}"


def format_setting(value: object) -> str:
    """Format the value of a choice; of a spec, its kind."""
    if isinstance(value, Mapping):
        rest = [f"{name} {format_setting(item)}" for name, item in value.items() if name != "kind"]
        return f"{value.get('kind', '')} ({', '.join(rest)})" if rest else str(value.get("kind", ""))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


class ChoiceRecord(TypedDict):
    """A choice, as run.json stores it."""

    path: str
    value: Any
    reason: str


class Expectation(TypedDict):
    """Expected loss and amounts of a run."""

    loss: Number | None
    tokens: Number
    epochs: Number
    flops: Number | None


class PlanRecord(TypedDict):
    """The plan of a run, as run.json stores it."""

    recipe: str | None  # None: a model of a paper, in a short run
    overrides: list[str]  # paths that the user has set
    choices: list[ChoiceRecord]
    expected: Expectation


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """The settings of a run, the plan that they come from, if there is one, and what to say before training."""

    config: PretrainConfig
    plan: PlanRecord | None
    reason: str = ""  # of the settings of a paper's model
    warning: str = ""


@dataclass(slots=True)
class RecipePlan:
    """The choices so far, and the settings of a user."""

    overrides: Mapping[str, object]
    choices: dict[str, RecipeChoice] = field(default_factory=dict)
    notes: set[str] = field(default_factory=set)  # choices that are no settings of the config

    def get_override(self, path: str, kind: type[T]) -> T | None:
        """Return what a user has set, checked against its type; None if nothing is set."""
        value = self.overrides.get(path)
        if isinstance(value, str) and kind is not str:
            value = parse_value(kind, value, path)
        if value is None or type(value) is kind:
            return value
        if kind is float and type(value) is int:
            return kind(value)  # type: ignore[call-arg]
        raise UsageError(f"{path} must be {'a number' if kind in (int, float) else 'a text'}, got '{str(value)[:40]}'")

    def choose(self, path: str, value: T, reason: str) -> T:
        """Add a choice, and return its value: that of the user, if there is one."""
        override = None if isinstance(value, Mapping) else self.get_override(path, type(value))
        if override is not None:
            value, reason = override, USER
        self.choices[path] = RecipeChoice(path=path, value=value, reason=reason)
        return value

    def note(self, name: str, value: object, reason: str) -> None:
        """Add a choice that is no setting of the config, such as the tokenizer."""
        self.choices[name] = RecipeChoice(path=name, value=value, reason=reason)
        self.notes.add(name)

    def list_settings(self) -> dict[str, object]:
        """Return the settings of the config that the recipe chose, by path."""
        return {
            path: choice.value
            for path, choice in self.choices.items()
            if path not in self.notes and choice.reason != USER
        }


class Fit(TypedDict):
    """Expected loss: floor + size / parameters ^ size_power + tokens / tokens read ^ tokens_power."""

    floor: float
    size: float
    size_power: float
    tokens: float
    tokens_power: float


@cache
def read_fits() -> dict[str, Fit]:
    """Return the fits of all recipes."""
    fits: dict[str, Fit] = json.loads(FITS.read_text())
    return fits


def count_effective_tokens(tokens: float, unique_tokens: int) -> float:
    """Return the number of new tokens that are worth as much as `tokens`, of which only `unique_tokens` differ."""
    repetitions = max(tokens / max(unique_tokens, 1) - 1, 0.0)
    return min(tokens, unique_tokens) + unique_tokens * EPOCHS_WORTH * (1 - math.exp(-repetitions / EPOCHS_WORTH))


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeEstimate:
    """A size of the model, with what training it in the time of the plan gives."""

    settings: Mapping[str, int]  # width, depth, heads, …, by name
    vocab: int
    parameters: int  # of the blocks
    total_parameters: int
    flops_per_token: float
    token_seconds: float
    tokens: float  # that are read in the time, or in the most epochs that help
    epochs: float
    loss: float  # expected

    @property
    def flops(self) -> float:
        return self.tokens * self.flops_per_token

    @property
    def seconds(self) -> float:
        return self.tokens * self.token_seconds

    def describe(self) -> str:
        """Return computation, tokens and epochs in words."""
        count = "1 epoch" if round(self.epochs, 1) == 1 else f"{self.epochs:.2g} epochs"
        return f"{format_number(self.flops, billion='G')}FLOP, {format_number(self.tokens)} tokens, {count}"


def count_block_parameters(spec: Model) -> int:
    """Return the parameters of the blocks, without the table of tokens."""
    return spec.params().body - spec.vocab * spec.table


def compute_loss(fit: Fit, parameters: float, tokens: float) -> float:
    """Return the expected loss of a number of parameters and effective tokens."""
    size = fit["size"] * parameters ** -fit["size_power"]
    return float(fit["floor"] + size + fit["tokens"] * max(tokens, 1.0) ** -fit["tokens_power"])


def predict_loss(fit: Fit, parameters: float, tokens: float, facts: Facts) -> float:
    """Return the expected loss on a text that may be easier or harder than that of the fit."""
    return compute_loss(fit, parameters, tokens) * (facts.text.unigram or FIT_UNIGRAM) / FIT_UNIGRAM


def evaluate_sizes(
    facts: Facts, fit: Fit, specs: Iterable[tuple[Mapping[str, int], Model]], *, length: int, targets: float
) -> Iterator[SizeEstimate]:
    """Yield the sizes that fit into the memory, with the loss that is expected of each in the time."""
    device = facts.device
    for settings, spec in specs:
        memory = estimate_memory(
            spec, tokens=2 * length, length=length, training=True, precision="fp32", targets=targets
        )
        if memory.total > MAX_MEMORY * device.memory:
            continue
        parameters = spec.params()
        flops = flops_per_token(spec, length=length, targets=targets)
        units = sum(stack.depth * spec.width for stack in spec.stacks)
        token_seconds = device.compute_token_seconds(flops, units)
        tokens = min(facts.seconds / token_seconds, MAX_EPOCHS * facts.text.tokens)
        blocks = count_block_parameters(spec)
        yield SizeEstimate(
            settings=settings,
            vocab=spec.vocab,
            parameters=blocks,
            total_parameters=parameters.total,
            flops_per_token=flops,
            token_seconds=token_seconds,
            tokens=tokens,
            epochs=tokens / max(facts.text.tokens, 1),
            loss=predict_loss(fit, blocks, count_effective_tokens(tokens, facts.text.tokens), facts),
        )


def choose_size(sizes: Sequence[SizeEstimate], max_parameters: float, device: str) -> SizeEstimate:
    """Return the size with the lowest expected loss of those up to `max_parameters`, or the smallest."""
    if not sizes:
        raise ResourceError(f"no model fits into the memory of {device}; use another device")
    smallest = min(size.parameters for size in sizes)
    limit = max(max_parameters, smallest)
    return min((size for size in sizes if size.parameters <= limit), key=lambda size: size.loss)


def list_shapes(
    plan: RecipePlan, ladder: Sequence[tuple[int, int]], hidden: float, head_width: int
) -> list[dict[str, int]]:
    """Return the widths and depths to choose from, with heads and hidden widths; those that a user has set are kept."""
    shapes: dict[tuple[int, ...], dict[str, int]] = {}
    for row_width, row_depth in ladder:
        width = plan.get_override("model.width", int) or row_width
        depth = plan.get_override("model.depth", int) or row_depth
        heads = plan.get_override("model.heads", int) or max(width // head_width, 1)
        while plan.get_override("model.heads", int) is None and width % heads:
            heads -= 1
        values = {
            "width": width,
            "depth": depth,
            "heads": heads,
            "hidden": plan.get_override("model.hidden", int) or HIDDEN_UNIT * round(hidden * width / HIDDEN_UNIT),
        }
        shapes[tuple(values.values())] = values
    return list(shapes.values())
