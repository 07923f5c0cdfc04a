"""Specs of a study: its rows, its measures, its budget, and the claims that are fixed before it runs.

A study is data: a YAML file that `pretune.studies.read` turns into these specs. It names no code. A setting is a path
and a value; `pretune.studies.settings` lists the paths, and turns the settings of a row into options of calls.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pretune.core.config import Ge, Gt, Le, NonEmpty, Positive, spec
from pretune.core.errors import UsageError, suggest

ScaleName = Literal["class", "gpu", "full"]
Direction = Literal["higher", "lower"]
CostAmount = Literal[
    "parameters", "trained", "trained_share", "tokens", "steps", "flops", "seconds", "kwh", "co2e_kg", "dollars",
    "memory",
]  # fmt: skip
SeedCount = Annotated[int, Ge(1), Le(100)]
MIN_SEEDS = 3
"""Claims need this number of seeds; with fewer they are undecided."""


@spec(has_kind=False)
class Setting:
    """Setting of a row: a path such as `pretrain.objective.rate`, and its value."""

    path: str
    value: Any


Settings = tuple[Setting, ...]


@spec(has_kind=False)
class Row:
    """Row of the table: a name and its settings."""

    name: str
    settings: Settings = ()


@spec(has_kind=False)
class GridFactor:
    """Factor of a grid: its levels, each with the settings that it stands for."""

    name: str
    levels: Annotated[tuple[Row, ...], NonEmpty()]


@spec(has_kind=False)
class Budget:
    """Budget that all pre-trained rows have: one of tokens, FLOPs and wall-clock time; and their parameters, if set.

    FLOPs are those of training, a generator and the forward passes of a teacher included. `parameters` changes no row:
    rows that differ from it by more than `tolerance` are an error of the plan.
    """

    tokens: Positive[int] | None = None
    flops: Positive[float] | None = None
    seconds: Positive[float] | None = None
    parameters: Positive[int] | None = None
    tolerance: Annotated[float, Gt(0), Le(1)] = 0.1

    def __post_init__(self) -> None:
        lengths = self.list_lengths()
        if len(lengths) > 1:
            raise UsageError(f"a budget has one of tokens, flops and seconds, got {' and '.join(lengths)}; keep one")

    def list_lengths(self) -> list[str]:
        """Return the names of the lengths that are set: at most one."""
        return [name for name in ("tokens", "flops", "seconds") if getattr(self, name) is not None]


@spec(has_kind=False)
class RateFactors:
    """Learning rates that are tried in every cell, relative to its default; the best on dev is used for all seeds."""

    pretrain: tuple[Positive[float], ...] = ()
    finetune: tuple[Positive[float], ...] = ()


@spec(kind="validation")
class ValidationScore:
    """Score of pre-training on its validation split: loss, perplexity, accuracy …"""

    score: str = "loss"


@spec(kind="text")
class TextScore:
    """Score of a pre-trained model on a text: bits_per_byte, perplexity …; `text` is a corpus, as in `pt.evaluate`."""

    text: Annotated[tuple[str, ...], NonEmpty()]
    score: str | None = None  # None: the headline score


@spec(kind="task")
class TaskScore:
    """Score on a task without training on it: minimal pairs, few-shot prompts, similarity of embeddings."""

    task: str
    shots: int | None = None
    score: str | None = None  # None: the official metric
    model: Literal["pretrained", "embeddings"] = "pretrained"


@spec(kind="finetuned")
class FinetunedScore:
    """Score after fine-tuning on a task, by the settings `finetune`; of a row with a baseline, the baseline's."""

    task: str | None = None  # None: that of the settings, `finetune.task` or `finetune.train`
    score: str | None = None  # None: the official metric


@spec(kind="cost")
class CostValue:
    """Amount that a measure took: `measure` names it; None: pre-training. `total` adds the steps it builds on."""

    amount: CostAmount
    measure: str | None = None
    total: bool = False


@spec(kind="average")
class AverageScore:
    """Mean of other measures."""

    measures: Annotated[tuple[str, ...], NonEmpty()]


@spec(kind="saving")
class CurveSaving:
    """Saving along a curve: the x at which another row reaches a row's score at `start`, relative to `start`.

    The x is between the points on a logarithmic axis, and at most the last one, which is then a lower bound.
    """

    line: str  # name of the curve
    start: Positive[float]
    against: str  # the other row


Quantity = ValidationScore | TextScore | TaskScore | FinetunedScore | CostValue | AverageScore | CurveSaving


