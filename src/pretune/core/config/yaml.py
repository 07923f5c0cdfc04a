"""Strict YAML: no tags, no aliases (which can expand without bound), limited size and depth."""

from pathlib import Path
from typing import Any

from pretune.core.errors import UsageError
from pretune.core.io import read_bounded

MAX_BYTES = 1 << 18
MAX_DEPTH = 64
MAX_VALUES = 10_000
"""Values and keys; PyYAML reads a few thousand per second."""

MAX_SCALAR = 1 << 12
"""Characters of an unquoted value: converting it to a number takes quadratic time."""


def read_yaml(file: Path) -> dict[str, Any]:
    """Read the mapping in a YAML file."""
    import yaml

    data = read_bounded(file, UsageError, MAX_BYTES)
    try:
        _check_size(file, data)
        content = yaml.safe_load(data)
    # ArithmeticError and LookupError: dates and numbers that PyYAML cannot convert
    except (yaml.YAMLError, ValueError, RecursionError, ArithmeticError, LookupError) as fault:
        raise UsageError(f"{file}: invalid YAML: {_to_printable(str(fault))}") from None
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UsageError(f"{file}: expected sections with settings, got {type(content).__name__}")
    return content


def _check_size(file: Path, data: bytes) -> None:
    """Reject a file that would take more than linear time to read, before any value is built."""
    import yaml

    class Loader(yaml.SafeLoader):
        def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803 (the library's name)
            # NOTE: the scanner runs ahead of the events, in time quadratic in the depth.
            if self.flow_level > MAX_DEPTH:
                raise too_deep
            super().fetch_flow_collection_start(TokenClass)

    too_deep = UsageError(f"{file}: nested deeper than {MAX_DEPTH} levels")
    depth = 0
    for number, event in enumerate(yaml.parse(data, Loader=Loader)):
        if number > MAX_VALUES:
            raise UsageError(f"{file}: more than {MAX_VALUES:,} values")
        if isinstance(event, yaml.AliasEvent):
            raise UsageError(f"{file}: aliases (*{_to_printable(str(event.anchor))}) are not allowed; write it out")
        if getattr(event, "tag", None) is not None:
            raise UsageError(f"{file}: tags ({_to_printable(event.tag)}) are not allowed; leave it out")
        if isinstance(event, yaml.ScalarEvent) and event.style is None and len(event.value) > MAX_SCALAR:
            raise UsageError(f"{file}: a value of {len(event.value):,} characters without quotes; put it in quotes")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise too_deep


def _to_printable(text: str) -> str:
    line = " ".join(text.split())[:200]
    return "".join(letter if letter.isprintable() else "?" for letter in line)
