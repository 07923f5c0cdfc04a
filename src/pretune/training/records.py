"""Schemas of the JSON files of runs, as far as code other than their writers reads them.

Further keys of a file are allowed. Settings (run.json, task.json) are parsed completely as specs; `RunFile` declares
what a report shows of them.
"""

import os
from typing import Annotated, Any, Literal, NotRequired, TypedDict, TypeVar

from pretune.core import io
from pretune.core.config import Amount, Count, Ge, Le, Number, PathText, check_record
from pretune.core.errors import PretuneError

T = TypeVar("T")
Positive = Annotated[int, Ge(1), Le(2**60)]


def read_run_record(cls: type[T], path: str | os.PathLike[str], error: type[PretuneError]) -> T:
    """Read a run.json as a record; any fault is raised as `error`, with the file and the field."""
    return check_record(cls, io.read_formatted_json(path, error), error, os.fspath(path))


class EnergyRecord(TypedDict):
    """Entry of cost.json: a component and the method of measurement."""

    kind: NotRequired[str]
    what: str
    how: str
    measured: NotRequired[bool]
    joules: NotRequired[Amount]


class SummaryRecord(TypedDict, total=False):
    """Summary of a run in cost.json."""

    parameters: Count
    steps: Count
    tokens: Count
    loss: Number | None
    skipped: Count
    waiting: Amount  # seconds waiting for data
    saving: Amount  # seconds blocked by checkpoints
    evaluating: Amount  # seconds
    elapsed: Amount  # seconds of training, evaluation and saving
    held_out: dict[str, Number | None] | None  # metrics of the last evaluation
    unigram_loss: Number | None  # validation loss of a unigram model of the training data
    best: Number | None  # validation loss
    best_step: Count | None
    warnings: list[str]
    teacher_flops: Amount


class PretrainSummary(TypedDict):
    """Summary of a finished pre-training run."""

    parameters: Count
    steps: Count
    tokens: Count
    skipped: Count
    held_out: NotRequired[dict[str, Number | None] | None]


class CostFile(TypedDict):
    """cost.json."""

    kind: NotRequired[str]
    device: str
    devices: Count
    seconds: Amount  # training time; all other numbers refer to it
    flops: Amount
    peak_flops: NotRequired[Amount | None]  # of one device, per second
    mfu: Amount | None  # over the whole time: evaluation, saving and waiting included
    kwh: Amount
    energy: list[EnergyRecord]
    energy_label: str  # measured, estimated, or partly measured
    left_out: list[str]  # consumers of energy not included
    co2e_kg: Amount
    grid_g_per_kwh: Amount
    dollars: Amount
    dollars_per_device_hour: NotRequired[Amount]
    dollars_per_kwh: NotRequired[Amount]
    price_label: str  # given, or assumed
    run: NotRequired[SummaryRecord]


class Score(TypedDict):
    """Mean score over seeds, with its interval if there are several."""

    score: Number
    std: NotRequired[Number | None]
    low: NotRequired[Number | None]
    high: NotRequired[Number | None]
    each: NotRequired[list[Number]]
    dev: NotRequired[Number]
    scores: NotRequired[dict[str, Number]]


class ResultRecord(Score):
    """Test result of a run."""

    split: str
    examples: Count
    seeds: list[int]


class CurvePoint(Score):
    """Result for one number of training examples."""

    labels: Count
    split: NotRequired[str]
    examples: NotRequired[Count]
    seeds: NotRequired[list[int]]
    baselines: dict[str, Number]


class Difference(TypedDict):
    """Difference between a run and a baseline, with interval and p-value."""

    difference: Number
    low: Number
    high: Number
    p: Number
    rounds: NotRequired[Count]
    examples: NotRequired[Count]


class BaselineRecord(TypedDict):
    """Score of a baseline."""

    name: str
    about: NotRequired[str]
    score: Number
    scores: NotRequired[dict[str, Number]]
    seconds: NotRequired[Amount]
    against: Difference


class RateRecord(TypedDict):
    """Score of a learning rate on dev."""

    lr: Number
    dev: Number


class EvaluationRecord(TypedDict):
    """Evaluation during a trial."""

    step: Count
    dev: Number


class TrialRecord(TypedDict):
    """Trial of a fine-tuned run, in scores.json and trial.json."""

    lr: Number
    seed: int
    labels: int
    course: NotRequired[list[EvaluationRecord]]


class TrainedRecord(TrialRecord):
    """Model of a trial."""

    steps: Count
    best_step: Count
    trained: Count
    parameters: Positive
    memory: NotRequired[Count | None]  # of the GPU, in bytes


class SavedModelRecord(TrainedRecord):
    """Model in the directory of a fine-tuned run."""

    threshold: NotRequired[Number | None]
    dev: NotRequired[Number]
    scores: NotRequired[dict[str, dict[str, Number]]]


class RunSummaryRecord(SummaryRecord):
    """Summary of a run with its time and cost."""

    seconds: Amount
    cost: CostFile


