"""Actions of steps: one call of a public function each, with the options of the plan."""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from pretune.core import io
from pretune.core.api import Options
from pretune.core.config import read_record
from pretune.core.errors import CheckpointError, DataError, DivergedError, UsageError
from pretune.core.run_dir import RunDir
from pretune.evaluation.baselines import run_baselines
from pretune.runs.defaults import build_pretrain_config
from pretune.runs.embedding import run_embedding
from pretune.runs.evaluate import run_evaluate
from pretune.runs.finetune.defaults import build_finetune_config
from pretune.runs.finetune.entry import run_finetune
from pretune.runs.finetune.results import read_predictions
from pretune.runs.finetune.task_data import TaskData, compute_scores, open_task
from pretune.runs.options import PrepareOptions, PretrainOptions, TokenizerOptions, VectorsOptions
from pretune.runs.prepare import run_prepare
from pretune.runs.pretrain import run_pretrain
from pretune.runs.task_options import EmbeddingOptions, EvaluateOptions, FinetuneOptions
from pretune.runs.vectors import run_vectors
from pretune.studies.inputs import build_task_config, locate
from pretune.studies.plan import ACTIONS, STEP_PREFIX, BaselineOptions, ChoiceOptions, Plan, Step, list_inputs
from pretune.studies.study_dir import Numbers, StepRecord, StudyDir, make_record
from pretune.tasks.example import Prediction
from pretune.text.tokenizer.training import train_tokenizer
from pretune.training.cost import CostMeter, CostRates, compute_cost
from pretune.training.distributed import resolve_device
from pretune.training.records import CostFile, TrialFile

O = TypeVar("O", bound=Options)
R = TypeVar("R", PretrainOptions, FinetuneOptions)
VECTORS_FILE = "vectors.txt"
SIMPLEST_BASELINE, BASELINE_PREFIX = "majority", "baseline."
"""Baseline whose scores stand beside those of a fine-tuning, as amounts: the majority class, or what stands for it."""
EXAMPLE_BLOCKS = 20
"""Blocks of the test examples, for the part of the variance that is due to them."""
TEST_EXAMPLES = "test_examples"
"""Amount of a fine-tuning or a baseline: the number of examples that it is scored on."""
START_TIME = "start_time"
"""Amount of every step: the time of its start, in seconds since 1970."""
EPOCHS = "epochs"
"""Amount of a pre-training: how often it has read its text."""
UNIGRAM_LOSS = "unigram_loss"
"""Amount of a pre-training whose objective predicts tokens: the loss of a unigram model of the training data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a step: scores, amounts, and the cost that the run measured itself."""

    scores: Numbers
    amounts: Numbers
    cost: Numbers | None = None
    blocks: Mapping[str, Sequence[float]] | None = None


