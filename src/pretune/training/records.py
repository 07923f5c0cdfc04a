"""Declarations of the JSON files of runs, as far as others than their writers read them.

What a file holds beyond that is left as it is. Settings (run.json, task.json) are read in full as specs; `RunFile` is
what a report shows of them.
"""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pretune.core.config import Amount, Bounds, Count, Number

Positive = Annotated[int, Bounds(1, 2**60)]


class EnergyRecord(TypedDict):
    """A part of cost.json: where energy went, and how that is known."""

    what: str
    how: str


class SummaryRecord(TypedDict, total=False):
    """The end of a run, as cost.json repeats it."""

    parameters: Count
    steps: Count
    tokens: Count
    skipped: Count
    held_out: dict[str, Number | None] | None


class CostFile(TypedDict):
    """cost.json."""

    device: str
    devices: Count
    seconds: Amount
    flops: Amount
    mfu: Amount | None
    kwh: Amount
    energy: list[EnergyRecord]
    energy_label: str
    left_out: list[str]
    co2e_kg: Amount
    grid_g_per_kwh: Amount
    dollars: Amount
    price_label: str
    run: NotRequired[SummaryRecord]


class Score(TypedDict):
    """A result: a mean over seeds, with its interval where there are several."""

    score: Number
    std: NotRequired[Number | None]
    low: NotRequired[Number | None]
    high: NotRequired[Number | None]
    each: NotRequired[list[Number]]
    dev: NotRequired[Number]
    scores: NotRequired[dict[str, Number]]


class ResultRecord(Score):
    """The result of a run."""

    split: str
    examples: Count
    seeds: list[int]


class CurvePoint(Score):
    """The result for one number of labels."""

    labels: Count
    baselines: dict[str, Number]


class Difference(TypedDict):
    """By how much a run is better than a baseline."""

    difference: Number
    low: Number
    high: Number
    p: Number


class BaselineRecord(TypedDict):
    """A baseline's score."""

    name: str
    score: Number
    against: Difference


class SavedModelRecord(TypedDict):
    """The model in the directory of a fine-tuned run."""

    lr: Number
    seed: int
    labels: int | None
    steps: Count
    best_step: Count
    trained: Count
    parameters: Positive


class EvaluationRecord(TypedDict):
    """An evaluation in the course of a trial."""

    step: Count
    dev: Number


class TrialRecord(TypedDict):
    """A trial of a fine-tuned run, as scores.json and trial.json have it."""

    lr: Number
    seed: int
    labels: int | None
    course: NotRequired[list[EvaluationRecord]]


class TrialSummary(TypedDict):
    """The end of a trial."""

    seconds: Amount
    cost: CostFile


class TrialFile(TrialRecord):
    """trial.json: a trial that has come to its end."""

    steps: Count
    best_step: Count
    scores: dict[str, dict[str, Number]]
    trained: Count
    parameters: Positive
    counts: "LengthCounts"
    balance: Any
    threshold: Number | None
    summary: TrialSummary
    said: dict[str, list[dict[str, Any]]]


class Headline(TypedDict, total=False):
    """The result in scores.json, as far as a model in use needs it."""

    score: Number | None


class HeadlineFile(TypedDict, total=False):
    """scores.json, as far as a model in use needs it."""

    result: Headline
    model: dict[str, Any]


class ResumeFile(TypedDict, total=False):
    """run.json, as far as a run that goes on compares it."""

    found: dict[str, Any]
    before: dict[str, Number]


class LossRecord(TypedDict):
    """A pre-training loss."""

    loss: Number


class Forgetting(TypedDict):
    """The pre-training loss before and after fine-tuning."""

    before: LossRecord
    after: LossRecord
    distance: Number


class LengthCounts(TypedDict):
    """Examples by their lengths."""

    longest: Count
    cut: Count
    examples: Count


