"""Records of study.json: the results of a study, which its page and its text show."""

from typing import Any, Literal, NotRequired, TypedDict

Outcome = Literal["holds", "does not hold", "undecided", "not measured"]


class PairedDifference(TypedDict):
    """Paired difference of two rows over seeds, its interval and its p-value; None where there is one seed."""

    difference: float
    low: float | None
    high: float | None
    p: float | None


class BaselineComparison(TypedDict, total=False):
    """Mean score of the simplest baseline, and whether a row is better; empty without a baseline."""

    baseline: float
    is_above_baseline: bool


class UnigramComparison(TypedDict, total=False):
    """Pre-training loss of a row relative to the unigram loss; empty without a loss of predicted tokens."""

    unigram_share: float
    is_beyond_unigram: bool


class StudyCell(BaselineComparison, UnigramComparison):
    """Mean of a row and a measure over seeds, its interval, and the difference to the reference row."""

    mean: float
    std: float | None
    low: float | None
    high: float | None
    values: dict[str, float]  # by seed
    against: PairedDifference | None


class StudyMeasure(TypedDict):
    """A column of the table."""

    name: str
    kind: str
    better: Literal["lower", "higher"]
    amount: str | None  # of a cost
    curve: str | None
    x: float | None
    x_label: str | None


class DecidingBudget(TypedDict):
    """Seeds that would decide a claim, if the difference stayed as measured; with them test examples."""

    seeds: int
    examples: NotRequired[int]  # of one pre-training


class StudyClaim(TypedDict):
    """A claim with its verdict."""

    text: str
    measure: str
    better: str
    worse: str
    against: str  # the measure of the worse row
    margin: float
    outcome: Outcome
    reason: str
    difference: NotRequired[float | None]
    error: NotRequired[float | None]
    seeds: NotRequired[int]
    plateau_rows: NotRequired[list[str]]  # that have not got beyond word frequencies
    is_one_pretraining: NotRequired[bool]  # of one of the rows
    deciding_budget: NotRequired[DecidingBudget]  # of an undecided claim


class LawPoint(TypedDict):
    """A run and its loss, as measured and as the law expects it, with the interval of the bootstrap."""

    row: str
    is_check: bool  # not fitted
    parameters: float  # of the blocks
    tokens: float  # new ones that those read are worth
    loss: float
    expected: float
    low: float
    high: float


class StudyLaw(TypedDict):
    """The law of the loss by parameters and tokens: each number with the ends of its interval."""

    loss: str
    coefficients: dict[str, list[float]]
    points: list[LawPoint]


class ChosenRate(TypedDict):
    """The learning rate with the best score on dev: a factor on the default."""

    row: str
    action: str
    label: str
    factor: float | None


class MissingCell(TypedDict):
    """A cell without all its numbers."""

    row: str
    seed: int
    measures: list[str]


class FailedStep(TypedDict):
    """A step that failed, with its error."""

    action: str
    label: str
    message: str


class StudyCost(TypedDict):
    """The cost of all finished steps."""

    seconds: float
    flops: float
    kwh: float
    co2e_kg: float
    dollars: float
    cpu_seconds: float
    wall_seconds: float
    estimated_seconds: float
    steps: int
    planned_steps: int
    jobs: int
    devices: list[str]
    arithmetic_seconds: dict[str, float]  # by device
    pretrain_flops: NotRequired[float]
    pretrain_seconds: NotRequired[float]  # of wall-clock time, in which any pre-training ran


class StudyRequest(TypedDict):
    """The study, and the options of the comparison."""

    format: int
    study: dict[str, Any]  # as its YAML file has it
    scale: str
    seeds: list[int]
    budget: dict[str, float]
    overrides: dict[str, str]
    rows: list[str]


class StudyResults(StudyRequest):
    """The content of study.json."""

    source: str
    scale_about: str
    reference: str
    measures: list[StudyMeasure]
    table: dict[str, dict[str, StudyCell]]  # by row and measure
    claims: list[StudyClaim]
    rule: str
    is_tuned: bool
    tuned_actions: list[str]
    rates: dict[str, list[float]]
    chosen_rates: list[ChosenRate]
    law: NotRequired[StudyLaw | None]  # missing in results of former versions
    missing: list[MissingCell]
    failures: list[FailedStep]
    cost: StudyCost
