"""The spec tree: what it counts, and which trees are no models."""

from dataclasses import replace
from typing import Any

import pytest

from pretune.core import config
from pretune.core.errors import UsageError
from pretune.models.catalog import resolve
from pretune.models.model import build_empty
from pretune.models.spec import Model
from pretune.nn.heads import PairHead
from pretune.nn.layers import LayerNorm
from pretune.nn.positions import LearnedEmbedding
from tests.contracts.tiny import CASES

BERT, GPT, T5, SHARED = (CASES[name] for name in ("bert-base", "gpt2-small", "t5-base", "t5-table-enc-dec-shared"))


def numel(spec: Model) -> int:
    return sum(parameter.numel() for parameter in build_empty(spec).parameters())


@pytest.mark.parametrize(
    ("spec", "changes", "words"),
    [
        (BERT, {"encoder": None}, "encoder"),
        (BERT, {"pooler": None}, "pooler"),
        (GPT, {"pair": PairHead()}, "pooler"),
        (T5, {"shared": True, "decoder.depth": 3}, "depth"),
        (BERT, {"shared": True}, "shared"),
        (BERT, {"encoder.blocks.0.cross": {"heads": 4}}, "cross"),
        (GPT, {"decoder.blocks.0.cross": {"heads": 4}}, "cross"),
        (T5, {"decoder.blocks.0.cross": None}, "cross"),
        (T5, {"encoder.blocks.0.cross": {"heads": 4}}, "cross"),
        (T5, {"encoder": None}, "cross"),
        (T5, {"encoder.blocks.0.attention.head_width": None, "width": 30}, r"heads 4\b.*width 30\b"),
        (T5, {"decoder.blocks.0.cross.head_width": None, "width": 30}, r"heads 4\b.*width 30\b"),
        (GPT, {"decoder.embed.factor": {"width": 10}}, "transform"),  # the head would read 32 of 10 columns
        (GPT, {"decoder.embed.factor": {"width": 10}, "head.tied": False}, "transform"),
        # Two halves, one table and one set of weights: what must agree
        (T5, {"encoder.embed.factor": {"width": 10}}, "table"),
        (SHARED, {"decoder.blocks.0.feedforward.hidden": 20}, "shared"),
        (SHARED, {"decoder.blocks.0.attention.heads": 2}, "shared"),
        (SHARED, {"decoder.blocks.0.attention.dropout": 0.4}, "shared"),
        (SHARED, {"encoder.share": 1}, "shared"),
    ],
    ids=lambda part: ",".join(part) if isinstance(part, dict) else getattr(part, "family", None),
)
def test_no_model(spec: Model, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as error:
        config.replace(spec, changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        (BERT, {"encoder.share": 1}),
        (BERT, {"encoder.embed.factor": {"width": 10}}),
        (BERT, {"head": None}),
        (BERT, {"pair": None, "pooler": None}),
        (GPT, {"head.tied": False, "head.bias": "learned"}),
        (GPT, {"head.tied": False, "head.bias": "fixed"}),
        (T5, {"decoder.depth": 4, "encoder.norm": None}),
        (T5, {"encoder.share": 1, "decoder.share": 2}),
        (SHARED, {"encoder.share": 1, "decoder.share": 1}),
        (SHARED, {"head.tied": False}),
        (SHARED, {"encoder.blocks.0.norms.post": LayerNorm(), "decoder.blocks.0.norms.post": LayerNorm()}),
    ],
    ids=lambda part: ",".join(part) if isinstance(part, dict) else getattr(part, "family", None),
)
def test_counts_are_right_whatever_is_changed(spec: Model, changes: dict[str, Any]) -> None:
    changed = config.replace(spec, changes)
    assert changed.params().total == numel(changed) != spec.params().total


def test_sharing_saves_what_it_shares() -> None:
    """The halves' blocks once; tables of positions, cross attention and final norms twice."""
    apart = config.replace(SHARED, {"shared": False})
    block = apart.encoder.blocks[0].params(width=apart.width)
    assert apart.params().total - SHARED.params().total == 2 * block


def test_longest() -> None:
    """The shorter of two halves; none where positions set no limit."""
    assert CASES["bert-base"].max_length == CASES["roberta-base"].max_length == 24
    bart = CASES["bart-base"]
    assert replace(bart, encoder=replace(bart.encoder, position=LearnedEmbedding(rows=12, offset=2))).max_length == 10
    assert CASES["llama-7b"].max_length is None and CASES["made-shared-layers"].max_length is None


def test_shapes() -> None:
    assert (BERT.is_encoder_decoder, GPT.is_encoder_decoder, T5.is_encoder_decoder) == (False, False, True)
    assert BERT.last_stack is BERT.encoder and GPT.last_stack is GPT.decoder and T5.last_stack is T5.decoder
    assert config.replace(T5, {"decoder.depth": 5}).depth == 5
    assert CASES["opt-350m"].table == 12 and CASES["opt-125m"].table == 32


def test_equal_values_are_equal_models() -> None:
    """Specs are values: they compare, hash and print by what they hold."""
    assert resolve("bert") == resolve("bert-base") and hash(resolve("bert")) == hash(resolve("bert-base"))
    assert resolve("bert") != resolve("bert", {"dropout": 0.2})
    assert eval(repr(BERT), _names()) == BERT


def _names() -> dict[str, Any]:
    import pretune.models.spec as init
    import pretune.models.spec as spec
    import pretune.nn.attention as attention
    import pretune.nn.block as block
    import pretune.nn.heads as heads
    import pretune.nn.layers as embeddings
    import pretune.nn.layers as feedforward
    import pretune.nn.layers as norm
    import pretune.nn.positions as positions
    import pretune.nn.stack as stack

    modules = (init, spec, attention, block, embeddings, feedforward, heads, norm, positions, stack)
    return {name: value for module in modules for name, value in vars(module).items()}
