"""Planning: the rows, seeds and measures of a study become steps that share what they have in common.

Everything that can be wrong is found here, before anything is computed: names, paths, budgets, and missing data.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pretune.core import log
from pretune.core.api import StrPath
from pretune.core.config import from_dict
from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.data.prepare.settings import PrepareConfig, parse_share
from pretune.evaluation.baselines import SLOTS
from pretune.runs.embedding import EmbeddingConfig
from pretune.runs.finetune.defaults import build_finetune_config
from pretune.runs.finetune.task_data import find_trainable_task
from pretune.runs.options import PrepareOptions, PretrainOptions, TokenizerOptions, VectorsOptions
from pretune.runs.task_options import FILE_TASKS, EmbeddingOptions, EvaluateOptions, FinetuneOptions
from pretune.runs.training_data import DataFacts
from pretune.studies.estimates import (
    BASELINE_SECONDS,
    BYTES_PER_TOKEN,
    PREPARE_BYTES_PER_SECOND,
    TOKENIZER_BYTES_PER_SECOND,
    Estimator,
    TaskSizes,
    find_default_tokenizer,
)
from pretune.studies.inputs import StudyInputs, build_task_config
from pretune.studies.plan import (
    STEP_PREFIX,
    BaselineOptions,
    Cell,
    ChoiceOptions,
    Plan,
    Reading,
    Step,
    StepCollector,
    StepEstimate,
    collect_inputs,
)
from pretune.studies.recipe_base import RecipeBases
from pretune.studies.settings import ROW_PREFIX, RowLayers, RowSettings
from pretune.studies.spec import (
    AverageScore,
    Budget,
    CostValue,
    CurveSaving,
    FinetunedScore,
    Measure,
    Quantity,
    Row,
    Settings,
    Study,
    TaskScore,
    TextScore,
    ValidationScore,
    check_name,
)
from pretune.tasks import TASKS
from pretune.tasks.types import get_type

PAIR_LENGTH, UNKNOWN_EXAMPLES = 64, 10_000
"""Tokens of a text of pairs, and pairs of a file that is not read, for estimates."""
EVAL_EXAMPLES, EVAL_LENGTH = 2000, 64.0
"""Examples of an evaluation and their tokens, for estimates."""


def plan_study(
    study: Study,
    scale: str = "class",
    *,
    device: str = "cpu",
    data: str | os.PathLike[str] | None = None,
    seeds: int | None = None,
    overrides: Settings = (),
) -> Plan:
    """Return the plan of a study at a scale.

    `device` is "cpu" or "cuda", for defaults and estimates. `data` is the directory of task data, by default
    $PRETUNE_DATA. `seeds` replaces the number of seeds; `overrides` go before all settings of the study.
    """
    return Planner(study, scale, device, None if data is None else os.fspath(data), seeds, overrides).plan()


class Planner:
    """Builds the plan of a study: the readings of every cell, and the steps behind them.

    Methods that add a step return its key; a model is also the path of existing weights.
    """

    def __init__(
        self, study: Study, scale_name: str, device: str, data: str | None, seeds: int | None, overrides: Settings
    ) -> None:
        self.study, self.scale_name, self.scale = study, scale_name, study.get_scale(scale_name)
        self.estimator, self.inputs = Estimator(device), StudyInputs(data)
        first_seed = study.first_seed if self.scale.first_seed is None else self.scale.first_seed
        self.seeds = range(first_seed, first_seed + (seeds or self.scale.seeds or study.seeds))
        self.budget: Budget = self.scale.budget or study.budget
        self.rates = self.scale.rates or study.rates
        self.steps = StepCollector(self.inputs)
        self.rows = RowLayers(study, self.scale, overrides, RecipeBases(self.inputs, self.budget.flops).build)
        self.task_sizes = TaskSizes()

    # Cells

    def plan(self) -> Plan:
        """Return the plan."""
        rows, measures = self.study.list_rows(self.scale), self._list_measures()
        if not rows or not measures:
            raise UsageError(f"study '{self.study.name}', scale '{self.scale_name}': no rows or no measures are left")
        cells = tuple(self._plan_cell(row, seed, measures) for row in rows for seed in self.seeds)
        used_names = [name for name in ("tokens", "flops", "seconds", "parameters") if getattr(self.budget, name)]
        return Plan(
            study=self.study,
            scale_name=self.scale_name,
            device=self.estimator.device.name,
            rows=tuple(rows),
            measures=tuple(measures),
            seeds=tuple(self.seeds),
            steps=self.steps.steps,
            cells=cells,
            missing=tuple(self.inputs.missing),
            budget={name: getattr(self.budget, name) for name in used_names},
            overrides=self.rows.overrides,
        )

    def _list_measures(self) -> list[Measure]:
        """Return the measures of the scale without those of tasks that have no data, if another task has some."""
        measures = self.study.list_measures(self.scale)
        tasks = {
            measure.name: measure.quantity.task
            for measure in measures
            if isinstance(measure.quantity, FinetunedScore | TaskScore) and measure.quantity.task in TASKS
        }
        problems: dict[str, str] = {}
        for name, task in tasks.items():
            inputs = StudyInputs(self.inputs.data)
            inputs.identify(str(task), "task")
            problems |= dict.fromkeys([name] if inputs.missing else [], ", ".join(inputs.missing))
        if len(problems) == len(tasks):
            return measures
        for name, problem in problems.items():
            log.warn(f"measure '{name}' is left out: {problem}")
        names = tuple(measure.name for measure in measures if measure.name not in problems)
        return self.study.list_measures(replace(self.scale, measures=names))

    def _plan_cell(self, row: Row, seed: int, measures: list[Measure]) -> Cell:
        self.steps.row_name = row.name
        readings: dict[str, Reading] = {}
        for measure in sorted(measures, key=lambda measure: isinstance(measure.quantity, CostValue)):
            place = f"study '{self.study.name}', row '{row.name}', measure '{measure.name}'"
            try:
                settings = self.rows.merge(row.name, seed, measure)
                if isinstance(measure.quantity, CostValue):
                    reading = self._plan_cost(settings, measure, measure.quantity, readings)
                else:
                    reading = self._plan_measure(measure.quantity, settings, measure.share)
            except (UsageError, DataError, CheckpointError) as fault:
                raise type(fault)(f"{place}: {fault}") from None
            except RecursionError:
                raise UsageError(f"{place}: rows start from each other in a circle") from None
            if reading is not None:
                readings[measure.name] = reading
        return Cell(row=row.name, seed=seed, readings=readings)

    def _plan_measure(self, quantity: Quantity, settings: RowSettings, share: float) -> Reading | None:
        """Return the reading of one measure; None where a row has none, such as the loss of a baseline."""
        if isinstance(quantity, AverageScore | CurveSaving):  # of the other numbers
            return None
        if settings.get("baseline") is not None:
            if not isinstance(quantity, FinetunedScore) or not self._has_baseline(settings, quantity):
                return None
            return Reading(step=self._add_baseline(settings, quantity).removeprefix(STEP_PREFIX), score=quantity.score)
        match quantity:
            case ValidationScore():
                if not settings.is_pretrained:
                    return None
                step = self._add_pretrain(settings, share)
            case TextScore(text=text):
                step = self._add_evaluation(settings, self._add_model(settings, share), text=text)
            case TaskScore(task=task, shots=shots, model="pretrained"):
                step = self._add_evaluation(settings, self._add_model(settings, share), task=task, shots=shots)
            case TaskScore(task=task):
                step = self._add_evaluation(settings, self._add_embeddings(settings, share), task=task)
            case FinetunedScore():
                step = self._add_finetune(settings, quantity, share)
            case _:
                raise TypeError(f"unexpected quantity {quantity!r}")
        return Reading(step=step.removeprefix(STEP_PREFIX), score=quantity.score)

    def _plan_cost(
        self, settings: RowSettings, measure: Measure, cost: CostValue, readings: Mapping[str, Reading]
    ) -> Reading | None:
        if cost.measure is not None:
            if cost.measure not in readings:
                return None
            key = readings[cost.measure].step
        elif settings.is_pretrained and settings.get("baseline") is None:
            key = self._add_pretrain(settings, measure.share).removeprefix(STEP_PREFIX)
        else:
            return None
        steps = collect_inputs(self.steps.steps, [key]) if cost.total else [key]
        return Reading(step=key, amount=cost.amount, steps=tuple(steps))

    # Models

    def _add_data(self, settings: RowSettings, tokenizer: TokenizerOptions) -> str:
        """Add prepared data, and its tokenizer unless that has a path."""
        corpora, path = settings.get_corpora(), settings.get("tokenizer.path")
        if not corpora:
            raise UsageError("no corpus; set 'corpus: [builtin:reviews]'")
        options = settings.read("prepare", PrepareOptions())
        values = {name: value for name, value in options.list_changes().items() if name != "valid"}
        if "holdout" in values:
            values["holdout"] = parse_share(values["holdout"])
        from_dict(PrepareConfig, values, "prepare").check()
        if path is None:
            size = min(self.inputs.sum_sizes(settings.get_corpora("tokenizer.corpus")), 2e8)
            estimate = StepEstimate(seconds=2 + size / TOKENIZER_BYTES_PER_SECOND)
            label = f"{tokenizer.kind} tokenizer of {tokenizer.vocab:,} tokens"
            path = self.steps.add(Step(options=tokenizer, label=label, estimate=estimate))
        estimate = StepEstimate(seconds=3 + self.inputs.sum_sizes(corpora) / PREPARE_BYTES_PER_SECOND)
        options = replace(options, inputs=corpora, tokenizer=path)
        return self.steps.add(Step(options=options, label=f"data of {', '.join(corpora)}", estimate=estimate))

    def _add_model(self, settings: RowSettings, share: float) -> str:
        """Return the model of a row."""
        base = settings.get("base")
        if base is not None:
            return self._resolve_model(base, settings.seed, share) or base
        if settings.get("model") is not None:
            return self._add_pretrain(settings, share)
        if settings.has_section("vectors"):
            return self._add_vectors(settings)
        raise UsageError("no model; set 'model', 'base', 'baseline' or 'vectors.kind'")

    def _resolve_model(self, name: StrPath | None, seed: int, share: float = 1.0) -> str | None:
        """Return the model that a setting names, if any: that of another row with the same seed, or a path."""
        if name is None or not str(name).startswith(ROW_PREFIX):
            return None if name is None else str(name)
        return self._add_model(self.rows.merge(str(name).removeprefix(ROW_PREFIX), seed), share)

    def _add_pretrain(self, settings: RowSettings, share: float) -> str:
        """Return the pre-training of a cell; with several learning rates, the choice among them."""
        first = self._build_pretrain(replace(settings, seed=self.seeds[0]), share)
        choice = Step(
            options=ChoiceOptions(score="loss", better="lower"), label=f"learning rate of {settings.get('model')}"
        )
        return self.steps.tune(first, self._build_pretrain(settings, share), self.rates.pretrain, choice)

    def _build_pretrain(self, settings: RowSettings, share: float) -> Step:
        """Return a pre-training with the tokens that its FLOPs allow, after a check of its parameters."""
        settings = settings.fill_seed("pretrain")
        options, corpora = settings.read("pretrain", PretrainOptions()), settings.get_corpora()
        tokenizer = self._read_tokenizer(settings)
        options = replace(
            options,
            model=settings.get("model"),
            data=self._add_data(settings, tokenizer),
            init_from=self._resolve_model(options.init_from, settings.seed),
            teacher=self._resolve_model(options.teacher, settings.seed),
        )
        base, teacher = (
            None if name is None else self.steps.find_spec(str(name)) for name in (options.init_from, options.teacher)
        )
        options = self._set_length(options, share)
        template = replace(options, data="data", init_from=None, teacher="teacher" if options.teacher else None)
        if options.init_from is not None:  # the weights define the model
            overrides = (options.overrides or {}).items()
            options = replace(options, overrides={p: value for p, value in overrides if not p.startswith("model.")})
        facts = DataFacts("data", max(round(self.inputs.sum_sizes(corpora) / BYTES_PER_TOKEN), 1), len(corpora))
        if not {"steps", "tokens", "epochs", "budget"} & options.list_changes().keys():
            assert self.budget.flops is not None
            model = self.estimator.resolve_model(
                replace(template, tokens=10**6), tokenizer, facts, teacher=teacher, base=base
            )
            tokens = max(round(self.budget.flops * share / model.flops_per_token), 1)
            options, template = replace(options, tokens=tokens), replace(template, tokens=tokens)
        model = self.estimator.resolve_model(template, tokenizer, facts, teacher=teacher, base=base)
        self._check_parameters(model.parameters)
        label = f"{options.model}, {options.objective or 'objective of its paper'}, seed {settings.seed}"
        return Step(
            options=options,
            label=label,
            estimate=self.estimator.estimate_pretrain(model),
            model=model.spec,
        )

    def _read_tokenizer(self, settings: RowSettings) -> TokenizerOptions:
        """Return the options of the tokenizer: the settings, by default those of the family's paper."""
        default = find_default_tokenizer(settings.get("model"))
        if settings.get("tokenizer.kind") not in (None, default.kind):
            default = replace(default, style=None)
        return settings.read("tokenizer", replace(default, inputs=settings.get_corpora("tokenizer.corpus")))

    def _set_length(self, options: PretrainOptions, share: float) -> PretrainOptions:
        """Return the options with the length of the row, else with that of the budget; FLOPs come later."""
        lengths = [name for name in ("steps", "tokens", "epochs", "budget") if name in options.list_changes()]
        if len(lengths) > 1:
            names = " and ".join("seconds" if name == "budget" else name for name in lengths)
            raise UsageError(f"a run has one length, got {names}; keep one")
        if lengths:
            return options
        if self.budget.tokens is not None:
            return replace(options, tokens=max(round(self.budget.tokens * share), 1))
        if self.budget.seconds is not None:
            return replace(options, budget=self.budget.seconds * share)
        if self.budget.flops is None:
            raise UsageError("no length of pre-training; set a budget of tokens, flops or seconds")
        return options

    def _check_parameters(self, parameters: int) -> None:
        target, tolerance = self.budget.parameters, self.budget.tolerance
        if target is not None and abs(parameters - target) > tolerance * target:
            raise UsageError(
                f"{parameters:,} parameters, the budget has {target:,} with a tolerance of {tolerance:.0%}; change the "
                "row's depth or width, or the budget"
            )

    def _add_vectors(self, settings: RowSettings) -> str:
        settings = settings.fill_seed("vectors")
        options = replace(settings.read("vectors", VectorsOptions()), inputs=settings.get_corpora(), seed=settings.seed)
        estimate = StepEstimate(seconds=3 + self.inputs.sum_sizes(settings.get_corpora()) / 1e6)
        return self.steps.add(Step(options=options, label=f"{options.kind} vectors", estimate=estimate))

    # Tasks

    def _read_task(self, settings: RowSettings, quantity: FinetunedScore) -> FinetuneOptions:
        """Return the options of a fine-tuning on a named task or a table."""
        options = settings.read("finetune", FinetuneOptions())
        task = quantity.task or (options.task if options.train is None else None)
        if task is None and options.train is None:
            raise UsageError("no task; set 'finetune.task' or 'finetune.train', or name it in the measure")
        if task is not None:
            find_trainable_task(task)
            options = replace(options, train=None, dev=None, test=None, type=None, text=None, pair=None, label=None)
        return replace(options, task=task)

    def _add_finetune(self, settings: RowSettings, quantity: FinetunedScore, share: float) -> str:
        """Return the fine-tuning of a cell; with several learning rates, the choice among them."""
        first = self._build_finetune(replace(settings, seed=self.seeds[0]), quantity, share)
        choice = Step(options=ChoiceOptions(score="dev", better="higher"), label="learning rate of fine-tuning")
        return self.steps.tune(first, self._build_finetune(settings, quantity, share), self.rates.finetune, choice)

    def _build_finetune(self, settings: RowSettings, quantity: FinetunedScore, share: float) -> Step:
        """Return a fine-tuning after a check of its config."""
        model = self._add_model(settings, share)
        settings = settings.fill_seed("finetune")
        options = replace(self._read_task(settings, quantity), model=model)
        if options.teacher is not None:
            teacher = self._resolve_teacher(str(options.teacher), settings, quantity, share)
            options = replace(options, teacher=teacher)
        spec, estimate = self.steps.find_spec(model), StepEstimate()
        if spec is not None:
            self.steps.identify_files(options)
            template = replace(options, model="model", teacher="teacher" if options.teacher else None)
            tuning = build_finetune_config(template, base_spec=spec)
            if not self.inputs.missing:
                task = self.task_sizes.measure(build_task_config(options, self.inputs.data))
                estimate = self.estimator.estimate_finetune(tuning, spec, task.limit(find_count(options), None))
        label = f"{options.method or 'default method'} on {name_task(options)}, seed {settings.seed}"
        if (count := find_count(options)) is not None:
            label += f", {count:,} examples"
        return Step(options=options, label=label, estimate=estimate)

    def _resolve_teacher(self, name: str, settings: RowSettings, quantity: FinetunedScore, share: float) -> str:
        """Return the teacher that a setting names: the fine-tuned model of another row on the same task, or a path."""
        if not name.startswith(ROW_PREFIX):
            return name
        return self._add_finetune(self.rows.merge(name.removeprefix(ROW_PREFIX), settings.seed), quantity, share)

    def _has_baseline(self, settings: RowSettings, quantity: FinetunedScore) -> bool:
        """Return False if the type of a named task has no such baseline; that of a table is known when it is read."""
        baseline = settings.get("baseline") or ""
        check_name("baseline", baseline, SLOTS, "baseline")
        task = self._read_task(settings.fill_seed("finetune"), quantity).task
        types = [] if task is None else [get_type(TASKS.get(name)) for name in task.split(",")]
        return all(baseline in task_type.scoring.baselines for task_type in types)

    def _add_baseline(self, settings: RowSettings, quantity: FinetunedScore) -> str:
        settings = settings.fill_seed("finetune")
        options, name = self._read_task(settings, quantity), settings.get("baseline")
        prefixes = ("task.", "train.seed")
        overrides = {path: value for path, value in (options.overrides or {}).items() if path.startswith(prefixes)}
        names = ("task", "train", "dev", "test", "type", "text", "pair", "label", "train_examples")
        changes = {option: value for option, value in options.list_changes().items() if option in names}
        vectors = self._add_vectors(settings) if settings.has_section("vectors") else None
        baseline = BaselineOptions(**changes, baselines=name, vectors=vectors, overrides=overrides)
        build_task_config(baseline, self.inputs.data)  # raises for a wrong setting
        estimate = StepEstimate(seconds=BASELINE_SECONDS)
        return self.steps.add(Step(options=baseline, label=f"{name} on {name_task(options)}", estimate=estimate))

    def _add_embeddings(self, settings: RowSettings, share: float) -> str:
        """Return the trained embeddings of a row; of a row without such settings, its model."""
        model = self._add_model(settings, share)
        options = settings.fill_seed().read("embeddings", EmbeddingOptions())
        if options.task is None and options.train is None:
            return model
        options = replace(options, model=model, seed=settings.seed if options.seed is None else options.seed)
        embedding = from_dict(EmbeddingConfig, options.list_settings(), "embeddings")
        examples = UNKNOWN_EXAMPLES
        if options.task is not None:
            available = TASKS.get(options.task).find_available(self.inputs.data)
            examples = (available["train"].file.rows if "train" in available else None) or UNKNOWN_EXAMPLES
        steps = embedding.steps or round(embedding.epochs * (examples / embedding.batch))
        sequences, length = 2 * steps * embedding.batch, min(embedding.length or PAIR_LENGTH, PAIR_LENGTH)
        spec = self.steps.find_spec(model)
        step = Step(
            options=options,
            label=f"embeddings on {options.task or options.train}, seed {settings.seed}",
            estimate=self.estimator.estimate_texts(spec, sequences, length, training=True),
            model=spec,
        )
        return self.steps.add(step)

    def _add_evaluation(
        self,
        settings: RowSettings,
        model: str,
        *,
        task: str | None = None,
        shots: int | None = None,
        text: tuple[str, ...] = (),
    ) -> str:
        options = settings.fill_seed().read("evaluate", EvaluateOptions())
        options = replace(options, model=model, text=text, shots=shots, task=task or ())
        if task in FILE_TASKS and task not in TASKS and options.data is None:
            self.inputs.missing[f"file of task '{task}': set 'evaluate.data'"] = None
        examples = EVAL_EXAMPLES if task is None or task in FILE_TASKS else options.limit or EVAL_EXAMPLES
        length = EVAL_LENGTH * (1 + (shots or 0))
        step = Step(
            options=options,
            label=f"{task or 'text'}{'' if shots is None else f', {shots} shots'}",
            estimate=self.estimator.estimate_texts(self.steps.find_spec(model), examples, length, training=False),
        )
        return self.steps.add(step)


def find_count(options: FinetuneOptions) -> int | None:
    """Return the number of training examples; None: all."""
    return next(iter(options.example_counts), None)


def name_task(options: FinetuneOptions) -> str:
    """Return the name of a task or of a table."""
    return options.task or Path(str(options.train)).name
