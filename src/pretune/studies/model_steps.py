"""Steps from corpora to models: tokenizers, prepared data, static vectors and pre-training at a matched budget."""

import os
from collections.abc import Mapping
from typing import Any

from pretune.core.config import from_dict
from pretune.core.errors import UsageError
from pretune.core.log import format_count
from pretune.data.prepare.settings import PrepareConfig, parse_share
from pretune.models.spec import Model
from pretune.studies.estimates import (
    PREPARE_BYTES_PER_SECOND,
    TOKENIZER_BYTES_PER_SECOND,
    Estimator,
    PlannedModel,
    find_default_tokenizer,
    find_published_spec,
    find_spec,
)
from pretune.studies.locations import HUB_PREFIX, identify_input, inspect_input, locate
from pretune.studies.plan import STEP_PREFIX, Step, StepAction, StepEstimate, compute_key, list_inputs
from pretune.studies.settings import (
    CONFIG_SECTIONS,
    ROW_PREFIX,
    fill_seed,
    merge_settings,
    parse_list,
    parse_scalar,
    read_seed,
    select_section,
)
from pretune.studies.spec import Budget, Measure, Settings, Study, check_name
from pretune.studies.task_sizes import TaskSizes

LENGTHS = ("steps", "tokens", "epochs", "seconds")
LABELLED_ACTIONS = ("pretrain", "finetune", "embeddings", "baseline", "evaluate")
"""Steps whose label names the first row that needs them."""
MODEL_ARGUMENTS = ("init_from", "teacher", "tokenizer")
"""Arguments of steps that name a model or a tokenizer, beside `model`."""
MAX_STEPS = 5000
"""Larger plans are rejected as a mistake in a grid."""


