"""Analyses in the report of a run: every kind is shown, text is escaped, and damaged files are one line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pretune.analysis.attention_patterns import CLASSES, MEASURED_PATTERNS
from pretune.core.errors import DataError
from pretune.reports.analysis import KINDS, load_analyses
from pretune.reports.page import report
from tests.reports.report_files import pretrained, write

EVIL = "<script>alert(1)</script>"
SHARES = {name: 1 / len(CLASSES) for name in CLASSES}
HEADS = [
    {"part": part, "layer": layer, "head": head, "class": CLASSES[(layer + head) % 8], "entropy": 0.5}
    | dict.fromkeys(MEASURED_PATTERNS, 0.1)
    for part in ("encoder", "cross")
    for layer in (1, 2)
    for head in (1, 2, 3)
]
CHANGE = {"distance": 0.02, "cosine": 0.99, "params": 10}
LAYERS = [{"layer": EVIL, **CHANGE, "kinds": {"attention": CHANGE, "norms": {**CHANGE, "distance": None}}}]
LOSS = {"loss": 5.5, "perplexity": 244.7}
FILES: dict[str, dict[str, Any]] = {
    "attention": {"source": EVIL, "texts": 3, "tokens": 40, "thresholds": {"pattern": 0.3, "broad": 0.8},
                  "shares": {"encoder": SHARES, "cross": SHARES}, "heads": HEADS},
    "attention-text": {"title": "layer 1", "tokens": [EVIL, "b"], "keys": ["a", "b"],
                       "weights": [[0.9, 0.1], [0.0, 1.0]]},
    "layers": {"seeds": 1, "tasks": [
        {"task": "pos", "source": EVIL, "train": 10, "test": 5, "majority": 0.3,
         "layers": [{"layer": n, "accuracy": 0.8, "control": 0.3, "selectivity": 0.5} for n in range(3)],
         "mix": {"weights": [0.2, 0.5, 0.3], "accuracy": 0.9}},
        {"task": "length", "source": "", "train": 10, "test": 5, "majority": 0.3,
         "layers": [{"layer": 0, "accuracy": 0.8, "control": 0.3, "selectivity": 0.5}], "mix": None}]},
    "embeddings": {"method": "pca", "axes": [EVIL, "b"], "texts": 4, "neighbor_agreement": 0.75,
                   "chance_agreement": 0.5, "points": [{"x": n, "y": -n, "label": EVIL} for n in range(4)]},
    "forgetting": {"before": EVIL, "after": "b", **CHANGE, "layers": LAYERS, "objective": "masked", "data": "data",
                   "loss": {"before": LOSS, "after": LOSS, "difference": 0.0}},
    "diff": {"before": "a", "after": "b", **CHANGE, "layers": LAYERS},
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = pretrained(tmp_path / "run")
    for kind, facts in FILES.items():
        write(folder / "analysis" / f"{kind}.json", {"kind": kind, **facts})
    return folder


@pytest.mark.slow
def test_every_analysis_is_shown(run: Path, tmp_path: Path) -> None:
    assert {*FILES} == {*KINDS}
    page = report([run], tmp_path / "a.html").read_text()
    section = page[page.index('id="analysis"') :]
    titles = ("attention heads", "attention: layer 1", "probes of every layer", "map of 4 texts", "weights moved by 2.")
    for words in (*titles, "cross: layers x heads", "pre-training loss 5.5000 before"):
        assert words in section, words
    assert page.count("<svg") - page[: page.index('id="analysis"')].count("<svg") == len(KINDS)  # each has its picture
    assert EVIL not in page and "&lt;script&gt;" in section
    letters = re.findall(r">([A-Z])</td>", section)
    assert len(letters) >= len(HEADS)
    assert "url(#" not in section or re.search(r'id="p[0-9a-f]+"', section)


@pytest.mark.slow
def test_a_run_without_analyses_has_no_section(tmp_path: Path) -> None:
    assert 'id="analysis"' not in report([pretrained(tmp_path / "run")], tmp_path / "a.html").read_text()


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("attention", {"heads": [{**HEADS[0], "class": "good"}]}),
        ("attention", {"heads": []}),
        ("attention", {"shares": 1}),
        ("attention-text", {"weights": [[0.5]]}),
        ("layers", {"tasks": [{**FILES["layers"]["tasks"][0], "mix": {"weights": [1.0], "accuracy": 1.0}}]}),
        ("embeddings", {"axes": ["a"]}),
        ("diff", {"layers": [{"layer": "a"}]}),
        ("diff", {"kind": "layers"}),
    ],
)
def test_damaged_files_are_named(kind: str, changes: dict[str, Any], run: Path) -> None:
    file = run / "analysis" / f"{kind}.json"
    file.write_text(json.dumps({"kind": kind, **FILES[kind], **changes}))
    with pytest.raises(DataError, match=re.escape(str(file))) as caught:
        load_analyses(run)
    assert "\n" not in str(caught.value)
