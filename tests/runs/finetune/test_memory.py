"""Trials one after another: what one of them held is free when the next begins."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from pretune.runs.finetune import sweep
from pretune.runs.finetune.entry import finetune
from pretune.runs.finetune.trial import FinetuneTrial
from tests.conftest import Patch


@pytest.mark.slow
def test_a_trial_is_gone_when_the_next_begins(base: Path, table: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    seen, alive = list[Any](), list[int]()

    def prepared(*given: Any) -> FinetuneTrial:
        gc.collect()
        alive.append(sum(model() is not None for model in seen))
        trial = FinetuneTrial(*given)
        seen.append(weakref.ref(trial.model))
        return trial

    monkeypatch.setattr(sweep, "FinetuneTrial", prepared)
    finetune(base, out=tmp_path / "run", train=table, steps=2, seeds=3, baselines="none")
    assert alive == [0, 0, 0]
