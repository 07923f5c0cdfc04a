"""Trials one after another: what one of them held is free when the next begins."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from pretune.runs.finetune.entry import finetune
from pretune.runs.finetune.trial import FinetuneTrial


@pytest.mark.slow
def test_a_trial_is_gone_when_the_next_begins(
    base: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, seen, alive = FinetuneTrial.__init__, list[Any](), list[int]()

    def begun(self: FinetuneTrial, *given: Any, **options: Any) -> None:
        gc.collect()
        alive.append(sum(model() is not None for model in seen))
        begin(self, *given, **options)
        seen.append(weakref.ref(self.model))

    monkeypatch.setattr(FinetuneTrial, "__init__", begun)
    finetune(base, out=tmp_path / "run", train=table, steps=2, seeds=3, baselines="none")
    assert alive == [0, 0, 0]
