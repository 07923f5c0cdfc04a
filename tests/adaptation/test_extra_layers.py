"""New blocks on top of a model: what it had stays as it was, and the result is saved like any other."""

from pathlib import Path

import pytest
import torch

import pretune as pt
from pretune.adaptation.freeze import LastOnly, freeze
from pretune.adaptation.surgery import add_blocks
from pretune.core.errors import UsageError
from pretune.runs.finetune.entry import finetune
from tests.contracts.tiny import CASES, RECURRENT, lay, model_of, text
from tests.runs import tasked

SHARED = [name for name, spec in CASES.items() if spec.shared or spec.last_stack.share is not None]


def test_recurrent_models_have_no_blocks_to_add() -> None:
    with pytest.raises(UsageError, match="a recurrent model cannot be extended"):
        add_blocks(model_of(RECURRENT[0]), 1)


@pytest.mark.parametrize("case", [name for name in CASES if name not in (*SHARED, *RECURRENT)])
@torch.no_grad()
def test_below_the_new_blocks_nothing_is_new(case: str) -> None:
    model = model_of(case)
    depth, batch = model.spec.last_stack.depth, lay(model.spec, text(5, 3))
    taller_model = add_blocks(model, 2, seed=1).eval()
    assert taller_model.spec.last_stack.depth == depth + 2 and taller_model.spec.depth >= model.spec.depth
    assert set(model.state_dict()) < set(taller_model.state_dict())
    old_layers, new_layers = model(batch, hidden=True).hidden, taller_model(batch, hidden=True).hidden
    assert len(new_layers) == depth + 3
    for old, new in zip(
        old_layers[:depth], new_layers[:depth], strict=True
    ):  # the last may be the one after the final norm
        torch.testing.assert_close(new, old)
    new_blocks = set(taller_model.state_dict()) - set(model.state_dict())
    assert {name.split(".")[1] for name in new_blocks} == {str(depth), str(depth + 1)}
    assert set(freeze(taller_model, LastOnly(layers=2))) >= {
        name for name, _ in taller_model.named_parameters() if name in new_blocks
    }


def test_what_has_no_room() -> None:
    assert SHARED
    for case in SHARED:
        with pytest.raises(UsageError):
            add_blocks(model_of(case), 1)
    with pytest.raises(UsageError, match=r"\b0\b"):
        add_blocks(model_of("bert-base"), 0)


@pytest.mark.slow
def test_a_run_with_blocks_on_top(tmp_path: Path) -> None:
    """It learns what there is to learn, its body is the base's, and it is read again with its new blocks."""
    base, table = tasked.make_base(tmp_path), tasked.classes(tmp_path / "own.csv")
    quick = {"train.eval_examples": 20, "data.max_length": 32}
    run = finetune(
        base,
        train=table,
        out=tmp_path / "run",
        method="extra-layers",
        steps=60,
        lr=1e-2,
        baselines="none",
        overrides=quick,
    )
    assert run.score is not None and run.score > 0.9
    base_model, run_model = pt.load(base), pt.load(run).model
    assert (base_model.spec.depth, run_model.spec.depth) == (2, 4)
    old, new = base_model.encoder.state_dict(), run_model.encoder.state_dict()
    assert all(torch.equal(tensor, new[name]) for name, tensor in old.items())
    with pytest.raises(UsageError, match=r"base\.extra_layers 1\b.*'lora'"):
        finetune(base, train=table, out=tmp_path / "no", method="lora", overrides={"base.extra_layers": 1})
    with pytest.raises(UsageError, match="'lora'"):
        finetune(base, train=table, out=tmp_path / "no", method="lora+from-scratch")
    with pytest.raises(UsageError, match=r"base\.extra_layers .*-1\b"):
        finetune(base, train=table, out=tmp_path / "no", overrides={"base.extra_layers": -1})
