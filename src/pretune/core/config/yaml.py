"""Plain values out of YAML: no tags, no aliases (which can grow without bound), no large files."""

from pathlib import Path
from typing import Any

from pretune.core.errors import UsageError, nearest_file

LIMIT = 1 << 20


def read_yaml(file: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds."""
    import yaml

    try:
        if file.stat().st_size > LIMIT:
            raise UsageError(f"{file}: {file.stat().st_size:,} bytes; a config has at most {LIMIT:,}")
        text = file.read_bytes()
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise UsageError(f"{file}: aliases (*{event.anchor}) are not allowed; write it out")
        found = yaml.safe_load(text)
    except FileNotFoundError:
        raise UsageError(f"{file}: no such file{nearest_file(file)}") from None
    except OSError as fault:
        raise UsageError(f"{file}: cannot be read: {fault.strerror}") from fault
    except (yaml.YAMLError, ValueError, RecursionError) as fault:
        raise UsageError(f"{file}: no readable YAML: {' '.join(str(fault).split())[:200]}") from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise UsageError(f"{file}: expected sections with settings, found {type(found).__name__}")
    return found
