"""Penalties of AWD-LSTM's output, held against the formulas of the paper on one text at a time."""

import pytest
import torch

import pretune as pt
from pretune.models.catalog import resolve
from pretune.models.model import build
from pretune.objectives.causal import CausalLM

TEXTS = [[5, 6, 7, 8], [9, 4], [3, 3, 5]]
SMALL = {"width": 6, "hidden": 9, "depth": 2, "vocab": 12}


@pytest.mark.parametrize("name", ["ulmfit", "gpt2-small"])
def test_penalties_are_means_over_tokens_and_units(name: str) -> None:
    spec = resolve(name, SMALL if name == "ulmfit" else {"width": 8, "heads": 2, "depth": 1, "vocab": 12})
    model = build(spec).eval()
    labels = [[*text[1:], -100] for text in TEXTS]
    batch = pt.batch(TEXTS, row=7, labels=labels)
    objective = CausalLM(activation_penalty=2.0, temporal_penalty=3.0)
    loss, plain = objective.loss(model, batch), CausalLM().loss(model, batch)
    states = batch.split(model.states(batch))
    expected = 2.0 * torch.cat(states).pow(2).mean()
    expected = expected + 3.0 * torch.cat([s[1:] - s[:-1] for s in states]).pow(2).mean()
    torch.testing.assert_close(loss.mean(), plain.mean() + expected)
    assert {name: int(part.count) for name, part in loss.parts.items()} == {
        name: int(count) for name, count in objective.counts(batch).items()
    }
    assert objective.to_evaluation() == CausalLM()


def test_activations_count_after_dropout_and_differences_before_it() -> None:
    model = build(resolve("ulmfit", {**SMALL, "output_dropout": 0.5, "hidden_dropout": 0.0, "weight_dropout": 0.0,
                                     "input_dropout": 0.0, "token_dropout": 0.0}))  # fmt: skip
    batch = pt.batch(TEXTS, row=7, labels=[[*text[1:], -100] for text in TEXTS])
    objective, expected = CausalLM(activation_penalty=1.0, temporal_penalty=1.0), model.eval().states(batch)
    torch.manual_seed(0)
    states, output = model.train().compute_output(batch)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(states, torch.where(states == 0, 0.0, 2 * output))
    assert 0.1 < (states[batch.sequence >= 0] == 0).float().mean() < 0.9
    torch.manual_seed(0)
    parts = objective.loss(model, batch).parts
    torch.testing.assert_close(parts["activation"].sum, states.pow(2).mean(1).sum())
    torch.testing.assert_close(
        parts["temporal"].sum, sum((s[1:] - s[:-1]).pow(2).mean(1).sum() for s in batch.split(output))
    )