@dataclass(frozen=True, slots=True)
class StepRunner:
    """Runs single steps of a plan in its directory."""

    plan: Plan
    study_dir: StudyDir
    records: dict[str, StepRecord]
    device: str | None = None
    data: str | None = None  # directory of task data

    def run(self, step: Step, *, resume: bool = False) -> StepRecord:
        """Run a step and return its record; `resume` continues a run that was interrupted."""
        if isinstance(step.options, ChoiceOptions):
            return self._choose(step, step.options)
        folder = self.study_dir.get_folder(step)
        device = resolve_device(self.device)
        with io.translate_write_errors(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
        meter = CostMeter(lambda stats: 0.0, device)
        start_time, start, cpu_start = time.time(), time.monotonic(), measure_cpu_seconds()
        with meter:
            try:
                outcome = self._call(step, folder, resume)
            except DivergedError:
                if step.rate_factor is None:
                    raise
                outcome = Outcome(scores={}, amounts={})  # the worst of the tries
        measured_cost = compute_cost([meter.compute_totals()], device, CostRates())
        seconds = {"total_seconds": time.monotonic() - start, "cpu_seconds": measure_cpu_seconds() - cpu_start}
        amounts = {START_TIME: start_time, **seconds, **outcome.amounts}
        return make_record(step, outcome.scores, amounts, outcome.cost or measured_cost, blocks=outcome.blocks)

    def _call(self, step: Step, folder: Path, resume: bool) -> Outcome:
        match step.options:
            case TokenizerOptions() as options:
                return self._train_tokenizer(self._locate(options), folder)
            case PrepareOptions() as options:
                options = replace(self._locate(options), out=folder, data=self.data, overwrite=True)
                return Outcome(scores={}, amounts={"tokens": run_prepare(options).tokens})
            case PretrainOptions() as options:
                return self._pretrain(options, step, folder, resume)
            case VectorsOptions() as options:
                folder.mkdir(parents=True, exist_ok=True)
                vectors = run_vectors(replace(self._locate(options), out=folder / VECTORS_FILE))
                return Outcome(scores={}, amounts={"words": len(vectors.words)})
            case BaselineOptions() as options:
                return self._run_baseline(replace(options, vectors=self._locate(options).vectors))
            case FinetuneOptions() as options:
                return self._finetune(options, step, folder, resume)
            case EmbeddingOptions() as options:
                options = replace(self._locate(options), out=folder, data=self.data, device=self.device, resume=resume)
                scores = run_embedding(options).scores
                return Outcome(scores=scores["after"], amounts={"steps": scores["steps"]}, cost=read_cost(folder))
            case EvaluateOptions() as options:
                options = self._locate(options)
                options = replace(options, data=options.data or self.data, device=self.device)
                return Outcome(scores=run_evaluate(options)[0].scores, amounts={})
        raise TypeError(f"unexpected options {step.options!r}")

    def _locate(self, options: O) -> O:
        """Return options with the paths of files and of the outputs of steps; a missing file is a DataError."""
        paths: dict[str, str | list[str]] = {}
        for option, names in list_inputs(options).items():
            if ACTIONS[type(options)].inputs[option] != "task":
                paths_of_files = [self._locate_file(name) for name in names]
                paths[option] = paths_of_files[0] if isinstance(getattr(options, option), str) else paths_of_files
        return replace(options, **paths)  # type: ignore[type-var]

    def _locate_file(self, name: str) -> str:
        if name.startswith(STEP_PREFIX):
            return str(self.find_output(name.removeprefix(STEP_PREFIX)))
        path, problem = locate(name, self.data)
        if problem is not None:
            raise DataError(f"missing {problem}")
        return path

    def find_output(self, key: str) -> Path:
        """Return the output of a step: its directory, or its file of word vectors."""
        folder = self.study_dir.find_output(key, self.plan, self.records)
        file = folder / VECTORS_FILE
        return file if file.is_file() else folder

    def _prepare(self, options: R, step: Step, find_rate: Callable[[R], float]) -> R:
        """Return located options; with tried learning rates, with that of the try, or of the try that was chosen."""
        options, factor = self._locate(options), step.rate_factor
        if step.choices:
            factor = self.plan.steps[self.records[step.choices[0]]["selected_key"]].rate_factor
        if factor is None:
            return options
        rate = float(f"{find_rate(options) * factor:g}")
        return replace(options, overrides={**(options.overrides or {}), "train.lr": rate})

    def _choose(self, step: Step, options: ChoiceOptions) -> StepRecord:
        """Return the record of the step that is best by a score on validation data."""
        sign = -1 if options.better == "lower" else 1
        scores = {key: self.records[key]["scores"].get(options.score, math.nan) for key in step.choices}
        finite_scores = {key: sign * value for key, value in scores.items() if math.isfinite(value)}
        if not finite_scores:
            factors = ", ".join(f"{self.plan.steps[key].rate_factor:g}" for key in step.choices)
            raise DivergedError(f"training diverged at all learning rates, {factors} times the default; try lower ones")
        best = max(finite_scores, key=lambda key: finite_scores[key])
        record = self.records[best]
        cost = {"device": record["cost"]["device"]}
        blocks = record.get("blocks")
        return make_record(step, record["scores"], record["amounts"], cost, blocks=blocks, selected_key=best)

    def _train_tokenizer(self, options: TokenizerOptions, folder: Path) -> Outcome:
        settings = {"vocab": options.vocab, **options.list_changes()}
        tokenizer = train_tokenizer(settings.pop("kind", options.kind), settings.pop("inputs"), **settings)
        tokenizer.save(folder, overwrite=True)
        return Outcome(scores={}, amounts={"vocab": tokenizer.vocab})

    def _pretrain(self, options: PretrainOptions, step: Step, folder: Path, resume: bool) -> Outcome:
        if resume:
            options = PretrainOptions(resume=True)
        else:
            options = replace(options, device=self.device, paper=True)  # all cells of a study have the same batch
            options = self._prepare(options, step, lambda values: build_pretrain_config(values).train.lr)
        summary = run_pretrain(replace(options, out=folder, device=self.device)).summary
        amounts = {name: summary[name] for name in ("parameters", "steps", "tokens")}
        amounts[EPOCHS] = max(summary.get("epochs", {}).values(), default=None)
        if step.model is not None and step.model.head is not None:  # a discriminator predicts no tokens itself
            amounts[UNIGRAM_LOSS] = summary.get("unigram_loss")
        return Outcome(scores=summary["held_out"] or {}, amounts=amounts, cost=summary["cost"])

    def _finetune(self, options: FinetuneOptions, step: Step, folder: Path, resume: bool) -> Outcome:
        task = self._open_task(options)
        baseline, _ = self._score_baseline(SIMPLEST_BASELINE, options, task)
        if resume:
            options = FinetuneOptions(resume=True)
        else:
            options = self._prepare(options, step, lambda values: build_finetune_config(values).train.lr)
            options = replace(options, baselines="none", data=self.data)
        scores = run_finetune(replace(options, out=folder, device=self.device)).scores
        result, facts = scores["result"], scores["model"]
        amounts = {name: facts.get(name) for name in ("parameters", "trained", "steps", "memory")}
        if amounts["parameters"]:
            amounts["trained_share"] = (amounts["trained"] or 0) / amounts["parameters"]
        predictions = read_predictions(read_record(TrialFile, RunDir(folder).trial, CheckpointError), result["split"])
        outcome = _score(task, predictions)
        amounts |= {f"{BASELINE_PREFIX}{name}": value for name, value in baseline.scores.items()} | {**outcome.amounts}
        scores = {**result["scores"], "dev": result["dev"]}
        return Outcome(scores=scores, amounts=amounts, cost=read_cost(folder), blocks=outcome.blocks)

    def _run_baseline(self, options: BaselineOptions) -> Outcome:
        name = options.baselines or ""
        outcome, reasons = self._score_baseline(name, options, self._open_task(options))
        if not outcome.scores:
            raise UsageError(f"baseline '{name}': {'; '.join(reasons)}")
        return outcome

    def _open_task(self, options: FinetuneOptions) -> TaskData:
        return open_task(build_task_config(options, self.data))

    def _score_baseline(self, name: str, options: FinetuneOptions, task: TaskData) -> tuple[Outcome, list[str]]:
        """Return the scores of a baseline on the examples of a fine-tuning; else the reasons why there are none."""
        if task.members:
            return Outcome(scores={}, amounts={}), ["not for several tasks at once"]
        count = next(iter(options.example_counts), None)
        train = task.select_train(count, build_task_config(options, self.data).split_seed)
        seed = int((options.overrides or {})["train.seed"])
        vectors = None if options.vectors is None else str(options.vectors)
        rows, reasons = run_baselines(task.task, train, task.eval_examples, (name,), seed=seed, vectors=vectors)
        if not rows:
            names = [reasons[name]] if name in reasons else [*dict.fromkeys(reasons.values())]
            return Outcome(scores={}, amounts={}), names
        return _score(task, rows[0].predictions), []


def _score(task: TaskData, predictions: Sequence[Prediction]) -> Outcome:
    """Return the scores on all test examples, and those without each of the blocks of them."""
    examples = task.eval_examples
    count = min(EXAMPLE_BLOCKS, len(examples))
    blocks: dict[str, list[float]] = {}
    for block in range(count if len(examples) > count else 0):
        places = [place for place in range(len(examples)) if place % count != block]
        scores = compute_scores(task, [examples[place] for place in places], [predictions[place] for place in places])
        for name, value in scores.items():
            blocks.setdefault(name, []).append(value)
    amounts = {TEST_EXAMPLES: len(examples)}
    return Outcome(scores=compute_scores(task, examples, predictions), amounts=amounts, blocks=blocks)


def read_cost(folder: Path) -> CostFile:
    """Return the cost that a run measured."""
    return read_record(CostFile, RunDir(folder).cost, CheckpointError)


def measure_cpu_seconds() -> float:
    """Return the CPU time of this process and of its finished children, which does not depend on other processes."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
