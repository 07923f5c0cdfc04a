"""`metrics.jsonl`: what is known of a run's steps, one JSON object a line, in the order of steps.

    {"step": 100, "loss": 6.31, "rate": 1e-4, "tokens": 6553600}
    {"step": 100, "held_out": {"loss": 6.4}}
    {"step": 100, "event": "length", "length": 512}
    {"step": 101, "loss": null, "nonfinite": ["loss"]}

Lines are appended whole. A resumed run cuts off what a crash left half-written and what was said of steps that it will
take again, so that its file is that of a run without interruption, but for times. For this everything about a step has
to be written before the checkpoint that follows it.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from pretune.core import config
from pretune.core.errors import CheckpointError, UsageError
from pretune.core.io import open_in_place, parse_json, translate_write_errors
from pretune.training.records import MetricsLine

Value = float | int | str | bool | None | Mapping[str, "Value"]

METRICS_FILE = "metrics.jsonl"


class MetricsLog:
    """The file of one run, open for appending.

    A new run (`after` None) starts it afresh. A resumed run keeps the lines of steps up to `after`, the last one that
    its checkpoint has behind it; of these no more than the first `size` bytes, where that is known.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, last_step: int | None = None, max_size: int | None = None
    ) -> None:
        self.path = Path(directory) / METRICS_FILE
        with translate_write_errors(self.path):
            self._file = open_in_place(self.path)
            self.size = 0 if last_step is None else _find_valid_size(self.path, last_step, max_size)
            os.ftruncate(self._file, self.size)
            os.lseek(self._file, 0, os.SEEK_END)

    def write(self, step: int, values: Mapping[str, Value]) -> None:
        """Append a line. Numbers that are not finite become null, and `nonfinite` names them."""
        if "step" in values or "nonfinite" in values:
            raise UsageError("'step' and 'nonfinite' are written by the file itself; choose other names")
        lost: list[str] = []
        line: dict[str, Any] = {
            "step": step,
            **{name: _replace_nonfinite(name, value, lost) for name, value in values.items()},
        }
        if lost:
            line["nonfinite"] = lost
        data = (json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n").encode()
        with translate_write_errors(self.path):
            try:
                done = 0
                while done < len(data):
                    done += os.write(self._file, data[done:])
            except OSError:
                os.ftruncate(self._file, self.size)  # whole lines only, also when the disk is full
                os.lseek(self._file, 0, os.SEEK_END)
                raise
        self.size += len(data)

    def sync(self) -> None:
        """Wait until all is on the disk: before a checkpoint that has these steps behind it."""
        with translate_write_errors(self.path):
            os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_metrics(directory: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of a run; what is no line of ours, as the half of one that a crash left, is passed over."""
    return [
        line
        for text in (Path(directory) / METRICS_FILE).read_bytes().splitlines()
        if (line := _parse_line(text)) is not None
    ]


def _find_valid_size(path: Path, last_step: int, max_size: int | None) -> int:
    """The bytes up to the first line of a later step or beyond the limit, or to a last line that is not whole."""
    size = end = 0
    with path.open("rb") as file:
        for text in file:
            end += len(text)
            line = _parse_line(text)
            if (line is not None and line["step"] > last_step) or (max_size is not None and end > max_size):
                return size
            if text.endswith(b"\n") and line is not None:
                size = end
    return size


def _parse_line(text: bytes) -> dict[str, Any] | None:
    try:
        line = parse_json(text.decode(), CheckpointError, METRICS_FILE)
        config.check_record(MetricsLine, line, CheckpointError, METRICS_FILE)
    except (UnicodeDecodeError, CheckpointError):
        return None
    return cast(dict[str, Any], line)


def _replace_nonfinite(name: str, value: Value, nonfinite: list[str]) -> Any:
    """A value as JSON has it, and the names of those that it has no numbers for."""
    if isinstance(value, Mapping):
        return {key: _replace_nonfinite(f"{name}.{key}", item, nonfinite) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        nonfinite.append(name)
        return None
    return value