@spec(has_kind=False)
class Measure:
    """Column of the table: a quantity, and settings that hold for this column only.

    Measures with the same `curve` are points of one line per row, at `x`. `share` is a share of the budget.
    """

    name: str
    quantity: Quantity
    better: Direction | None = None  # None: lower for losses, perplexities and costs
    settings: Settings = ()
    share: Annotated[float, Gt(0), Le(1)] = 1.0
    curve: str | None = None
    x: float | None = None
    x_label: str | None = None

    @property
    def is_lower_better(self) -> bool:
        """True if smaller values are better."""
        if self.better is not None:
            return self.better == "lower"
        if isinstance(self.quantity, ValidationScore):
            return "accuracy" not in self.quantity.score
        return isinstance(self.quantity, TextScore | CostValue)


@spec(has_kind=False)
class Claim:
    """Claim of the paper: the row `better` is better than `worse` on a measure, by more than `margin`.

    A negative margin states that a row is not worse by more than that. `against` is the measure of the row `worse`,
    if it is another.
    """

    text: str
    measure: str
    better: str
    worse: str
    against: str | None = None
    margin: float = 0.0


@spec(has_kind=False)
class LawSettings:
    """Law of the loss by parameters and tokens: the measure that it is fitted to, and the rows that only check it."""

    loss: str
    checks: tuple[str, ...] = ()


@spec(has_kind=False)
class PaperRow:
    """Row of the paper's table; None: not in the paper."""

    name: str
    values: tuple[float | None, ...]


@spec(has_kind=False)
class PaperTable:
    """Table of the paper, as printed there."""

    caption: str
    columns: Annotated[tuple[str, ...], NonEmpty()]
    rows: Annotated[tuple[PaperRow, ...], NonEmpty()]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.values) != len(self.columns):
                raise UsageError(f"row '{row.name}' has {len(row.values)} values for {len(self.columns)} columns")


@spec(has_kind=False)
class Paper:
    """Source of a study."""

    citation: str = ""
    url: str | None = None
    table: PaperTable | None = None
    note: str | None = None  # differences between the paper's setting and this one


@spec(has_kind=False)
class LevelChoice:
    """Levels of a factor that a scale keeps."""

    factor: str
    levels: Annotated[tuple[str, ...], NonEmpty()]


@spec(has_kind=False)
class Scale:
    """Size of a study: what differs from its common settings. Settings of rows and measures go before common ones."""

    about: str = ""
    seeds: SeedCount | None = None
    first_seed: Annotated[int, Ge(0)] | None = None
    budget: Budget | None = None
    rates: RateFactors | None = None
    settings: Settings = ()
    rows: tuple[str, ...] | None = None  # a part of the rows; None: all
    levels: tuple[LevelChoice, ...] = ()  # a part of the levels of a factor
    measures: tuple[str, ...] | None = None  # a part of the measures; None: all
    row_settings: tuple[Row, ...] = ()
    measure_settings: tuple[Row, ...] = ()


@spec(has_kind=False)
class NamedScale:
    """Scale of a study, by its name."""

    name: ScaleName
    scale: Scale