class TrialFile(TrainedRecord):
    """trial.json: a finished trial."""

    scores: dict[str, dict[str, Number]]
    counts: "LengthCounts"
    balance: Any
    threshold: Number | None
    epoch: NotRequired[Count]  # steps of an epoch
    notes: NotRequired[list[str]]
    forgetting: NotRequired["Forgetting | None"]
    summary: RunSummaryRecord
    predictions: dict[str, list[dict[str, Any]]]


class Headline(TypedDict, total=False):
    """Result in scores.json, as far as inference needs it."""

    score: Number | None


class EmbeddingScoresFile(TypedDict):
    """scores.json of trained embeddings."""

    before: dict[str, Number]
    after: dict[str, Number]
    steps: Count
    loss: Number | None  # None if a resumed run had no step left


class HeadlineFile(TypedDict, total=False):
    """scores.json, as far as inference needs it."""

    result: Headline
    model: dict[str, Any]


class ResumeFile(TypedDict, total=False):
    """run.json, as far as a resumed run compares it."""

    environment: dict[str, Any]
    initial_scores: dict[str, Number]  # of an embedding run, before training
    embedding: Any
    loss: Any


class Forgetting(TypedDict):
    """Pre-training loss before and after fine-tuning."""

    objective: NotRequired[str]
    data: NotRequired[str]
    before: dict[str, Number]
    after: dict[str, Number]
    difference: NotRequired[Number]
    distance: Number
    by_part: NotRequired[dict[str, Number]]


class LengthCounts(TypedDict):
    """Longest example, number of truncated examples, and number of examples."""

    longest: Count
    cut: Count
    examples: Count


class SampleRecord(TypedDict):
    """An input with its reference, and the answers before and after fine-tuning."""

    input: str
    gold: str
    before: str
    after: str


class ScoresFile(TypedDict):
    """scores.json of a fine-tuned run."""

    task: str
    kind: str
    metric: str
    notes: list[str]
    examples: dict[str, Count]  # used examples by split
    pool: NotRequired[dict[str, Count]]  # available examples by split
    balance: NotRequired[Any]
    counts: LengthCounts
    result: ResultRecord
    model: SavedModelRecord
    rates: NotRequired[list[RateRecord]]
    baselines: list[BaselineRecord]
    not_run: dict[str, str]
    curve: list[CurvePoint]
    forgetting: Forgetting | None
    samples: NotRequired[list[SampleRecord]]
    trials: NotRequired[list[TrialRecord]]


class KindRecord(TypedDict):
    """Spec that is shown by its kind only."""

    kind: str


class AttentionRecord(TypedDict, total=False):
    """Attention of a block."""

    heads: Count


class BlockRecord(TypedDict, total=False):
    """Block of a stack."""

    attention: AttentionRecord | None


class StackRecord(TypedDict, total=False):
    """Encoder or decoder."""

    depth: Count
    blocks: list[BlockRecord] | None


class ModelRecord(TypedDict, total=False):
    """Architecture of a model."""

    family: str
    width: Count | None
    vocab: Count | None
    encoder: StackRecord | None
    decoder: StackRecord | None


class DataRecord(TypedDict, total=False):
    """Data of a run."""

    path: PathText | None
    max_length: Count | None  # None in a fine-tuned run: the limit of model and task
    length_schedule: tuple[Number, Count] | None


class TrainRecord(TypedDict, total=False):
    """Training settings."""

    lr: Number
    seed: int
    optimizer: KindRecord
    schedule: KindRecord
    batch: Count
    batch_tokens: Count
    init_from: PathText | None


class BaseModelRecord(TypedDict):
    """Model that was fine-tuned."""

    path: PathText
    weights: NotRequired[str | None]


class Machine(TypedDict):
    """Hardware and software of a run."""

    device: str
    precision: str
    torch: str
    threads: Count


class TaskRecord(TypedDict, total=False):
    """Task of a fine-tuned run."""

    name: str | None
    train_examples: Count | None


class RunFile(TypedDict, total=False):
    """run.json."""

    model: ModelRecord
    objective: KindRecord
    data: DataRecord | None
    train: TrainRecord
    environment: Machine | None
    base: BaseModelRecord
    method: KindRecord
    loss: KindRecord
    task: TaskRecord | None
    embedding: Any


class PredictionLine(TypedDict, total=False):
    """Line of predictions.jsonl."""

    split: str
    id: str | int
    score: Number
    tags: list[str]
    words: list[str]
    probabilities: dict[str, Number] | list[Number] | None


class GoldScore(TypedDict):
    """Gold answer in a line of predictions.jsonl, for regression."""

    gold: Number


class GoldTags(TypedDict):
    """Gold answer in a line of predictions.jsonl, for tagging."""

    gold: list[str]


class MetricsLine(TypedDict):
    """Line of metrics.jsonl."""

    step: Count
    loss: NotRequired[Number | None]


class StateFile(TypedDict):
    """state.json of a checkpoint."""

    format: Literal[2]
    step: Count
    score: Number | None
    groups: list[str]
    tied: dict[str, dict[str, str]]
    facts: dict[str, Any]
