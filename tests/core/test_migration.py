"""Old names of settings: refused with the new name where a user types them, migrated in files."""

import pytest

from pretune.core.api import check_arguments
from pretune.core.errors import CheckpointError, UsageError
from pretune.core.migration import (
    FORMAT_KEY,
    FORMAT_VERSION,
    RENAMED_ARGUMENTS,
    RENAMED_SETTINGS,
    RENAMED_VALUES,
    migrate_run,
    migrate_specs,
    migrate_state,
    migrate_task,
    refuse_old_settings,
    refuse_old_tree,
)


@pytest.mark.parametrize(("old", "new"), RENAMED_SETTINGS.items())
def test_old_settings_are_refused_with_the_new_name(old: str, new: str) -> None:
    section, _, field = old.partition(".")
    for path, name in ((old, new), (f"{old}.inner", f"{new}.inner")):
        with pytest.raises(UsageError, match=f"'{path}' is now '{name}'"):
            refuse_old_settings({path: "1"})
    with pytest.raises(UsageError, match=f"'{new}'"):
        refuse_old_tree({section: {field: 1}})
    refuse_old_settings({new: "1"})


def test_old_values_and_arguments_are_refused_with_the_new_name() -> None:
    for path, values in RENAMED_VALUES.items():
        for old, new in values.items():
            with pytest.raises(UsageError, match=f"{path}={new}"):
                refuse_old_settings({path: old})
            refuse_old_settings({path: new})

    @check_arguments()
    def run(*, overrides: object, train_examples: object, config: object, init_from: object) -> None: ...

    for old, new in RENAMED_ARGUMENTS.items():
        with pytest.raises(UsageError, match=f"'{new}'"):
            run(**{old: None})


def test_sections_lose_their_kinds() -> None:
    old = {"train": {"kind": "fit", "judge": 5, "tariff": {"kind": "tariff", "grid": 1.0}}, "found": {"steps": 2}}
    new = {"train": {"eval_examples": 5, "cost_rates": {"grid_g_per_kwh": 1.0}}, "environment": {"steps": 2}}
    current = {FORMAT_KEY: FORMAT_VERSION, **new}
    assert migrate_run(old, CheckpointError, "run.json") == current
    assert migrate_run(current, CheckpointError, "run.json") == current
    assert refuse_old_tree({"train": {"kind": "fit", "steps": 5}}) == {"train": {"steps": 5}}


def test_specs_tasks_and_states() -> None:
    old = {"kind": "classification", "reading": {"kind": "reading", "at": "mean"}, "mix": None, "language": 0.5}
    new = {"kind": "classification", "pooling": {"kind": "pooling", "mode": "mean"}, "scalar_mix": None}
    assert migrate_specs([old]) == [{**new, "lm_loss_weight": 0.5}] == migrate_specs(migrate_specs([old]))
    task = {"kind": "kept", "kind_of": "span", "slots": 0, "members": [{"kind": "member", "new_tokens": 4}]}
    expected = {"task_kind": "span", "virtual_tokens": 0, "members": [{"max_new_tokens": 4}]}
    assert migrate_task(task, CheckpointError, "task.json") == expected
    assert migrate_task({FORMAT_KEY: FORMAT_VERSION, **expected}, CheckpointError, "task.json") == expected
    state = {"format": 1, "facts": {"config": "0f", "data": "1e"}}
    assert migrate_state(state, CheckpointError, "state.json") == {"format": 2, "facts": {"data": "1e"}}


def test_damaged_trees_do_not_break_it() -> None:
    deep: dict[str, object] = {}
    for _ in range(3000):
        deep = {"kind": ["no"], "x": deep}
    for tree in ({"train": deep, "task": {"kind": {}}}, {"train": [deep]}, {"model": deep}):
        migrate_run(tree, CheckpointError, "run.json")
        refuse_old_tree(tree)
    assert migrate_task({"members": [1, {"kind": []}]}, CheckpointError, "task.json")
    assert migrate_state({"facts": []}, CheckpointError, "state.json")
