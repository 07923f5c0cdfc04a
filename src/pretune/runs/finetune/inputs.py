"""New inputs as examples of a task: texts, pairs of texts, or mappings with the fields that training had."""

from collections.abc import Mapping, Sequence
from typing import Any

from pretune.core.errors import DataError
from pretune.runs.finetune.saved_task import Kept
from pretune.tasks.example import Example
from pretune.tasks.user_table import PAIRS, TEXT, pair_columns
from pretune.tasks.user_types import choices_of

NAMES = {
    "text": (*TEXT, "text_a", "text1", "sentence_a"),
    "pair": ("pair", *(second for _, second in PAIRS if second != "sentence")),
}
"""Fields of an input that are taken for an example's, the first that is there."""


def example_of(given: Any, kept: Kept, where: str) -> Example:
    """An input as an example: a text, two texts, or a mapping with the fields that training had (or text and pair)."""
    if isinstance(given, Example):
        return given
    if isinstance(given, str):
        given = {"text": given}
    elif isinstance(given, Sequence) and len(given) == 2 and all(isinstance(part, str) for part in given):
        given = {"text": given[0], "pair": given[1]}
    if not isinstance(given, Mapping):
        raise DataError(f"{where}: found a {type(given).__name__}; give a text, two texts, or a mapping with fields")
    words = _listed(given, "words", where) or _listed(given, "tokens", where)
    columns = kept.text, kept.pair
    if columns == (None, None) and kept.kind_of in ("pair", "regression"):
        columns = pair_columns(map(str, given)) or columns
    text = _field(given, columns[0], NAMES["text"], where)
    if kept.kind_of == "tagging":
        words = words or tuple((text or "").split())
        text = text if text is not None else " ".join(words)
    if text is None:
        there = ", ".join(map(str, given))[:100]
        raise DataError(
            f"{where}: no field '{kept.text or 'text'}' (it has {there or 'none'}); name the column that is the text "
            "(`pretune predict --text COL`, --text 1 where the file has no header)"
        )
    pair = _field(given, columns[1], NAMES["pair"], where)
    if pair is None and (kept.pair is not None or kept.kind_of in ("pair", "span")):
        what = kept.pair or ("context" if kept.kind_of == "span" else "pair")
        raise DataError(f"{where}: this task reads two texts; give the second as '{what}', or after a tab")
    choices = choices_of(given, where) if kept.kind_of == "choice" else ()
    if kept.kind_of == "choice" and len(choices) < 2:
        raise DataError(f"{where}: this task chooses among options; give at least two as the list 'choices'")
    facts = {str(name): str(value) for name, value in given.items() if isinstance(value, str)}
    return Example(text=text, pair=pair, words=words, choices=choices, id=str(given.get("id", "")), facts=facts)


def _field(given: Mapping[str, Any], column: str | None, usual: Sequence[str], where: str) -> str | None:
    alike = {str(name).strip().lower(): name for name in reversed([*given])}
    names = [column, *(alike[name] for name in usual if name in alike)]
    name = next((name for name in names if name in given), None)
    if name is None:
        return None
    if not isinstance(given[name], str):
        raise DataError(f"{where}: '{name}' holds a {type(given[name]).__name__}; text is expected")
    return str(given[name])


def _listed(given: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    found = given.get(name, ())
    if isinstance(found, str) or not isinstance(found, Sequence) or not all(isinstance(one, str) for one in found):
        raise DataError(f"{where}: '{name}' must be a list of texts")
    return tuple(found)
