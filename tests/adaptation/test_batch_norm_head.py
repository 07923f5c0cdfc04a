"""Heads with batch normalization: ULMFiT's classifier written out, what is stored of it, and refused configs."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pretune as pt
from pretune.adaptation.adapted import ModelWithHead, adapt
from pretune.adaptation.heads.sequence import Choice, Classification
from pretune.core import config
from pretune.core.errors import UsageError
from pretune.models.families import FAMILIES
from pretune.models.model import build
from pretune.nn.batch_norm import BatchNorm
from pretune.nn.heads import PoolingConfig, Transform, get_running_statistics
from tests.contracts.tiny import text, tiny

LENGTHS = (6, 3, 8, 2, 5)
LABELS = torch.tensor([0, 2, 1, 1, 0])


def make_batch(*numbers: int) -> pt.Batch:
    """Sequences in rows of 14 tokens, with filler and spare cells; by default all."""
    tokens = text(*LENGTHS)
    return pt.batch([tokens[number] for number in numbers or range(len(LENGTHS))], row=14)


def make_classifier() -> ModelWithHead:
    """ULMFiT's, without dropout in the head."""
    model = adapt(build(tiny("ulmfit")), Classification(classes=3))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def train(model: ModelWithHead, steps: int = 3) -> None:
    """A few steps, after which the running statistics are those of the data."""
    batch, optimizer = make_batch(), torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model.train()(batch), LABELS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def test_equals_the_classifier_of_the_paper_written_out() -> None:
    """Last state, maximum and mean; norm, linear, relu; norm, linear. As in fastai's `PoolingLinearClassifier`."""
    model = make_classifier()
    model.model.eval()  # without dropout
    width = 3 * model.model.spec.width
    norms, layers = (nn.BatchNorm1d(width), nn.BatchNorm1d(50)), (nn.Linear(width, 50), nn.Linear(50, 3))
    reference = nn.Sequential(norms[0], layers[0], nn.ReLU(), norms[1], layers[1])
    names = {"0": "input_norm", "1": "dense", "3": "hidden_norm", "4": "out"}
    state = model.head.state_dict()
    expected = {name: f"{names[name.partition('.')[0]]}.{name.partition('.')[2]}" for name in reference.state_dict()}
    expected = {name: ours for name, ours in expected.items() if "num_batches" not in name}
    assert sorted(expected.values()) == sorted(state)
    reference.load_state_dict({name: state[ours] for name, ours in expected.items()}, strict=False)
    batch = make_batch()
    states = batch.split(model.states(batch).detach())
    pooled = torch.stack([torch.cat((rows[-1], rows.max(0).values, rows.mean(0))) for rows in states])
    logits, correct = model(batch), reference(pooled)
    torch.testing.assert_close(logits, correct, rtol=1e-5, atol=1e-5)
    for out in (logits, correct):
        nn.functional.cross_entropy(out, LABELS).backward()
    gradients = {name: parameter.grad for name, parameter in model.head.named_parameters()}
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(gradients[expected[name]], parameter.grad, rtol=1e-4, atol=1e-5)
    state = model.head.state_dict()
    for name, value in reference.state_dict().items():
        if name in expected:
            torch.testing.assert_close(state[expected[name]], value, rtol=1e-5, atol=1e-6)


def test_the_rates_of_dropout_are_the_paper_s() -> None:
    """0.4 before the first layer, 0.1 before the second; states of the last LSTM have none (Howard and Ruder, 4.1)."""
    head = adapt(build(tiny("ulmfit")), Classification(classes=3)).head
    assert (head.input_dropout.p, head.dropout.p) == (0.4, 0.1)
    family = FAMILIES.get("ulmfit")
    stack = family.tuning.build_spec(family.build_spec()).decoder
    assert [block.dropout for block in stack.blocks] == [0.3, 0.3, 0.0]
    assert (stack.input_dropout, stack.token_dropout, stack.blocks[0].weight_dropout) == (0.4, 0.05, 0.5)
    other = Classification(classes=3, dropout=0.2, pooling=PoolingConfig(layer="own"))
    assert adapt(build(tiny("bert")), other).head.input_dropout.p == 0.2  # that of the head unless it has its own


