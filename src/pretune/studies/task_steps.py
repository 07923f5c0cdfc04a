"""Steps after pre-training: fine-tuning, baselines, embeddings and evaluations."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretune.core.config import from_dict
from pretune.core.errors import PretuneError, UsageError
from pretune.evaluation.baselines import SLOTS
from pretune.runs.embedding import EmbeddingConfig
from pretune.runs.finetune.config import TaskConfig
from pretune.runs.finetune.task_data import find_trainable_task
from pretune.runs.options.tasks import FILE_TASKS
from pretune.studies.estimates import BASELINE_SECONDS
from pretune.studies.locations import locate
from pretune.studies.model_steps import ModelSteps, select_config
from pretune.studies.plan import STEP_PREFIX, StepEstimate
from pretune.studies.settings import ROW_PREFIX, fill_seed, parse_scalar, read_seed, select_section
from pretune.studies.spec import FinetunedScore, check_name
from pretune.tasks import TASKS
from pretune.tasks.types import get_type

SPLIT_OPTIONS = ("train", "dev", "test")
PAIR_LENGTH, UNKNOWN_EXAMPLES = 64, 10_000
"""Tokens of a text of pairs, and pairs of a file that is not read, for estimates."""


class TaskSteps(ModelSteps):
    """Steps of a study so far, with methods that add those of tasks."""

    def _read_task(self, settings: Mapping[str, str], quantity: FinetunedScore) -> tuple[dict[str, Any], TaskConfig]:
        """Return the arguments that name a task or a table, and its config; missing files are noted."""
        section = select_section(settings, "finetune")
        names = ("train", "dev", "test", "type", "text", "pair", "label")
        arguments: dict[str, Any] = {}
        task = quantity.task or (section.get("task") if "train" not in section else None)
        if task is not None:
            find_trainable_task(task)
            arguments["task"] = task
        else:
            arguments |= {name: section[name] for name in names if name in section}
        if "task" not in arguments and "train" not in arguments:
            raise UsageError("no task; set 'finetune.task' or 'finetune.train', or name it in the measure")
        overrides = {path: value for path, value in section.items() if path.startswith("task.")}
        fields = {"name" if name == "task" else name: value for name, value in arguments.items()}
        for split in SPLIT_OPTIONS:
            if split in fields:
                self.find_file(fields[split], "table")
                fields[split] = locate(fields[split], self.data)[0]
        fields |= {path.removeprefix("task."): parse_scalar(value) for path, value in overrides.items()}
        if self.data is not None:
            fields["data"] = self.data
        return arguments, from_dict(TaskConfig, fields, "finetune.task")

    def _identify_task(self, arguments: Mapping[str, Any], task_config: TaskConfig) -> list[list[Any]]:
        """Return names and sizes of a task's files, which are a part of the key of a step; missing ones are noted."""
        if "task" not in arguments:
            return [self.identify_file(arguments[name], "table") for name in SPLIT_OPTIONS if name in arguments]
        return [entry for name in arguments["task"].split(",") for entry in self._list_files(name)]

    def _list_files(self, task: str) -> list[list[Any]]:
        available = TASKS.get(task).find_available(self.data)
        if not available:
            self.missing[describe_missing_task(task, self.data)] = None
        return [
            [f"{task}/{split}", sum(path.stat().st_size for path in files.paths)] for split, files in available.items()
        ]

    def add_finetune(self, settings: Mapping[str, str], seed: int, quantity: FinetunedScore, share: float) -> str:
        """Return the fine-tuning of a cell; with several learning rates, the choice among them."""
        first = self._build_finetune(settings, self.seeds[0], quantity, share)
        arguments = self._build_finetune(settings, seed, quantity, share)
        factors = self.rates.finetune
        if len(factors) < 2:
            return self._add_tuning(settings, arguments, quantity)
        runs = [self._add_tuning(settings, {**first, "rate_factor": factor}, quantity) for factor in factors]
        choice = {"steps": [f"{STEP_PREFIX}{key}" for key in runs], "score": "dev", "better": "higher"}
        key = self.add("choose", "learning rate of fine-tuning", choice, StepEstimate())
        if arguments == first:
            return key
        return self._add_tuning(settings, {**arguments, "rate_from": f"{STEP_PREFIX}{key}"}, quantity)

    def _build_finetune(
        self, settings: Mapping[str, str], seed: int, quantity: FinetunedScore, share: float
    ) -> dict[str, Any]:
        model = self.add_model(settings, seed, share)
        seed = read_seed(settings, "finetune", seed)
        settings = fill_seed(settings, seed)
        section = select_section(settings, "finetune")
        arguments, task_config = self._read_task(settings, quantity)
        arguments["identity"] = self._identify_task(arguments, task_config)
        for name in ("epochs", "steps", "force"):
            if name in section:
                arguments[name] = parse_scalar(section[name])
        if "method" in section:
            arguments["method"] = section["method"]
        if section.get("train_examples", "all") != "all":
            arguments["train_examples"] = int(section["train_examples"])
        if "teacher" in section:
            arguments["teacher"] = self._resolve_teacher(section["teacher"], seed, quantity, share)
        overrides = select_config("finetune", section)
        return {"model": model, **arguments, "overrides": {**overrides, "train.seed": seed}}

    def _resolve_teacher(self, name: str, seed: int, quantity: FinetunedScore, share: float) -> str:
        """Return the teacher that a setting names: the fine-tuned model of another row on the same task, or a path."""
        if not name.startswith(ROW_PREFIX):
            self.check_weights(name)
            return name
        settings = self.merge_row(name.removeprefix(ROW_PREFIX), None)
        return f"{STEP_PREFIX}{self.add_finetune(settings, seed, quantity, share)}"

    def _add_tuning(self, settings: Mapping[str, str], arguments: dict[str, Any], quantity: FinetunedScore) -> str:
        """Add a fine-tuning after a check of its config."""
        spec = self.find_spec(arguments["model"])
        estimate = StepEstimate()
        _, task_config = self._read_task(fill_seed(settings, int(arguments["overrides"]["train.seed"])), quantity)
        if spec is not None:
            options = {**arguments, **{name: getattr(task_config, name) for name in SPLIT_OPTIONS if name in arguments}}
            tuning = self.estimator.resolve_finetune(options, spec)
            if not self.missing:
                task = self.task_sizes.measure(task_config)
                estimate = self.estimator.estimate_finetune(tuning, spec, arguments.get("train_examples"), task)
        target = arguments.get("task") or Path(arguments["train"]).name
        label = f"{arguments.get('method', 'default method')} on {target}, seed {arguments['overrides']['train.seed']}"
        if "train_examples" in arguments:
            label += f", {arguments['train_examples']:,} examples"
        if "rate_factor" in arguments:
            label += f", {arguments['rate_factor']:g} x learning rate"
        return self.add("finetune", label, arguments, estimate)

    def has_baseline(self, settings: Mapping[str, str], quantity: FinetunedScore) -> bool:
        """Return False if the type of a named task has no such baseline; that of a table is known when it is read."""
        check_name("baseline", settings["baseline"], SLOTS, "baseline")
        name = self._read_task(fill_seed(settings, self.seeds[0]), quantity)[0].get("task")
        types = [] if name is None else [get_type(TASKS.get(task)) for task in name.split(",")]
        return all(settings["baseline"] in task_type.scoring.baselines for task_type in types)

    def add_baseline(self, settings: Mapping[str, str], seed: int, quantity: FinetunedScore) -> str:
        seed = read_seed(settings, "finetune", seed)
        settings = fill_seed(settings, seed)
        section = select_section(settings, "finetune")
        arguments, task_config = self._read_task(settings, quantity)
        arguments["identity"] = self._identify_task(arguments, task_config)
        arguments |= {"baseline": settings["baseline"], "seed": seed}
        if section.get("train_examples", "all") != "all":
            arguments["train_examples"] = int(section["train_examples"])
        if select_section(settings, "vectors"):
            arguments["vectors"] = f"{STEP_PREFIX}{self.add_vectors(settings, seed)}"
        arguments["overrides"] = {path: value for path, value in section.items() if path.startswith("task.")}
        return self.add(
            "baseline",
            f"{settings['baseline']} on {arguments.get('task') or Path(arguments['train']).name}",
            arguments,
            StepEstimate(seconds=BASELINE_SECONDS),
        )

    def add_embeddings(self, settings: Mapping[str, str], seed: int, share: float) -> str:
        """Return the trained embeddings of a row; of a row without such settings, its model."""
        section = select_section(fill_seed(settings, seed), "embeddings")
        options = {name: parse_scalar(value) for name, value in section.items()}
        model = self.add_model(settings, seed, share)
        if not {"task", "train"} & options.keys():
            return model
        arguments: dict[str, Any] = {"model": model, "seed": seed, **options}
        identity = self._list_files(str(options["task"])) if isinstance(options.get("task"), str) else []
        files = [str(options[name]) for name in ("train", "dev") if isinstance(options.get(name), str)]
        arguments["identity"] = [*identity, *(self.identify_file(name, "table") for name in files)]
        label = f"embeddings on {options.get('task') or options.get('train')}, seed {seed}"
        fields = {name: value for name, value in options.items() if name not in ("task", "train", "dev")}
        embedding = from_dict(EmbeddingConfig, fields, "embeddings")
        steps = embedding.steps or round(embedding.epochs * (self._count_train(options) / embedding.batch))
        sequences, length = 2 * steps * embedding.batch, min(embedding.length or PAIR_LENGTH, PAIR_LENGTH)
        estimate = self.estimator.estimate_embeddings(self.find_spec(model), sequences, length)
        return f"{STEP_PREFIX}{self.add('embeddings', label, arguments, estimate)}"

    def _count_train(self, options: Mapping[str, Any]) -> int:
        """Return the number of training examples of embeddings, as far as it is known."""
        available = TASKS.get(str(options["task"])).find_available(self.data) if "task" in options else {}
        return (available["train"].file.rows if "train" in available else None) or UNKNOWN_EXAMPLES

    def add_evaluation(
        self,
        settings: Mapping[str, str],
        seed: int,
        model: str,
        *,
        task: str | None = None,
        shots: int | None = None,
        text: tuple[str, ...] = (),
    ) -> str:
        settings = fill_seed(settings, seed)
        options = {name: parse_scalar(value) for name, value in select_section(settings, "evaluate").items()}
        arguments: dict[str, Any] = {"model": model, **options}
        examples = 2000
        if text:
            arguments["text"] = self.measure_corpus([*text])
        else:
            assert task is not None
            if task not in TASKS and task not in FILE_TASKS:
                TASKS.get(task)  # raises and names the nearest one
            arguments["task"] = task
            if shots is not None:
                arguments["shots"] = shots
            if task in FILE_TASKS:
                arguments["identity"] = [self.identify_file(str(options.get("data")), "file")]
            else:
                arguments["identity"] = self._list_files(task)
                examples = int(options.get("limit") or examples)
        spec = self.find_spec(model)
        label = f"{task or 'text'}{'' if shots is None else f', {shots} shots'}"
        length = 64.0 * (1 + (shots or 0))
        return self.add("evaluate", label, arguments, self.estimator.estimate_evaluation(spec, examples, length))


def describe_missing_task(name: str, data: str | None) -> str:
    """Return the reason why a task has no data, with where it goes."""
    task = TASKS.get(name)
    try:
        task.find(next(iter(task.splits)), data)
    except PretuneError as fault:
        return str(fault)
    return f"task '{name}': no data"