class ScoresFile(TypedDict):
    """scores.json of a fine-tuned run."""

    task: str
    kind: str
    metric: str
    notes: list[str]
    examples: dict[str, Count]  # that were used
    pool: NotRequired[dict[str, Count]]  # that these were drawn from
    counts: LengthCounts
    result: ResultRecord
    model: SavedModelRecord
    baselines: list[BaselineRecord]
    not_run: dict[str, str]
    curve: list[CurvePoint]
    forgetting: Forgetting | None
    trials: NotRequired[list[TrialRecord]]


class KindRecord(TypedDict):
    """A spec of which only the kind is shown."""

    kind: str


class AttentionRecord(TypedDict, total=False):
    """A part of a block."""

    heads: Count


class BlockRecord(TypedDict, total=False):
    """A block of a stack."""

    attention: AttentionRecord | None


class StackRecord(TypedDict, total=False):
    """An encoder or a decoder."""

    depth: Count
    blocks: list[BlockRecord] | None


class ModelRecord(TypedDict, total=False):
    """A model's shape."""

    family: str
    width: Count | None
    vocab: Count | None
    encoder: StackRecord | None
    decoder: StackRecord | None


class DataRecord(TypedDict, total=False):
    """The data of a run."""

    path: str | None
    max_length: Count | None  # None in a fine-tuned run: what the model and the task allow
    short: tuple[Number, Count] | None


class TrainRecord(TypedDict, total=False):
    """The settings of training."""

    lr: Number
    seed: int
    optimizer: KindRecord
    schedule: KindRecord
    batch: Count
    batch_tokens: Count
    start: str | None


class BaseModelRecord(TypedDict):
    """The model that was fine-tuned."""

    path: str
    weights: NotRequired[str | None]


class Machine(TypedDict):
    """The machine that a run found itself on."""

    device: str
    precision: str
    torch: str
    threads: Count


class TaskRecord(TypedDict, total=False):
    """The task of a fine-tuned run."""

    name: str | None
    labels: Count | None


class RunFile(TypedDict, total=False):
    """run.json."""

    model: ModelRecord
    objective: KindRecord
    data: DataRecord | None
    train: TrainRecord
    found: Machine | None
    base: BaseModelRecord
    method: KindRecord
    loss: KindRecord
    task: TaskRecord | None
    embedding: Any


class PredictionLine(TypedDict, total=False):
    """A line of predictions.jsonl."""

    split: str
    id: str | int
    score: Number
    tags: list[str]
    words: list[str]
    probabilities: dict[str, Number] | list[Number] | None


class GoldScore(TypedDict):
    """The right answer of a line of predictions.jsonl, for regression."""

    gold: Number


class GoldTags(TypedDict):
    """The right answer of a line of predictions.jsonl, for tagging."""

    gold: list[str]


class ResultsRow(TypedDict):
    """A row of results.json."""

    method: str
    labels: Number
    mean: Number
    seeds: NotRequired[Count | list[int]]
    std: NotRequired[Number | None]
    low: NotRequired[Number | None]
    high: NotRequired[Number | None]
    each: NotRequired[list[Number] | None]
    about: NotRequired[str | None]
    group: NotRequired[str | None]


class StageRecord(TypedDict, total=False):
    """A stage of a comparison."""

    name: str
    about: str
    seconds: Amount
    notes: list[str] | None


class ResultsFile(TypedDict):
    """results.json of a comparison."""

    rows: list[ResultsRow]
    runs: NotRequired[list[str]]
    data: NotRequired[str | None]
    stages: NotRequired[list[StageRecord] | None]
    examples: NotRequired[Count | None]


class MetricsLine(TypedDict):
    """A line of metrics.jsonl."""

    step: Count
    loss: NotRequired[Number | None]


class StateFile(TypedDict):
    """state.json of a checkpoint."""

    format: Literal[1]
    step: Count
    score: Number | None
    groups: list[str]
    tied: dict[str, dict[str, str]]
    facts: dict[str, Any]
