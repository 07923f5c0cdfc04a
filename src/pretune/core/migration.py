"""Old names of settings, and migration of the JSON files that earlier versions wrote.

Files without a number (`FORMAT_KEY`) are of format 1. Files are migrated when they are read, silently, and are never
changed. Settings that a user types under an old name (options, `--set`, YAML, arguments in Python) are an error that
names the new one.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pretune.core.errors import PretuneError, UsageError

FORMAT_KEY = "format"
FORMAT_VERSION = 2
"""Of run.json, task.json and state.json."""
MAX_DEPTH = 64
"""Levels of a tree; specs have fewer."""

RENAMED_SETTINGS = {
    "base.extra": "base.extra_layers",
    "task.labels": "task.train_examples",
    "task.split": "task.split_seed",
    "task.most": "task.max_eval_examples",
    "task.each": "task.max_examples_per_task",
    "tune.trained": "tune.trainable_layers",
    "tune.decay": "tune.layer_decay",
    "tune.reading": "tune.pooling",
    "tune.mix": "tune.scalar_mix",
    "tune.language": "tune.lm_loss_weight",
    "tune.text": "tune.text_to_text",
    "objective.spans.most": "objective.spans.max_length",
    "method.after": "method.sublayers",
    "train.optimizer.factored": "train.optimizer.factor_moments",
    "train.optimizer.scaled": "train.optimizer.scale_parameter",
    "data.short": "data.length_schedule",
    "data.new_tokens": "data.max_new_tokens",
    "train.start": "train.init_from",
    "train.recompute": "train.activation_checkpointing",
    "train.graphs": "train.cuda_graphs",
    "train.tariff": "train.cost_rates",
    "train.keep": "train.max_checkpoints",
    "train.residual": "train.residual_precision",
    "train.judge": "train.eval_examples",
    "plan.labels": "plan.train_examples",
}
"""Old paths of settings to new ones."""

RENAMED_VALUES: dict[str, dict[Any, str]] = {
    "tune.head": {"drawn": "random"},
    "train.attention_backend": {"plain": "sdpa", "naive": "eager"},
}
"""By the path of a setting: old values to new ones."""

RENAMED_OPTIONS = {"--labels": "--train-examples"}
"""Old options of the command line to new ones."""

RENAMED_ARGUMENTS = {"changes": "overrides", "labels": "train_examples", "settings": "config", "start": "init_from"}
"""Old arguments of `pt.pretrain` and `pt.finetune` to new ones."""

RENAMED_METHODS = {
    "first": "freeze-first",
    "last": "last-only",
    "extra": "extra-layers",
    "mix": "scalar-mix",
    "random": "from-scratch",
}
"""Old values of `--method`, which stay as aliases."""

_RENAMED_KINDS = {"reading": "pooling"}
_RENAMED_FIELDS: dict[str, dict[str, str]] = {
    "pooling": {"at": "mode"},
    "choice": {"reading": "pooling", "mix": "scalar_mix"},
    "classification": {"reading": "pooling", "mix": "scalar_mix", "language": "lm_loss_weight"},
    "regression": {"reading": "pooling", "mix": "scalar_mix"},
    "span": {"mix": "scalar_mix"},
    "tagging": {"mix": "scalar_mix"},
    "geometric": {"most": "max_length"},
    "adafactor": {"factored": "factor_moments", "scaled": "scale_parameter"},
    "adapter": {"after": "sublayers"},
    "factor": {"after": "input"},
    "relative_bias": {"far": "max_distance"},
    "tariff": {"grid": "grid_g_per_kwh", "hour": "dollars_per_device_hour", "kwh": "dollars_per_kwh"},
}
"""By the new kind of a spec: old fields to new ones."""

_UNTAGGED_KINDS = {
    "base",
    "cut",
    "fit",
    "kept",
    "member",
    "plan",
    "reading",
    "tariff",
    "teaching",
    "train",
    "tune",
    "wanted",
}
"""Kinds of sections, which format 1 names and later formats do not."""

_STATE_FIELDS = {
    "elapsed": "elapsed_seconds",
    "skipped": "skipped_steps",
    "in_a_row": "consecutive_skips",
    "least": "min_micro",
    "planned": "planned_ends",
    "judged": "last_eval_step",
    "held": "eval_metrics",
    "waited": "data_wait",
    "written": "metrics_bytes",
}
_TASK_FIELDS = {"kind_of": "task_kind", "new_tokens": "max_new_tokens", "slots": "virtual_tokens"}


def refuse_old_settings(changes: Mapping[str, Any]) -> None:
    """Raise a UsageError for the first old path, or old value of a path, among settings that a user typed."""
    for path, value in changes.items():
        for old, new in RENAMED_SETTINGS.items():
            if path == old or path.startswith(f"{old}."):
                raise UsageError(f"'{path}' is now '{new}{path.removeprefix(old)}'")
        new_values = RENAMED_VALUES.get(path, {})
        if isinstance(value, str) and value.strip() in new_values:
            raise UsageError(f"'{path}={value.strip()}' is now '{path}={new_values[value.strip()]}'")


def refuse_old_tree(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree of settings that a user typed, without the kinds of its sections; old names are refused."""
    sections = {name: _drop_kind(part) for name, part in tree.items()}
    for name, part in sections.items():
        if isinstance(part, Mapping):
            refuse_old_settings({f"{name}.{path}": value for path, value in _flatten(part)})
    return sections


