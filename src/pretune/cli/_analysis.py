"""Output of analyses: tables on the terminal, JSON and pictures in files."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.cli._output import check_new_file, check_new_folder, find_free_path, hint, print_page
from pretune.core import log
from pretune.core.errors import UsageError
from pretune.core.hub import is_hub
from pretune.core.io import atomic_write, translate_write_errors
from pretune.core.run_dir import RunDir

if TYPE_CHECKING:
    from pretune.core.api import Result

SUFFIXES = (".svg", ".png", ".json")
Facts = Mapping[str, Any]


def check_out(out: Path | None) -> None:
    """Raise where the file or directory of an analysis cannot be written."""
    if out is None:
        return
    if out.suffix in SUFFIXES:
        check_new_file(out)
    elif out.suffix and not out.is_dir():
        raise UsageError(f"--out '{out}': use a directory, or a file that ends in {', '.join(SUFFIXES)}")
    else:
        check_new_folder(out)


def finish(
    result: "Result",
    out: Path | None,
    as_json: bool,
    command: Sequence[object],
    run: str | None = None,
    note: str | None = None,
) -> None:
    """Print a result, write its files, and suggest the next command: the analysis with its picture, then the report.

    `command` is the analysis as it was typed, without `--out`; `run` is the directory whose report shows it.
    """
    from pretune.reports.analysis import describe_analysis

    facts = result.to_dict()
    name = facts["kind"]
    paths = write_files(result, facts, name, out)
    if as_json:
        log.print_json({**facts, "files": [str(path) for path in paths]} if paths else facts)
        return
    analysis = describe_analysis(facts)
    files = " ".join(str(path) for path in paths) or "no files (see --out)"
    print_page(analysis.title, note or analysis.note, analysis.sections, files)
    folder = _find_analyses(run)
    if folder is not None and ((folder / f"{name}.json").is_file() or (out or Path()).resolve() == folder.resolve()):
        hint("report", str(run), "--out", find_free_path("report.html"))
    elif out is None and "-" not in command:
        is_new = folder is not None and not folder.exists()
        place = folder if is_new else find_free_path(f"{name}.svg" if folder is None else folder / f"{name}.json")
        hint("analyze", *command, "--out", place)
    else:
        hint("analyze", "--help")


def _find_analyses(run: str | None) -> Path | None:
    """Return the directory of analyses of a run, which its report shows; None for other models."""
    is_run = run is not None and not is_hub(run) and RunDir(Path(run)).settings.is_file()
    return RunDir(Path(str(run))).analysis if is_run else None


def write_files(result: Any, facts: Facts, name: str, out: Path | None) -> list[Path]:
    """Write the picture or the data to a file, or both to a directory; return the paths."""
    if out is None:
        return []
    if out.suffix in SUFFIXES:
        return [_write(result, facts, out)]
    with translate_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    return [_write(result, facts, out / f"{name}{suffix}") for suffix in (".json", ".svg")]


def _write(result: Any, facts: Facts, path: Path) -> Path:
    if path.suffix == ".json":
        atomic_write(path, (json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
        return path
    drawn_path: Path = result.draw(path)
    return drawn_path
