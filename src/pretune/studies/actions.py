"""Actions of steps: one call of a public function each, with the arguments of the plan."""

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretune.core import io
from pretune.core.config import from_dict, read_record
from pretune.core.errors import CheckpointError, DataError, DivergedError, UsageError
from pretune.core.run_dir import RunDir
from pretune.evaluation.baselines import run_baselines
from pretune.runs.defaults import build_pretrain_config
from pretune.runs.embedding import train_embeddings
from pretune.runs.evaluate import evaluate
from pretune.runs.finetune.config import TaskConfig
from pretune.runs.finetune.defaults import build_finetune_config
from pretune.runs.finetune.entry import finetune
from pretune.runs.finetune.task_data import compute_scores, open_task
from pretune.runs.options.pretrain import PretrainOptions
from pretune.runs.options.tasks import FinetuneOptions
from pretune.runs.prepare import prepare
from pretune.runs.pretrain import pretrain
from pretune.runs.vectors import train_vectors
from pretune.studies.locations import locate
from pretune.studies.plan import STEP_PREFIX, Plan, Step
from pretune.studies.settings import parse_scalar
from pretune.studies.study_dir import StepRecord, StudyDir, make_record
from pretune.text.tokenizer.training import train_tokenizer
from pretune.training.cost import CostMeter, CostRates, compute_cost
from pretune.training.distributed import resolve_device
from pretune.training.records import CostFile

Arguments = dict[str, Any]
Outcome = tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any] | None]
"""Scores, amounts, and the cost that the run measured itself."""
VECTORS_FILE = "vectors.txt"
SIMPLEST_BASELINE, BASELINE_PREFIX = "majority", "baseline."
"""Baseline whose scores stand beside those of a fine-tuning, as amounts: the majority class, or what stands for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRunner:
    """Runs single steps of a plan in its directory."""

    plan: Plan
    study_dir: StudyDir
    records: dict[str, StepRecord]
    device: str | None = None
    data: str | None = None  # directory of task data

    def run(self, step: Step, *, resume: bool = False) -> StepRecord:
        """Run a step and return its record; `resume` continues a run that was interrupted."""
        if step.action == "choose":
            return self._choose(step)
        folder = self.study_dir.get_folder(step)
        device = resolve_device(self.device)
        with io.translate_write_errors(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
        start, cpu_start, meter = time.monotonic(), measure_cpu_seconds(), CostMeter(lambda stats: 0.0, device)
        with meter:
            try:
                scores, amounts, cost = _ACTIONS[step.action](self, self.resolve(step.arguments), folder, resume)
            except DivergedError:
                if "rate_factor" not in step.arguments:
                    raise
                scores, amounts, cost = {}, {}, None  # the worst of the tries
        measured_cost = compute_cost([meter.compute_totals()], device, CostRates()).to_dict()
        seconds = {"total_seconds": time.monotonic() - start, "cpu_seconds": measure_cpu_seconds() - cpu_start}
        return make_record(step, scores, {**seconds, **amounts}, cost or measured_cost)

    def resolve(self, value: Any) -> Any:
        """Return arguments with the paths of steps in place of `step:KEY`; identities are left out."""
        if isinstance(value, str) and value.startswith(STEP_PREFIX):
            return str(self.find_output(value.removeprefix(STEP_PREFIX)))
        if isinstance(value, Mapping):
            return {name: self.resolve(item) for name, item in value.items() if name != "identity"}
        return [self.resolve(item) for item in value] if isinstance(value, list | tuple) else value

    def find_output(self, key: str) -> Path:
        """Return the output of a step: its directory, or its file of word vectors."""
        folder = self.study_dir.find_output(key, self.plan, self.records)
        file = folder / VECTORS_FILE
        return file if file.is_file() else folder

    def locate(self, name: str) -> str:
        """Return the path of an input; its absence is a DataError."""
        path, problem = locate(name, self.data)
        if problem is not None:
            raise DataError(f"missing {problem}")
        return path

    def locate_corpora(self, entries: list[Any]) -> list[str]:
        """Return the paths of corpora, which a plan gives with their sizes and digests."""
        return [self.locate(name) for name, *_ in entries]

    def find_rate_factor(self, arguments: Arguments) -> float | None:
        """Take the factor of the learning rate out of the arguments; that of a choice is the selected one's."""
        factor: float | None = arguments.pop("rate_factor", None)
        path = arguments.pop("rate_from", None)
        if path is not None:
            selected_step = next(step for step in self.plan.steps.values() if step.name == Path(path).name)
            factor = selected_step.arguments["rate_factor"]
        return factor

    def _choose(self, step: Step) -> StepRecord:
        """Return the record of the step that is best by a score on validation data."""
        score = step.arguments["score"]
        sign = -1 if step.arguments["better"] == "lower" else 1
        scores = {key: self.records[key]["scores"].get(score, math.nan) for key in step.inputs}
        finite_scores = {key: sign * value for key, value in scores.items() if math.isfinite(value)}
        if not finite_scores:
            factors = ", ".join(f"{self.plan.steps[key].arguments['rate_factor']:g}" for key in step.inputs)
            raise DivergedError(f"training diverged at all learning rates, {factors} times the default; try lower ones")
        best = max(finite_scores, key=lambda key: finite_scores[key])
        record = self.records[best]
        cost = {"device": record["cost"]["device"]}
        return make_record(step, record["scores"], record["amounts"], cost, selected_key=best)