def migrate_run(tree: Mapping[str, Any], error: type[PretuneError], source: str) -> dict[str, Any]:
    """Return the content of a run.json in the current format."""
    if _read_version(tree, error, source) == FORMAT_VERSION:
        return dict(tree)
    result: dict[str, Any] = {FORMAT_KEY: FORMAT_VERSION}
    for section, part in tree.items():
        name = {"found": "environment", "before": "initial_scores"}.get(section, section)
        if section in ("model", "objective", "method", "loss", "embedding") or not isinstance(part, Mapping):
            result[name] = migrate_specs(part)
            continue
        values = {}
        for field, value in part.items():
            old = f"{section}.{field}"
            new = RENAMED_SETTINGS.get(old, old)
            if field != "kind" or section == "found":
                new_value = migrate_specs(value)
                values[new.partition(".")[2]] = _rename_value(new, new_value)
        result[name] = values
    return result


def migrate_task(tree: Mapping[str, Any], error: type[PretuneError], source: str) -> dict[str, Any]:
    """Return the content of a task.json in the current format, without the number of the format."""
    result = {name: value for name, value in tree.items() if name != FORMAT_KEY}
    if _read_version(tree, error, source) == FORMAT_VERSION:
        return result
    members = tree.get("members")
    if isinstance(members, list):
        result["members"] = [
            _rename(_drop_kind(member), _TASK_FIELDS) if isinstance(member, Mapping) else member for member in members
        ]
    return _rename(_drop_kind(result), _TASK_FIELDS)


def migrate_trial(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a trial.json with current names."""
    return _rename(facts, {"said": "predictions"})


def migrate_state(tree: Mapping[str, Any], error: type[PretuneError], source: str) -> dict[str, Any]:
    """Return the content of a checkpoint's state.json in the current format.

    The hash of the settings is dropped from format 1: it is of the old names. A run that is resumed compares its
    settings, migrated, with those of run.json.
    """
    if _read_version(tree, error, source) == FORMAT_VERSION:
        return dict(tree)
    facts = tree.get("facts")
    if isinstance(facts, Mapping):
        facts = {name: migrate_specs(value) for name, value in facts.items() if name != "config"}
        if isinstance(facts.get("state"), Mapping):
            facts["state"] = _rename(facts["state"], _STATE_FIELDS)
    return {**tree, FORMAT_KEY: FORMAT_VERSION, "facts": facts}


def migrate_specs(node: Any, depth: int = 0) -> Any:
    """Return the plain form of specs with current kinds and fields; deeper than `MAX_DEPTH` nothing changes."""
    if isinstance(node, list | tuple) and depth < MAX_DEPTH:
        return [migrate_specs(item, depth + 1) for item in node]
    if not isinstance(node, Mapping) or depth >= MAX_DEPTH:
        return node
    values = {name: migrate_specs(value, depth + 1) for name, value in node.items()}
    kind = values.get("kind")
    if not isinstance(kind, str):
        return values
    kind = values["kind"] = _RENAMED_KINDS.get(kind, kind)
    values = _rename(values, _RENAMED_FIELDS.get(kind, {}))
    return _drop_kind(values)


def _read_version(tree: Mapping[str, Any], error: type[PretuneError], source: str) -> int:
    version = tree.get(FORMAT_KEY, 1)
    if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
        raise error(
            f"{source}: has format {str(version)[:40]}, this version reads 1 to {FORMAT_VERSION}; update pretune"
        )
    return version


def _rename_value(path: str, value: Any) -> Any:
    return RENAMED_VALUES.get(path, {}).get(value, value) if isinstance(value, str) else value


def _rename(values: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    return {fields.get(name, name): value for name, value in values.items()}


def _drop_kind(part: Any) -> Any:
    kind = part.get("kind") if isinstance(part, Mapping) else None
    if isinstance(kind, str) and kind in _UNTAGGED_KINDS:
        return {name: value for name, value in part.items() if name != "kind"}
    return part


def _flatten(part: Mapping[str, Any], depth: int = 0) -> Iterator[tuple[str, Any]]:
    for name, value in part.items():
        yield str(name), value
        if isinstance(value, Mapping) and depth < MAX_DEPTH:
            yield from ((f"{name}.{path}", inner) for path, inner in _flatten(value, depth + 1))
