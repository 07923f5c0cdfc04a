"""Groups: every trained parameter once, decay for matrices only, parts from the input to the heads."""

import pytest
import torch
from torch import nn

from pretune.core.errors import UsageError
from pretune.models.catalog import resolve
from pretune.models.model import LanguageModel, build
from pretune.training.optim import build_parameter_groups, split_parts

SMALL = {"width": 16, "depth": 3, "heads": 2, "vocab": 31}


def small(name: str, **settings: object) -> LanguageModel:
    return build(resolve(name, {**SMALL, **settings}))


def test_parts_run_from_the_input_to_the_heads() -> None:
    result = split_parts(small("bert-mini"))
    assert list(result) == ["embeddings", "encoder.0", "encoder.1", "encoder.2", "heads"]
    assert result["embeddings"] == [
        "tokens.weight",
        "encoder.embed.segments.weight",
        "encoder.embed.norm.weight",
        "encoder.embed.norm.bias",
        "encoder.position.table.weight",
    ]
    assert all(name.startswith("encoder.1.") for name in result["encoder.1"])
    assert {name.partition(".")[0] for name in result["heads"]} == {"pooler", "pair", "head"}


def test_a_final_norm_goes_with_the_last_block() -> None:
    result = split_parts(small("gpt2-small"))
    assert list(result) == ["embeddings", "decoder.0", "decoder.1", "decoder.2"]  # its head is the token table
    assert result["decoder.2"][-2:] == ["decoder.norm.weight", "decoder.norm.bias"]


def test_both_halves_of_an_encoder_decoder_are_in_one_line() -> None:
    result = split_parts(small("t5-small"))
    assert list(result) == ["embeddings", *(f"encoder.{i}" for i in range(3)), *(f"decoder.{i}" for i in range(3))]
    assert result["encoder.2"][-1] == "encoder.norm.weight"
    assert {"tokens.weight", "encoder.position.table.weight", "decoder.position.table.weight"} == set(
        result["embeddings"]
    )


class Task(nn.Module):
    """A body with a head of another kind, recurrent layers, and numbered layers that are no blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.body = small("bert-mini")
        self.lstm = nn.LSTM(16, 8)
        self.head = nn.Sequential(nn.Linear(8, 8), nn.GroupNorm(2, 8), nn.Linear(8, 2))


def test_a_body_inside_a_task_is_split_the_same_way() -> None:
    result = split_parts(Task())
    assert list(result) == ["embeddings", "body.encoder.0", "body.encoder.1", "body.encoder.2", "lstm", "heads"]
    assert {"head.0.weight", "head.1.weight", "body.pooler.dense.weight"} <= set(result["heads"])


@pytest.mark.parametrize("rates", [True, False])
@pytest.mark.parametrize("name", ["bert-mini", "gpt2-small", "t5-small", "bart-base"])
def test_every_parameter_is_in_one_group(name: str, rates: bool) -> None:
    model = small(name)
    groups = build_parameter_groups(model, lr_factor=(lambda above: 0.9**above) if rates else None)
    held = [parameter for group in groups for parameter in group.parameters]
    assert len(held) == len({id(p) for p in held}) == len(list(model.parameters()))
    names = dict(model.named_parameters())
    for group in groups:
        assert all(names[name] is p for name, p in zip(group.names, group.parameters, strict=True))
        assert all(p.ndim >= 2 for p in group.parameters) == group.has_decay
    repeat = build_parameter_groups(model, lr_factor=(lambda above: 0.9**above) if rates else None)
    assert [(g.part, g.names, g.lr_factor) for g in repeat] == [(g.part, g.names, g.lr_factor) for g in groups]


def test_norms_and_biases_are_exempt_by_kind() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Linear(4, 4)  # a matrix by another name
            self.flat = nn.LayerNorm((2, 4))  # a norm with matrices
            self.table = nn.Embedding(3, 4)

    decayed = {name for group in build_parameter_groups(Odd()) if group.has_decay for name in group.names}
    assert decayed == {"bias.weight", "table.weight"}


def test_hidden_matrices_are_those_of_blocks() -> None:
    model = small("bert-mini")
    result = {name for group in build_parameter_groups(model) if group.is_matrix for name in group.names}
    reference = {
        name for name, p in model.named_parameters() if name.split(".")[1].isdigit() and p.ndim == 2
    }  # encoder.0.attention.q.weight
    assert result == reference and len(result) == 3 * 6


def test_tied_weights_come_once_and_frozen_ones_not_at_all() -> None:
    model = nn.Module()
    model.table, model.out = nn.Embedding(5, 3), nn.Linear(3, 5)
    model.out.weight = model.table.weight
    model.frozen = nn.Linear(3, 3).requires_grad_(False)
    groups = build_parameter_groups(model)
    assert [group.names for group in groups] == [("table.weight",), ("out.bias",)]
    model.requires_grad_(False)
    with pytest.raises(UsageError):
        build_parameter_groups(model)


def test_layers_shared_by_a_model_are_trained_once() -> None:
    blocks = nn.ModuleList([nn.Linear(3, 3)] * 3)
    model = nn.Module()
    model.blocks = blocks
    assert split_parts(model) == {"blocks.0": ["blocks.0.weight", "blocks.0.bias"]}


def test_rates_count_from_the_top_even_where_parts_are_frozen() -> None:
    model = small("bert-mini")
    for parameter in model.encoder[1].parameters():  # type: ignore[index]
        parameter.requires_grad_(False)
    rates = {
        group.part: group.lr_factor for group in build_parameter_groups(model, lr_factor=lambda above: 2.6**-above)
    }
    assert rates == {
        "embeddings": 2.6**-4,
        "encoder.0": 2.6**-3,
        "encoder.2": 2.6**-1,
        "heads": 1.0,
    }


def test_a_splitter_of_ones_own() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    groups = build_parameter_groups(
        model, lr_factor=lambda above: 10.0**-above, split=lambda m: {"low": ["0.weight"], "high": ["1.weight"]}
    )
    assert [(group.part, group.lr_factor) for group in groups] == [("low", 0.1), ("high", 1.0)]
    assert torch.equal(groups[0].parameters[0], model[0].weight)
