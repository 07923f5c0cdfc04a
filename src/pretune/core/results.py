"""Result objects: the same facts as a dictionary, as a table in a notebook, and as a pandas data frame."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pretune.core.errors import UsageError

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]  # noqa: ICN001


class Result:
    """Base of results: a subclass states `to_dict`, and `to_rows` where it is a table of several rows."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data, ready for JSON."""
        raise NotImplementedError

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the rows of the result as a table; one row by default."""
        return [flatten(self.to_dict())]

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the rows as a data frame. Raises UsageError where pandas is not installed."""
        try:
            import pandas  # noqa: ICN001
        except ImportError:
            raise UsageError("pandas is not installed; install it with `pip install pandas`") from None
        return pandas.DataFrame(self.to_rows())

    def _repr_html_(self) -> str:
        return render_table(self.to_rows())


class ResultList(list[Any], Result):
    """A list of results of one kind, as one table."""

    def to_dict(self) -> dict[str, Any]:
        """Return the results as plain data, under the key `results`."""
        return {"results": [result.to_dict() for result in self]}

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the rows of all results."""
        return [row for result in self for row in result.to_rows()]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a tree as one row: the scalars of nested mappings by their dotted paths; lists are left out.

    >>> flatten({"task": "sst2", "scores": {"accuracy": 0.9}, "notes": ["a"]})
    {'task': 'sst2', 'scores.accuracy': 0.9}
    """
    row: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            row |= flatten(value, f"{prefix}{name}.")
        elif value is None or isinstance(value, str | int | float | bool):
            row[f"{prefix}{name}"] = value
    return row


def render_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as an HTML table; everything in it is escaped."""
    columns = [*dict.fromkeys(name for row in rows for name in row)]

    def render_row(cells: Iterable[Any], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(_format_cell(cell))}</{tag}>' for cell in cells)}</tr>"

    body = "".join(render_row([row.get(name) for name in columns], "td") for row in rows)
    return f"<table><thead>{render_row(columns, 'th')}</thead><tbody>{body}</tbody></table>"


def _format_cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
