"""Directory of a study: its plan, the directories and records of its steps, and its results.

plan.json                   the study, its claims and its steps, written before the first step
steps/pretrain-KEY/         the run of a step
steps/pretrain-KEY.json     its record, written last: marks the step as finished
study.json, .md, .html      the results
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NotRequired, TypedDict

from pretune.core import io
from pretune.core.config import Amount, Number, check_path, read_record
from pretune.core.errors import CheckpointError, UsageError, explain_missing, refuse_broken_link
from pretune.core.run_dir import RunDir, refuse_other_files
from pretune.studies.plan import FORMAT, Plan, Step

Numbers = Mapping[str, object]
"""Numbers by name; values of other types are left out of a record."""
COST_NAMES = ("seconds", "flops", "kwh", "co2e_kg", "dollars")


class StepCost(TypedDict):
    """Cost of a step."""

    device: str
    seconds: Amount
    flops: Amount
    kwh: Amount
    co2e_kg: Amount
    dollars: Amount
    is_shared: NotRequired[bool]  # energy and price are those of the device, for all steps that used it
    jobs: NotRequired[int]  # most steps at the same time
    overlap: NotRequired[Amount]  # mean number of steps that shared energy and price; 1: its own threads only


class StepRecord(TypedDict):
    """Record of a finished step."""

    format: int
    key: str
    action: str
    scores: dict[str, Number]  # the first one is the headline
    amounts: dict[str, Number]  # parameters, tokens, steps, memory …
    cost: StepCost
    blocks: NotRequired[dict[str, list[Number]]]  # each score without each of the blocks of the test examples
    selected_key: NotRequired[str]  # key of the step that a choice selected


class StudyDir:
    """Files of a study."""

    def __init__(self, path: str | os.PathLike[str], other_paths: Sequence[str | os.PathLike[str]] = ()) -> None:
        self.path = check_path(path)
        # Studies whose finished steps are read.
        self.other_studies = tuple(StudyDir(other) for other in other_paths)
        self.plan = self.path / "plan.json"
        self.steps = self.path / "steps"
        self.results = self.path / "study.json"
        self.text = self.path / "study.md"
        self.page = self.path / "study.html"

    def check_free(self) -> None:
        """Raise a UsageError if the directory holds files of something else; a study may continue in its own."""
        refuse_broken_link(self.path)
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"{self.path}: {explain_missing(self.path, 'directory')}; choose another --out")
        if self.path.is_dir() and not self.plan.is_file():
            refuse_other_files(self.path, own_names=(self.steps.name,))

    def write_plan(self, plan: Plan) -> None:
        """Write plan.json before the first step."""
        io.write_json(self.plan, plan.to_dict())

    def get_folder(self, step: Step) -> Path:
        """Return the directory of a step."""
        return self.steps / step.name

    def get_record_path(self, step: Step) -> Path:
        """Return the file that marks a step as finished."""
        return self.steps / f"{step.name}.json"

    def read_records(self, plan: Plan) -> dict[str, StepRecord]:
        """Return the records of the finished steps of a plan, by key."""
        records: dict[str, StepRecord] = {}
        for step in plan.steps.values():
            path = self.get_record_path(step)
            if path.is_file():
                record = read_record(StepRecord, path, CheckpointError)
                if record.get("selected_key", step.key) not in plan.steps:
                    raise CheckpointError(f"{path}: 'selected_key' is no step of the study; remove this file")
                if (record["format"], record["key"]) == (FORMAT, step.key):
                    records[step.key] = record
        return records

    def write_record(self, step: Step, record: StepRecord) -> None:
        """Write the record of a step, which marks it as finished."""
        with io.translate_write_errors(self.steps):
            self.steps.mkdir(parents=True, exist_ok=True)
        io.write_json(self.get_record_path(step), record)

    def find_output(self, key: str, plan: Plan, records: Mapping[str, StepRecord]) -> Path:
        """Return the directory of a step; of a choice, that of the step it selected."""
        record = records.get(key)
        return self._find_folder(plan.steps[record["selected_key"] if record and "selected_key" in record else key])

    def has_output(self, step: Step) -> bool:
        """Return whether the files of a finished step are there; merged records have none."""
        folder = self._find_folder(step)
        return any(folder.glob("*")) if folder.is_dir() else False

    def _find_folder(self, step: Step) -> Path:
        """Return the directory of a step: its own, or that of another study that has finished the step."""
        for other in () if self.get_folder(step).is_dir() else self.other_studies:
            if other.get_record_path(step).is_file() and other.get_folder(step).is_dir():
                return other.get_folder(step)
        return self.get_folder(step)

    def find_interrupted(self, step: Step) -> bool:
        """Return whether a killed process left a run of this step that can be resumed; other leftovers are removed."""
        folder = self.get_folder(step)
        run_dir = RunDir(folder)
        if run_dir.settings.is_file() and (run_dir.has_checkpoints or run_dir.is_finished):
            return True
        if folder.exists():
            self.remove_folder(step)
        return False

    def remove_folder(self, step: Step) -> None:
        """Remove the directory of a step."""
        io.remove(self.path, f"{self.steps.name}/{step.name}", rf"{self.steps.name}/[a-z]+-[0-9a-f]+")

    def merge(self, sources: Sequence[str | os.PathLike[str]], plan: Plan) -> int:
        """Copy the records of finished steps from other directories of the study; return their number.

        Raises:
            UsageError: a directory has no study.
        """
        count = 0
        for source in map(StudyDir, sources):
            if not source.plan.is_file():
                raise UsageError(f"{source.path}: no study (plan.json is missing); pass the --out of one")
            for key, record in source.read_records(plan).items():
                if not self.get_record_path(plan.steps[key]).is_file():
                    self.write_record(plan.steps[key], record)
                    count += 1
        return count


def make_record(
    step: Step,
    scores: Numbers,
    amounts: Numbers,
    cost: Numbers,
    *,
    blocks: Mapping[str, Sequence[float]] | None = None,
    selected_key: str | None = None,
) -> StepRecord:
    """Return the record of a step; values that are not numbers are left out."""
    numbers = _select_numbers(cost)
    record: StepRecord = {
        "format": FORMAT,
        "key": step.key,
        "action": step.action,
        "scores": _select_numbers(scores),
        "amounts": _select_numbers(amounts),
        "cost": {
            "device": str(cost.get("device", "")),
            "seconds": float(numbers.get("seconds", 0.0)),
            "flops": float(numbers.get("flops", 0.0)),
            "kwh": float(numbers.get("kwh", 0.0)),
            "co2e_kg": float(numbers.get("co2e_kg", 0.0)),
            "dollars": float(numbers.get("dollars", 0.0)),
            "is_shared": cost.get("device") != "cpu" or cost.get("energy_label") == "measured",
        },
    }
    if blocks:
        record["blocks"] = {name: [*values] for name, values in blocks.items()}
    if selected_key is not None:
        record["selected_key"] = selected_key
    return record


def _select_numbers(values: Numbers) -> dict[str, float]:
    return {
        name: value for name, value in values.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }
