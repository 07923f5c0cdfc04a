"""Documents from Parquet: one per row, from one column; needs the extra `parquet`."""

from collections.abc import Iterator
from typing import Any

from pretune.core.errors import DataError, UsageError

_BATCH_ROWS = 256  # rows in memory


def read_parquet(path: str, field: str, name: str, start: int, stop: int | None, row: int) -> Iterator[tuple[str, int]]:
    """Yield (text, row) of the row groups from `start` to before `stop`; `row` is the number of the first row."""
    pyarrow = _import_pyarrow(name)
    try:
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as file:
            groups = [*range(start, file.num_row_groups if stop is None else stop)]
            for batch in file.iter_batches(_BATCH_ROWS, groups, [field], use_threads=False):
                for text in batch.column(0).to_pylist():
                    yield text or "", row
                    row += 1
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as fault:
        raise DataError(f"{name}: damaged Parquet at row {row}: {_get_first_line(fault)}") from fault


def list_parquet_columns(path: str, name: str) -> dict[str, bool]:
    """Return the columns of a file, each with whether it holds text."""
    pyarrow = _import_pyarrow(name)
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            return {column.name: _is_text(pyarrow, column.type) for column in file.schema_arrow}
    except (pyarrow.ArrowException, OSError) as fault:
        raise DataError(f"{name}: damaged Parquet: {_get_first_line(fault)}") from fault


def plan_parquet_spans(path: str, name: str, n_bytes: int) -> list[tuple[int, int | None, int]]:
    """Return ranges of row groups (first group, group to stop before, number of the first row)."""
    pyarrow = _import_pyarrow(name)
    with pyarrow.parquet.ParquetFile(path) as file:
        groups = [file.metadata.row_group(index) for index in range(file.num_row_groups)]
    starts, size, row = [(0, 1)], 0, 1
    for index, group in enumerate(groups):
        if size >= n_bytes:
            starts.append((index, row))
            size = 0
        size += group.total_byte_size
        row += group.num_rows
    ends = [*(start for start, _ in starts[1:]), None]
    return [(start, end, row) for (start, row), end in zip(starts, ends, strict=True)]


def _is_text(pyarrow: Any, kind: Any) -> bool:
    types = pyarrow.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _import_pyarrow(name: str) -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        raise UsageError(f"{name}: reading Parquet needs the extra 'parquet': pip install 'pretune[parquet]'") from None
    return pa


def _get_first_line(fault: Exception) -> str:
    return str(fault).partition("\n")[0][:200]
