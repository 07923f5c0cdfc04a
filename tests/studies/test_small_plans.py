"""The plans of the scale gpu with tiny budgets on a CPU: every row, measure and claim from corpus to verdict."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pretune.studies.compare import run_plan
from pretune.studies.options import CompareOptions
from pretune.studies.planner import plan_study
from pretune.studies.read import load_study
from pretune.studies.spec import AverageScore, Budget, NamedScale, RateFactors, Row, Setting, Settings, Study
from tests.docs.claims_page import read_claims

STUDIES = sorted({"scaling", *(name for claim in read_claims() for name in claim.get("decided_by", {}))})
TEXT = "$PRETUNE_DATA/corpora/wikinews-en/valid.txt.xz"
LIMITS: dict[str, Any] = {
    "width": 64, "depth": 2, "heads": 2, "kv_heads": 2, "hidden": 128, "table": 64, "tokens": 4096, "vocab": 600,
    "batch_tokens": 1024, "eval_tokens": 2048, "sample_bytes": 500_000, "max_length": 64, "flops": 1e9, "epochs": 1,
    "train_examples": 64, "steps": 2, "max_eval_examples": 24, "limit": 8, "eval_every": 1, "eval_examples": 24,
}  # fmt: skip
"""The most that a setting may be, by the last part of its path."""
DIVISORS = {"width": 4, "tokens": 10_000}
"""What some settings are divided by, so that rows of several sizes still differ."""
ADDED = {
    "pretrain.train.samples_every": 0, "pretrain.train.eval_tokens": 2048, "finetune.steps": 2, "embeddings.steps": 2,
    "finetune.train_examples": 64, "finetune.task.max_eval_examples": 24, "finetune.tune.head": "random",
    "evaluate.limit": 8, "prepare.holdout": "10%",
}  # fmt: skip


def shrink(setting: Setting) -> list[Setting]:
    """Return a setting with a small value."""
    path, value, name = setting.path, setting.value, setting.path.rpartition(".")[2]
    if path == "pretrain.seconds":
        return [Setting(path="pretrain.tokens", value=4096)]
    if path == "prepare.valid":
        return []
    if path.endswith("corpus"):
        names = (TEXT if "multi30k" not in text and not text.startswith("builtin:") else text for text in value)
        return [Setting(path=path, value=[*dict.fromkeys(names)])]
    if name in LIMITS and isinstance(value, int | float):
        return [Setting(path=path, value=min(value // DIVISORS.get(name, 1), LIMITS[name]))]
    return [setting]


def shrink_all(settings: Settings) -> Settings:
    return tuple(small for setting in settings for small in shrink(setting))


def shrink_rows(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    return tuple(replace(row, settings=shrink_all(row.settings)) for row in rows)


def shrink_study(study: Study) -> Study:
    """Return a study whose scale gpu takes seconds; its rows, measures and claims stay."""
    scale = study.get_scale("gpu")
    budget = scale.budget or study.budget
    added = tuple(Setting(path=path, value=value) for path, value in ADDED.items())
    scale = replace(
        scale,
        budget=Budget(flops=1e9) if budget.flops else Budget(tokens=8192),
        rates=RateFactors(),
        settings=(*added, *shrink_all(scale.settings)),
        row_settings=shrink_rows(scale.row_settings),
        measure_settings=shrink_rows(scale.measure_settings),
    )
    return replace(
        study,
        settings=shrink_all(study.settings),
        rows=shrink_rows(study.rows),
        bases=shrink_rows(study.bases),
        grid=tuple(replace(factor, levels=shrink_rows(factor.levels)) for factor in study.grid),
        measures=tuple(replace(measure, settings=shrink_all(measure.settings)) for measure in study.measures),
        scales=(NamedScale(name="gpu", scale=scale),),
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_a_plan_of_the_scale_gpu_runs(name: str, tmp_path: Path, shared_data: Path) -> None:
    study = shrink_study(load_study(name))
    plan = plan_study(study, "gpu", device="cpu", data=shared_data, seeds=1)
    assert not plan.missing
    out = CompareOptions(study=name, scale="gpu", out=tmp_path / "out", device="cpu", data=shared_data)
    results = run_plan(plan, replace(out, jobs=1)).results
    measured_on_a_gpu = {"memory"}
    assert not results["failures"] and (results.get("law") is None) == (study.law is None)
    assert all({*cell["measures"]} <= measured_on_a_gpu for cell in results["missing"])
    cells = {(cell.row, name) for cell in plan.cells for name in cell.readings if name not in measured_on_a_gpu}
    assert cells <= {(row, measure) for row, values in results["table"].items() for measure in values}
    averages = [measure.name for measure in plan.measures if isinstance(measure.quantity, AverageScore)]
    for claim in (claim for claim in results["claims"] if claim["measure"] in averages):
        assert claim["outcome"] in ("undecided", "not measured") and claim.get("seeds", 1) == 1