def test_a_new_head_has_neutral_norms() -> None:
    head = make_classifier().head
    for norm in (head.input_norm, head.hidden_norm):
        values = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
        assert all((getattr(norm, name) == value).all() for name, value in values.items())


def test_trained_statistics_are_saved_and_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    model = make_classifier()
    train(model)
    assert all(not torch.equal(value, value.round()) for value in get_running_statistics(model).values())
    with torch.no_grad():
        together = model(make_batch())
        for number in range(len(LENGTHS)):
            torch.testing.assert_close(model(make_batch(number)), together[number : number + 1], rtol=0, atol=1e-5)
        pt.save(model, tmp_path / "model")
        again = pt.load(tmp_path / "model")
        assert again.spec == model.spec and again.spec.pooling.norm == BatchNorm()
        assert torch.equal(again(make_batch()), together)
        half = pt.load(tmp_path / "model", dtype=torch.bfloat16)
    assert half.head.out.weight.dtype == torch.bfloat16
    for name, value in get_running_statistics(half).items():
        assert torch.equal(value, get_running_statistics(model)[name]) and value.dtype == torch.float32


def test_each_micro_batch_has_its_own_statistics() -> None:
    """The law that gradients of parts add up to those of the batch does not hold here, in training only."""

    def compute_loss(*numbers: int) -> Tensor:
        labels = LABELS[[*numbers]] if numbers else LABELS
        return nn.functional.cross_entropy(model(make_batch(*numbers)), labels, reduction="sum")

    model = make_classifier()
    train(model)
    torch.testing.assert_close(compute_loss(0, 1, 2) + compute_loss(3, 4), compute_loss())
    model.head.train()
    assert abs(compute_loss(0, 1, 2) + compute_loss(3, 4) - compute_loss()) > 1e-2
    assert compute_loss(3).isfinite()  # a last batch with one sequence


def test_without_a_layer_the_norm_is_that_of_the_classifier() -> None:
    pooling = PoolingConfig(mode="mean", norm=BatchNorm(eps=1e-3))
    model = adapt(build(tiny("bert")), Classification(classes=3, dropout=0.0, pooling=pooling))
    batch = make_batch()
    model.model.eval()
    head, states = model.head, batch.split(model.states(batch))
    assert head.hidden_norm is None and head.input_norm.eps == 1e-3
    pooled = torch.stack([rows.mean(0) for rows in states])
    normed = (pooled - pooled.mean(0)) / (pooled.var(0, correction=0) + 1e-3).sqrt()
    torch.testing.assert_close(head(model.states(batch), batch)[batch.mark_sequences()], head.out(normed))


def test_scores_of_choices_are_normalized_too() -> None:
    model = adapt(build(tiny("ulmfit")), Choice())
    assert model.head.input_norm is not None and model(make_batch()).shape == (5, 1)


def test_old_files_and_hashes() -> None:
    """A stored pooling without the fields has no norm; those that do not use it are hashed as before."""
    old = {"kind": "pooling", "mode": "last", "layer": "own", "activation": "relu", "hidden": 50}
    pooling = config.from_dict(PoolingConfig, old, location="pooling")
    assert pooling.norm is None and pooling.input_dropout is None
    plain = config.to_dict(pooling, for_hash=True)
    assert not {"norm", "input_dropout"} & {*plain}
    new = config.from_dict(PoolingConfig, {**old, "norm": {"kind": "batch_norm"}, "input_dropout": 0.4}, location="p")
    assert new.norm == BatchNorm() and config.from_dict(PoolingConfig, config.to_dict(new), location="p") == new


@pytest.mark.parametrize("layer", ["pooler", Transform()])
def test_layers_without_a_norm(layer: object) -> None:
    with pytest.raises(UsageError, match="without a norm"):
        PoolingConfig(layer=layer, norm=BatchNorm())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="input_dropout"):
        PoolingConfig(layer=layer, input_dropout=0.4)  # type: ignore[arg-type]