def measure_cpu_seconds() -> float:
    """Return the CPU time of this process and of its finished children, which does not depend on other processes."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _train_tokenizer(runner: StepRunner, arguments: Arguments, folder: Path, resume: bool) -> Outcome:
    corpora = runner.locate_corpora(arguments.pop("corpus"))
    tokenizer = train_tokenizer(arguments.pop("kind"), [*corpora], vocab=arguments.pop("vocab"), **arguments)
    tokenizer.save(folder, overwrite=True)
    return {}, {"vocab": tokenizer.vocab}, None


def _prepare(runner: StepRunner, arguments: Arguments, folder: Path, resume: bool) -> Outcome:
    corpora = runner.locate_corpora(arguments.pop("corpus"))
    if "valid" in arguments:
        arguments["valid"] = runner.locate_corpora(arguments["valid"])
    arguments["tokenizer"] = runner.locate(arguments["tokenizer"])
    data = prepare(corpora, out=folder, data=runner.data, overwrite=True, **arguments)
    return {}, {"tokens": data.tokens}, None


def _pretrain(runner: StepRunner, arguments: Arguments, folder: Path, resume: bool) -> Outcome:
    if resume:
        run = pretrain(out=folder, resume=True, device=runner.device)
    else:
        factor = runner.find_rate_factor(arguments)
        for name in ("init_from", "teacher"):
            if name in arguments:
                arguments[name] = runner.locate(arguments[name])
        if factor is not None:
            rate = build_pretrain_config(PretrainOptions(**arguments, device=runner.device)).train.lr
            arguments["overrides"] = {**arguments["overrides"], "train.lr": f"{rate * factor:g}"}
        run = pretrain(out=folder, device=runner.device, **arguments)
    summary = run.summary
    amounts = {"parameters": summary["parameters"], "steps": summary["steps"], "tokens": summary["tokens"]}
    return summary["held_out"] or {}, amounts, summary["cost"]


def _train_vectors(runner: StepRunner, arguments: Arguments, folder: Path, resume: bool) -> Outcome:
    corpora = runner.locate_corpora(arguments.pop("corpus"))
    folder.mkdir(parents=True, exist_ok=True)
    vectors = train_vectors([*corpora], out=folder / VECTORS_FILE, **arguments)
    return {}, {"words": len(vectors.words)}, None


def _finetune(runner: StepRunner, arguments: Arguments, folder: Path, resume: bool) -> Outcome:
    baseline_scores, _ = _score_baseline(
        runner, arguments, SIMPLEST_BASELINE, int(arguments["overrides"]["train.seed"])
    )
    if resume:
        run = finetune(out=folder, resume=True, device=runner.device)
    else:
        factor = runner.find_rate_factor(arguments)
        for name in ("train", "dev", "test", "teacher"):
            if name in arguments:
                arguments[name] = runner.locate(arguments[name])
        model = runner.locate(arguments.pop("model"))
        if factor is not None:
            options = {name: value for name, value in arguments.items() if name != "train_examples"}
            rate = build_finetune_config(FinetuneOptions(model=model, **options)).train.lr
            arguments["overrides"] = {**arguments["overrides"], "train.lr": f"{rate * factor:g}"}
        options = {"baselines": "none", "data": runner.data, "device": runner.device}
        run = finetune(model, out=folder, **options, **arguments)
    result, model_facts = run.scores["result"], run.scores["model"]
    amounts = {name: model_facts.get(name) for name in ("parameters", "trained", "steps", "memory")}
    if amounts["parameters"]:
        amounts["trained_share"] = (amounts["trained"] or 0) / amounts["parameters"]
    amounts |= {f"{BASELINE_PREFIX}{name}": value for name, value in baseline_scores.items()}
    cost = read_record(CostFile, RunDir(folder).cost, CheckpointError)
    return {**result["scores"], "dev": result["dev"]}, amounts, cost


def _train_embeddings(runner: StepRunner, arguments: Arguments, folder: Path, resume: bool) -> Outcome:
    for name in ("model", "train", "dev"):
        if name in arguments:
            arguments[name] = runner.locate(arguments[name])
    run = train_embeddings(out=folder, data=runner.data, device=runner.device, resume=resume, **arguments)
    cost = read_record(CostFile, RunDir(folder).cost, CheckpointError)
    return run.scores["after"], {"steps": run.scores["steps"]}, cost


def _run_baseline(runner: StepRunner, arguments: Arguments, folder: Path, resume: bool) -> Outcome:
    name = arguments["baseline"]
    scores, reasons = _score_baseline(runner, arguments, name, arguments["seed"], arguments.get("vectors"))
    if not scores:
        raise UsageError(f"baseline '{name}': {'; '.join(reasons)}")
    return scores, {}, None


def _score_baseline(
    runner: StepRunner, arguments: Arguments, name: str, seed: int, vectors: str | None = None
) -> tuple[Mapping[str, float], list[str]]:
    """Return the scores of a simple baseline on the examples of a fine-tuning; else the reasons why there are none."""
    fields: Arguments = {
        "name" if field == "task" else field: arguments[field] for field in _TASK_FIELDS & arguments.keys()
    }
    for split in ("train", "dev", "test"):
        if split in fields:
            fields[split] = runner.locate(fields[split])
    overrides: Mapping[str, Any] = arguments["overrides"]
    fields |= {
        path.removeprefix("task."): parse_scalar(value) if isinstance(value, str) else value
        for path, value in overrides.items()
        if path.startswith("task.")
    }
    task_config = from_dict(TaskConfig, {**fields, "data": runner.data}, "finetune.task")
    task = open_task(task_config)
    if task.members:
        return {}, ["not for several tasks at once"]
    train = task.select_train(arguments.get("train_examples"), task_config.split_seed)
    rows, reasons = run_baselines(task.task, train, task.eval_examples, (name,), seed=seed, vectors=vectors)
    if not rows:
        return {}, [reasons[name]] if name in reasons else [*dict.fromkeys(reasons.values())]
    return compute_scores(task, task.eval_examples, rows[0].predictions), []


def _evaluate(runner: StepRunner, arguments: Arguments, folder: Path, resume: bool) -> Outcome:
    model, task = runner.locate(arguments.pop("model")), arguments.pop("task", ())
    text = runner.locate_corpora(arguments.pop("text", []))
    data: str | os.PathLike[str] | None = arguments.pop("data", None)
    data = runner.data if data is None else runner.locate(str(data))
    result = evaluate(model, task, text=text, data=data, device=runner.device, **arguments)[0]
    return result.scores, {}, None


_TASK_FIELDS = {"task", "train", "dev", "test", "type", "text", "pair", "label"}
_ACTIONS: Mapping[str, Callable[[StepRunner, Arguments, Path, bool], Outcome]] = {
    "tokenizer": _train_tokenizer,
    "data": _prepare,
    "pretrain": _pretrain,
    "vectors": _train_vectors,
    "finetune": _finetune,
    "embeddings": _train_embeddings,
    "baseline": _run_baseline,
    "evaluate": _evaluate,
}
