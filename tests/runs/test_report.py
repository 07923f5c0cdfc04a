"""A report on real runs: what training writes is what the page reads."""

from pathlib import Path

import pytest

from pretune.reports.page import report
from pretune.runs.finetune.entry import finetune
from pretune.runs.pretrain import pretrain
from tests.runs import tasked
from tests.runs.small import FAST, Prepared, shrunk


@pytest.mark.slow
def test_pre_training_and_fine_tuning(prepared: Prepared, tmp_path: Path) -> None:
    changes = {**shrunk("bert-tiny"), **FAST, "data.length_schedule": None, "train.samples_every": 2}
    base = pretrain("bert-tiny", data=prepared(), out=tmp_path / "base", objective="masked", steps=4, overrides=changes)
    table = tasked.classes(tmp_path / "own.csv")
    fine = finetune(
        base, train=table, out=tmp_path / "fine", steps=4, train_examples=(40, None), baselines="majority,svm"
    )
    page = report([base, fine], tmp_path / "report.html").read_text()
    counts = [page.count(part) for part in ("<svg", 'class="interval"', "<table", 'class="sample"')]
    assert counts == [4, 3, 9, 3]  # nothing is missing: charts, intervals, tables, samples
    for value in ("step 2", "accuracy", "svm", "stories", "pretune finetune --config"):
        assert value in page, value
    card = (fine.path / "README.md").read_text()  # from the same rows
    result = f"{fine.score:.4f}"
    assert result in page and result in card
