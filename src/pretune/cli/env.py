"""`pretune env`: what a bug report needs."""

import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Annotated, Any

import typer

from pretune import __version__

_PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "transformers", "datasets", "huggingface_hub")


def env(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show versions, devices and settings, for bug reports.

    Example: pretune env --json
    """
    facts = collect()
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    devices = [f"{device['name']} ({_gibibytes(device['memory'])})" for device in facts["devices"]]
    lines = {
        "pretune": facts["pretune"],
        "python": facts["python"],
        **{name: version or "not installed" for name, version in facts["packages"].items()},
        "platform": facts["platform"],
        "cores": facts["cores"],
        "memory": _gibibytes(facts["memory"]),
        "devices": ", ".join(devices) or "cpu only",
    }
    width = max(map(len, lines))
    for name, value in lines.items():
        print(f"{name:<{width}}  {value}")


def collect() -> dict[str, Any]:
    """The facts, JSON-ready; what cannot be found out is null."""
    return {
        "pretune": __version__,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "cores": _cores(),
        "memory": _memory(),
        "devices": _devices(),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cores() -> int | None:
    """The cores this process may use, which containers and batch systems make fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _memory() -> int | None:
    """The bytes of memory this process may use: the machine's, or the container's where that is less."""
    sizes: list[int] = []
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            sizes.append(int(Path(limit).read_text()))
        except (OSError, ValueError):  # no such controller, or "max"
            continue
    return min(sizes, default=None)


def _devices() -> list[dict[str, Any]]:
    try:
        import torch
    except (ImportError, OSError):  # OSError: a shared library is missing; the versions above still help
        return []
    found: list[dict[str, Any]] = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append({"kind": "cuda", "name": properties.name, "memory": properties.total_memory})
    if torch.backends.mps.is_available():
        found.append({"kind": "mps", "name": "Apple GPU", "memory": torch.mps.recommended_max_memory()})
    return found


def _gibibytes(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**30:.1f} GiB"
