"""Parsing of `--set path=value` text into plain data, by the type of the field.

Text that fits none of the field's types is returned unchanged: reading it then fails with the field's path and types.
"""

import re
from typing import Any

from pretune.core.config.specs import KIND, FieldType, parse_annotation
from pretune.core.errors import UsageError
from pretune.core.io import parse_json

_INTEGER = re.compile(r"[+-]?\d+(_\d+)*")
_FLOAT = re.compile(r"[+-]?(\d+(_\d+)*\.?(\d+(_\d+)*)?|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_MAX_NUMBER_LENGTH = 40  # int() is quadratic in the number of digits; none that fits 64 bits is longer


def parse_value(annotation: Any, text: str, location: str) -> Any:
    """Return the plain value of a text for a field.

    Integers may be written 30_000 or 3e4; true, false, null and none in any case; specs and lists as JSON, or a spec
    by its kind alone: `norm=rms_norm`.
    """
    field_type = parse_annotation(annotation)
    word = text.strip()
    if text in field_type.literals:
        return text
    if field_type.is_optional and word.lower() in ("null", "none"):
        return None
    scalar = _parse_scalar(field_type, word)
    if scalar is not None:
        return scalar
    if (word.startswith("{") and field_type.specs) or (word.startswith("[") and field_type.tuples):
        return parse_json(word, UsageError, location)
    if field_type.specs and str not in field_type.scalars and (word in field_type.specs or not field_type.literals):
        return {KIND: word}
    return text


def _parse_scalar(field_type: FieldType, word: str) -> bool | int | float | None:
    scalar_types = {*field_type.scalars, *(type(literal) for literal in field_type.literals)}
    if bool in scalar_types and word.lower() in ("true", "false"):
        return word.lower() == "true"
    if len(word) > _MAX_NUMBER_LENGTH or not _FLOAT.fullmatch(word):
        return None
    if int in scalar_types and _INTEGER.fullmatch(word):
        return int(word)
    number = float(word)
    if int in scalar_types and number.is_integer():
        return int(number)
    return number if float in scalar_types else None
