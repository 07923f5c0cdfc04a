"""Conversion of new inputs to examples: texts, pairs of texts, or mappings with the training columns."""

from collections.abc import Mapping, Sequence
from typing import Any

from pretune.core.errors import DataError
from pretune.runs.finetune.saved_task import SavedTask
from pretune.tasks.example import Example
from pretune.tasks.user_table import PAIR_COLUMNS, TEXT_COLUMNS, find_pair_columns
from pretune.tasks.user_types import read_choices

FIELD_NAMES = {
    "text": (*TEXT_COLUMNS, "text_a", "text1", "sentence_a"),
    "pair": ("pair", *(second for _, second in PAIR_COLUMNS if second != "sentence")),
}
"""Field names of inputs by role; the first present one is used."""


def build_example(raw_input: Any, saved_task: SavedTask, source: str) -> Example:
    """Build an example from a text, two texts, or a mapping with the training columns (or text and pair)."""
    if isinstance(raw_input, Example):
        return raw_input
    if isinstance(raw_input, str):
        raw_input = {"text": raw_input}
    elif isinstance(raw_input, Sequence) and len(raw_input) == 2 and all(isinstance(part, str) for part in raw_input):
        raw_input = {"text": raw_input[0], "pair": raw_input[1]}
    if not isinstance(raw_input, Mapping):
        raise DataError(f"{source}: expected a text, two texts or a mapping, got {type(raw_input).__name__}")
    words = _read_list(raw_input, "words", source) or _read_list(raw_input, "tokens", source)
    columns = saved_task.text, saved_task.pair
    if columns == (None, None) and saved_task.task_kind in ("pair", "regression"):
        columns = find_pair_columns(map(str, raw_input)) or columns
    text = _read_field(raw_input, columns[0], FIELD_NAMES["text"], source)
    if saved_task.task_kind == "tagging":
        words = words or tuple((text or "").split())
        text = text if text is not None else " ".join(words)
    if text is None:
        field_names = ", ".join(map(str, raw_input))[:100]
        raise DataError(
            f"{source}: no field '{saved_task.text or 'text'}' (has {field_names or 'none'}); pass the text column "
            "(`pretune predict --text COL`, --text 1 for files without a header)"
        )
    pair = _read_field(raw_input, columns[1], FIELD_NAMES["pair"], source)
    if pair is None and (saved_task.pair is not None or saved_task.task_kind in ("pair", "span")):
        missing_field = saved_task.pair or ("context" if saved_task.task_kind == "span" else "pair")
        raise DataError(f"{source}: this task needs two texts; pass the second as '{missing_field}', or after a tab")
    choices = read_choices(raw_input, source) if saved_task.task_kind == "choice" else ()
    if saved_task.task_kind == "choice" and len(choices) < 2:
        raise DataError(f"{source}: this task needs at least two options in the list 'choices'")
    facts = {str(name): str(value) for name, value in raw_input.items() if isinstance(value, str)}
    return Example(text=text, pair=pair, words=words, choices=choices, id=str(raw_input.get("id", "")), facts=facts)


def _read_field(fields: Mapping[str, Any], column: str | None, default_names: Sequence[str], source: str) -> str | None:
    alike = {str(name).strip().lower(): name for name in reversed([*fields])}
    names = [column, *(alike[name] for name in default_names if name in alike)]
    name = next((name for name in names if name in fields), None)
    if name is None:
        return None
    if not isinstance(fields[name], str):
        raise DataError(f"{source}: '{name}' must be a string, got {type(fields[name]).__name__}")
    return str(fields[name])


def _read_list(fields: Mapping[str, Any], name: str, source: str) -> tuple[str, ...]:
    values = fields.get(name, ())
    if (
        isinstance(values, str)
        or not isinstance(values, Sequence)
        or not all(isinstance(value, str) for value in values)
    ):
        raise DataError(f"{source}: '{name}' must be a list of strings")
    return tuple(values)
