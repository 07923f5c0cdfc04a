"""The plots of docs/claims.md are those of the published results, and small."""

from pathlib import Path
from typing import Any
from xml.dom import minidom

import pytest

from pretune.core.config import to_dict
from pretune.studies.read import load_study
from tests.docs import claims_plots
from tests.docs.claims_page import SCALE
from tests.docs.claims_plots import PLOTS, PREFIX, describe_plots, list_plots, render_plots
from tests.docs.study_pages import FOLDER, read_results

MAX_BYTES = 60_000


def test_plots_are_current() -> None:
    results = read_results()
    plots = list_plots(results)
    assert {*FOLDER.glob(f"{PREFIX}*.svg")} == {*plots} and render_plots(results) == {}, "run `make docs`"
    assert all(path.stat().st_size < MAX_BYTES for path in plots)


def make_facts(name: str) -> dict[str, Any]:
    """Return results of today's plan of the scale, with made-up numbers."""
    study = load_study(name)
    scale = study.get_scale(SCALE)
    budget = to_dict(scale.budget or study.budget)
    rows = [row.name for row in study.list_rows(scale)]
    measures = [{"name": m.name, "curve": m.curve, "x": m.x, "x_label": m.x_label} for m in study.list_measures(scale)]
    table = {
        row: {
            measure["name"]: {"mean": 0.5 + i + j / 7, "low": 0.4 + i, "high": 0.6 + i + j}
            for j, measure in enumerate(measures)
        }
        for i, row in enumerate(rows)
    }
    seed = study.first_seed if scale.first_seed is None else scale.first_seed
    return {
        "study": {"name": name}, "budget": {key: value for key, value in budget.items() if value is not None},
        "seeds": [seed], "rows": rows, "measures": measures, "table": table, "law": make_law(rows),
    }  # fmt: skip


def make_law(rows: list[str]) -> dict[str, Any]:
    names = ("floor", "size", "size_power", "tokens", "tokens_power")
    points = [
        {"row": row, "is_check": i == 0, "parameters": 1e6 * (1 + i % 3), "tokens": 1e7 * (1 + i), "loss": 3.0}
        for i, row in enumerate(rows)
    ]
    return {"loss": "loss", "coefficients": {name: [0.5, 0.4, 0.6] for name in names}, "points": points}


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_appears_with_its_results(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_plots, "FOLDER", tmp_path)
    plot, facts = PLOTS[name], make_facts(PLOTS[name].study)
    results = {plot.study: {SCALE: facts}}
    assert {*plot.measures} <= {value for m in facts["measures"] for value in (m["name"], m["curve"])}
    ((path, text),) = render_plots(results).items()
    path.write_text(text)
    root = minidom.parseString(text).documentElement
    assert root is not None and root.tagName == "svg" and len(text) < MAX_BYTES
    assert path.name in describe_plots(results) and render_plots(results) == {}
    names = {node.firstChild.data for node in root.getElementsByTagName("text") if node.firstChild}
    sizes = {"1M parameters, check", "2M parameters", "3M parameters"}
    assert any(labels <= names for labels in ({*facts["rows"]}, {*plot.measures} - {"parameters"} or sizes))
    facts["law"]["points"][0]["loss"] += 1  # other numbers are drawn anew
    for cell in (cell for cells in facts["table"].values() for cell in cells.values()):
        cell["mean"] += 1
    assert render_plots(results).keys() == {path}
    facts["seeds"] = [-1]  # of a former plan
    assert render_plots(results) == {} and describe_plots(results) == ""
