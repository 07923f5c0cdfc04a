"""Plain values out of YAML: no tags, no aliases (which can grow without bound), no large or deep files."""

from pathlib import Path
from typing import Any

from pretune.core.errors import UsageError
from pretune.core.io import read_bounded

MAX_BYTES = 1 << 18
MAX_DEPTH = 64
MAX_VALUES = 10_000
"""Values and keys; the library reads a few thousand in a second."""

MAX_SCALAR = 1 << 12
"""Characters of an unquoted value: converting one to a number takes time that grows with the square of its length."""


def read_yaml(file: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds."""
    import yaml

    data = read_bounded(file, UsageError, MAX_BYTES)
    try:
        _check_size(file, data)
        found = yaml.safe_load(data)
    # ArithmeticError and LookupError: dates and numbers that the library cannot convert
    except (yaml.YAMLError, ValueError, RecursionError, ArithmeticError, LookupError) as fault:
        raise UsageError(f"{file}: no readable YAML: {_to_printable(str(fault))}") from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise UsageError(f"{file}: expected sections with settings, found {type(found).__name__}")
    return found


def _check_size(file: Path, data: bytes) -> None:
    """Refuse what would take more than its size to read, before any value is made."""
    import yaml

    class Loader(yaml.SafeLoader):
        def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803 (the library's name)
            # NOTE: the scanner reads ahead of the events, in time that grows with the square of the depth.
            if self.flow_level > MAX_DEPTH:
                raise too_deep
            super().fetch_flow_collection_start(TokenClass)

    too_deep = UsageError(f"{file}: nested deeper than {MAX_DEPTH} levels; settings are not")
    depth = 0
    for number, event in enumerate(yaml.parse(data, Loader=Loader)):
        if number > MAX_VALUES:
            raise UsageError(f"{file}: more than {MAX_VALUES:,} values; settings have far fewer")
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
