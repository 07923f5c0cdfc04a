"""Which field of a table holds the text, and what a file says when it does not fit."""

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
"""Names a text field goes by, the surest first; capitals do not matter."""

_MAX_LISTED = 20


class UnfitError(DataError):
    """A file that is an error when it was named, and is skipped and counted (under `reason`) inside a folder."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type["UnfitError"], tuple[str, str]]:
        return UnfitError, (self.reason, str(self))  # so that it comes back from another process


def choose_field(columns: Mapping[str, bool], field: str | None, name: str) -> str:
    """The asked-for field, else the first of `TEXT_FIELDS`, else the only one with text (the values of `columns`).

    >>> choose_field({"id": False, "Text": True, "label": True}, None, "a.csv")
    'Text'
    """
    listed = ", ".join(f"'{column[:60]}'" for column in list(columns)[:_MAX_LISTED]) or "none"
    listed += ", …" if len(columns) > _MAX_LISTED else ""
    if field is not None:
        if field not in columns:
            raise DataError(f"{name}: no field '{field}'{suggest(field, columns)} (fields: {listed})")
        return field
    by_lower = {column.lower(): column for column, is_text in reversed([*columns.items()]) if is_text}
    for option in TEXT_FIELDS:
        if option in by_lower:
            return by_lower[option]
    texts = [column for column, is_text in columns.items() if is_text]
    if len(texts) == 1:
        return texts[0]
    found = "several fields could be" if texts else "no field is"
    raise UnfitError("tables_without_text_field", f"{name}: {found} the text; name one with field=… (fields: {listed})")