@spec(has_kind=False)
class Study:
    """Study: a question, the rows and measures of its table, a budget, and the claims of a paper."""

    name: str
    title: str
    about: str = ""  # one line, for `pretune list studies`
    question: str = ""
    paper: Paper = Paper()
    settings: Settings = ()
    rows: tuple[Row, ...] = ()
    grid: tuple[GridFactor, ...] = ()
    bases: tuple[Row, ...] = ()  # models that rows start from (`row:NAME`), not shown in the table
    reference: str | None = None  # row that others are compared with; None: the first
    budget: Budget = Budget()
    seeds: SeedCount = MIN_SEEDS
    first_seed: Annotated[int, Ge(0)] = 0
    rates: RateFactors = RateFactors()
    measures: Annotated[tuple[Measure, ...], NonEmpty()]
    claims: tuple[Claim, ...] = ()
    law: LawSettings | None = None
    scales: tuple[NamedScale, ...] = ()

    def __post_init__(self) -> None:
        if not self.rows and not self.grid:
            raise UsageError("a study needs rows, a grid, or both")
        rows, measures = [row.name for row in self.list_rows()], [measure.name for measure in self.measures]
        check_unique("row", [*rows, *(row.name for row in self.bases)])
        check_unique("measure", measures)
        if self.reference is not None:
            check_name("reference", self.reference, rows)
        for measure in self.measures:
            if isinstance(measure.quantity, CostValue) and measure.quantity.measure is not None:
                check_name(f"measure '{measure.name}'", measure.quantity.measure, measures)
            for name in measure.quantity.measures if isinstance(measure.quantity, AverageScore) else ():
                check_name(f"measure '{measure.name}'", name, measures)
            if isinstance(measure.quantity, CurveSaving):
                points = [f"{x:g}" for x in list_points(self.measures, measure.quantity.line)]
                check_name(f"measure '{measure.name}', start", f"{measure.quantity.start:g}", points, noun="point")
                check_name(f"measure '{measure.name}', against", measure.quantity.against, rows)
        check_unique("claim", [f"{claim.text} ({claim.measure})" for claim in self.claims])
        for claim in self.claims:
            place = f"claim '{claim.text[:40]}'"
            check_name(place, claim.better, rows)
            check_name(place, claim.worse, rows)
            check_name(place, claim.measure, measures)
            check_name(place, claim.against or claim.measure, measures)
            if claim.better == claim.worse and (claim.against or claim.measure) == claim.measure:
                raise UsageError(f"{place}: compares '{claim.better}' with itself; name two rows, or another measure")
        if self.law is not None:
            check_name(
                "law.loss", self.law.loss, [m.name for m in self.measures if isinstance(m.quantity, ValidationScore)]
            )
            for name in self.law.checks:
                check_name("law.checks", name, rows)
        for entry in self.scales:
            self._check_scale(entry.name, entry.scale, rows, measures)

    def _check_scale(self, name: str, scale: Scale, rows: list[str], measures: list[str]) -> None:
        place = f"scale '{name}'"
        for row in (*(scale.rows or ()), *(row.name for row in scale.row_settings)):
            check_name(place, row, [*rows, *(base.name for base in self.bases)])
        for measure in (*(scale.measures or ()), *(row.name for row in scale.measure_settings)):
            check_name(place, measure, measures)
        for choice in scale.levels:
            check_name(place, choice.factor, [factor.name for factor in self.grid])
            factor = next(factor for factor in self.grid if factor.name == choice.factor)
            for level in choice.levels:
                check_name(f"{place}, {choice.factor}", level, [row.name for row in factor.levels])

    def get_scale(self, name: str) -> Scale:
        """Return the scale of a name; a study without scales has one of each, its own settings."""
        if not self.scales:
            return Scale()
        scales: dict[str, Scale] = {entry.name: entry.scale for entry in self.scales}
        if name not in scales:
            flags = " or ".join(f"--scale {other}" for other in scales)
            raise UsageError(f"study '{self.name}' is not offered at the scale '{name}'; it needs {flags}")
        return scales[name]

    def list_rows(self, scale: Scale | None = None) -> list[Row]:
        """Return the rows of the table: explicit ones, then those of the grid, at a scale those that it names."""
        choices = {choice.factor: choice.levels for choice in scale.levels} if scale else {}
        rows = [*self.rows]
        combinations: list[Row] = [Row(name="")] if self.grid else []
        for factor in self.grid:
            levels = [level for level in factor.levels if level.name in choices.get(factor.name, (level.name,))]
            combinations = [
                Row(
                    name=f"{row.name}, {level.name}" if row.name else level.name,
                    settings=(*row.settings, *level.settings),
                )
                for row in combinations
                for level in levels
            ]
        rows += combinations
        return rows if scale is None or scale.rows is None else [row for row in rows if row.name in scale.rows]

    def list_measures(self, scale: Scale) -> list[Measure]:
        """Return the measures of a scale; averages and costs of measures that it leaves out are left out too."""
        names = {measure.name for measure in self.measures if scale.measures is None or measure.name in scale.measures}
        for measure in self.measures:
            match measure.quantity:
                case AverageScore(measures=members) if not names.issuperset(members):
                    names.discard(measure.name)
                case CostValue(measure=str(member)) if member not in names:
                    names.discard(measure.name)
                case CurveSaving(line=line, start=start):
                    points = list_points((m for m in self.measures if m.name in names), line)
                    if start not in points or len(points) < 2:
                        names.discard(measure.name)
        return [measure for measure in self.measures if measure.name in names]


def list_points(measures: Iterable[Measure], line: str) -> dict[float, str]:
    """Return the names of the measures of a curve by their x, in its order."""
    points = {measure.x: measure.name for measure in measures if measure.curve == line and measure.x is not None}
    return dict(sorted(points.items()))


def check_unique(noun: str, names: Iterable[str]) -> None:
    """Raise a UsageError for an empty name, or for one that occurs twice."""
    previous_names: set[str] = set()
    for name in names:
        if not name.strip() or name in previous_names:
            raise UsageError(f"two {noun}s named '{name}'; rename one" if name.strip() else f"a {noun} without a name")
        previous_names.add(name)


def check_name(place: str, name: str, names: Iterable[str], noun: str = "name") -> None:
    """Raise a UsageError that names the closest valid name."""
    options = [*names]
    if name not in options:
        raise UsageError(
            f"{place}: unknown {noun} '{name[:60]}'{suggest(name, options)} (allowed: {', '.join(options)})"
        )
