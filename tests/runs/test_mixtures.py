"""Mixtures in runs: rows as full as both sides allow, and a run that goes on reads what it would have read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretune.core.errors import CheckpointError
from pretune.data.stream import BatchStream
from pretune.objectives.base import ModelShape
from pretune.objectives.masked import MaskedLM
from pretune.objectives.mixture import Mixture, Part
from pretune.objectives.prefix import PrefixLM
from pretune.objectives.span_corruption import SpanCorruption
from pretune.objectives.supervised import SupervisedSeq2seq
from pretune.runs.config import DataConfig
from pretune.runs.samples import SampleHook
from pretune.runs.training_data import TrainingData
from tests.runs.small import FAST, Prepared, make, shrunk
from tests.runs.test_runs import run, same
from tests.selection import keep_quick

T5 = Mixture(parts=(Part(objective=SpanCorruption()), Part(objective=SupervisedSeq2seq())))
SMALL = {**shrunk("t5-small"), **FAST, "train.batch_tokens": 1024, "train.checkpoint_every": 3}


def stream(data: Path, objective: Any, shape: ModelShape, samples: Any = "documents", **options: Any) -> BatchStream:
    source = TrainingData.open(DataConfig(path=str(data), max_length=64, samples=samples), objective, shape)
    return source.build_stream(
        "train", **{"length": 64, "tokens": 8192, "ranks": 1, "seed": 0, "has_fixed_slots": False, **options}
    )


def filled(made: BatchStream) -> list[float]:
    """The shares of real tokens on each side, in all batches but the last."""
    batches = [made[step] for step in list(made.get_steps(0))[:-1]]
    sides = [batches, [batch.source for batch in batches if batch.source is not None]]
    return [float(np.mean([(batch.sequence >= 0).float().mean() for batch in side])) for side in sides if side]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough stories, and pairs of them, for packing to be told from chance."""
    return make(tmp_path_factory.mktemp("many"), "unigram", "sentinels", count=900, what="both")


@pytest.mark.parametrize("samples", keep_quick(["documents", "blocks"], "documents"))
@pytest.mark.parametrize(
    ("objective", "shape"),
    [
        pytest.param(Mixture().keep_document_parts(), "encoder-decoder", marks=pytest.mark.slow),
        (Mixture().keep_document_parts(), "decoder"),
        pytest.param(Mixture(), "encoder-decoder", marks=pytest.mark.slow),
        (T5, "encoder-decoder"),
        pytest.param(PrefixLM(), "encoder-decoder", marks=pytest.mark.slow),
        pytest.param(SpanCorruption(), "encoder-decoder", marks=pytest.mark.slow),
    ],
    ids=["ul2", "ul2-decoder", "ul2-and-pairs", "t5", "prefix", "spans"],
)
def test_rows_are_full_on_both_sides(objective: Any, shape: ModelShape, samples: str, many: Path) -> None:
    made = stream(many, objective, shape, samples)
    assert min(filled(made)) > 0.88, made.shape
    if shape == "encoder-decoder":
        tokens = made.shape.rows * (made.shape.length + made.shape.source)
        assert made.shape.rows % 4 == 0 and 0.87 * 8192 < tokens < 1.13 * 8192
        assert stream(many, objective, shape, samples, seed=7).shape.length == made.shape.length, "whatever the seed"


def test_a_batch_smaller_than_eight_rows(many: Path) -> None:
    made = stream(many, Mixture(), "encoder-decoder", tokens=600)
    assert 1 <= made.shape.rows < 8 and made[0].targets is not None


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_that_goes_on(workers: int, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in its second epoch, it reads on as if it had not been: the same weights to the bit."""
    changes = {**SMALL, "train.workers": workers}
    whole = {"name": "t5-small", "objective": "mixture", "steps": 10}
    data = prepared("unigram", "sentinels")
    run(data, tmp_path / "a", **whole, overrides=SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(SampleHook, "__call__", lambda self, loop, reports: 1 / (loop.state.step - 8))
        with pytest.raises(ZeroDivisionError):
            run(data, tmp_path / "b", **whole, overrides=changes)
    run(None, tmp_path / "b", None, resume=True)
    assert same(tmp_path / "a", tmp_path / "b")


def test_a_run_of_another_plan_is_refused(prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was begun before plans knew what is drawn has read other samples; others go on as ever."""
    whole = {"name": "t5-small", "objective": "mixture", "steps": 6, "overrides": SMALL}
    with monkeypatch.context() as patch:
        patch.setattr(BatchStream, "packing_method", None)
        patch.setattr(SampleHook, "__call__", lambda self, loop, reports: 1 / (loop.state.step - 4))
        with pytest.raises(ZeroDivisionError):
            run(prepared("unigram", "sentinels"), tmp_path / "r", **whole)
    with pytest.raises(CheckpointError, match="plan"):
        run(None, tmp_path / "r", None, resume=True)
    plain = TrainingData.open(DataConfig(path=str(prepared()), max_length=32), MaskedLM(), "encoder")
    assert (
        plain.build_stream("train", length=32, tokens=512, ranks=1, seed=0, has_fixed_slots=False).packing_method
        is None
    )