class ModelSteps:
    """Steps of a study so far; methods add those of a model, and return a key or `step:KEY`.

    A model is `step:KEY`, or the path of existing weights.
    """

    def __init__(
        self,
        study: Study,
        scale_name: str,
        *,
        device: str,
        data: str | os.PathLike[str] | None,
        seeds: int | None,
        overrides: Settings,
    ) -> None:
        self.study, self.scale_name, self.scale = study, scale_name, study.get_scale(scale_name)
        self.data = None if data is None else os.fspath(data)
        self.overrides = overrides
        count = seeds or self.scale.seeds or study.seeds
        first_seed = study.first_seed if self.scale.first_seed is None else self.scale.first_seed
        self.seeds = tuple(range(first_seed, first_seed + count))
        self.budget: Budget = self.scale.budget or study.budget
        self.rates = self.scale.rates or study.rates
        self.estimator = Estimator(device)
        self.steps: dict[str, Step] = {}
        self.models: dict[str, PlannedModel] = {}  # by the key of their step
        self.missing: dict[str, None] = {}
        self.task_sizes = TaskSizes()
        self._inputs: dict[str, tuple[str, int, str | None]] = {}  # by their names
        self._digests: dict[str, str | None] = {}  # of inputs, by their names
        self.row_name = ""  # of the row that is planned, for labels

    def merge_row(self, row_name: str, measure: Measure | None) -> dict[str, str]:
        """Return the settings of a row for a measure; later layers go before earlier ones."""
        rows = [*self.study.list_rows(), *self.study.bases]
        check_name("row:", row_name, [row.name for row in rows])
        row = next(row for row in rows if row.name == row_name)
        layers: list[Settings] = [self.study.settings, self.scale.settings, row.settings]
        layers += [entry.settings for entry in self.scale.row_settings if entry.name == row_name]
        if measure is not None:
            layers.append(measure.settings)
            layers += [entry.settings for entry in self.scale.measure_settings if entry.name == measure.name]
        settings = merge_settings(*layers, self.overrides)
        check_one_model(settings)
        return settings

    def collect_inputs(self, key: str) -> list[str]:
        needed_keys = {key}
        for other in reversed([*self.steps]):
            if other in needed_keys:
                needed_keys.update(self.steps[other].inputs)
        return [other for other in self.steps if other in needed_keys]

    def add(self, action: StepAction, label: str, arguments: Mapping[str, Any], estimate: StepEstimate) -> str:
        """Add a step unless there is an equal one, and return its key."""
        names = [] if action == "pretrain" else ["model"]  # there it names a family
        paths = [arguments[name] for name in (*names, *MODEL_ARGUMENTS) if name in arguments]
        if digests := [[path, digest] for path in paths if (digest := self._compute_digest(path)) is not None]:
            arguments = {**arguments, "identity": [*arguments.get("identity", ()), *digests]}
        key = compute_key(action, arguments)
        if key not in self.steps:
            inputs = tuple(dict.fromkeys(list_inputs(arguments)))
            label = f"{self.row_name}: {label}" if action in LABELLED_ACTIONS else label
            self.steps[key] = Step(
                key=key, action=action, label=label, arguments=arguments, inputs=inputs, estimate=estimate
            )
            if len(self.steps) > MAX_STEPS:
                raise UsageError(f"more than {format_count(MAX_STEPS, 'steps')}; use a smaller grid or fewer seeds")
        return key

    def _compute_digest(self, name: str) -> str | None:
        if name.startswith(STEP_PREFIX):
            return None
        if name not in self._digests:
            self._digests[name] = identify_input(name, self.data)
        return self._digests[name]

    def find_file(self, name: str, noun: str) -> int:
        """Return the size of an input in bytes; 0, with a note, if it is missing."""
        if name not in self._inputs:
            self._inputs[name] = inspect_input(name, self.data)
        _, size, problem = self._inputs[name]
        if problem is not None:
            self.missing[f"{noun} {problem}"] = None
        return size

    def identify_file(self, name: str, noun: str) -> list[Any]:
        """Return the name and size of an input, and a digest of what may be edited: a part of the key of a step."""
        size, digest = self.find_file(name, noun), self._compute_digest(name)
        return [name, size] if digest is None else [name, size, digest]

    def measure_corpus(self, names: list[str]) -> list[list[Any]]:
        """Return names, sizes and digests of corpora."""
        return [self.identify_file(name, "corpus") for name in names]

    def _read_tokenizer(self, settings: Mapping[str, str]) -> dict[str, Any]:
        """Return the arguments of the tokenizer: the settings, by default those of the family's paper."""
        options = {name: parse_scalar(value) for name, value in select_section(settings, "tokenizer").items()}
        options.pop("corpus", None)
        defaults = find_default_tokenizer(settings["model"]) if "model" in settings else {"kind": "wordpiece"}
        if "kind" in options and options["kind"] != defaults["kind"]:
            defaults.pop("style", None)
        return {**defaults, **options}

    def _add_tokenizer(self, settings: Mapping[str, str]) -> str:
        options = self._read_tokenizer(settings)
        names = parse_list(settings.get("tokenizer.corpus", settings.get("corpus", "[]")))
        corpora = self.measure_corpus(names)
        seconds = min(sum(entry[1] for entry in corpora), 2e8) / TOKENIZER_BYTES_PER_SECOND
        label = f"{options['kind']} tokenizer of {options['vocab']:,} tokens"
        return self.add("tokenizer", label, {"corpus": corpora, **options}, StepEstimate(seconds=2 + seconds))

    def _add_data(self, settings: Mapping[str, str]) -> str:
        names = parse_list(settings.get("corpus", "[]"))
        if not names:
            raise UsageError("no corpus; set 'corpus: [builtin:reviews]'")
        path = settings.get("tokenizer.path")
        tokenizer = path if path is not None else f"{STEP_PREFIX}{self._add_tokenizer(settings)}"
        options = read_prepare_options(select_section(settings, "prepare"))
        if "valid" in options:
            options["valid"] = self.measure_corpus(options["valid"])
        corpora = self.measure_corpus(names)
        size = sum(entry[1] for entry in corpora)
        arguments = {"corpus": corpora, "tokenizer": tokenizer, **options}
        return self.add(
            "data", f"data of {', '.join(names)}", arguments, StepEstimate(seconds=3 + size / PREPARE_BYTES_PER_SECOND)
        )

    def add_model(self, settings: Mapping[str, str], seed: int, share: float) -> str:
        """Return the model of a row: a step, or the path of existing weights."""
        base = settings.get("base")
        if base is not None and base.startswith(ROW_PREFIX):
            return self.add_model(self.merge_row(base.removeprefix(ROW_PREFIX), None), seed, share)
        if base is not None:
            self.check_weights(base)
            return base
        if "model" in settings:
            return f"{STEP_PREFIX}{self.add_pretrain(settings, seed, share)}"
        if select_section(settings, "vectors"):
            return f"{STEP_PREFIX}{self.add_vectors(settings, seed)}"
        raise UsageError("no model; set 'model', 'base', 'baseline' or 'vectors.kind'")

    def check_weights(self, path: str) -> None:
        if path.startswith(HUB_PREFIX):
            return
        _, problem = locate(path, self.data)
        if problem is not None:
            self.missing[f"model {problem}"] = None

    def find_spec(self, model: str) -> Model | None:
        """Return the spec of a planned or existing model."""
        if model.startswith(STEP_PREFIX):
            key = model.removeprefix(STEP_PREFIX)
            step = self.steps[key]
            if step.action == "choose":
                key = step.inputs[0]
            if self.steps[key].action == "embeddings":
                return self.find_spec(self.steps[key].arguments["model"])
            return self.models[key].spec if key in self.models else None
        if model.startswith(HUB_PREFIX):
            return find_published_spec(model)
        path, problem = locate(model, self.data)
        return None if problem is not None else find_spec(path)

    def add_pretrain(self, settings: Mapping[str, str], seed: int, share: float) -> str:
        """Return the pre-training of a cell; with several learning rates, the choice among them."""
        factors = self.rates.pretrain
        first = self._build_pretrain(settings, self.seeds[0], share)
        arguments = self._build_pretrain(settings, seed, share)
        if len(factors) < 2:
            return self._add_run(settings, arguments, share)
        runs = [self._add_run(settings, {**first, "rate_factor": factor}, share) for factor in factors]
        choice = {"steps": [f"{STEP_PREFIX}{key}" for key in runs], "score": "loss", "better": "lower"}
        key = self.add("choose", f"learning rate of {settings['model']}", choice, StepEstimate())
        if arguments == first:
            return key
        return self._add_run(settings, {**arguments, "rate_from": f"{STEP_PREFIX}{key}"}, share)

    def _build_pretrain(self, settings: Mapping[str, str], seed: int, share: float) -> dict[str, Any]:
        """Return the arguments of `pt.pretrain`, without its length where FLOPs give it."""
        seed = read_seed(settings, "pretrain", seed)
        settings = fill_seed(settings, seed)
        section = select_section(settings, "pretrain")
        overrides = select_config("pretrain", section)
        arguments: dict[str, Any] = {
            "model": settings["model"],
            "data": f"{STEP_PREFIX}{self._add_data(settings)}",
            "overrides": {**overrides, "train.seed": seed},
        }
        if "objective" in section:
            arguments["objective"] = section["objective"]
        for name in ("init_from", "teacher"):
            if name in section:
                arguments[name] = self._resolve_model(section[name], seed)
        if "init_from" in arguments:  # the weights define the model
            for path in [path for path in overrides if path.startswith("model.")]:
                del arguments["overrides"][path]
        arguments |= self._read_length(section, share)
        return arguments

    def _read_length(self, section: Mapping[str, str], share: float) -> dict[str, Any]:
        """Return the length of a pre-training: that of the row, else that of the budget; FLOPs come later."""
        lengths = {name: parse_scalar(section[name]) for name in LENGTHS if name in section}
        if len(lengths) > 1:
            raise UsageError(f"a run has one length, got {' and '.join(lengths)}; keep one")
        if "seconds" in lengths:
            return {"budget": lengths["seconds"]}
        if lengths:
            return lengths
        if self.budget.tokens is not None:
            return {"tokens": max(round(self.budget.tokens * share), 1)}
        if self.budget.seconds is not None:
            return {"budget": self.budget.seconds * share}
        if self.budget.flops is None:
            raise UsageError("no length of pre-training; set a budget of tokens, flops or seconds")
        return {}

    def _resolve_model(self, name: str, seed: int) -> str:
        """Return the model that a setting names: that of another row with the same seed, or a path."""
        if not name.startswith(ROW_PREFIX):
            self.check_weights(name)
            return name
        return self.add_model(self.merge_row(name.removeprefix(ROW_PREFIX), None), seed, 1.0)

    def _add_run(self, settings: Mapping[str, str], arguments: dict[str, Any], share: float) -> str:
        """Add a pre-training, with the tokens that its FLOPs allow, after a check of its parameters."""
        data = self.steps[arguments["data"].removeprefix(STEP_PREFIX)]
        size = sum(entry[1] for entry in data.arguments["corpus"])
        teacher = self.find_spec(arguments["teacher"]) if "teacher" in arguments else None
        base = self.find_spec(arguments["init_from"]) if "init_from" in arguments else None
        tokenizer = self._read_tokenizer(settings)
        options = {name: value for name, value in arguments.items() if not name.startswith("rate_")}
        has_length = any(name in arguments for name in ("steps", "tokens", "epochs", "budget"))
        model = self._resolve(
            options if has_length else {**options, "tokens": 10**6}, tokenizer, data, size, teacher, base
        )
        if not has_length:
            assert self.budget.flops is not None
            arguments["tokens"] = options["tokens"] = max(round(self.budget.flops * share / model.flops_per_token), 1)
            model = self._resolve(options, tokenizer, data, size, teacher, base)
        self._check_parameters(model)
        label = f"{settings['model']}, {arguments.get('objective', 'objective of its paper')}"
        label += f", seed {arguments['overrides']['train.seed']}"
        if "rate_factor" in arguments:
            label += f", {arguments['rate_factor']:g} x learning rate"
        key = self.add("pretrain", label, arguments, self.estimator.estimate_pretrain(model))
        self.models[key] = model
        return key

    def _resolve(
        self,
        options: dict[str, Any],
        tokenizer: dict[str, Any],
        data: Step,
        size: int,
        teacher: Model | None,
        base: Model | None,
    ) -> PlannedModel:
        sources = len(data.arguments["corpus"])
        return self.estimator.resolve_model(options, tokenizer, size, sources, teacher, base)

    def _check_parameters(self, model: PlannedModel) -> None:
        target = self.budget.parameters
        if target is not None and abs(model.parameters - target) > self.budget.tolerance * target:
            raise UsageError(
                f"{model.parameters:,} parameters, the budget has {target:,} with a tolerance of "
                f"{self.budget.tolerance:.0%}; change the row's depth or width, or the budget"
            )

    def add_vectors(self, settings: Mapping[str, str], seed: int) -> str:
        options = {name: parse_scalar(value) for name, value in select_section(settings, "vectors").items()}
        corpora = self.measure_corpus(parse_list(settings.get("corpus", "[]")))
        arguments = {"corpus": corpora, **options, "seed": int(settings.get("vectors.seed", seed))}
        seconds = sum(entry[1] for entry in corpora) / 1e6
        return self.add(
            "vectors", f"{options.get('kind', 'word2vec')} vectors", arguments, StepEstimate(seconds=3 + seconds)
        )


def check_one_model(settings: Mapping[str, str]) -> None:
    """Raise a UsageError for a row that names static vectors and another model: only one of them would be measured."""
    names = [name for name in ("model", "base") if name in settings]
    if names and "baseline" not in settings and select_section(settings, "vectors"):
        raise UsageError(f"both '{names[0]}' and 'vectors' are set; a row has one model, remove one of them")


def read_prepare_options(section: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of `pt.prepare`; an invalid value is a UsageError."""
    options: dict[str, Any] = {
        name: parse_list(value) if name in ("valid", "clean") else parse_scalar(value)
        for name, value in section.items()
    }
    values = {name: value for name, value in options.items() if name != "valid"}
    if "holdout" in values:
        values["holdout"] = parse_share(values["holdout"])
    from_dict(PrepareConfig, values, "prepare").check()
    return options


def select_config(section: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that are paths of the config of a run."""
    return {
        path: value
        for path, value in settings.items()
        if "." in path and path.partition(".")[0] in CONFIG_SECTIONS[section]
    }
