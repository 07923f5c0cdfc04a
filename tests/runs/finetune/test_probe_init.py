"""A head that begins as a linear probe knows the task before the first step; the body is as it was."""

from pathlib import Path

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.adaptation.adapted import ModelWithHead, adapt
from pretune.adaptation.heads.base import SequenceHead
from pretune.adaptation.heads.sequence import Classification
from pretune.core.errors import UsageError
from pretune.models.hf import checkpoint
from pretune.nn.batch_norm import BatchNorm
from pretune.nn.heads import PoolingConfig
from pretune.runs.finetune.entry import finetune
from pretune.runs.finetune.features import center_dropout, fit_head
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.encoding import Items
from pretune.tasks.predict import compute_logits
from pretune.tasks.user_table import build_user_task

MEAN = PoolingConfig(mode="mean")


def opened(base: Path, table: Path, classes: int = 2, reading: PoolingConfig = MEAN) -> tuple[ModelWithHead, Items]:
    task = build_user_task({"train": str(table)}, text="text", label="label")
    model = adapt(checkpoint.load(base), Classification(classes=classes, pooling=reading, dropout=0.0), seed=0)
    items = TaskEncoder.from_task(task, model).encode([*task.read("train")], training=True)
    return model, items


def right(model: ModelWithHead, items: Items, precision: torch.dtype | None = None) -> float:
    said = compute_logits(model, items, per_token=False, tokens=4096, precision=precision).argmax(1)
    return float(np.mean(said == items.sequences.labels))


def test_the_head_knows_the_task_and_the_body_is_as_it_was(base: Path, table: Path) -> None:
    model, items = opened(base, table)
    before = {name: value.clone() for name, value in model.model.state_dict().items()}
    assert right(model, items) < 0.7
    fit_head(model, items, seed=0)
    assert right(model, items) > 0.9
    assert all(torch.equal(value, before[name]) for name, value in model.model.state_dict().items())


def test_classes_without_examples_keep_their_weights(base: Path, table: Path) -> None:
    model, items = opened(base, table, classes=4)
    before = model.get_parameter("head.out.weight").detach().clone()
    fit_head(model, items, seed=0)
    after = model.get_parameter("head.out.weight").detach()
    assert torch.equal(after[2:], before[2:]) and not torch.equal(after[:2], before[:2])


@pytest.mark.parametrize(
    "reading",
    [
        PoolingConfig(mode="mean", layer="own"),
        PoolingConfig(mode="last", bias=False),
        PoolingConfig(mode="mean", norm=BatchNorm()),
    ],
)
def test_a_head_with_a_layer_of_its_own_or_a_norm_or_without_a_bias_is_refused(
    base: Path, table: Path, reading: PoolingConfig
) -> None:
    model, items = opened(base, table, reading=reading)
    with pytest.raises(UsageError, match=r"tune\.head .*tune\.pooling="):
        fit_head(model, items, seed=0)


@pytest.mark.filterwarnings("ignore::UserWarning")  # a CPU without bf16 says so
@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_states_that_hardly_differ_are_told_apart(base: Path, table: Path, precision: torch.dtype | None) -> None:
    """All states have a large part in common, as those of a model that was trained for a minute have."""
    model, items = opened(base, table)
    alike, width = model.model, model.model.spec.width
    inner = alike.states
    shift = 20.0 + torch.arange(width) % 7
    alike.states = lambda batch: inner(batch) * 0.05 + shift  # type: ignore[method-assign]
    mean = fit_head(model, items, seed=0, precision=precision)
    assert right(model, items, precision) > 0.9
    assert mean is not None and np.abs(mean - shift.numpy()).max() < 1


def test_dropout_puts_the_mean_in_the_place_of_what_it_drops(base: Path, table: Path) -> None:
    model, items = opened(base, table)
    head = model.head
    assert isinstance(head, SequenceHead)
    head.dropout.p = 1.0
    mean = fit_head(model, items, seed=0)
    center_dropout(model.train(), mean)
    assert mean is not None
    batch = pt.batch([[1, 2, 3], [4, 5]])
    said = head(torch.randn(len(batch.tokens), len(mean)), batch)
    wanted = head.out(torch.from_numpy(mean))
    assert torch.allclose(said, wanted.expand_as(said), atol=1e-5)
    assert "head.center" not in model.state_dict()


def test_a_run_begins_there(base: Path, table: Path, tmp_path: Path) -> None:
    """One step at a rate of next to nothing: what is right was right before."""
    wish = {"tune.pooling": {"mode": "mean"}, "train.seed": 1}
    scores = {
        head: finetune(
            base,
            out=tmp_path / head,
            train=table,
            lr=1e-9,
            steps=1,
            baselines="none",
            overrides={**wish, "tune.head": head},
        ).score
        for head in ("random", "probe")
    }
    assert scores["probe"] is not None and scores["random"] is not None
    assert scores["probe"] > 0.8 and scores["probe"] > scores["random"] + 0.2
