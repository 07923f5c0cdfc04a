import json
import shlex
import sys
from pathlib import Path

import pytest

from pretune.adaptation import METHOD_PRESETS, METHODS
from pretune.cli import main
from pretune.core.hub import INSTALLED_MODELS
from pretune.metrics import METRICS
from pretune.models import catalog
from pretune.models.families import FAMILIES
from pretune.objectives import OBJECTIVES
from pretune.runs.recipes import RECIPES
from pretune.studies import describe_studies
from pretune.tasks import TASKS
from pretune.text.styles import KINDS
from tests.conftest import run_command, run_process
from tests.selection import keep_quick


def test_families_are_one_aligned_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run_command(capsys, ["list", "families"])
    lines = out.splitlines()
    assert err == "next: pretune show bert\n"
    assert [line.split()[0] for line in lines] == FAMILIES.list_names()
    column = max(map(len, FAMILIES)) + 2
    for name, line in zip(FAMILIES, lines, strict=True):
        assert line == f"{name:<{column}}{FAMILIES.describe(name)}"


LISTS = [
    "",
    "recipes",
    "families",
    "sizes",
    "models",
    "objectives",
    "methods",
    "metrics",
    "tasks",
    "tokenizers",
    "studies",
]


@pytest.mark.parametrize("what", keep_quick(LISTS, "", "families", "methods", "tasks"))
def test_after_each_list_there_is_something_to_type(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = [line for line in run_command(capsys, ["list", *what.split()]).err.splitlines() if line.startswith("next: ")]
    assert len(told) == 1 and main(shlex.split(told[0])[2:]) == 0


def test_sizes_have_their_exact_counts(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_command(capsys, ["list", "sizes"]).out.splitlines()
    found = {line.split()[0]: int(line.split()[1].replace(",", "")) for line in lines}
    assert [*found] == catalog.list_names()
    assert len({*map(len, lines)}) == 1  # names to the left, numbers to the right
    for name, count in found.items():
        params = catalog.resolve(name).params()
        assert count in (params.body_with_pooler, params.total), name
    assert found["bert-base"] == 109_482_240
    assert found["roberta-base"] == 124_645_632
    assert found["gpt2-small"] == 124_439_808
    assert found["t5-small"] == 60_506_624
    assert found["bart-base"] == 139_420_416
    assert found["llama2-7b"] == 6_738_415_616


def test_alone_it_gives_all_names_under_headings(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_command(capsys, ["list"]).out.splitlines()
    assert [line for line in lines if line and not line.startswith(" ")] == [
        f"{len(RECIPES)} recipes (pretune list recipes)",
        f"{len(FAMILIES)} families (pretune list families)",
        f"{len(catalog.list_names())} sizes (pretune list sizes)",
        f"{len(INSTALLED_MODELS)} model{'s' * (len(INSTALLED_MODELS) > 1)} (pretune list models)",
        f"{len(OBJECTIVES)} objectives (pretune list objectives)",
        f"{len(METHODS) + len(METHOD_PRESETS)} methods (pretune list methods)",
        f"{len(METRICS)} metrics (pretune list metrics)",
        f"{len(TASKS)} tasks (pretune list tasks)",
        f"{len(KINDS)} tokenizers (pretune list tokenizers)",
        f"{len(describe_studies())} studies (pretune list studies)",
    ]
    assert max(map(len, lines)) <= 80
    words = " ".join(lines).replace(",", "").split()
    assert {*FAMILIES, *catalog.list_names(), *OBJECTIVES, *METHODS, *METHOD_PRESETS, *METRICS, *TASKS} <= {*words}


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run_command(capsys, ["list", "--json"]).out)
    assert [*found] == LISTS[1:]
    assert [*found["families"]] == FAMILIES.list_names()
    assert found["sizes"]["llama2-7b"] == 6_738_415_616
    for name, made in found["objectives"].items():
        assert made["shapes"] in (list(OBJECTIVES.get(name)().shapes), []), name
        assert made["shapes"] or isinstance(OBJECTIVES.get(name).shapes, property), name
    assert json.loads(run_command(capsys, ["list", "sizes", "--json"]).out) == {"sizes": found["sizes"]}


def test_an_unknown_word(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run_command(capsys, ["list", "familys"], code=2)
    assert out == ""
    assert err.startswith("pretune: error: ") and "'familys'" in err and "'families'" in err
    assert "families, sizes, models, objectives, methods, metrics, tasks, tokenizers, studies" in err


def test_objectives_say_what_they_train(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_command(capsys, ["list", "objectives"]).out.splitlines()
    assert [line.split()[0] for line in lines] == OBJECTIVES.list_names()
    for name, line in zip(OBJECTIVES, lines, strict=True):
        assert ", ".join(OBJECTIVES.get(name)().shapes) in line or isinstance(OBJECTIVES.get(name).shapes, property)
        assert line.endswith(OBJECTIVES.describe(name).removesuffix("."))
    (start,) = {
        line.index(OBJECTIVES.describe(name).removesuffix(".")) for name, line in zip(OBJECTIVES, lines, strict=True)
    }
    assert start > max(map(len, OBJECTIVES))


def test_metrics_are_one_aligned_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_command(capsys, ["list", "metrics"]).out.splitlines()
    column = max(map(len, METRICS)) + 2
    for name, line in zip(METRICS, lines, strict=True):
        assert line == f"{name:<{column}}{METRICS.describe(name).removesuffix('.')}"


def test_tasks_say_their_kind_their_metric_and_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cola").mkdir()
    (tmp_path / "cola" / "dev.tsv").touch()
    (tmp_path / "tasks" / "qqp").mkdir(parents=True)
    (tmp_path / "tasks" / "qqp" / "dev_subset.tsv.gz").touch()
    monkeypatch.setenv("PRETUNE_DATA", str(tmp_path))
    lines = run_command(capsys, ["list", "tasks"]).out.splitlines()
    assert [line.split()[0] for line in lines] == TASKS.list_names()
    assert lines[0].split() == ["cola", "classification", "matthews", "dev", "1,043"]
    assert lines[4].endswith("  dev 18,990 (part)")
    others = [line for line in lines[1:4] + lines[5:] if not line.startswith("cloze ")]  # whose data is built in
    assert len(others) == len(lines) - 3 and all(line.endswith("  no data") for line in others)
    assert json.loads(run_command(capsys, ["list", "tasks", "--json"]).out)["tasks"]["cola"]["rows"] == {"dev": 1043}
    monkeypatch.delenv("PRETUNE_DATA")
    assert "$PRETUNE_DATA" in run_command(capsys, ["list", "tasks"]).err


def test_lists_are_printed_without_heavy_imports() -> None:
    code = """
import sys
from pretune.cli import main
for what in ("families", "objectives", "metrics"):
    assert main(["list", what]) == 0
    assert not {"torch", "numpy", "rich"} & {*sys.modules}, what
assert main(["list", "tasks"]) == 0
assert "torch" not in sys.modules
"""
    done = run_process([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr


def test_studies_state_their_source(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_command(capsys, ["list", "studies"]).out
    for name, study in describe_studies().items():
        assert f"{name}: {study['about']}" in out and study["source"] in out
