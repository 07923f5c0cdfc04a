"""Choice of the text field of a table, and the error of an unsuitable file."""

from collections.abc import Mapping

from pretune.core.errors import DataError, suggest

TEXT_FIELDS = (
    "text",
    "content",
    "contents",
    "body",
    "document",
    "article",
    "passage",
    "paragraph",
    "sentence",
    "review",
    "story",
    "raw_content",
    "raw_text",
    "abstract",
)
"""Common names of text fields, most reliable first; case-insensitive."""

_MAX_LISTED = 20


class UnfitError(DataError):
    """Unsuitable file: an error if it was named, skipped and counted (under `reason`) inside a folder."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type["UnfitError"], tuple[str, str]]:
        return UnfitError, (self.reason, str(self))  # for pickling between processes


def choose_field(columns: Mapping[str, bool], field: str | None, name: str) -> str:
    """Return the requested field, else the first of `TEXT_FIELDS`, else the only text column (True in `columns`).

    >>> choose_field({"id": False, "Text": True, "label": True}, None, "a.csv")
    'Text'
    """
    field_names = ", ".join(f"'{column[:60]}'" for column in list(columns)[:_MAX_LISTED]) or "none"
    field_names += ", …" if len(columns) > _MAX_LISTED else ""
    if field is not None:
        if field not in columns:
            raise DataError(f"{name}: no field '{field}'{suggest(field, columns)} (fields: {field_names})")
        return field
    by_lower = {column.lower(): column for column, is_text in reversed([*columns.items()]) if is_text}
    for option in TEXT_FIELDS:
        if option in by_lower:
            return by_lower[option]
    texts = [column for column, is_text in columns.items() if is_text]
    if len(texts) == 1:
        return texts[0]
    problem = "several fields could be" if texts else "no field is"
    raise UnfitError("tables_without_text_field", f"{name}: {problem} the text; set field=… (fields: {field_names})")
