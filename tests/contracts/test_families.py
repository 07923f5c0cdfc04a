"""The laws that every family keeps, by being listed."""

import copy
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pretune as pt
from pretune.core import config
from pretune.core.errors import UsageError
from pretune.models.catalog import list_names, parse_name, resolve
from pretune.models.families import FAMILIES
from pretune.models.model import LanguageModel, build, build_empty
from pretune.models.spec import Model
from pretune.nn.recurrent_stack import Recurrent
from pretune.nn.two_stream import TwoStream
from tests.contracts import laws
from tests.contracts.tiny import (
    CASES,
    DECODERS,
    ENCODERS,
    PAIRS,
    RECURRENT,
    ROOM,
    lay,
    model_of,
    particular,
    rough,
    text,
)
from tests.selection import keep_quick

every = pytest.mark.parametrize("name", CASES)
attentive = pytest.mark.parametrize("name", [name for name in CASES if name not in RECURRENT])
decoders = pytest.mark.parametrize("name", DECODERS)
recurrent = pytest.mark.parametrize("name", RECURRENT)
WRITERS = [*DECODERS, *PAIRS]
PREFIX_DECODERS = [name for name in DECODERS if name not in RECURRENT]
writers = pytest.mark.parametrize("name", WRITERS)


def some_batch(spec: Model, **more: Any) -> pt.Batch:
    return lay(spec, text(6, 3, 8, 1, 5), row=11, **more)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device nothing is drawn, but torch takes its time over it."""
    for kind in (nn.Linear, nn.Embedding):
        monkeypatch.setattr(kind, "reset_parameters", lambda self: None)


def test_every_family_has_a_case() -> None:
    """And what is particular about a size is kept when it is shrunk."""
    assert {name.partition("-")[0] for name in CASES if not name.startswith("made")} == {
        family.partition("-")[0] for family in FAMILIES
    }
    assert particular("t5-table") == ["enc-dec", "enc-dec-shared", "enc-dec-half", "lm", "prefix-lm"]
    assert particular("opt") == ["125m", "350m"]
    assert {"70b"} < set(particular("llama2")) and {"1b"} < set(particular("llama3"))
    spec = CASES["mistral-7b"]
    assert spec.decoder is not None
    attention = spec.decoder.blocks[0].attention
    assert (attention.window, attention.heads, attention.kv_heads) == (3, 4, 2)
    assert all(spec.params().total < 60_000 for spec in CASES.values())


# What is seen, and by whom


LAWS: dict[Callable[[LanguageModel], None], Iterable[str]] = {
    laws.no_future_leak: WRITERS,
    laws.both_sides_are_seen: ENCODERS,
    laws.prefix_is_open: PREFIX_DECODERS,
    laws.sequences_are_apart: CASES,
    laws.sources_are_apart: PAIRS,
    laws.packed_is_alone: CASES,
    laws.rows_are_nothing: CASES,
    laws.cache_keeps_the_prefix: PREFIX_DECODERS,
}
"""The models that keep each law."""


@pytest.mark.parametrize(("law", "name"), [(law, name) for law, names in LAWS.items() for name in names])
def test_a_model_keeps_the_law(law: Callable[[LanguageModel], None], name: str) -> None:
    law(model_of(name))


@recurrent
def test_recurrent_models_refuse_masks_and_weights(name: str) -> None:
    """They read from left to right without attention: no open prefix, no attention weights, no attention kernels."""
    model = copy.copy(model_of(name))
    with pytest.raises(UsageError, match="reads from left to right"):
        laws.prefix_is_open(model)
    with pytest.raises(UsageError, match="no attention weights"):
        model(some_batch(model.spec), attention=True)
    model.attention_backend = "rows"
    with pytest.raises(UsageError, match="'rows' does not support recurrent layers"):
        model(some_batch(model.spec))
    model.attention_backend = "eager"
    laws.packed_is_alone(model)


# The cache


@writers
@pytest.mark.parametrize(
    "prompts",
    [
        {"prompts": (6, 1, 4), "row": 8},  # ragged, several in a row, filler
        {"prompts": (6, 1, 4), "row": 8, "spare": 9},  # room to spare
        {"prompts": (4, 4, 4)},  # each fills its row
        {"prompts": (1, 1)},  # only the start token, as a writer begins
    ],
    ids=["ragged", "spare", "whole", "start"],
)
def test_cache_is_no_cache(name: str, prompts: dict[str, Any]) -> None:
    laws.cache_is_no_cache(model_of(name), **prompts)


@decoders
def test_cache_from_nothing(name: str) -> None:
    laws.cache_is_no_cache(model_of(name), (0, 0, 0), steps=7)
    laws.cache_is_no_cache(model_of(name), (0, 0), steps=ROOM)


# Counting, writing down, reading back


DEFAULTS = [f"{family}-{FAMILIES.get(family).default}" for family in FAMILIES]


@pytest.mark.parametrize("name", keep_quick(list_names(), *DEFAULTS))
def test_params(name: str, undrawn: None) -> None:
    """What a spec counts is what it builds, and what was published."""
    family, size = parse_name(name)
    published = FAMILIES.get(family).sizes[size]
    spec = resolve(name)
    count_parts(build_empty(spec))
    assert getattr(spec.params(), published.counted_params) == published.params


@every
def test_params_of_the_tiny(name: str) -> None:
    count_parts(model_of(name))


def count_parts(model: LanguageModel) -> None:
    params = model.spec.params()
    assert numel(model) == params.total
    assert numel(model.tokens, model.encoder, model.decoder) == params.body
    assert numel(model.tokens, model.encoder, model.decoder, model.pooler) == params.body_with_pooler


def numel(*modules: nn.Module | None) -> int:
    """Parameters of some modules, each counted once."""
    return sum(p.numel() for p in {id(p): p for module in modules if module for p in module.parameters()}.values())


@pytest.mark.parametrize("name", keep_quick([*list_names(), *CASES], *DEFAULTS))
def test_json_round_trip(name: str) -> None:
    spec = CASES[name] if name.startswith("made") else resolve(name)
    again = config.from_dict(Model, json.loads(json.dumps(config.to_dict(spec))))
    assert again == spec and type(again.init) is type(spec.init)


@every
@torch.no_grad()
def test_save_and_load(name: str, tmp_path: Path) -> None:
    """The same spec and, to the bit, the same logits."""
    model, batch = model_of(name), some_batch(CASES[name])
    pt.save(model, tmp_path / "model")
    again = pt.load(tmp_path / "model")
    assert again.spec == model.spec
    assert not again.training
    assert torch.equal(again(batch).logits, model(batch).logits)
    assert {n for n, _ in again.named_parameters()} == {n for n, _ in model.named_parameters()}


@every
def test_seeds(name: str) -> None:
    """One seed, one model; another seed, another."""
    spec = CASES[name]
    first, again, other = (dict(build(spec, seed=seed).named_parameters()) for seed in (5, 5, 6))
    assert all(torch.equal(first[path], again[path]) for path in first)
    drawn = [path for path in first if first[path].dim() > 1]
    assert drawn and not any(torch.equal(first[path], other[path]) for path in drawn)


# Training


def without_dropout(spec: Model) -> Model:
    return config.replace(spec, dict.fromkeys(dropouts(spec), 0.0))


def dropouts(spec: Model) -> list[str]:
    return [path for path in config.list_paths(spec) if path.endswith("dropout")]


@every
def test_gradients_reach_every_parameter(name: str) -> None:
    spec = without_dropout(CASES[name])
    model = rough(build(spec)).train()
    sequences = text(6, 3, 8, 1, 5)
    segments = None
    if spec.encoder is not None and not spec.is_encoder_decoder and spec.encoder.embed.segments:
        segments = [[i % spec.encoder.embed.segments for i in range(len(s))] for s in sequences]
    if languages := spec.stacks[0].embed.languages:
        segments = [[i % languages for i in range(len(s))] for s in sequences]
    if isinstance(spec.encoder, TwoStream):
        segments = [[i % 2 for i in range(len(s))] for s in sequences]
    batch = lay(spec, sequences, row=11, labels=[s[::-1] for s in sequences], **given(segments))
    if isinstance(spec.encoder, TwoStream):  # its second stream runs where there is an order, here from left to right
        batch = replace(batch, order=batch.positions)
    if spec.shape == "two-way":  # each direction predicts
        sum(model.loss(states, batch).sum for states in model.compute_directional_states(batch)).backward()
    else:
        F.cross_entropy(model(batch).logits, batch.targets.labels, reduction="sum").backward()
    apart = tuple(part for part in ("pooler.", "pair.", "detector.", "span.") if getattr(spec, part[:-1]) is not None)
    for path, parameter in model.named_parameters():
        if path.startswith(apart):
            assert parameter.grad is None, path
            continue
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), path
        if not path.endswith(
            (".k.bias", ".k_norm.bias")
        ):  # it adds the same to every score of a query: no gradient, but for rounding
            assert parameter.grad.abs().max() > 1e-6, path
        if parameter.dim() == 2 and "position" not in path and "tokens" not in path and "head.weight" not in path:
            assert (parameter.grad.abs().amax(1) > 0).float().mean() > 0.5, path
    table = next((stack.position for stack in (model.encoder, model.decoder) if stack is not None), None)
    if isinstance(getattr(table, "table", None), nn.Embedding) and hasattr(table, "offset"):
        used = table.table.weight.grad.abs().amax(1) > 0
        longest = int(max((batch if spec.encoder is None else batch.source or batch).positions)) + 1
        assert used.nonzero().flatten().tolist() == list(range(table.offset, table.offset + longest))


def given(segments: Any) -> dict[str, Any]:
    return {} if segments is None else {"segments": segments}


def one_of_each_wiring() -> list[str]:
    """A case for every set of places where something is dropped."""
    return list({(*dropouts(spec), spec.shared): name for name, spec in reversed(CASES.items())}.values())


@pytest.mark.parametrize(
    "name", keep_quick(one_of_each_wiring(), "t5-base", "bert-base", "ulmfit-original", "xlnet-base", "modernbert-base")
)
def test_every_dropout_is_wired(name: str, undrawn: None) -> None:
    """Each rate alone changes what a model in training says, and none does in evaluation."""
    spec, plain = CASES[name], model_of(name)
    batch = some_batch(spec)
    with torch.no_grad():
        expected = plain(batch).logits
        for path in dropouts(spec):
            rates = dict.fromkeys([path, *twins(spec, path)], 0.5)
            model = alike(plain, config.replace(without_dropout(spec), rates))
            torch.manual_seed(0)
            assert (model.train()(batch).logits - expected).abs().max() > laws.SEEN, path
            laws.equal(model.eval()(batch).logits, expected, laws.SAME)
        laws.equal(alike(plain, without_dropout(spec)).train()(batch).logits, expected, laws.SAME)


def twins(spec: Model, path: str) -> list[str]:
    """Where two halves share their weights, the same place in the other half."""
    side, _, rest = path.partition(".")
    other = f"{'decoder' if side == 'encoder' else 'encoder'}.{rest}"
    return [other] if spec.shared and other in config.list_paths(spec) else []


def alike(model: LanguageModel, spec: Model) -> LanguageModel:
    """A model of another spec with the same weights."""
    other = build_empty(spec)
    other.load_state_dict(model.state_dict(), assign=True)
    return other


@every
def test_loss_is_the_sum_at_the_targets(name: str) -> None:
    """Without running the head where there is no target; parts of a batch add up."""
    model, sequences = model_of(name), text(6, 3, 8, 1, 5)
    labels = [[token if i % 3 == 0 else -100 for i, token in enumerate(reversed(s))] for s in sequences]
    batch = lay(model.spec, sequences, row=11, labels=labels)
    with torch.no_grad():
        states = model.states(batch)
        laws.equal(states, model(batch).states, laws.SAME)
        loss = model.loss(states, batch)
        expected = F.cross_entropy(model(batch).logits.double(), batch.targets.labels, reduction="sum")
        laws.equal(loss.sum.double(), expected, 1e-4)
        assert loss.count == sum(label != -100 for row in labels for label in row)
        spare = replace(batch.targets, labels=torch.where(torch.arange(len(batch.targets.labels)) < 2, -100, 3))
        assert model.loss(states, replace(batch, targets=spare)).count == loss.count - 2


# Numbers


@every
@torch.no_grad()
def test_double(name: str) -> None:
    model = model_of(name)
    double = copy.deepcopy(model).double()
    batch = some_batch(model.spec)
    out = double(batch).logits
    assert out.dtype == torch.float64
    scale = float(out.abs().max().clamp(min=1))
    laws.equal(model(batch).logits.double(), out, laws.CLOSE * scale)
    if model.spec.decoder is not None:
        laws.cache_is_no_cache(double, (3, 1))


@every
@torch.no_grad()
@pytest.mark.filterwarnings("ignore::UserWarning")  # this processor has no bfloat16 of its own
def test_half(name: str) -> None:
    """In bfloat16 weights, and in bfloat16 autocast: no mixture of types, and about the same numbers."""
    model = model_of(name)
    batch = some_batch(model.spec, labels=text(6, 3, 8, 1, 5))
    expected = model(batch).logits
    half = copy.deepcopy(model).bfloat16()
    near(half(batch).logits, expected)
    if name not in RECURRENT:
        near(half(batch, attention=True).logits, expected)
    with torch.autocast("cpu", torch.bfloat16):
        near(model(batch).logits, expected)
    if model.spec.decoder is not None:
        expected = after_three(model)
        near(after_three(half), expected)
        with torch.autocast("cpu", torch.bfloat16):
            near(after_three(model), expected)


def near(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == torch.bfloat16 and torch.isfinite(found).all()
    assert (found.float() - expected).norm() < 0.1 * expected.norm()


def after_three(model: LanguageModel) -> Tensor:
    cache = model.new_cache(2, 8, source=9 if model.spec.is_encoder_decoder else 0)
    model(lay(model.spec, text(3, 2)), cache=cache)
    model.step(torch.tensor([4, 5]), cache)
    return model.step(torch.tensor([6, 7]), cache)


# What is asked for


@every
@torch.no_grad()
def test_targets_only(name: str) -> None:
    """Logits at the labelled rows are those of the full pass."""
    model, sequences = model_of(name), text(6, 3, 8, 1, 5)
    labels = [[token if i % 2 else -100 for i, token in enumerate(s)] for s in sequences]
    full, batch = lay(model.spec, sequences, row=11), lay(model.spec, sequences, row=11, labels=labels)
    out = model(batch)
    assert out.logits.shape == (sum(len(s) // 2 for s in sequences), model.spec.vocab)
    laws.equal(out.logits, model(full).logits[batch.targets.index], laws.SAME)
    states, expected = out.states, model(full).states
    if model.mask_decoder is not None:  # at the targets, states are those of the decoder
        keep = torch.ones(len(states), dtype=torch.bool).index_fill(0, batch.targets.index, False)
        states, expected = states[keep], expected[keep]
    laws.equal(states, expected, laws.SAME)


@every
@torch.no_grad()
def test_hidden(name: str) -> None:
    """The input of every layer and the states after the final norm, each the start of the next."""
    model, batch = model_of(name), some_batch(CASES[name])
    plain, out = model(batch), model(batch, hidden=True)
    assert plain.hidden is None
    for stack, found in ((model.encoder, out.source if model.spec.is_encoder_decoder else out), (model.decoder, out)):
        if stack is None or found is None:
            continue
        assert len(found.hidden) == stack.spec.depth + 1
        assert torch.equal(found.hidden[-1], found.states)
        widths = [model.spec.width] * len(found.hidden)
        if isinstance(stack.spec, Recurrent):  # its layers may have widths of their own
            widths = stack.spec.list_widths(width=model.spec.width)
        assert [h.shape for h in found.hidden] == [(len(found.states), width) for width in widths]
        assert not any(torch.equal(a, b) for a, b in zip(found.hidden, found.hidden[1:], strict=False))
    laws.equal(out.logits, plain.logits, laws.SAME)


@attentive
@torch.no_grad()
def test_attention(name: str) -> None:
    """Asking for weights changes no logits; they sum to one over the keys that may be seen, and are 0 elsewhere."""
    model, batch = model_of(name), some_batch(CASES[name])
    spec, plain, out = model.spec, model(batch), model(batch, attention=True)
    laws.equal(out.logits, plain.logits)
    assert plain.attention is None and plain.cross is None
    lengths = [end - start for start, end in batch.list_spans()]
    if spec.is_encoder_decoder:
        read = [end - start for start, end in batch.source.list_spans()]
        check_weights(out.source.attention, spec.encoder, read, read)
        check_weights(out.attention, spec.decoder, lengths, lengths)
        check_weights(out.cross, spec.decoder, lengths, read, cross=True)
    else:
        check_weights(out.attention, spec.last_stack, lengths, lengths)
        assert out.cross is None


def check_weights(found: Any, stack: Any, lengths: list[int], read: list[int], *, cross: bool = False) -> None:
    blocks = [stack.layers[i] for i in stack.layer_indices]
    assert len(found) == stack.depth
    for block, layer in zip(blocks, found, strict=True):
        attention = block.cross if cross else block.attention
        for weights, n, m in zip(layer, lengths, read, strict=True):
            assert weights.shape == (attention.heads, n, m)
            laws.equal(weights.sum(-1), torch.ones(attention.heads, n))
            if not cross:
                distance = torch.arange(m) - torch.arange(n)[:, None]
                hidden = (distance > 0) & stack.causal
                hidden |= distance.abs() >= (attention.window or m)
                assert (weights[:, hidden] == 0).all() and (weights[:, ~hidden] > 0).all()
